//! A region: a file system in memory over another one, which gets the changes later.
//!
//! Operations run on the table under its lock and never wait there. What they need from below is
//! got with the lock free, and then they run anew. `structural` has the operations that below must
//! answer itself; workers commit the rest.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{
    Attr, Clock, Cred, EntryName, FileKind, FsError, HashKey, Ino, LockOwner, SessionId,
    acl::without_umask,
    attr::{MODE_ACL, MODE_XATTRS},
};
use bytes::Bytes;
use client::{New, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use wire::DirRef;

use crate::{
    Path,
    below::{self, Below, Found},
    commit::{Job, Turn},
    counts::Counts,
    hidden::is_free,
    names::{self, Made},
    table::{self, Body, Bounds, Directory, Need, Table},
};

/// Jobs that a worker takes at once.
const JOBS_MAX: usize = 16;

/// How a region calls the file system below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// In the task that needs the answer, with no worker beside it: for tests that are to run the
    /// same again. Commits are made by [`Region::commit`].
    Here,
    /// On threads of the runtime that may block. [`Region::work`] commits.
    OnThreads,
}

/// Settings of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Files up to this size are kept in memory and committed late, in bytes; larger ones are
    /// written below at once.
    pub inline_max: usize,
    /// Memory of the table, in bytes. What is committed is forgotten above nine tenths of it.
    pub memory_max: usize,
    /// Changes that may not be below yet; with more, programs wait.
    pub dirty_max: usize,
    /// The same for contents, in bytes.
    pub dirty_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            inline_max: 4 << 10,
            memory_max: 1 << 30,
            dirty_max: 1_000_000,
            dirty_bytes_max: 256 << 20,
        }
    }
}

/// A region, as the programs of one machine see it. A clone is the same region.
#[derive(Clone)]
pub struct Region(pub(crate) Arc<Shared>, SessionId);

pub(crate) struct Shared {
    pub(crate) below: Arc<dyn Below>,
    pub(crate) calls: Calls,
    clock: Arc<dyn Clock>,
    pub(crate) key: HashKey,
    table: Mutex<Table>,
    /// A hold, a load or a commit has ended.
    pub(crate) changed: Notify,
    /// There is something to commit.
    work: Notify,
    /// Number of the last measurement of a passed file's attributes.
    measured: AtomicU64,
    /// By this programs prove that they are the region's, if it has such ones.
    pub(crate) token: OnceLock<String>,
}

impl Shared {
    /// The attributes of a passed file, and the number of this measurement.
    fn measure(&self, file: &dyn below::Contents) -> (u64, below::Result<Attr>) {
        (self.measured.fetch_add(1, Ordering::Relaxed) + 1, file.attr())
    }
}

/// An operation on a passed file that is under way below.
struct Passing<'a>(&'a Region);

impl Passing<'_> {
    fn begin(region: &Region) -> Passing<'_> {
        region.lock().passing += 1;
        Passing(region)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.lock().passing -= 1;
        self.0.0.changed.notify_waiters();
    }
}

/// The part of a passed file that an operation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Contents,
    Attributes,
}

/// How much of a region is not below yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Entries that are not below as they are here.
    pub dirty: usize,
    /// Directories whose mode and times are set when all in them is below.
    pub late: usize,
    /// Entries that the file system below refuses.
    pub failed: usize,
    /// Why nothing can be committed at this moment.
    pub trouble: Option<FsError>,
    /// About how much memory the table takes, in bytes.
    pub memory: usize,
    /// The fates of all changes so far.
    pub counts: Counts,
}

impl Region {
    /// A region over everything that `below` has. `key` orders listings.
    ///
    /// # Errors
    /// When the directory below cannot be looked at.
    pub fn new(
        below: Arc<dyn Below>,
        calls: Calls,
        settings: Settings,
        clock: Arc<dyn Clock>,
        key: HashKey,
    ) -> std::result::Result<Region, FsError> {
        let root = below.look(&Path::root())?.ok_or(FsError::NotFound)?;
        if root.attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let Settings { inline_max, memory_max, dirty_max, dirty_bytes_max } = settings;
        let bounds = Bounds { inline_max, memory_max, dirty_max, dirty_bytes_max };
        let table = Mutex::new(Table::new(&root, bounds));
        let (changed, work) = (Notify::new(), Notify::new());
        let measured = AtomicU64::new(0);
        let token = OnceLock::new();
        let shared = Shared { below, calls, clock, key, table, changed, work, measured, token };
        Ok(Region(Arc::new(shared), SessionId(0)))
    }

    /// The same region, as the programs of another machine see it.
    pub(crate) fn of(&self, machine: SessionId) -> Region {
        Region(Arc::clone(&self.0), machine)
    }

    /// Notes that other machines may use the region: their kernels learn of changes by times.
    pub(crate) fn is_shared(&self) {
        self.lock().shared = true;
    }

    /// Somebody who asks for locks, among those of this machine.
    pub(crate) fn owner(&self, owner: u64) -> LockOwner {
        LockOwner { session: self.1, owner }
    }

    /// How far commits are.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let table = self.lock();
        Progress {
            dirty: table.dirty.len(),
            late: table.late.len(),
            failed: table.failed.len(),
            trouble: table.trouble.map(|trouble| trouble.error),
            memory: table.memory,
            counts: table.counts,
        }
    }

    /// Answers nothing but errors (EIO) from now on. What was answered is committed as before.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.changed.notify_waiters();
    }

    /// Checks what is always true of the table.
    ///
    /// # Panics
    /// When something is not so.
    pub fn check(&self) {
        self.lock().check();
    }

    /// How many files are open.
    #[cfg(test)]
    pub(crate) fn open_handles(&self) -> usize {
        self.lock().handles.len()
    }

    /// Commits up to so many entries, in this task; how many it did. For [`Calls::Here`].
    pub fn commit(&self, jobs_max: usize) -> usize {
        let Turn::Work(jobs) = self.lock().take(jobs_max) else { return 0 };
        let count = jobs.len();
        for job in jobs {
            let outcome = job.run(&*self.0.below);
            self.lock().done(job, outcome);
        }
        self.lock().forget();
        self.0.changed.notify_waiters();
        count
    }

    /// Commits until the task is dropped. Several may run at once.
    pub async fn work(self) {
        loop {
            let mut work = pin!(self.0.work.notified());
            work.as_mut().enable();
            let (turn, more) = {
                let mut table = self.lock();
                let turn = table.take(JOBS_MAX);
                (turn, !table.queue.is_empty())
            };
            match turn {
                Turn::Work(jobs) => {
                    if more {
                        self.0.work.notify_one();
                    }
                    self.run_jobs(jobs).await;
                }
                Turn::Later(wait_ms) => {
                    let wait = pin!(tokio::time::sleep(Duration::from_millis(wait_ms)));
                    futures::future::select(work, wait).await;
                }
                Turn::Idle => work.await,
            }
        }
    }

    pub(crate) async fn run_jobs(&self, jobs: Vec<Job>) {
        let done = self.call(move |below| {
            let run = |job: Job| {
                let outcome = job.run(below);
                (job, outcome)
            };
            jobs.into_iter().map(run).collect::<Vec<_>>()
        });
        let done = done.await;
        let mut table = self.lock();
        for (job, outcome) in done {
            table.done(job, outcome);
        }
        table.forget();
        // Changes that waited for these can be committed now.
        if !table.queue.is_empty() || !table.late.is_empty() {
            self.0.work.notify_one();
        }
        drop(table);
        self.0.changed.notify_waiters();
    }

    /// The table, with the present time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        let mut table = self.0.table.lock();
        table.now = self.0.clock.now();
        table
    }

    /// Calls below, with the table free.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Below) -> T + Send + 'static,
    ) -> T {
        match self.0.calls {
            Calls::Here => call(&*self.0.below),
            Calls::OnThreads => {
                let below = Arc::clone(&self.0.below);
                let called = tokio::task::spawn_blocking(move || call(&*below)).await;
                called.expect("calls below do not panic, and are not cancelled")
            }
        }
    }

    /// Runs an operation on the table, and anew whenever it has got what it needed.
    pub(crate) async fn run<T>(
        &self,
        mut act: impl FnMut(&mut Table) -> table::Result<T>,
    ) -> Result<T> {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let need = {
                let mut table = self.lock();
                if table.closed {
                    return Err(FsError::Io.into());
                }
                let acted = act(&mut table);
                if !table.queue.is_empty() || !table.late.is_empty() {
                    self.0.work.notify_one();
                }
                match acted {
                    Ok(answer) => return Ok(answer),
                    Err(need) => need,
                }
            };
            match need {
                Need::Answer(error) => return Err(error.into()),
                Need::Wait => changed.await,
                Need::Room if self.0.calls == Calls::Here => {
                    self.commit(JOBS_MAX);
                }
                Need::Room => changed.await,
                Need::Load(path) => {
                    let due = self.lock().due_above(&path);
                    match due {
                        Some((dir, due)) => Box::pin(self.learn_names(&dir, due)).await,
                        None => self.load(vec![path]).await?,
                    }
                }
                Need::Read(ino, path) => self.read_whole(ino, path).await?,
                Need::File(ino, path) => self.open_below(ino, path).await?,
                Need::Grow(ino) => Box::pin(self.grow(ino)).await?,
            }
        }
    }

    /// Notes that below is asked about paths. Where that is so already, or they are held, it waits
    /// for a change and returns `false`: the caller is to look again.
    pub(crate) async fn begin_load(&self, paths: &[Path]) -> bool {
        let mut changed = pin!(self.0.changed.notified());
        changed.as_mut().enable();
        if self.lock().begin_load(paths) {
            return true;
        }
        changed.await;
        false
    }

    pub(crate) fn end_load(&self, table: &mut Table, paths: &[Path]) {
        for path in paths {
            table.loading.remove(path);
        }
        self.0.changed.notify_waiters();
    }

    /// Looks below, and has the table know.
    pub(crate) async fn load(&self, paths: Vec<Path>) -> Result<()> {
        if !self.begin_load(&paths).await {
            return Ok(());
        }
        let inline_max = self.lock().bounds.inline_max as u64;
        let (paths, found) = self
            .call(move |below| {
                let found: Vec<_> =
                    paths.iter().map(|path| look(below, path, inline_max)).collect();
                (paths, found)
            })
            .await;
        let mut table = self.lock();
        self.end_load(&mut table, &paths);
        table.counts.loads += paths.len() as u64;
        // Before the new ones: these are wanted.
        table.forget();
        for (path, found) in paths.iter().zip(found) {
            table.loaded(path, found?);
        }
        Ok(())
    }

    /// Reads a small file, which may have become a large one.
    async fn read_whole(&self, ino: Ino, path: Path) -> Result<()> {
        let paths = [path.clone()];
        if !self.begin_load(&paths).await {
            return Ok(());
        }
        let inline_max = self.lock().bounds.inline_max;
        let read = self.call(move |below| below.read(&path, inline_max + 1)).await;
        let mut table = self.lock();
        // The file itself stays, as long as it is being loaded.
        table.forget();
        self.end_load(&mut table, &paths);
        table.counts.loads += paths.len() as u64;
        let contents = read?;
        let Some(node) = table.nodes.get_mut(&ino) else { return Ok(()) };
        if !matches!(node.body, Body::Unread) {
            return Ok(());
        }
        if contents.len() > inline_max {
            node.body = Body::Passed(None);
        } else {
            table.set_inline(ino, Arc::new(contents));
        }
        Ok(())
    }

    async fn open_below(&self, ino: Ino, path: Path) -> Result<()> {
        let paths = [path.clone()];
        if !self.begin_load(&paths).await {
            return Ok(());
        }
        let opened =
            self.call(move |below| below.open(&path).map(|file| (file.attr(), file))).await;
        let mut table = self.lock();
        self.end_load(&mut table, &paths);
        table.counts.loads += paths.len() as u64;
        let (attr, file) = opened?;
        let attr = attr?;
        if let Some(node) = table.nodes.get_mut(&ino).filter(|node| node.is_passed()) {
            node.attr = Attr { ino, ..attr };
            node.body = Body::Passed(Some(file));
        }
        Ok(())
    }

    /// Does something with a passed file, and takes in its attributes as they are then.
    ///
    /// Race: several machines may do so at once, which their kernels do not put in order. So each
    /// measurement of attributes has a number, and one that began before the newest that was taken
    /// in tells nothing new.
    pub(crate) async fn passed<T: Send + 'static>(
        &self,
        ino: Ino,
        file: Arc<dyn below::Contents>,
        part: Part,
        act: impl FnOnce(&dyn below::Contents) -> below::Result<T> + Send + 'static,
    ) -> Result<T> {
        let _passing = Passing::begin(self);
        let (acted, shared) = (Arc::clone(&file), Arc::clone(&self.0));
        let (done, (number, attr)) = self
            .call(move |_| {
                let done = act(&*acted);
                (done, shared.measure(&*acted))
            })
            .await;
        let Ok(found) = attr else { return Ok(done?) };
        let times = {
            let mut table = self.lock();
            let times = (part == Part::Contents).then(|| table.told_before(ino, &found)).flatten();
            if times.is_none() {
                table.measured(ino, number, &found);
            }
            times
        };
        if let Some(times) = times {
            // Kernels take contents for unchanged that have their time and size.
            let shared = Arc::clone(&self.0);
            let (number, attr) = self
                .call(move |_| {
                    let times = below::Change { times: Some(times), ..below::Change::default() };
                    if let Err(error) = file.set(&times) {
                        // Somebody who may write to a file need not be its owner.
                        tracing::debug!(%error, "the time of a file is newer than below");
                    }
                    shared.measure(&*file)
                })
                .await;
            let found = attr.unwrap_or(found);
            let told = Attr { mtime: found.mtime.max(times.1), ..found };
            let mut table = self.lock();
            table.measured(ino, number, &told);
            if let Some(node) = table.nodes.get_mut(&ino) {
                node.ahead |= found.mtime < told.mtime;
            }
        }
        Ok(done?)
    }

    /// Makes a name for something new; one that only below can make right is made there.
    pub(crate) async fn make(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
        new: New,
        open: bool,
    ) -> Result<Made> {
        is_free(dir, name)?;
        let here = New { mode: without_umask(new.mode), ..new };
        let made = self
            .run(|table| {
                let body = names::body(new.kind, &target);
                let made = table.make(cred, dir, name, body, here, open)?;
                if let Made::New(entry, _) | Made::There(entry) = &made {
                    table.show_attr(entry.attr.ino);
                }
                Ok(made)
            })
            .await?;
        match made {
            Made::Below(path, attr) => {
                Box::pin(self.make_below(path, dir.ino, attr, new, target, open)).await
            }
            Made::New(..) | Made::There(_) => Ok(made),
        }
    }

    /// Whether extended attributes of a node are known without asking: there are none.
    pub(crate) fn has_no_xattrs(table: &Table, ino: Ino) -> bool {
        let node = table.node(ino);
        let marked = node.attr.mode & (MODE_ACL | MODE_XATTRS) != 0;
        // Attributes of directories have no mark.
        !marked && (!node.is_dir() || node.fresh)
    }
}

/// Looks at a path, with as much of it as the table keeps from the start.
pub(crate) fn look(
    below: &dyn Below,
    path: &Path,
    inline_max: u64,
) -> below::Result<Option<(Found, Body)>> {
    let Some(found) = below.look(path)? else { return Ok(None) };
    let body = match found.attr.kind {
        FileKind::Directory => {
            Body::Directory(Directory { default_acl: found.default_acl, ..Directory::default() })
        }
        FileKind::Symlink => Body::Symlink(below.target(path)?),
        FileKind::File if found.attr.nlink > 1 || found.attr.size > inline_max => {
            Body::Passed(None)
        }
        FileKind::File => Body::Unread,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            Body::Special
        }
    };
    Ok(Some((found, body)))
}
