//! Inodes and blocks that wait to be reclaimed, in memory.

use std::{collections::VecDeque, mem, ops::ControlFlow, sync::Arc};

use base::{BlockId, HashSet, Ino};
use parking_lot::Mutex;
use store::Engine;
use tokio::sync::Notify;

use crate::{
    changes::Facts,
    follow::{Follower, Write},
    problem::OpenError,
    record::key,
};

/// Inodes and blocks that wait for the task.
#[derive(Default)]
pub(crate) struct Backlog {
    state: Mutex<State>,
    pub(super) wake: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Ino>,
    /// Orphans that were open when the task last looked at them.
    orphans: HashSet<Ino>,
    /// Blocks that were stored and that no record will name.
    blocks: Vec<BlockId>,
}

impl Backlog {
    /// Has the blocks looked at again that wait to be deleted.
    pub(crate) fn look_again(&self) {
        self.wake.notify_one();
    }

    /// Loads the work that was left before this start.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Backlog, OpenError> {
        let mut state = State::default();
        let prefix = key::works(b'R');
        engine.scan(&prefix, &key::end_of(&prefix), &mut |key, _| {
            state.queue.extend(key::parse_ino(key));
            ControlFlow::Continue(())
        })?;
        Ok(Backlog { state: Mutex::new(state), wake: Notify::new() })
    }

    /// Numbers of inodes that wait, and of orphans that are open.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.queue.len(), state.orphans.len())
    }

    /// Adds inodes to look at.
    pub(crate) fn add(&self, inos: Vec<Ino>) {
        if !inos.is_empty() {
            let mut state = self.state.lock();
            for ino in inos {
                // An orphan was closed, or the task finds it open and keeps it again.
                state.orphans.remove(&ino);
                state.queue.push_back(ino);
            }
            self.wake.notify_one();
        }
    }

    /// Adds blocks that no record names, now or later.
    pub(crate) fn discard(&self, blocks: Vec<BlockId>) {
        if !blocks.is_empty() {
            self.state.lock().blocks.extend(blocks);
            self.wake.notify_one();
        }
    }

    /// Notes that the last session that had a file open has closed it.
    pub(crate) fn closed(&self, ino: Ino) {
        let mut state = self.state.lock();
        if state.orphans.remove(&ino) {
            state.queue.push_back(ino);
            self.wake.notify_one();
        }
    }

    /// Looks at all orphans again, as every open is known from now on.
    pub(crate) fn sweep(&self) {
        let mut state = self.state.lock();
        let mut orphans: Vec<Ino> = state.orphans.drain().collect();
        orphans.sort_unstable();
        state.queue.extend(orphans);
        self.wake.notify_one();
    }

    /// Keeps an orphan that is still open until it is closed.
    pub(super) fn keep(&self, ino: Ino) {
        self.state.lock().orphans.insert(ino);
    }

    pub(super) fn next(&self) -> Option<Ino> {
        self.state.lock().queue.pop_front()
    }

    pub(super) fn next_block(&self) -> Option<BlockId> {
        self.state.lock().blocks.pop()
    }
}

/// Queues the inodes that a core's groups have left.
pub(crate) struct Collector {
    backlog: Arc<Backlog>,
}

impl Collector {
    pub(crate) fn new(backlog: Arc<Backlog>) -> Collector {
        Collector { backlog }
    }
}

impl Follower for Collector {
    fn answered(&mut self, facts: &mut Facts, _write: Write) {
        self.backlog.add(mem::take(&mut facts.left));
    }
}
