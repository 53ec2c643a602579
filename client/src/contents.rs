//! File contents: which files this client has open, what was written and not sent, and where the
//! rest is.
//!
//! `fs` and `handles` call it. It never resolves a path, and never keeps contents beyond the last
//! close, but for a cache of blocks, which do not change, and for files of directories that are
//! held (`kept`). Consistency between clients is close-to-open: an open sees everything that was
//! flushed before it, and a flush (every close does one) sends everything that was written.
//!
//! * `open`: opens, numbered; releases, lazy and in batches; claims after a restart of the server.
//!   `kept`: opens that the server is not asked for.
//! * `unstable`: changes that a power cut of the server may take, and who learns that it did.
//! * `state`: one open file. `dirty`, `slices`: what it is made of.
//! * `ranges`: zeros, holes and lengths. `write`: writing and flushing; `taken`: what goes with
//!   other changes; `budget`: how much may wait. `read`: reading, and reading ahead; `ahead`: how
//!   far. `blocks`: blocks and their cache. `direct`: a store that this client reaches itself.

mod ahead;
mod blocks;
mod budget;
mod direct;
mod dirty;
mod kept;
mod open;
mod ranges;
mod read;
mod slices;
mod state;
mod taken;
mod unstable;
mod write;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use base::{Access, Attr, Cred, FsError, HashMap, HashSet, Ino};
use parking_lot::Mutex;
use wire::{ClaimedFile, DirRef, FileRef, NodeRef, Welcome};

use self::{
    ahead::Ahead,
    blocks::{BlockIo, ReadCache},
    budget::Budget,
    kept::Kept,
    unstable::Stability,
};
use crate::{Config, Error, Handle, Result, runs::Runs};

pub(crate) use self::{state::FileState, taken::Taken};

/// All open files of a client.
pub(crate) struct Files {
    /// The kernel checks, so to the server all users are one.
    one_user: bool,
    table: Mutex<Table>,
    pub(crate) io: BlockIo,
    pub(crate) read_cache: ReadCache,
    pub(crate) budget: Budget,
    /// Counts changes of any file's contents by this client.
    stamp: AtomicU64,
    /// The number of the next open.
    numbers: AtomicU64,
    /// The counter of the next block.
    blocks: AtomicU64,
    stability: Stability,
    /// Users who have lost locks, and when, in counts of [`Files::stamp`]: what they had open then
    /// is not written any more.
    barred: Mutex<HashMap<u32, u64>>,
}

struct Table {
    files: HashMap<Ino, Arc<FileState>>,
    handles: HashMap<u64, Arc<OpenFile>>,
    next_handle: u64,
    /// Files without handles whose release is not sent, with the number of their latest open.
    closed: Vec<(Ino, u64)>,
    /// A task will send them.
    releasing: bool,
    /// Files that nobody has open, and of which the server does not know that they were.
    kept: Kept,
    /// Files with something written, to be flushed by age.
    aging: Vec<Arc<FileState>>,
    /// A task will flush them.
    ageing: bool,
    /// Open files to which this client has given another name, see `Inner::also`.
    linked: HashSet<Ino>,
    /// The runs of the servers that know of these files: they opened them, or the files were
    /// claimed from them.
    runs: Runs,
}

/// An open file as one handle has it.
pub(crate) struct OpenFile {
    pub(crate) state: Arc<FileState>,
    pub(crate) cred: Arc<Cred>,
    /// Access that the handle allows.
    may: Access,
    /// Failed flushes that this handle has reported, or that were before it.
    errors_seen: AtomicU64,
    /// When it was opened, in counts of [`Files::stamp`].
    opened_at: u64,
    /// Something of the file that was answered is gone, and this handle has not reported it.
    forgotten: AtomicBool,
    ahead: Mutex<Ahead>,
}

impl Files {
    /// No open files, of the session that `welcome` opened.
    pub(crate) fn new(config: &Config, welcome: &Welcome) -> Result<Files> {
        let table = Table {
            files: HashMap::default(),
            handles: HashMap::default(),
            next_handle: 1,
            closed: Vec::new(),
            releasing: false,
            kept: Kept::default(),
            aging: Vec::new(),
            ageing: false,
            linked: HashSet::default(),
            runs: Runs::new(welcome.map.servers.len().max(1)),
        };
        Ok(Files {
            one_user: config.kernel_checks,
            table: Mutex::new(table),
            io: BlockIo::new(config.blocks.as_ref(), welcome.direct.as_deref())?,
            read_cache: ReadCache::new(config.read_cache_bytes),
            budget: Budget::new(config.dirty_bytes_max),
            stamp: AtomicU64::new(1),
            numbers: AtomicU64::new(1),
            blocks: AtomicU64::new(1),
            stability: Stability::default(),
            barred: Mutex::default(),
        })
    }

    /// The present count of changes: taken before a request is sent whose answer has attributes.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    fn next_stamp(&self) -> u64 {
        self.stamp.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn next_block(&self) -> u64 {
        self.blocks.fetch_add(1, Ordering::Relaxed)
    }

    /// The file of this number, if it is open or something of it is not sent.
    pub(crate) fn state_of(&self, ino: Ino) -> Option<Arc<FileState>> {
        self.state(ino)
    }

    /// Whether what is known of a file may be wrong, so that the server must be asked.
    pub(crate) fn is_doubtful(&self, ino: Ino) -> bool {
        self.state(ino).is_some_and(|state| state.lock().doubtful)
    }

    fn state(&self, ino: Ino) -> Option<Arc<FileState>> {
        self.table.lock().files.get(&ino).cloned()
    }

    /// Returns the open file of `handle`.
    pub(crate) fn handle(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let found = self.table.lock().handles.get(&handle.0).cloned();
        found.ok_or(Error::Fs(FsError::BadHandle))
    }

    /// Attributes from an answer whose request was sent at `stamp`, with what this client has
    /// written since.
    pub(crate) fn seen(&self, attr: Attr, stamp: u64) -> Attr {
        let Some(state) = self.state(attr.ino) else { return attr };
        let mut inner = state.lock();
        // A flush keeps the time at which the program wrote, so the times may well be the same.
        let overtaken = inner.changed_at > stamp && inner.attr.ctime >= attr.ctime;
        if overtaken {
            return inner.visible(inner.attr);
        }
        if !inner.doubtful && attr.ctime >= inner.attr.ctime && inner.changed_at <= stamp {
            inner.learn_attr(attr);
        }
        inner.visible(attr)
    }

    /// The file that `node` names, if it is open.
    pub(crate) fn open_state(&self, node: &NodeRef) -> Option<Arc<FileState>> {
        match node {
            NodeRef::File(file) => self.state(file.ino),
            NodeRef::Dir(_) => None,
        }
    }

    /// The file of this name, if something was written to it and not sent.
    pub(crate) fn dirty_state(
        &self,
        dir: &DirRef,
        name: &base::EntryName,
    ) -> Option<Arc<FileState>> {
        let table = self.table.lock();
        let mut written = table.aging.iter();
        let found = written.find(|state| {
            let inner = state.lock();
            inner.file.name == *name && inner.file.dir.same(dir) && inner.is_dirty()
        });
        found.cloned()
    }

    /// An open file's size was set; its attributes, with what was written since.
    pub(crate) fn resized(&self, state: &FileState, attr: Attr) -> Attr {
        let mut inner = state.lock();
        inner.resized(attr, self.next_stamp());
        inner.visible(attr)
    }

    /// A file was renamed by this client.
    pub(crate) fn renamed(&self, from: (&DirRef, &base::EntryName), to: FileRef) {
        if let Some(state) = self.state(to.ino) {
            state.lock().is_renamed(from, to);
        }
    }

    /// This client has given a file one more name.
    pub(crate) fn linked(&self, ino: Ino, (dir, name): (&DirRef, &base::EntryName)) {
        let mut table = self.table.lock();
        let Some(state) = table.files.get(&ino).cloned() else { return };
        table.linked.insert(ino);
        drop(table);
        state.lock().is_linked((*dir, name.clone()));
    }

    /// This client has removed a name of a file. Where the file is open it goes on under the other
    /// name that this client has given it.
    pub(crate) fn unlinked(&self, ino: Ino, removed: (&DirRef, &base::EntryName)) {
        if let Some(state) = self.state(ino) {
            state.lock().has_lost(removed);
        }
    }

    /// This client has moved `moved` over a name. A file that had the name has lost it.
    pub(crate) fn replaced(&self, moved: Ino, at: (&DirRef, &base::EntryName)) {
        let table = self.table.lock();
        if table.linked.is_empty() {
            return;
        }
        let others = table.linked.iter().filter(|ino| **ino != moved);
        let states: Vec<_> = others.filter_map(|ino| table.files.get(ino).cloned()).collect();
        drop(table);
        states.iter().for_each(|state| state.lock().has_lost(at));
    }

    /// Two entries have changed places.
    pub(crate) fn exchanged(
        &self,
        one: (&DirRef, &base::EntryName),
        other: (&DirRef, &base::EntryName),
    ) {
        let states: Vec<Arc<FileState>> = self.table.lock().files.values().cloned().collect();
        for state in states {
            state.lock().is_exchanged(one, other);
        }
    }

    /// The user that has opened a handle, if it is open.
    pub(crate) fn user_of(&self, handle: Handle) -> Option<u32> {
        self.handle(handle).ok().map(|open| open.cred.uid)
    }

    /// Lets nothing be written that these users have open now. What they have written, and was not
    /// sent, is lost.
    pub(crate) fn bar(&self, users: &HashSet<u32>) {
        if users.is_empty() {
            return;
        }
        let now = self.next_stamp();
        self.barred.lock().extend(users.iter().map(|uid| (*uid, now)));
        let states: Vec<_> = self.table.lock().files.values().cloned().collect();
        for state in states {
            let mut inner = state.lock();
            if users.contains(&inner.writer.uid) {
                self.budget.give_back(inner.lose_unsent());
                drop(inner);
                state.flushed.notify_waiters();
            }
        }
    }

    /// Whether a user has lost a lock after `since`.
    pub(crate) fn is_barred(&self, uid: u32, since: u64) -> bool {
        self.barred.lock().get(&uid).is_some_and(|at| *at > since)
    }

    /// A server was met for the first time.
    pub(crate) fn meet(&self, server: u16, incarnation: u64) {
        self.table.lock().runs.meet(server, incarnation);
    }

    /// Returns the open files that a server `has`, to be claimed from this run of it, each with its
    /// user.
    pub(crate) fn claims(
        &self,
        server: u16,
        incarnation: u64,
        has: impl Fn(Ino) -> bool,
    ) -> Vec<(u32, ClaimedFile)> {
        let mut table = self.table.lock();
        table.runs.meet(server, incarnation);
        let states = table.files.values().filter(|state| has(state.ino));
        let states: Vec<Arc<FileState>> = states.cloned().collect();
        drop(table);
        let mut claims = Vec::with_capacity(states.len());
        for state in states {
            let inner = state.lock();
            let (file, number) = (&inner.file, inner.number);
            claims.extend(inner.proofs().iter().map(|proof| {
                (proof.uid, ClaimedFile { file: file.clone(), number, proof: proof.proof })
            }));
        }
        claims
    }

    /// The session is gone at a server, and with it everything that was open of that which it
    /// `has`.
    pub(crate) fn lose(&self, server: u16, incarnation: u64, has: impl Fn(Ino) -> bool) {
        let mut table = self.table.lock();
        table.runs.lose(server, incarnation);
        table.closed.retain(|(ino, _)| !has(*ino));
        table.linked.retain(|ino| !has(*ino));
        table.kept.retain(|ino| !has(ino));
        table.aging.retain(|state| !has(state.ino));
        let (lost, kept) =
            std::mem::take(&mut table.files).into_iter().partition(|(ino, _)| has(*ino));
        table.files = kept;
        let lost: HashMap<Ino, Arc<FileState>> = lost;
        drop(table);
        for state in lost.into_values() {
            let bytes = state.lock().lose();
            self.budget.give_back(bytes);
            state.flushed.notify_waiters();
        }
    }
}
