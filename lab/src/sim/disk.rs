//! The disk of a world, and the moment at which a process on it dies.
//!
//! A server writes through a [`Disk`] of its own process; the engine below outlives it. A process
//! can be told to die with one of its next writes, just before or just after it: from that moment
//! on nothing that it does can be seen, on the disk or in the network, until it is swept away.

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
use store::{Batch, Engine, EngineStats, Error, MemoryEngine, Op, Result, Snapshot, kv::Visit};

use super::{
    show::Message,
    trace::{DEAD, Trace, hash_of},
};

/// Whether a process lives, and how long it has.
#[derive(Debug)]
pub struct Process {
    alive: AtomicBool,
    /// It dies with the write that brings this to 0.
    writes_left: AtomicI64,
    /// That write is not done any more.
    before: AtomicBool,
    /// It dies when it has sent one of these.
    last_words: Mutex<Option<Message>>,
    /// Who counts what it does.
    steps: Mutex<Option<Arc<Steps>>>,
}

/// What processes do that outlives them or others rely on, counted over all of them: writes and
/// syncs that are done, and what servers send to each other. With one of these steps some of them
/// die.
#[derive(Debug, Default)]
pub struct Steps {
    taken: AtomicU64,
    last: u64,
    victims: Mutex<Vec<Weak<Process>>>,
}

impl Steps {
    /// With the `last`th step, counted from 1, the victims die; with 0 nobody does.
    #[must_use]
    pub fn new(last: u64) -> Arc<Steps> {
        Arc::new(Steps { last, ..Steps::default() })
    }

    /// How many there were.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A process will die with the last one.
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
    /// One that lives until it is killed.
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

    /// Whether anything it does can still be seen.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Nothing it does is seen from now on.
    pub fn die(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }

    /// It dies with its `writes`th write from now, before or after that is done.
    pub fn die_at(&self, writes: i64, before: bool) {
        self.writes_left.store(writes, Ordering::Relaxed);
        self.before.store(before, Ordering::Relaxed);
    }

    /// It dies when it has sent such a message, which arrives; `None`: it does not.
    pub fn die_with(&self, message: Option<Message>) {
        *self.last_words.lock() = message;
    }

    /// What it does from now on is counted.
    pub(super) fn count_steps(&self, steps: &Arc<Steps>) {
        *self.steps.lock() = Some(Arc::clone(steps));
    }

    /// It has done something that can be seen.
    pub(super) fn step(&self) {
        if let Some(steps) = &*self.steps.lock()
            && self.is_alive()
        {
            steps.step();
        }
    }

    /// It has sent these.
    pub(super) fn has_sent(&self, messages: &[Message]) {
        if messages.iter().any(|message| *self.last_words.lock() == Some(*message)) {
            self.die();
        }
    }

    /// Runs a write, unless the process is dead or dies before it.
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
            self.trace.note("write", &[batch.len() as u64, hash_of(batch.encoded())]);
            if self.trace.prints() {
                batch.ops().for_each(|op| self.trace.show(format_args!("  {}", key_of(&op))));
            }
            self.engine.write(batch)
        })
    }

    fn sync(&self) -> Result<()> {
        self.process.write(|| {
            self.trace.note("sync", &[self.engine.unsynced() as u64]);
            self.engine.sync()
        })
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

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

/// A change without its value.
fn key_of(op: &Op<'_>) -> String {
    match op {
        Op::Put { key, .. } => format!("put {}", key.escape_ascii()),
        Op::Delete { key } => format!("delete {}", key.escape_ascii()),
        Op::DeleteRange { from, .. } => format!("delete from {}", from.escape_ascii()),
    }
}
