//! Batches: many operations under way at the same time, and their results as they come.
//!
//! A program adds operations, submits them, and waits for completions. Up to a bound they are under
//! way together: a worker for each runs one operation after the other from the batch's queue.
//! Workers are tasks of the session's runtime, so whoever waits for completions drives them, in
//! its own thread.

mod add;
mod op;

use std::{
    collections::VecDeque,
    ffi::c_int,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use crate::{
    args::{self, Out},
    error::{Failed, Result, guard, status},
    fs::{Fs, with},
    table::Table,
    types::{pando_batch, pando_completion, pando_fs},
};
use op::Op;

/// Number of operations under way where the program does not say.
const IN_FLIGHT: u32 = 128;
const IN_FLIGHT_MAX: u32 = 65_536;

static BATCHES: Table<pando_batch, Batch> = Table::new(5);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    BATCHES.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    BATCHES.release();
}

/// Makes the lock anew, in a child.
pub(crate) fn renew() {
    BATCHES.renew();
}

/// A batch.
pub(crate) struct Batch {
    fs: Arc<Fs>,
    in_flight_max: usize,
    state: Mutex<State>,
    /// Some completions are there, or nothing is under way any more.
    news: Notify,
    /// Whether the eventfd is to be written.
    has_fd: AtomicBool,
}

/// Operations after which a worker lets others have a turn.
const OPERATIONS_A_TURN: u32 = 32;

/// How often a look at completions lets everything run that can.
const ROUNDS_OF_A_LOOK: u32 = 4;

#[derive(Default)]
struct State {
    /// Not submitted yet.
    added: Vec<(u64, Op)>,
    queue: VecDeque<(u64, Op)>,
    workers: usize,
    done: VecDeque<pando_completion>,
    /// Number of operations that were submitted and are not in `done`.
    under_way: usize,
    /// Number of completions that somebody waits for.
    wanted: usize,
    fd: Option<OwnedFd>,
    /// The batch was freed: the program may free what operations would write to.
    is_freed: bool,
}

/// An operation under way. Dropped before it has ended, as by a panic, it ends as an error.
struct Running<'a> {
    batch: &'a Batch,
    user_data: u64,
    has_ended: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.batch.state.lock().workers -= 1;
            let result = -i64::from(libc::EIO);
            self.batch.complete(pando_completion { user_data: self.user_data, result });
        }
    }
}

impl Batch {
    fn get(batch: *mut pando_batch) -> Result<Arc<Batch>> {
        if batch.is_null() {
            return Err(Failed::new(libc::EFAULT, "the batch is null"));
        }
        let batch = BATCHES.get(batch).ok_or_else(freed)?;
        batch.fs.check()?;
        Ok(batch)
    }

    /// Adds an operation for the next submit.
    fn add(batch: *mut pando_batch, user_data: u64, op: impl FnOnce(&Fs) -> Result<Op>) -> c_int {
        status(|| {
            let batch = Batch::get(batch)?;
            let op = op(&batch.fs)?;
            let mut state = batch.state.lock();
            if state.is_freed {
                return Err(freed());
            }
            state.added.push((user_data, op));
            Ok(())
        })
    }

    fn submit(self: &Arc<Batch>) -> Result<usize> {
        let mut state = self.state.lock();
        if state.is_freed {
            return Err(freed());
        }
        let submitted = state.added.len();
        let added = std::mem::take(&mut state.added);
        state.queue.extend(added);
        state.under_way += submitted;
        let wanted = state.queue.len().min(self.in_flight_max.saturating_sub(state.workers));
        state.workers += wanted;
        drop(state);
        for _ in 0..wanted {
            let batch = Arc::clone(self);
            self.fs.driver().spawn(async move { batch.work().await });
        }
        Ok(submitted)
    }

    /// Runs one operation after the other.
    async fn work(&self) {
        let mut next = self.next();
        let mut count = 0_u32;
        while let Some((user_data, op)) = next {
            let mut running = Running { batch: self, user_data, has_ended: false };
            let result = op.run(&self.fs).await;
            running.has_ended = true;
            self.complete(pando_completion { user_data, result });
            count = count.wrapping_add(1);
            if count.is_multiple_of(OPERATIONS_A_TURN) {
                // Cost: what caches answer never waits, and others want their turn.
                tokio::task::yield_now().await;
            }
            next = self.next();
        }
    }

    fn next(&self) -> Option<(u64, Op)> {
        let mut state = self.state.lock();
        let next = state.queue.pop_front();
        if next.is_none() {
            state.workers -= 1;
        }
        next
    }

    fn complete(&self, completion: pando_completion) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        state.done.push_back(completion);
        if state.wanted > 0 && (state.done.len() >= state.wanted || state.under_way == 0) {
            self.news.notify_waiters();
            state.wanted = 0;
        }
        if self.has_fd.load(Ordering::Relaxed)
            && state.done.len() == 1
            && let Some(fd) = &state.fd
        {
            // A counter that is full is readable all the same.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Takes what is there, if that is enough to return it.
    fn take(&self, max: usize, min: usize) -> Option<Vec<pando_completion>> {
        let mut state = self.state.lock();
        if state.done.len() < min && state.under_way > 0 {
            state.wanted = if state.wanted == 0 { min } else { state.wanted.min(min) };
            return None;
        }
        Some(Batch::take_all(&mut state, max))
    }

    fn take_all(state: &mut State, max: usize) -> Vec<pando_completion> {
        let count = state.done.len().min(max);
        let taken = state.done.drain(..count).collect();
        if state.done.is_empty()
            && let Some(fd) = &state.fd
        {
            // An event that was read already is fine.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        taken
    }

    fn wait(&self, max: usize, min: usize, limit: Option<Duration>) -> Vec<pando_completion> {
        let min = min.clamp(1, max);
        if let Some(taken) = self.take(max, min) {
            return taken;
        }
        if limit == Some(Duration::ZERO) {
            // A program that does nothing but look takes operations further by that.
            if !self.has_fd.load(Ordering::Relaxed) {
                self.fs.driver().drive(None, async {
                    for _ in 0..ROUNDS_OF_A_LOOK {
                        tokio::task::yield_now().await;
                    }
                });
            }
        } else {
            let mut found = None;
            self.fs.driver().drive(limit, async {
                loop {
                    let mut news = std::pin::pin!(self.news.notified());
                    // Race: what comes between the look and the wait is told.
                    news.as_mut().enable();
                    found = self.take(max, min);
                    if found.is_some() {
                        return;
                    }
                    news.await;
                }
            });
            if let Some(taken) = found {
                return taken;
            }
        }
        Batch::take_all(&mut self.state.lock(), max)
    }
}

fn freed() -> Failed {
    Failed::new(libc::EBADF, "this is no batch, or it was freed")
}

/// Makes a batch and puts it to `batch`. At most `in_flight` operations are under way at once; 0
/// stands for 128. Threads may share a batch; each completion goes to one of them.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_new(
    fs: *mut pando_fs,
    in_flight: u32,
    batch: *mut *mut pando_batch,
) -> c_int {
    with(fs, |fs| {
        let place = Out::new(batch)?;
        place.put(std::ptr::null_mut());
        if in_flight > IN_FLIGHT_MAX {
            return Err(Failed::invalid("that many operations cannot be under way"));
        }
        let in_flight = if in_flight == 0 { IN_FLIGHT } else { in_flight };
        let handle = BATCHES.insert(Arc::new(Batch {
            fs: Arc::clone(fs),
            in_flight_max: in_flight as usize,
            state: Mutex::default(),
            news: Notify::new(),
            has_fd: AtomicBool::new(false),
        }));
        place.put(handle.ok_or_else(|| Failed::new(libc::EMFILE, "too many batches"))?);
        Ok(())
    })
}

/// Starts everything that was added since the last submit; returns how many operations. Does not
/// wait: operations go on while a thread waits for completions or is in any other call of the
/// session, and otherwise in a thread of the library.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_submit(batch: *mut pando_batch) -> i64 {
    guard(|| {
        let batch = Batch::get(batch)?;
        Ok(args::count(batch.submit()?))
    })
}

/// Puts up to `max` completions, in the order in which operations ended, to `completions`; returns
/// how many. Waits until there are `min` (at least 1) or nothing is under way any more: then 0 means
/// that all are done. Waits for `timeout_ms` milliseconds at most; a negative number is forever, and
/// 0 does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_wait(
    batch: *mut pando_batch,
    completions: *mut pando_completion,
    max: usize,
    min: usize,
    timeout_ms: i64,
) -> i64 {
    guard(|| {
        let batch = Batch::get(batch)?;
        Out::new(completions)?;
        if max == 0 {
            return Err(Failed::invalid("there is no room for a completion"));
        }
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let taken = batch.wait(max, min, limit);
        Ok(args::count(args::fill(completions, taken.into_iter(), max)))
    })
}

/// Number of operations that were submitted and whose completions were not returned yet.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_pending(batch: *mut pando_batch) -> i64 {
    guard(|| {
        let batch = Batch::get(batch)?;
        let state = batch.state.lock();
        Ok(args::count(state.under_way + state.done.len()))
    })
}

/// An eventfd that is readable while completions are there, for poll(2) and event loops. The batch
/// keeps it; only pando_batch_wait(), with a time-out of 0, reads it. From now on a thread of the
/// library takes operations further while the program waits elsewhere.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_fd(batch: *mut pando_batch) -> c_int {
    let fd = guard(|| {
        let batch = Batch::get(batch)?;
        let mut state = batch.state.lock();
        if state.fd.is_none() {
            let count = u32::from(!state.done.is_empty());
            let fd = eventfd(count, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            state.fd = Some(fd.map_err(|errno| {
                Failed::new(errno.raw_os_error(), "no descriptor for an event")
            })?);
            batch.has_fd.store(true, Ordering::Relaxed);
        }
        let fd = state.fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
        drop(state);
        batch.fs.driver().watch();
        Ok(i64::from(fd))
    });
    c_int::try_from(fd).unwrap_or(-libc::EIO)
}

/// Waits for what is under way, since it writes to memory of the program, and frees the batch. What
/// was added and not submitted, or has not begun, is dropped. Files that operations have opened are
/// the program's to close.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_free(batch: *mut pando_batch) -> c_int {
    status(|| {
        if batch.is_null() {
            return Err(Failed::new(libc::EFAULT, "the batch is null"));
        }
        let batch = BATCHES.remove(batch).ok_or_else(freed)?;
        if let Err(error) = batch.fs.check_process() {
            // The operations are the parent's.
            std::mem::forget(batch);
            return Err(error);
        }
        let mut state = batch.state.lock();
        state.is_freed = true;
        let added = std::mem::take(&mut state.added);
        state.under_way -= state.queue.len();
        let queue = std::mem::take(&mut state.queue);
        if state.under_way == 0 {
            batch.news.notify_waiters();
            state.wanted = 0;
        }
        drop(state);
        drop((added, queue));
        batch.wait(usize::MAX, usize::MAX, None);
        Ok(())
    })
}
