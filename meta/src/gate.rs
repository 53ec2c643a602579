//! The cores that have a group in progress: executed in part, and not written yet.
//!
//! A request is checked when it is executed, and takes effect when its group is written. Between
//! the two another core may outdate the check: a directory moves, and the request's path is another
//! one. There are two remedies. [`Gate::settled`] returns when every group that was in progress is
//! written: a server that was told of a move answers only then. [`Gate::enter_alone`] lets one core
//! execute while no other has a group: the only server of a file system moves directories this way,
//! and needs no announcement.
//!
//! Invariant: a core is inside from before its group's first request is checked until that group is
//! written and the work after it is done. It waits for another core only while it is outside.
//!
//! Cost: two fences for a group; with one core nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// The gate of all cores of a server.
pub(crate) struct Gate {
    /// One turnstile for each core; empty with a single core, which needs no gate.
    cores: Vec<Turnstile>,
    /// Whether a core is alone inside, or waits to be: others wait outside. Changes under `alone`.
    closed: AtomicBool,
    alone: Mutex<()>,
    opened: Condvar,
    /// Number of tasks that wait for cores to come out.
    waiting: AtomicUsize,
    came_out: Condvar,
    settled: Notify,
}

/// Number of times that a core has entered and left: odd while it is inside. On a cache line of its
/// own.
#[derive(Default)]
#[repr(align(128))]
struct Turnstile(AtomicU64);

impl Turnstile {
    /// Counts a step. Only the core itself calls this.
    fn moves(&self) {
        let steps = self.0.load(Ordering::Relaxed);
        self.0.store(steps + 1, Ordering::Release);
        // Race: this core's later reads, or other cores' reads of the turnstile, see the newer of
        // the two.
        fence(Ordering::SeqCst);
    }

    /// The core's steps while it is inside.
    fn inside(&self) -> Option<u64> {
        let steps = self.0.load(Ordering::Acquire);
        (steps % 2 == 1).then_some(steps)
    }
}

impl Gate {
    pub(crate) fn new(cores: usize) -> Gate {
        let cores = if cores > 1 { cores } else { 0 };
        Gate {
            cores: (0..cores).map(|_| Turnstile::default()).collect(),
            closed: AtomicBool::new(false),
            alone: Mutex::new(()),
            opened: Condvar::new(),
            waiting: AtomicUsize::new(0),
            came_out: Condvar::new(),
            settled: Notify::new(),
        }
    }

    /// Whether there is more than one core.
    pub(crate) fn is_shared(&self) -> bool {
        !self.cores.is_empty()
    }

    /// Begins a group of `core`. Blocks this thread while another core is alone inside.
    pub(crate) fn enter(&self, core: usize) {
        let Some(place) = self.cores.get(core) else { return };
        loop {
            place.moves();
            if !self.closed.load(Ordering::Acquire) {
                return;
            }
            self.leave(core);
            let mut alone = self.alone.lock();
            while self.closed.load(Ordering::Relaxed) {
                self.opened.wait(&mut alone);
            }
        }
    }

    /// Ends the group of `core`, which is written.
    pub(crate) fn leave(&self, core: usize) {
        let Some(place) = self.cores.get(core) else { return };
        place.moves();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            drop(self.alone.lock());
            self.came_out.notify_all();
            self.settled.notify_waiters();
        }
    }

    /// Begins a group of `core`, which is outside, while no other core has one. Blocks this thread
    /// until their groups are written. To be ended with [`Gate::leave_alone`].
    pub(crate) fn enter_alone(&self, core: usize) {
        let Some(place) = self.cores.get(core) else { return };
        let mut alone = self.alone.lock();
        while self.closed.load(Ordering::Relaxed) {
            self.opened.wait(&mut alone);
        }
        self.closed.store(true, Ordering::Relaxed);
        let _waits = Waits::new(&self.waiting);
        while self.cores.iter().any(|other| other.inside().is_some()) {
            self.came_out.wait(&mut alone);
        }
        place.moves();
    }

    /// Like [`Gate::leave`], for a core that was alone.
    pub(crate) fn leave_alone(&self, core: usize) {
        self.leave(core);
        let _alone = self.alone.lock();
        self.closed.store(false, Ordering::Release);
        self.opened.notify_all();
    }

    /// Returns when every group that was in progress at the call is written.
    pub(crate) async fn settled(&self) {
        let _waits = Waits::new(&self.waiting);
        let under_way = self.cores.iter().map(|place| (place, place.inside()));
        let mut under_way: Vec<_> = under_way.filter(|(_, inside)| inside.is_some()).collect();
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            under_way.retain(|(place, inside)| place.inside() == *inside);
            if under_way.is_empty() {
                return;
            }
            settled.await;
        }
    }
}

/// Marks that a task waits, until dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(waiting: &AtomicUsize) -> Waits<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        // Race: a core that comes out sees this task wait, or is seen outside by it.
        fence(Ordering::SeqCst);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn groups_that_began_later_are_not_waited_for() {
        let gate = Gate::new(3);
        assert_eq!(gate.settled().now_or_never(), Some(()));
        gate.enter(1);
        let mut settled = Box::pin(gate.settled());
        assert_eq!(settled.as_mut().now_or_never(), None);
        gate.enter(2);
        assert_eq!(settled.as_mut().now_or_never(), None);
        gate.leave(1);
        gate.enter(1);
        assert_eq!(settled.now_or_never(), Some(()));
    }

    #[test]
    fn one_core_never_waits() {
        let gate = Gate::new(1);
        gate.enter(0);
        assert_eq!(gate.settled().now_or_never(), Some(()));
        gate.enter_alone(0);
        gate.leave_alone(0);
    }

    #[test]
    fn a_core_that_is_alone_is_so_until_it_leaves() {
        let (gate, together) = (Gate::new(4), AtomicU64::new(0));
        let works = |core: usize| {
            for round in 0..3000 {
                if (round + core).is_multiple_of(7) {
                    gate.enter_alone(core);
                    assert_eq!(together.fetch_add(1, Ordering::SeqCst), 0);
                    together.fetch_sub(1, Ordering::SeqCst);
                    gate.leave_alone(core);
                } else {
                    gate.enter(core);
                    together.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    together.fetch_sub(1, Ordering::SeqCst);
                    gate.leave(core);
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|core| scope.spawn(move || works(core))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
