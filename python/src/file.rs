//! An open file, as operations by handle have it.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{driver::Driver, errors::bad_handle};

/// An open file. `pando.open` has it as a file object.
#[pyclass(frozen, module = "pando", name = "RawFile")]
pub(crate) struct File {
    file: Mutex<Option<Arc<client::File>>>,
    driver: &'static Driver,
}

impl File {
    pub(crate) fn new(file: client::File, driver: &'static Driver) -> File {
        File { file: Mutex::new(Some(Arc::new(file))), driver }
    }

    /// The open file, for an operation.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<client::File>> {
        let file = if self.driver.is_here() { self.file.lock().clone() } else { None };
        file.ok_or_else(|| bad_handle(py))
    }

    /// The open file, to be closed: nobody gets it any more.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Arc<client::File>> {
        let file = if self.driver.is_here() { self.file.lock().take() } else { None };
        file.ok_or_else(|| bad_handle(py))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(file) = self.file.get_mut().take() else { return };
        if self.driver.is_here() {
            self.driver.drop(file);
        } else {
            // A file of the parent process, whose threads are not here.
            std::mem::forget(file);
        }
    }
}
