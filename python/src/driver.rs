//! The thread on which client futures run: the caller's own while it calls, another one meanwhile.
//!
//! A blocking call drives the runtime on the thread that calls, as a program in Rust does, so a call
//! costs no way between threads. When nobody has called for [`QUIET`], a thread of this module drives
//! it: leases are renewed, and what was written is sent.

use std::{
    pin::Pin,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
    time::Duration,
};

use client::Turns;
use parking_lot::{Condvar, Mutex};
use pyo3::{
    PyResult,
    exceptions::{PyOSError, PyRuntimeError},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Notify,
    time::{Instant, timeout},
};

use crate::calls::Calls;

/// How long nobody has called when the background thread drives.
const QUIET: Duration = Duration::from_millis(5);

/// How long a call waits before it looks for signals.
const TICK: Duration = Duration::from_millis(100);

/// The driver of this process. A child of a fork has the parent's here, whose threads it lacks, and
/// makes one of its own; the parent's is leaked there.
static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(ptr::null_mut());

/// A runtime, and who drives it.
pub(crate) struct Driver {
    runtime: Runtime,
    turns: Turns,
    process: u32,
    state: Mutex<State>,
    changed: Condvar,
    call: Notify,
    calls: Calls,
}

#[derive(Default)]
struct State {
    callers: usize,
    last_call: Option<Instant>,
    /// Tasks that nobody waits for on a thread of his own.
    tasks: usize,
    /// Whether the background thread drives.
    is_driven: bool,
}

impl Driver {
    /// The driver of this process, which lives as long.
    pub(crate) fn get() -> PyResult<&'static Driver> {
        let known = DRIVER.load(Ordering::Acquire);
        if let Some(driver) = as_static(known)
            && driver.process == std::process::id()
        {
            return Ok(driver);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        let new: &'static mut Driver = Box::leak(Box::new(Driver {
            runtime,
            turns: Turns::of_threads(),
            process: std::process::id(),
            state: Mutex::default(),
            changed: Condvar::new(),
            call: Notify::new(),
            calls: Calls::start()?,
        }));
        let raced = DRIVER.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
        if raced.is_err() {
            // Another thread has made one meanwhile; this one never runs.
            return Driver::get();
        }
        let driver = Driver::get()?;
        let thread = std::thread::Builder::new().name("pando".to_owned());
        thread.spawn(|| driver.drive()).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(driver)
    }

    /// Whether this is the driver of this very process, and not of one that forked it.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls of Python that are due.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// How the threads that use a client of this driver take turns.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Drives `future` for a while on this thread; `None`: it is not done.
    ///
    /// # Errors
    /// `RuntimeError` within a task of a runtime, where nothing may wait.
    pub(crate) fn tick<F: Future>(&self, future: Pin<&mut F>) -> PyResult<Option<F::Output>> {
        if Handle::try_current().is_ok() {
            return Err(PyRuntimeError::new_err("called within a task of the client"));
        }
        let _calling = Calling::begin(self);
        Ok(self.runtime.block_on(async { timeout(TICK, future).await.ok() }))
    }

    /// Runs a task that nobody waits for on a thread of his own.
    pub(crate) fn spawn(&'static self, task: impl Future<Output = ()> + Send + 'static) {
        self.state.lock().tasks += 1;
        let ended = Ended(self);
        self.runtime.spawn(async move {
            let _ended = ended;
            task.await;
        });
        self.changed.notify_one();
    }

    /// Drops what may ask the client for something.
    pub(crate) fn drop(&self, what: impl Sized) {
        let _within = self.runtime.enter();
        let _turn = self.turns.take();
        drop(what);
    }

    /// The background thread.
    fn drive(&self) {
        loop {
            {
                let mut state = self.state.lock();
                state.is_driven = false;
                while !state.is_quiet() {
                    self.changed.wait_for(&mut state, QUIET);
                }
                state.is_driven = true;
            }
            self.runtime.block_on(self.call.notified());
        }
    }
}

impl State {
    fn is_quiet(&self) -> bool {
        let called = self.last_call.is_some_and(|last| last.elapsed() < QUIET);
        self.tasks > 0 || (self.callers == 0 && !called)
    }
}

/// A caller drives as long as this is there.
struct Calling<'a>(&'a Driver);

impl Calling<'_> {
    fn begin(driver: &Driver) -> Calling<'_> {
        let mut state = driver.state.lock();
        state.callers += 1;
        if state.is_driven {
            driver.call.notify_one();
        }
        Calling(driver)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.callers -= 1;
        state.last_call = Some(Instant::now());
    }
}

/// A task is over when this is dropped.
struct Ended(&'static Driver);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.state.lock().tasks -= 1;
    }
}

/// Starts a thread that lives as long as the process.
pub(crate) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(work);
    started.map(drop).map_err(|error| PyOSError::new_err(error.to_string()))
}

#[expect(unsafe_code, reason = "a pointer to something leaked lives as long as the process")]
fn as_static(driver: *mut Driver) -> Option<&'static Driver> {
    // SAFETY: the pointer is null, or comes from `Box::leak` and is never freed nor written through.
    unsafe { driver.as_ref() }
}
