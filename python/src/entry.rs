//! One entry of a listing, as `os.DirEntry`.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    sync::Arc,
};

use base::FileKind;
use pyo3::prelude::*;
use wire::ReaddirEntry;

use crate::{attr::stat_result, op::Op, session::Inner};

/// An entry of a directory: its name, kind and number, and its attributes if the listing had them.
#[pyclass(frozen, module = "pando", name = "DirEntry")]
pub(crate) struct DirEntry {
    dir: Arc<PathBuf>,
    entry: ReaddirEntry,
    inner: Arc<Inner>,
}

impl DirEntry {
    pub(crate) fn new(dir: &Arc<PathBuf>, entry: ReaddirEntry, inner: &Arc<Inner>) -> DirEntry {
        DirEntry { dir: Arc::clone(dir), entry, inner: Arc::clone(inner) }
    }

    fn full(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(self.entry.name.as_bytes()))
    }

    fn is(&self, py: Python<'_>, kind: FileKind, follow: bool) -> PyResult<bool> {
        let is_link = self.entry.kind == Some(FileKind::Symlink);
        if let (Some(known), false) = (self.entry.kind, is_link && follow) {
            return Ok(known == kind);
        }
        let stat = Op::Stat { path: self.full(), follow };
        match self.inner.call(py, stat)?.bind(py).getattr("st_mode") {
            Ok(mode) => Ok(FileKind::from_mode(mode.extract()?) == Some(kind)),
            Err(error) => Err(error),
        }
    }

    /// Whether it is of this kind. A link to nothing is none, for `os.DirEntry` too.
    fn is_or_gone(&self, py: Python<'_>, kind: FileKind, follow: bool) -> PyResult<bool> {
        match self.is(py, kind, follow) {
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyFileNotFoundError>(py) => {
                Ok(false)
            }
            answer => answer,
        }
    }
}

#[pymethods]
impl DirEntry {
    #[getter]
    fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.entry.name.as_bytes())
    }

    #[getter]
    fn path(&self) -> OsString {
        self.full().into_os_string()
    }

    fn __fspath__(&self) -> OsString {
        self.full().into_os_string()
    }

    fn __repr__(&self) -> String {
        format!("<DirEntry {:?}>", self.name())
    }

    fn inode(&self) -> u64 {
        self.entry.ino.0
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_or_gone(py, FileKind::Directory, follow_symlinks)
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_or_gone(py, FileKind::File, follow_symlinks)
    }

    fn is_symlink(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_or_gone(py, FileKind::Symlink, false)
    }

    /// Attributes: those of the listing, or asked for where it had none or a link is followed.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<Py<PyAny>> {
        let is_followed = follow_symlinks && self.entry.kind == Some(FileKind::Symlink);
        match &self.entry.entry {
            Some(entry) if !is_followed => stat_result(py, &entry.attr),
            Some(_) | None => {
                self.inner.call(py, Op::Stat { path: self.full(), follow: follow_symlinks })
            }
        }
    }
}
