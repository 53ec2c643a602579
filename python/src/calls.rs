//! Calls of Python for operations that nobody waits for, on a thread of their own.
//!
//! Python runs whatever it likes within a call: finalizers, which may close files and so wait for
//! the client. No thread that drives the client may wait for itself.

use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;
use pyo3::{PyResult, Python, pyfunction};

use crate::driver::thread;

type Call = Box<dyn FnOnce(Python<'_>) + Send>;

/// Whether the interpreter ends; locked while Python is called.
static ENDED: Mutex<bool> = Mutex::new(false);

/// The way to the thread.
pub(crate) struct Calls(Mutex<Sender<Call>>);

impl Calls {
    pub(crate) fn start() -> PyResult<Calls> {
        let (send, due) = mpsc::channel::<Call>();
        thread("pando-calls", move || {
            for call in due {
                let ended = ENDED.lock();
                // An interpreter that ends would end this thread, in the middle of it.
                if *ended || Python::try_attach(call).is_none() {
                    return;
                }
            }
        })?;
        Ok(Calls(Mutex::new(send)))
    }

    /// Has a call done soon.
    pub(crate) fn soon(&self, call: impl FnOnce(Python<'_>) + Send + 'static) {
        // The thread is gone once the interpreter ends.
        let _ = self.0.lock().send(Box::new(call));
    }
}

/// Calls nobody any more: the interpreter ends.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    py.detach(|| *ENDED.lock() = true);
}
