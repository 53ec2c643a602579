//! The part of a server in a move, in memory.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The part of this server in a move.
#[derive(Default)]
pub(crate) struct Moves {
    /// The plan for which this server has stopped, and when it was last told to.
    stopped: Mutex<Option<(u64, Instant)>>,
    /// Whether this server pulls shards just now.
    takes: AtomicBool,
    /// Whether no record is here of a shard that is another server's.
    swept: AtomicBool,
}

/// A pull of shards; it has ended when this is dropped.
pub(super) struct Taking<'a>(&'a Moves);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.takes.store(false, Ordering::Release);
    }
}

impl Moves {
    /// Whether this server has stopped for a move.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.lock().is_some()
    }

    /// Whether this server has stopped for this plan.
    pub(super) fn is_stopped_for(&self, plan: u64) -> bool {
        self.stopped.lock().is_some_and(|(known, _)| known == plan)
    }

    /// This server stops for a plan.
    pub(super) fn stops(&self, plan: u64) {
        *self.stopped.lock() = Some((plan, Instant::now()));
    }

    /// Whether the server has stopped for this plan already; it is led still then.
    pub(super) fn is_led(&self, plan: u64) -> bool {
        let mut stopped = self.stopped.lock();
        let known = stopped.as_mut().filter(|(known, _)| *known == plan);
        known.map(|(_, told)| *told = Instant::now()).is_some()
    }

    /// When the server was last told to stop, if it has.
    pub(super) fn told(&self) -> Option<Instant> {
        self.stopped.lock().map(|(_, told)| told)
    }

    /// Begins a pull of shards; `None` while another one goes on, or records may be here of shards
    /// that are others'.
    pub(super) fn takes(&self) -> Option<Taking<'_>> {
        let free = self.swept.load(Ordering::Acquire) && !self.takes.swap(true, Ordering::AcqRel);
        free.then(|| Taking(self))
    }

    /// No record is here of a shard that is another server's.
    pub(super) fn is_swept(&self) {
        self.swept.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_stops_for_one_plan_and_takes_once_at_a_time() {
        let moves = Moves::default();
        assert!(moves.takes().is_none(), "nothing is swept yet");
        moves.is_swept();
        let first = moves.takes().unwrap();
        assert!(moves.takes().is_none());
        drop(first);
        assert!(moves.takes().is_some());
        assert!(!moves.is_stopped() && moves.told().is_none());
        moves.stops(7);
        assert!(moves.is_stopped_for(7) && moves.is_led(7));
        assert!(!moves.is_stopped_for(8) && !moves.is_led(8));
    }
}
