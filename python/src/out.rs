//! Values of operations, and the Python objects that they become.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use base::Attr;
use bytes::Bytes;
use pyo3::{
    IntoPyObjectExt as _,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};
use wire::{ReaddirEntry, Statfs};

use crate::{
    attr::stat_result,
    entry::DirEntry,
    errors::os_error,
    file::File,
    session::Inner,
    walk::{Listing, Page, Pages},
};

/// The value of an operation.
pub(crate) enum Out {
    Nothing,
    Attr(Attr),
    Number(u64),
    Bytes(Bytes),
    Text(Bytes),
    Names(Vec<ReaddirEntry>),
    Page(Option<Page>),
    Xattrs(Vec<(Bytes, Bytes)>),
    Statfs(Statfs),
    Opened(client::File),
    Pages(Pages),
}

impl Out {
    /// The Python object; `inner` is the session that answered.
    pub(crate) fn into_py(self, py: Python<'_>, inner: &Arc<Inner>) -> PyResult<Py<PyAny>> {
        match self {
            Out::Nothing => Ok(py.None()),
            Out::Attr(attr) => stat_result(py, &attr),
            Out::Number(number) => number.into_py_any(py),
            Out::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any().unbind()),
            Out::Text(text) => OsStr::from_bytes(&text).into_py_any(py),
            Out::Names(entries) => {
                let names = entries.iter().map(|entry| OsStr::from_bytes(entry.name.as_bytes()));
                Ok(PyList::new(py, names.collect::<Vec<_>>())?.into_any().unbind())
            }
            Out::Page(None) => Ok(py.None()),
            Out::Page(Some(Page { dir, entries: Ok(entries) })) => {
                let entries = listed(py, &dir, entries, inner)?;
                (dir.into_os_string(), entries).into_py_any(py)
            }
            Out::Page(Some(Page { dir, entries: Err(error) })) => {
                let error = os_error(py, &error, Some(&dir)).into_value(py);
                (dir.into_os_string(), error).into_py_any(py)
            }
            Out::Xattrs(xattrs) => {
                let all = PyDict::new(py);
                for (name, value) in xattrs {
                    all.set_item(OsStr::from_bytes(&name), PyBytes::new(py, &value))?;
                }
                Ok(all.into_any().unbind())
            }
            Out::Statfs(told) => {
                (told.bytes, told.bytes_free, told.files, told.files_free).into_py_any(py)
            }
            Out::Opened(file) => File::new(file, inner.driver).into_py_any(py),
            Out::Pages(pages) => Listing::new(pages, inner.driver).into_py_any(py),
        }
    }
}

fn listed<'py>(
    py: Python<'py>,
    dir: &std::path::Path,
    entries: Vec<ReaddirEntry>,
    inner: &Arc<Inner>,
) -> PyResult<Bound<'py, PyList>> {
    let dir: Arc<PathBuf> = Arc::new(dir.to_owned());
    let entries = entries.into_iter().map(|entry| DirEntry::new(&dir, entry, inner));
    PyList::new(py, entries.collect::<Vec<_>>())
}
