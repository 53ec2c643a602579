//! Threads: the caller's does the work, and one of ours while nobody calls.
//!
//! All connections of a session belong to a runtime of one thread at a time. A call drives it
//! itself until its own answer is there, so a program of one thread never switches threads: sending,
//! waiting and receiving happen in the caller, as with the Rust client. When several threads call,
//! one drives and the others wait for it; each takes over when the one before has its answer.
//!
//! Between calls there is work, too: a session's lease is extended, and written data is sent. For
//! that a thread of ours (`pando-idle`) drives the runtime. A call asks it to leave; it comes back
//! when there was no call for [`IDLE_AFTER`]. While a program does nothing, that thread sleeps in
//! the kernel until a message or a timer comes.
//!
//! Each poll of an operation is a turn ([`Turns`]), whichever thread polls.

use std::{
    io,
    mem::ManuallyDrop,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use client::Turns;
use parking_lot::{Condvar, Mutex};
use tokio::{runtime::Runtime, sync::Notify};

use crate::args::{NoPipeSignal, without_signals};

/// Time without a call after which our own thread drives the runtime.
const IDLE_AFTER: Duration = Duration::from_millis(10);

/// The operation took longer than its caller wanted to wait.
pub(crate) struct Late;

/// Runtime of one session.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    idle: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    runtime: ManuallyDrop<Runtime>,
    turns: Turns,
    /// Number of calls under way.
    callers: AtomicUsize,
    /// Number of calls so far.
    calls: AtomicU64,
    /// Connections may be encrypted.
    encrypts: AtomicBool,
    /// The program waits for batches elsewhere than in calls.
    is_watched: AtomicBool,
    /// Our own thread drives, or is about to.
    idle_drives: AtomicBool,
    /// Tells our own thread to leave.
    called: Notify,
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

/// Orders for our own thread.
#[derive(Default)]
struct Wanted {
    end: bool,
    /// There is work for which no call waits.
    work: bool,
}

/// A call under way.
struct Calling<'a> {
    shared: &'a Shared,
    _no_signal: Option<NoPipeSignal>,
}

impl<'a> Calling<'a> {
    fn new(shared: &'a Shared) -> Calling<'a> {
        shared.callers.fetch_add(1, Ordering::SeqCst);
        shared.calls.fetch_add(1, Ordering::Relaxed);
        if shared.idle_drives.load(Ordering::SeqCst) {
            shared.called.notify_one();
        }
        let encrypts = shared.encrypts.load(Ordering::Relaxed);
        let _no_signal = if encrypts { NoPipeSignal::new() } else { None };
        Calling { shared, _no_signal }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let last = self.shared.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.shared.is_watched.load(Ordering::Relaxed) {
            self.shared.drive_now();
        }
    }
}

impl Driver {
    /// A runtime, and the thread that drives it between calls.
    pub(crate) fn start() -> io::Result<Driver> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared {
            runtime: ManuallyDrop::new(runtime),
            turns: Turns::of_threads(),
            callers: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            encrypts: AtomicBool::new(true),
            is_watched: AtomicBool::new(false),
            idle_drives: AtomicBool::new(false),
            called: Notify::new(),
            wanted: Mutex::default(),
            wake: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().name("pando-idle".to_owned());
        let idle = without_signals(|| thread.spawn(move || of_thread.idle()))?;
        Ok(Driver { shared, idle: Mutex::new(Some(idle)) })
    }

    /// The turns of all who poll operations of this session.
    pub(crate) fn turns(&self) -> &Turns {
        &self.shared.turns
    }

    /// Runs an operation to its end in the caller's thread.
    #[inline]
    pub(crate) fn run<F: Future>(&self, operation: F) -> F::Output {
        let _calling = Calling::new(&self.shared);
        // Cost: operations are kilobytes, and stay where they are.
        let operation = pin!(operation);
        self.shared.runtime.block_on(self.shared.turns.in_turn(operation))
    }

    /// Runs an operation as [`Driver::run`] does, but waits for so long at most.
    #[inline]
    pub(crate) fn run_within<F: Future>(
        &self,
        limit: Option<Duration>,
        operation: F,
    ) -> Result<F::Output, Late> {
        let Some(limit) = limit else { return Ok(self.run(operation)) };
        let _calling = Calling::new(&self.shared);
        let mut place = pin!(Some(operation));
        let operation = place.as_mut().as_pin_mut().expect("it was just put there");
        let operation = self.shared.turns.in_turn(operation);
        let ended =
            self.shared.runtime.block_on(async { tokio::time::timeout(limit, operation).await });
        ended.map_err(|_| {
            let _turn = self.shared.turns.take();
            place.set(None);
            Late
        })
    }

    /// Drives until `ready` is, or for so long at most; `ready` is polled outside of turns.
    pub(crate) fn drive(&self, limit: Option<Duration>, ready: impl Future<Output = ()>) {
        let _calling = Calling::new(&self.shared);
        self.shared.runtime.block_on(async {
            match limit {
                // Whether it was in time is for the caller to see.
                Some(limit) => drop(tokio::time::timeout(limit, ready).await),
                None => ready.await,
            }
        });
    }

    /// Starts an operation; calls, and our own thread, take it further.
    pub(crate) fn spawn(&self, operation: impl Future<Output = ()> + Send + 'static) {
        self.shared.runtime.spawn(self.shared.turns.in_turn(operation));
    }

    /// From now on our own thread takes over as soon as no call drives: the program waits elsewhere.
    pub(crate) fn watch(&self) {
        self.shared.is_watched.store(true, Ordering::Relaxed);
        self.shared.drive_now();
    }

    /// No connection of this session is encrypted.
    pub(crate) fn is_in_clear(&self) {
        self.shared.encrypts.store(false, Ordering::Relaxed);
    }

    /// Ends our own thread. Calls can still be made.
    pub(crate) fn end_idle(&self) {
        self.shared.wanted.lock().end = true;
        self.shared.wake.notify_one();
        self.shared.called.notify_one();
        if let Some(idle) = self.idle.lock().take() {
            // The thread does nothing that could panic.
            drop(idle.join());
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end_idle();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `self` is dropped, so nobody uses the field any more.
        let runtime = unsafe { ManuallyDrop::take(&mut self.runtime) };
        // Cost: a look-up of a name may go on for long, and is not waited for.
        runtime.shutdown_background();
    }
}

impl Shared {
    fn drive_now(&self) {
        if !self.idle_drives.load(Ordering::SeqCst) {
            self.wanted.lock().work = true;
            self.wake.notify_one();
        }
    }

    fn idle(&self) {
        loop {
            // Race: a call that comes between the two lines below has seen the first, and notifies.
            self.idle_drives.store(true, Ordering::SeqCst);
            if self.callers.load(Ordering::SeqCst) == 0 && !self.wanted.lock().end {
                self.runtime.block_on(self.called.notified());
            }
            self.idle_drives.store(false, Ordering::SeqCst);
            if !self.wait_for_quiet() {
                return;
            }
        }
    }

    /// Waits until nobody calls any more; `false`: the session is over.
    fn wait_for_quiet(&self) -> bool {
        let mut wanted = self.wanted.lock();
        loop {
            let before = self.calls.load(Ordering::Relaxed);
            if !wanted.end && !wanted.work {
                self.wake.wait_for(&mut wanted, IDLE_AFTER);
            }
            if wanted.end {
                return false;
            }
            let quiet = self.calls.load(Ordering::Relaxed) == before || wanted.work;
            wanted.work = false;
            if quiet && self.callers.load(Ordering::SeqCst) == 0 {
                return true;
            }
        }
    }
}
