//! Delegations: directories that this client looks at and changes without asking first.
//!
//! [`Delegating`] is a [`FileSystem`](crate::FileSystem) over a [`Client`], for a mount. A directory
//! that it makes may come with a delegation, and one in which it works is asked for. From then on
//! the directory's names, and the attributes and contents of files in it, are answered from here,
//! and changes are sent a moment later. What has no rule of its own here goes to the server as ever,
//! after everything that concerns it was sent. The server recalls a directory when anybody else asks
//! for it; it is given back when everything is sent, and works as ever from then on.
//!
//! * `dir`: what is known of one directory, and what waits to be sent. `file`: one file's
//!   attributes. `send`: sending; `apply`: several changes at once. `recalls`: the lease, recalls
//!   and returns. `existing`: directories that are asked for. `fs`: the operations, `here`: their
//!   parts; `opens`, `twins`, `renames`, `rmdirs`, `access`: those of opens, of second names, of
//!   renames, of removals of directories, and of the directory's own attributes.
//!
//! Always true: a change is answered only when it has a place in the directory's queue, and changes
//! of one name are sent in their order, one after the other. Nothing is answered from here when the
//! lease may be over.

mod access;
mod apply;
mod dir;
mod existing;
mod file;
mod fs;
mod here;
mod opens;
mod recalls;
mod renames;
mod rmdirs;
mod send;
mod twins;

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use base::{DirId, EntryName, HashMap, HashSet, Ino, Time};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use wire::{DirRef, Grant};

use self::{
    dir::{HeldDir, Item},
    recalls::Lease,
};
use crate::{Client, runs::Run};

/// Most directories that are held. The server has a limit of its own.
const DIRS_MAX: usize = 16_384;
/// Most files in them. Beyond that, directories that nobody works in are given back.
const FILES_MAX: usize = 1 << 19;
/// Most changes that wait to be sent. At this many, programs wait.
const QUEUED_MAX: usize = 4096;

/// A file system over a client, which answers from here what a delegation allows.
#[derive(Clone)]
pub struct Delegating {
    client: Client,
    shared: Arc<Shared>,
}

/// State that all clones share.
struct Shared {
    /// Whether delegations are asked for.
    on: bool,
    /// Whether directories that exist are asked for at the first change, and new ones never.
    eager: bool,
    /// From which number on the next directory that is held counts its changes.
    epoch: AtomicU64,
    /// Whether delegations are not asked for any more.
    stopped: AtomicBool,
    table: Mutex<Table>,
    /// Woken when a lease is longer, or a directory is held no more.
    changed: Notify,
    /// Changes that wait to be sent.
    queued: AtomicUsize,
    /// The directories of which any may wait, or be on its way. Locked after a directory's state.
    unsent: Mutex<HashMap<DirId, Arc<HeldDir>>>,
    /// Woken when some were sent.
    sent: Notify,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    granted: AtomicUsize,
    /// Directories among them that existed when they were granted.
    existing: AtomicUsize,
    recalled: AtomicUsize,
    lost: AtomicUsize,
}

#[derive(Default)]
struct Table {
    dirs: HashMap<DirId, Arc<HeldDir>>,
    by_ino: HashMap<Ino, DirId>,
    /// Files in these directories, by where they are.
    files: HashMap<Ino, (DirId, EntryName)>,
    /// Files and directories whose removal is not sent, by the name that they had.
    leaving: HashMap<Ino, (DirId, EntryName)>,
    leases: HashMap<u16, Lease>,
    /// How many requests ask for a delegation now, and the directories in which others have made
    /// something meanwhile: one that is granted is not empty then.
    wishes: usize,
    touched: HashSet<DirId>,
    /// Directories to be given back that nobody works in, by server. Where there is an entry, a task
    /// sends them.
    returns: HashMap<u16, Vec<DirId>>,
    /// Directories that are being given back now, and how often: the server may do that after it
    /// has granted a new one of the same id.
    returns_sent: HashMap<DirId, usize>,
    /// The operations in directories, held or not.
    visits: existing::Visits,
}

impl Table {
    /// Whether this is the directory of its id that is held now.
    fn has(&self, held: &HeldDir) -> bool {
        let known = self.dirs.get(&held.dir.id);
        known.is_some_and(|known| std::ptr::eq(&raw const **known, held))
    }

    /// Directories are about to be given back.
    fn returns_begin(&mut self, dirs: impl Iterator<Item = DirId>) {
        dirs.for_each(|dir| *self.returns_sent.entry(dir).or_default() += 1);
    }

    /// Directories were given back.
    fn returns_end(&mut self, dirs: Vec<DirId>) {
        for dir in dirs {
            // Race: a grant of this id that has not come yet may have been given back.
            if self.wishes > 0 {
                self.touched.insert(dir);
            }
            if let Some(count) = self.returns_sent.remove(&dir).filter(|count| *count > 1) {
                self.returns_sent.insert(dir, count - 1);
            }
        }
    }

    /// Whether nothing more should be held.
    fn is_full(&self) -> bool {
        self.dirs.len() >= DIRS_MAX || self.files.len() >= FILES_MAX
    }
}

impl Deref for Delegating {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Delegating {
    /// Answers from here what delegations allow, if they are `on`.
    #[must_use]
    pub fn new(client: Client, on: bool) -> Delegating {
        Delegating::asking(client, on, false)
    }

    /// Like [`Delegating::new`], for tests: asks for no directory with the mkdir that makes it, and
    /// for each in which something is changed at once, again and again.
    #[must_use]
    pub fn eager(client: Client) -> Delegating {
        Delegating::asking(client, true, true)
    }

    fn asking(client: Client, on: bool, eager: bool) -> Delegating {
        let on = on && client.core.config.kernel_checks;
        let shared = Shared {
            on,
            eager,
            epoch: AtomicU64::new(1 << 32),
            stopped: AtomicBool::new(false),
            table: Mutex::default(),
            changed: Notify::new(),
            queued: AtomicUsize::new(0),
            unsent: Mutex::default(),
            sent: Notify::new(),
            counters: Counters::default(),
        };
        Delegating { client, shared: Arc::new(shared) }
    }

    /// How many directories were granted, and how many of them somebody else has asked for.
    #[must_use]
    pub fn grants_and_recalls(&self) -> (usize, usize) {
        let Counters { granted, recalled, .. } = &self.shared.counters;
        (granted.load(Ordering::Relaxed), recalled.load(Ordering::Relaxed))
    }

    /// How many of the directories that were granted existed before.
    #[must_use]
    pub fn existing(&self) -> usize {
        self.shared.counters.existing.load(Ordering::Relaxed)
    }

    /// How many changes were answered and are lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.shared.counters.lost.load(Ordering::Relaxed)
    }

    /// Whether anything is held.
    fn holds_any(&self) -> bool {
        !self.shared.table.lock().dirs.is_empty()
    }

    /// The directory, if it is held and may be answered for now. Waits while it is given back.
    async fn held(&self, dir: &DirRef) -> Option<Arc<HeldDir>> {
        let held = self.shared.table.lock().dirs.get(&dir.id).cloned()?;
        let held = Some(held).filter(|held| held.dir.ino == dir.ino)?;
        self.is_live(&held).await.then_some(held)
    }

    /// The held directory that has a file, and the file's name there.
    async fn held_file(&self, ino: Ino) -> Option<(Arc<HeldDir>, EntryName)> {
        let (held, name) = {
            let table = self.shared.table.lock();
            let (dir, name) = table.files.get(&ino)?;
            (table.dirs.get(dir).cloned()?, name.clone())
        };
        if !self.is_live(&held).await {
            return None;
        }
        // Race: the file may have another name by now.
        let is_there = self.shared.table.lock().files.get(&ino).is_some_and(|(_, at)| *at == name);
        is_there.then_some((held, name))
    }

    /// The held directory of an inode number, whether or not it may be answered for.
    fn held_by_ino(&self, ino: Ino) -> Option<Arc<HeldDir>> {
        let table = self.shared.table.lock();
        let held = table.dirs.get(table.by_ino.get(&ino)?)?;
        (held.dir.ino == ino).then(|| Arc::clone(held))
    }

    /// Like [`Delegating::held_file`], at once: whether or not it may be answered for.
    fn place_of(&self, ino: Ino) -> Option<(Arc<HeldDir>, EntryName)> {
        let table = self.shared.table.lock();
        let (dir, name) = table.files.get(&ino)?;
        Some((table.dirs.get(dir).cloned()?, name.clone()))
    }

    /// Takes in a grant of a new directory, unless somebody has changed something in it already.
    fn take_grant(
        &self,
        dir: DirRef,
        attr: base::Attr,
        parent: Ino,
        grant: &Grant,
        asked: (Run, Lease),
    ) {
        let run = asked.0;
        let mut table = self.shared.table.lock();
        let is_returned = table.returns_sent.contains_key(&dir.id);
        let is_unwanted = is_returned || self.shared.stopped.load(Ordering::Acquire);
        if table.touched.contains(&dir.id) || is_unwanted || table.is_full() {
            drop(table);
            return self.give_back_later(run.server, dir.id);
        }
        // The directory that had the name, and so the id, before is gone, and its grant with it.
        if let Some(before) = table.dirs.get(&dir.id).cloned() {
            drop(table);
            self.forget(&before);
            table = self.shared.table.lock();
        }
        let held = HeldDir::new(dir, attr, parent, grant, run);
        let _held = self.hold(table, held, asked, grant);
    }

    /// Holds a directory from now on.
    fn hold(
        &self,
        mut table: MutexGuard<'_, Table>,
        held: HeldDir,
        (run, lease): (Run, Lease),
        grant: &Grant,
    ) -> Arc<HeldDir> {
        let held = Arc::new(held);
        // A return that was not sent would give this grant back.
        if let Some(returns) = table.returns.get_mut(&run.server) {
            returns.retain(|id| *id != held.dir.id);
        }
        // Answers that were asked for before are old, also of when the directory was held before.
        let epoch = self.shared.epoch.fetch_add(1 << 32, Ordering::Relaxed);
        held.state.lock().changes += epoch;
        table.by_ino.insert(held.dir.ino, held.dir.id);
        table.dirs.insert(held.dir.id, Arc::clone(&held));
        let known = table.leases.entry(run.server).or_insert(lease);
        known.extend(lease);
        known.hears(grant.now, self.now());
        let polls = std::mem::replace(&mut known.polls, true);
        drop(table);
        self.shared.counters.granted.fetch_add(1, Ordering::Relaxed);
        if !polls {
            self.listen(run.server);
        }
        held
    }

    /// Something is about to be changed in a directory that is not held.
    fn touches(&self, dir: &DirRef) {
        let mut table = self.shared.table.lock();
        if table.wishes > 0 {
            table.touched.insert(dir.id);
        }
    }

    /// Puts something under a name of a held directory, if it is held still.
    fn put(&self, held: &HeldDir, name: &EntryName, item: Item) {
        let (pos, ino, is_file) = (self.pos(name), item.ino(), matches!(item, Item::File(_)));
        let mut table = self.shared.table.lock();
        let mut state = held.state.lock();
        if state.phase != dir::Phase::Held {
            return;
        }
        state.put(pos, name.clone(), item);
        drop(state);
        if is_file {
            table.files.insert(ino, (held.dir.id, name.clone()));
            drop(table);
            self.core.files.is_held(ino, Some(held.dir.id));
        }
    }

    /// Takes what is under a name out of a held directory.
    fn take(&self, held: &HeldDir, name: &EntryName) -> Option<Item> {
        let pos = self.pos(name);
        let mut table = self.shared.table.lock();
        let item = held.state.lock().take(pos, name)?;
        if let Item::File(file) = &item
            && table.files.get(&file.attr.ino).is_some_and(|(dir, _)| *dir == held.dir.id)
        {
            table.files.remove(&file.attr.ino);
            drop(table);
            self.core.files.is_held(file.attr.ino, None);
        }
        Some(item)
    }

    fn pos(&self, name: &EntryName) -> u64 {
        self.core.welcome().fs.hash_key.pos(name)
    }

    /// The present time, as the client's clock has it.
    fn now(&self) -> Time {
        self.core.config.clock.now()
    }

    /// The present time at a server, or a little before.
    fn now_at(&self, server: u16) -> Time {
        let now = self.now();
        let lease = self.shared.table.lock().leases.get(&server).copied();
        lease.map_or(now, |lease| lease.time_of(now))
    }

    /// The time of a change that is made in a held directory now: later than all that were made before,
    /// though the time at the server is known a little late. Whoever watches a directory by its times
    /// would miss a change otherwise.
    fn now_in(&self, held: &HeldDir) -> Time {
        let latest = held.state.lock().attr.ctime;
        self.now_at(held.run.server).max(latest.just_after())
    }

    /// Requests about a file stand on the delegation from now on, if the directory is held still and
    /// has the file under this name.
    fn is_held(&self, held: &HeldDir, name: &EntryName, ino: Ino) {
        let table = self.shared.table.lock();
        let mut state = held.state.lock();
        let is_there = state.file(self.pos(name), name, ino).is_some();
        if table.has(held) && state.phase == dir::Phase::Held && is_there {
            self.core.files.is_held(ino, Some(held.dir.id));
        }
    }

    /// A directory is held no more, and nothing of it waits to be sent.
    fn forget(&self, held: &HeldDir) {
        let mut table = self.shared.table.lock();
        if table.has(held) {
            table.dirs.remove(&held.dir.id);
            table.by_ino.remove(&held.dir.ino);
        }
        let files = {
            let mut state = held.state.lock();
            state.phase = dir::Phase::Over;
            state.is_unsent = false;
            self.is_sent(held);
            state.files()
        };
        for ino in &files {
            if table.files.get(ino).is_some_and(|(dir, _)| *dir == held.dir.id) {
                table.files.remove(ino);
            }
        }
        if !table.leaving.is_empty() {
            table.leaving.retain(|_, (dir, _)| *dir != held.dir.id);
        }
        drop(table);
        for ino in files {
            self.core.files.is_held(ino, None);
            if let Some(state) = self.core.files.unopened(ino) {
                // The directory was taken from this client.
                let this = self.clone();
                self.core.spawn(async move { this.open_there_or_lose(&state).await });
            }
        }
        held.changed.notify_waiters();
        self.shared.changed.notify_waiters();
    }
}
