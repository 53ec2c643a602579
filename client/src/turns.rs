//! One at a time: what several threads do with a client, as if one thread did it.
//!
//! A mount with a thread for each CPU polls operations on all of them, while the client's own tasks
//! run where it was made. Each poll is a *turn*, and a turn ends before another begins, on whichever
//! thread. So what happens between two waits of a task happens at once for all others, as on a
//! single-threaded runtime, which is what the client's tests and simulations run on.
//!
//! Turns are short: nothing blocks within one.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::{Mutex, MutexGuard};

/// State that all threads which use a client share; without threads nobody waits for a turn.
#[derive(Debug, Clone, Default)]
pub struct Turns(Option<Arc<Mutex<()>>>);

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'a>(#[expect(dead_code, reason = "it is held")] Option<MutexGuard<'a, ()>>);

impl Turns {
    /// For several threads.
    #[must_use]
    pub fn of_threads() -> Turns {
        Turns(Some(Arc::default()))
    }

    /// Whether there are threads that take turns.
    #[must_use]
    pub fn are_taken(&self) -> bool {
        self.0.is_some()
    }

    /// Waits for a turn. Not to be asked for within one.
    #[must_use]
    pub fn take(&self) -> Turn<'_> {
        Turn(self.0.as_ref().map(|turns| turns.lock()))
    }

    /// From now on nobody gets a turn, for as long as the process lives.
    pub fn end(&self) {
        std::mem::forget(self.take());
    }

    /// Returns `task`, each poll of which is a turn.
    pub fn in_turn<F: Future>(&self, task: F) -> InTurn<F> {
        InTurn { turns: self.clone(), task: Box::pin(task) }
    }
}

/// Future of [`Turns::in_turn`].
#[derive(Debug)]
pub struct InTurn<F> {
    turns: Turns,
    task: Pin<Box<F>>,
}

impl<F: Future> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let _turn = this.turns.take();
        this.task.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_turn_ends_before_another_begins() {
        let (turns, within) = (Turns::of_threads(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _turn = turns.take();
                        assert_eq!(within.fetch_add(1, Ordering::Relaxed), 0);
                        within.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn without_threads_a_turn_is_always_there() {
        let turns = Turns::default();
        let _one = turns.take();
        let _other = turns.take();
    }
}
