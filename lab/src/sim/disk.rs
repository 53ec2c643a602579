//! The disk of a server process, and the moment at which the process dies.
//!
//! A server writes through a [`Disk`] of its own process. The engine below survives the process. A
//! process can be told to die with one of its next writes, just before or just after it. From that
//! moment on nothing that it does is visible, on the disk or in the network, until it is swept
//! away.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use store::{
    Batch, Engine, EngineStats, Error, MemoryEngine, Op, Result, Snapshot,
    kv::{KeyRange, Visit},
};

use super::{
    ship::Ship,
    show::Message,
    trace::{DEAD, Trace, hash_of},
};

/// Whether a process lives, and when it dies.
#[derive(Debug)]
pub struct Process {
    alive: AtomicBool,
    /// Writes left: the process dies with the write that brings this to 0.
    writes_left: AtomicI64,
    /// Whether the process dies before that write instead of after it.
    before: AtomicBool,
    /// The process dies when it has sent this message.
    last_words: Mutex<Option<Message>>,
    /// The counter of its steps, if they are counted.
    steps: Mutex<Option<Arc<Steps>>>,
}

/// Counts the steps of processes: actions that survive them or that others rely on. These are
/// writes and syncs that are done, and what servers send to each other. The victims die with the
/// last step.
#[derive(Debug, Default)]
pub struct Steps {
    taken: AtomicU64,
    last: u64,
    victims: Mutex<Vec<Weak<Process>>>,
}

impl Steps {
    /// A counter whose victims die with the `last`th step, counted from 1. With 0 none of them
    /// dies.
    #[must_use]
    pub fn new(last: u64) -> Arc<Steps> {
        Arc::new(Steps { last, ..Steps::default() })
    }

    /// Number of steps taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Makes a process a victim: it dies with the last step.
    pub(super) fn doom(&self, process: &Arc<Process>) {
        self.victims.lock().push(Arc::downgrade(process));
    }

    fn step(&self) {
        if self.taken.fetch_add(1, Ordering::Relaxed) + 1 == self.last {
            self.victims.lock().iter().filter_map(Weak::upgrade).for_each(|process| process.die());
        }
    }
}

impl Process {
    /// A process that lives until it is killed.
    #[must_use]
    pub fn new() -> Arc<Process> {
        Arc::new(Process {
            alive: AtomicBool::new(true),
            writes_left: AtomicI64::new(i64::MAX),
            before: AtomicBool::new(false),
            last_words: Mutex::new(None),
            steps: Mutex::new(None),
        })
    }

    /// Whether anything that the process does is still visible.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Kills the process: nothing that it does is visible from now on.
    pub fn die(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }

    /// Lets the process die with its `writes`th write from now, before or after that write is done.
    pub fn die_at(&self, writes: i64, before: bool) {
        self.writes_left.store(writes, Ordering::Relaxed);
        self.before.store(before, Ordering::Relaxed);
    }

    /// Lets the process die when it has sent such a message, which still arrives. `None` takes that
    /// back.
    pub fn die_with(&self, message: Option<Message>) {
        *self.last_words.lock() = message;
    }

    /// Counts the steps of the process from now on.
    pub(super) fn count_steps(&self, steps: &Arc<Steps>) {
        *self.steps.lock() = Some(Arc::clone(steps));
    }

    /// Counts a visible action of the process as a step.
    pub(super) fn step(&self) {
        if let Some(steps) = &*self.steps.lock()
            && self.is_alive()
        {
            steps.step();
        }
    }

    /// Records messages that the process has sent. Kills it if one is its last.
    pub(super) fn has_sent(&self, messages: &[Message]) {
        if messages.iter().any(|message| *self.last_words.lock() == Some(*message)) {
            self.die();
        }
    }

    /// Runs a write, unless the process is dead or dies just before it.
    fn write(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let last = self.writes_left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && self.before.load(Ordering::Relaxed) {
            self.die();
        }
        if !self.is_alive() {
            return Err(Error::Io(io::Error::other(DEAD)));
        }
        let done = write();
        self.step();
        if last {
            self.die();
        }
        done
    }
}

/// The engine as one process sees it.
pub struct Disk {
    pub(super) engine: Arc<MemoryEngine>,
    pub(super) process: Arc<Process>,
    pub(super) trace: Trace,
    /// The machine, for the trace.
    pub(super) machine: u64,
    /// Where what is stable is put as well.
    pub(super) ship: Option<Arc<Ship>>,
}

impl Engine for Disk {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.engine.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.engine.multi_get(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        self.engine.scan(from, to, visit)
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.process.write(|| {
            let numbers = [self.machine, batch.len() as u64, hash_of(batch.encoded())];
            self.trace.note("write", &numbers);
            if self.trace.prints() {
                batch.ops().for_each(|op| self.trace.show(format_args!("  {}", key_of(&op))));
            }
            self.engine.write(batch)
        })
    }

    fn sync(&self) -> Result<()> {
        self.process.write(|| {
            self.trace.note("sync", &[self.machine, self.engine.unsynced() as u64]);
            self.engine.sync()
        })?;
        match &self.ship {
            // The process may die between the two.
            Some(ship) => self.process.write(|| ship.put(&self.engine)),
            None => Ok(()),
        }
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        self.process.write(|| self.engine.ingest(run))
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.engine.snapshot()
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        self.engine.checkpoint(to)
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        self.engine.sizes(ranges)
    }

    fn position(&self) -> u64 {
        self.engine.position()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

/// Shows a change without its value.
fn key_of(op: &Op<'_>) -> String {
    match op {
        Op::Put { key, .. } => format!("put {}", key.escape_ascii()),
        Op::Delete { key } => format!("delete {}", key.escape_ascii()),
        Op::DeleteRange { from, .. } => format!("delete from {}", from.escape_ascii()),
    }
}
