//! `pando._pando`: the native client for Python. The package's modules in Python call it.

mod attr;
mod calls;
mod driver;
mod entry;
mod errors;
mod file;
mod op;
mod out;
mod session;
mod stats;
mod walk;

#[pyo3::pymodule]
mod _pando {
    #[pymodule_export]
    use crate::{
        calls::end, entry::DirEntry, file::File, session::Session, stats::Stats, walk::Listing,
    };
}
