//! Values of operations, and the Python objects that they become.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use base::{Attr, Time};
use bytes::Bytes;
use pyo3::{
    IntoPyObjectExt as _,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyDict, PyList, PyTuple},
};
use wire::{ReaddirEntry, Statfs};

use crate::{
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

/// The attributes as `os.stat_result`, with nanoseconds, blocks and birth.
pub(crate) fn stat_result(py: Python<'_>, attr: &Attr) -> PyResult<Py<PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class =
        TYPE.get_or_try_init(py, || py.import("os")?.getattr("stat_result").map(Bound::unbind))?;
    let nanos = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    #[expect(clippy::cast_precision_loss, reason = "as in os.stat; the exact time is beside it")]
    let seconds = |time: Time| time.sec as f64 + f64::from(time.nsec) * 1e-9;
    let fields: [Py<PyAny>; 19] = [
        (attr.kind.mode_bits() | attr.mode).into_py_any(py)?,
        attr.ino.0.into_py_any(py)?,
        0.into_py_any(py)?,
        attr.nlink.into_py_any(py)?,
        attr.uid.into_py_any(py)?,
        attr.gid.into_py_any(py)?,
        attr.size.into_py_any(py)?,
        attr.atime.sec.into_py_any(py)?,
        attr.mtime.sec.into_py_any(py)?,
        attr.ctime.sec.into_py_any(py)?,
        seconds(attr.atime).into_py_any(py)?,
        seconds(attr.mtime).into_py_any(py)?,
        seconds(attr.ctime).into_py_any(py)?,
        nanos(attr.atime).into_py_any(py)?,
        nanos(attr.mtime).into_py_any(py)?,
        nanos(attr.ctime).into_py_any(py)?,
        BLOCK.into_py_any(py)?,
        attr.allocated.div_ceil(512).into_py_any(py)?,
        attr.rdev.into_py_any(py)?,
    ];
    class.call1(py, (PyTuple::new(py, fields)?,))
}

/// The size in which it is best to read and write.
const BLOCK: u32 = 1 << 20;
