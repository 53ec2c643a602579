//! Commits: dirty entries become what they are below, each by itself and in any order that keeps a
//! tree.
//!
//! A worker takes a [`Job`], a copy of what an entry is at that moment; it makes the path below
//! equal, and says how that went. If the entry has changed meanwhile it stays dirty. So of several
//! changes the newest wins, and what was made and removed before a commit is never below.
//!
//! Invariant: of a path at most one commit is under way, so below never becomes older (R4). A child
//! is committed only when the directory above is below (R5).
//!
//! Paper: Pacon §III-E, independent commit.

mod queue;

use std::sync::Arc;

use base::{FsError, Ino, Time};

pub(crate) use self::queue::Queue;
use crate::{
    Path,
    below::{Below, Change, Found, Meta, New},
    table::{Body, Changed, Slot, Table},
};

/// The first wait after a failure that may pass, and the longest, in milliseconds.
const RETRY_MS: (u64, u64) = (10, 1_000);

/// How long a change waits for others of the same path that one commit can take along, in
/// milliseconds: programs write a file, and then set its mode and times.
pub(crate) const LINGER_MS: u64 = 100;

/// With so many entries in the queue none of them waits for others.
const LINGER_ENTRIES_MAX: usize = 20_000;

/// A copy of what a path is to become below.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) path: Path,
    /// Whether an older file of this name goes first.
    remove: bool,
    act: Act,
    /// The changes that the copy has taken along.
    changed: Changed,
    pending: u64,
    ino: Option<Ino>,
}

#[derive(Debug)]
enum Act {
    Nothing,
    Make(New, Meta),
    Set(Change),
    /// Mode and times of a directory, after all that is in it.
    Late(Change),
}

/// How far a job came.
pub(crate) struct Outcome {
    removed: bool,
    made: Result<Option<Found>, FsError>,
}

/// A failure below that may pass: a full disk, a server that is away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble {
    pub(crate) error: FsError,
    /// How long workers wait, in milliseconds, and until when.
    wait_ms: u64,
    pub(crate) until: Time,
}

/// The next thing for a worker to do.
pub(crate) enum Turn {
    Work(Vec<Job>),
    /// Wait for so many milliseconds.
    Later(u64),
    Idle,
}

impl Job {
    /// Makes the path below what it is to be. Blocks.
    pub(crate) fn run(&self, below: &dyn Below) -> Outcome {
        if self.remove {
            match below.unlink(&self.path) {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => return Outcome { removed: false, made: Err(error) },
            }
        }
        let made = match &self.act {
            Act::Nothing => Ok(None),
            Act::Make(new, meta) => below.make(&self.path, new, meta).map(Some),
            Act::Set(change) | Act::Late(change) => below.set(&self.path, change).map(Some),
        };
        Outcome { removed: self.remove, made }
    }
}

/// Whether an error may pass by itself.
fn may_pass(error: FsError) -> bool {
    use FsError::{Busy, Io, NoSpace, QuotaExceeded, Stale, TimedOut, TryAgain};
    matches!(error, NoSpace | QuotaExceeded | Io | Stale | TimedOut | TryAgain | Busy)
}

// Operations tell of changes.
impl Table {
    /// A change of a path was answered.
    pub(crate) fn changed(&mut self, path: &Path) {
        self.counts.acknowledged += 1;
        let entry = self.entries.get_mut(path).expect("a changed path has an entry");
        entry.pending += 1;
        if let Slot::Node(ino) = entry.slot {
            let node = self.node_mut(ino);
            // The change may be what makes a commit possible.
            (node.failed, node.told) = (None, false);
            self.failed.remove(path);
        }
        self.sort_out(path);
    }

    /// Puts an entry among the dirty ones or takes it out, as it is by now.
    pub(crate) fn sort_out(&mut self, path: &Path) {
        let Some(entry) = self.entries.get(path) else { return };
        let (dirty, bytes) = match entry.slot {
            Slot::Absent(_) => (entry.below, 0),
            Slot::Node(ino) => {
                let node = self.node(ino);
                let dirty = node.fresh || node.changed.any();
                (dirty && node.failed.is_none(), node.contents_bytes())
            }
        };
        let (dirty, removal) = (dirty || entry.committing, matches!(entry.slot, Slot::Absent(_)));
        let entry = self.entries.get_mut(path).expect("seen above");
        let bytes = if dirty { bytes } else { 0 };
        self.dirty_bytes =
            self.dirty_bytes + bytes - std::mem::replace(&mut entry.dirty_bytes, bytes);
        if dirty {
            if self.dirty.insert(path.clone()) {
                self.queue.push(path.clone(), removal, self.now);
            }
            return;
        }
        self.dirty.remove(path);
        // No trace of these changes is to be seen below.
        self.counts.superseded += std::mem::take(&mut entry.pending);
        if removal {
            self.settle_absence(path);
        }
    }

    /// A path that is nothing, here and below.
    fn settle_absence(&mut self, path: &Path) {
        // Without an entry it is asked for below, or known to be absent: both are right.
        let Some((above, _)) = self.above(path) else { return self.drop_entry(path) };
        if self.node(above).directory().is_none_or(|above| above.knows_all()) {
            return self.drop_entry(path);
        }
        let until = self.now.plus_ms(crate::table::ABSENT_MS);
        self.put(path.clone(), Slot::Absent(Some((until, above))), false);
    }

    /// A change of a name in a directory: its times are set below when all else is.
    pub(crate) fn touch_dir(&mut self, dir: Ino) {
        let now = self.now;
        let node = self.node_mut(dir);
        (node.attr.mtime, node.attr.ctime) = (now, now);
        self.set_late(dir);
    }

    pub(crate) fn set_late(&mut self, dir: Ino) {
        let node = self.node_mut(dir);
        let path = node.path.clone();
        node.directory_mut().expect("checked before").late = true;
        self.late.extend(path);
    }

    /// Refuses changes that need space while below has none, and has them wait while too much is
    /// not below yet.
    pub(crate) fn room(&mut self) -> crate::table::Result<()> {
        use crate::table::Need;
        if let Some(trouble) = self.trouble {
            return Err(Need::Answer(trouble.error));
        }
        let bounds = self.bounds;
        let full =
            self.dirty.len() >= bounds.dirty_max || self.dirty_bytes >= bounds.dirty_bytes_max;
        if full { Err(Need::Room) } else { Ok(()) }
    }
}

// Workers ask for jobs.
impl Table {
    /// Up to `jobs_max` jobs that do not depend on each other.
    pub(crate) fn take(&mut self, jobs_max: usize) -> Turn {
        if let Some(wait_ms) = self.waits_ms() {
            return Turn::Later(wait_ms);
        }
        // After a failure one job finds out whether it has passed.
        let jobs_max = if self.trouble.is_some() { 1 } else { jobs_max };
        let due = if self.queue.len() > LINGER_ENTRIES_MAX || self.trouble.is_some() {
            0
        } else {
            LINGER_MS
        };
        let mut jobs = Vec::new();
        while jobs.len() < jobs_max {
            match self.queue.pop(self.now, due, self.trouble.is_some()) {
                Ok(path) => jobs.extend(self.job(&path, true)),
                Err(Some(wait_ms)) if jobs.is_empty() => return Turn::Later(wait_ms),
                Err(_) => break,
            }
        }
        if jobs.is_empty() {
            jobs.extend(self.late_job(&Path::root(), false));
        }
        if jobs.is_empty() { Turn::Idle } else { Turn::Work(jobs) }
    }

    fn waits_ms(&self) -> Option<u64> {
        let until = self.trouble?.until;
        let left = until.as_nanos() - self.now.as_nanos();
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        // The clock may have been set back.
        Some(left.div_ceil(1_000_000).min(RETRY_MS.1))
    }

    /// A job of those that `scope` needs to be committed: directories above it first, then all that
    /// is dirty in it, and at last times of directories in it.
    pub(crate) fn take_within(&mut self, scope: &Path, late: bool) -> Option<Job> {
        let mut above = Vec::new();
        let mut at = scope.clone();
        while let Some((dir, _)) = at.split() {
            above.push(dir.clone());
            at = dir;
        }
        let above = above.into_iter().rev().find(|dir| self.is_fresh(dir));
        if let Some(dir) = above {
            return self.job(&dir, false);
        }
        let within: Vec<Path> = self.dirty_within(scope).take(64).cloned().collect();
        if let Some(job) = within.iter().find_map(|path| self.job(path, false)) {
            return Some(job);
        }
        if within.is_empty() && late { self.late_job(scope, true) } else { None }
    }

    /// Whether `scope`, with what is below it and the directories above it, is below as it is here.
    pub(crate) fn is_committed(&self, scope: &Path, late: bool) -> bool {
        let mut at = scope.clone();
        while let Some((dir, _)) = at.split() {
            if self.is_fresh(&dir) {
                return false;
            }
            at = dir;
        }
        self.dirty_within(scope).next().is_none()
            && !(late && within(&self.late, scope).next().is_some())
    }

    pub(crate) fn dirty_within<'a>(&'a self, scope: &'a Path) -> impl Iterator<Item = &'a Path> {
        within(&self.dirty, scope)
    }

    fn is_fresh(&self, path: &Path) -> bool {
        let node = self.entries.get(path).and_then(|entry| self.node_of(entry));
        node.is_some_and(|node| node.fresh && node.failed.is_none())
    }

    /// The job of a path, if there is one to do at this moment. With `park` a path whose directory is
    /// not below yet comes back when that is.
    fn job(&mut self, path: &Path, park: bool) -> Option<Job> {
        let entry = self.entries.get(path).filter(|entry| !entry.committing)?;
        if !self.dirty.contains(path) {
            return None;
        }
        let (below, slot) = (entry.below, entry.slot);
        if let Some((above, _)) = path.split()
            && let Some(above_entry) = self.entries.get(&above)
            && let Some(node) = self.node_of(above_entry)
            && node.fresh
        {
            match node.failed {
                Some(error) => self.fail(path, error),
                None if park => self.parked.entry(above).or_default().push(path.clone()),
                None => {}
            }
            return None;
        }
        let (remove, act, changed, ino) = match slot {
            Slot::Absent(_) => (true, Act::Nothing, Changed::default(), None),
            Slot::Node(ino) => {
                let node = self.node_mut(ino);
                let changed = std::mem::take(&mut node.changed);
                let act = if node.fresh {
                    Act::Make(new(&node.body, node.attr.kind, node.attr.rdev), meta(&node.attr))
                } else {
                    Act::Set(change(&node.attr, &node.body, changed))
                };
                (node.fresh && below, act, changed, Some(ino))
            }
        };
        let entry = self.entries.get_mut(path).expect("seen above");
        entry.committing = true;
        let pending = std::mem::take(&mut entry.pending);
        Some(Job { path: path.clone(), remove, act, changed, pending, ino })
    }

    /// A directory of `scope` in which nothing else is to be committed. Workers leave what is
    /// `held` to the holder.
    fn late_job(&mut self, scope: &Path, held: bool) -> Option<Job> {
        loop {
            let ready = |path: &&Path| {
                let idle = self.dirty_within(path).next().is_none();
                idle && (held || !self.holds.cover(path))
            };
            let path = within(&self.late, scope).find(ready)?.clone();
            self.late.remove(&path);
            let Some(entry) = self.entries.get_mut(&path) else { continue };
            let Slot::Node(ino) = entry.slot else { continue };
            let Some(node) = self.nodes.get_mut(&ino) else { continue };
            let (fresh, attr) = (node.fresh, node.attr);
            let Some(directory) = node.directory_mut() else { continue };
            directory.late = false;
            // One that is refused is not below: a name there is somebody else's.
            if fresh {
                continue;
            }
            let mode = std::mem::take(&mut directory.mode_late);
            entry.committing = true;
            self.dirty.insert(path.clone());
            let act = Act::Late(Change {
                mode: mode.then_some(attr.mode & base::attr::MODE_BITS),
                times: Some((attr.atime, attr.mtime)),
                ..Change::default()
            });
            let changed = Changed::default();
            return Some(Job { path, remove: false, act, changed, pending: 0, ino: Some(ino) });
        }
    }

    /// Takes in how a job went.
    pub(crate) fn done(&mut self, job: Job, outcome: Outcome) {
        let Job { path, changed, pending, ino, .. } = job;
        self.counts.commits += 1;
        let entry = self.entries.get_mut(&path).expect("what is committed keeps its entry");
        entry.committing = false;
        if outcome.removed {
            entry.below = false;
        }
        match outcome.made {
            Ok(found) => {
                self.trouble = None;
                let entry = self.entries.get_mut(&path).expect("seen above");
                let count = pending.min(1);
                self.counts.committed += count;
                self.counts.superseded += pending - count;
                if found.is_some() && !matches!(job.act, Act::Late(_)) {
                    entry.below = true;
                }
                let made = matches!(job.act, Act::Make(..));
                if let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)).filter(|_| made) {
                    node.fresh = false;
                    // Until then the owner may do everything in it.
                    let narrow = node.attr.mode & 0o700 != 0o700;
                    if let Some(directory) = node.directory_mut() {
                        directory.mode_late |= narrow;
                    }
                    if node.is_dir() && node.path.is_some() {
                        self.set_late(ino.expect("filtered by it"));
                    }
                }
                if let (Some(found), Some(ino)) = (&found, ino) {
                    self.take_times(ino, found);
                }
                for parked in self.parked.remove(&path).unwrap_or_default() {
                    self.queue.push_front(parked);
                }
            }
            Err(error) => {
                if let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)) {
                    node.changed = node.changed.and(changed);
                }
                let entry = self.entries.get_mut(&path).expect("seen above");
                entry.pending += pending;
                self.not_done(&path, ino, &job.act, error);
            }
        }
        self.requeue(&path);
    }

    /// The times that a commit has left: below may keep coarser ones than it was given.
    fn take_times(&mut self, ino: Ino, found: &Found) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let newer = node.changed.any() || node.directory().is_some_and(|found| found.late);
        if !newer && !node.is_passed() {
            (node.attr.atime, node.attr.mtime) = (found.attr.atime, found.attr.mtime);
        }
    }

    fn requeue(&mut self, path: &Path) {
        self.dirty.remove(path);
        self.sort_out(path);
    }

    fn not_done(&mut self, path: &Path, ino: Option<Ino>, act: &Act, error: FsError) {
        self.counts.retried += 1;
        // Times of a directory that somebody outside has removed or taken: nothing is lost.
        if matches!(act, Act::Late(_)) {
            if may_pass(error)
                && let Some(ino) = ino
                && self.nodes.get(&ino).is_some_and(|node| node.path.is_some())
            {
                self.set_late(ino);
                if let Some(directory) = self.node_mut(ino).directory_mut() {
                    directory.mode_late |=
                        matches!(act, Act::Late(change) if change.mode.is_some());
                }
                self.in_trouble(error);
            } else if matches!(act, Act::Late(change) if change.mode.is_some())
                && error != FsError::NotFound
            {
                // A program was told that it has this mode.
                self.given_up += 1;
            }
            return;
        }
        if error == FsError::NotFound && self.make_again(path, ino, act) {
            return;
        }
        if may_pass(error) {
            self.in_trouble(error);
        } else {
            self.fail(path, error);
        }
    }

    /// Somebody outside has removed a directory above, or a file: what can be made anew is. Returns
    /// whether it can.
    fn make_again(&mut self, path: &Path, ino: Option<Ino>, act: &Act) -> bool {
        self.counts.outside += 1;
        let Some((above, _)) = path.split() else { return false };
        if matches!(act, Act::Make(..)) {
            let Some((above_ino, _)) = self.above(path) else { return false };
            let fresh = above_ino == Ino::ROOT;
            let node = self.node_mut(above_ino);
            if fresh || node.failed.is_some() {
                return false;
            }
            node.fresh = true;
            self.entries.get_mut(&above).expect("found above").below = false;
            self.sort_out(&above);
            return true;
        }
        let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)) else { return false };
        if !matches!(node.body, Body::Inline(_) | Body::Symlink(_)) {
            return false;
        }
        node.fresh = true;
        self.entries.get_mut(path).expect("what is committed keeps its entry").below = false;
        true
    }

    fn in_trouble(&mut self, error: FsError) {
        let last = self.trouble.map_or(0, |trouble| trouble.wait_ms);
        let wait_ms = (last * 2).clamp(RETRY_MS.0, RETRY_MS.1);
        self.trouble = Some(Trouble { error, wait_ms, until: self.now.plus_ms(wait_ms) });
    }

    /// Below refuses what a path is here. The path stays as it is here.
    fn fail(&mut self, path: &Path, error: FsError) {
        tracing::warn!(%path, errno = error.name(), "the file system below refuses a change");
        if error == FsError::Exists {
            self.counts.outside += 1;
        }
        let entry = self.entries.get_mut(path).expect("what is dirty has an entry");
        self.counts.failed += std::mem::take(&mut entry.pending);
        match entry.slot {
            Slot::Node(ino) => {
                let node = self.node_mut(ino);
                (node.failed, node.told) = (Some(error), false);
                self.failed.insert(path.clone());
            }
            // The name stays below, and here it is seen again when the table asks there.
            Slot::Absent(_) => {
                entry.below = false;
                self.failed.insert(path.clone());
            }
        }
        for parked in self.parked.remove(path).unwrap_or_default() {
            self.fail(&parked, error);
        }
        self.requeue(path);
    }

    /// Gives up what cannot be committed because of a failure that has not passed.
    pub(crate) fn give_up(&mut self) {
        let Some(trouble) = self.trouble else { return };
        for path in self.dirty.clone() {
            if self.entries.get(&path).is_some_and(|entry| !entry.committing) {
                self.fail(&path, trouble.error);
            }
        }
        for path in std::mem::take(&mut self.late) {
            self.given_up += 1;
            if let Some(Slot::Node(dir)) = self.entries.get(&path).map(|entry| entry.slot) {
                self.directory_mut(dir).late = false;
            }
        }
    }
}

/// The paths of `set` that are `scope` or below it.
pub(crate) fn within<'a>(
    set: &'a std::collections::BTreeSet<Path>,
    scope: &'a Path,
) -> impl Iterator<Item = &'a Path> {
    // Between a directory and what is in it there may be names that only begin alike: `a`, `a.b`,
    // `a/b`.
    let own = set.get(scope).into_iter();
    let children = set.range(scope.first_within()..).take_while(|path| path.is_within(scope));
    own.chain(children.filter(move |path| *path != scope))
}

fn meta(attr: &base::Attr) -> Meta {
    let base::Attr { mode, uid, gid, atime, mtime, .. } = *attr;
    Meta { mode: mode & base::attr::MODE_BITS, uid, gid, atime, mtime }
}

fn new(body: &Body, kind: base::FileKind, rdev: u32) -> New {
    match body {
        Body::Directory(_) => New::Directory,
        Body::Symlink(target) => New::Symlink(target.clone()),
        Body::Inline(contents) => New::File(Arc::clone(contents)),
        Body::Special => New::Special(kind, rdev),
        Body::Unread | Body::Passed(_) => unreachable!("what is fresh has its contents here"),
    }
}

fn change(attr: &base::Attr, body: &Body, changed: Changed) -> Change {
    let contents = match body {
        Body::Inline(contents) if changed.contents => Some(Arc::clone(contents)),
        _ => None,
    };
    // A write below changes the times, and takes set-id bits.
    let times = changed.times || changed.contents;
    let mode = changed.mode || changed.contents || changed.owner;
    let is_link = attr.kind == base::FileKind::Symlink;
    Change {
        contents,
        mode: (mode && !is_link).then_some(attr.mode & base::attr::MODE_BITS),
        owner: changed.owner.then_some((attr.uid, attr.gid)),
        times: times.then_some((attr.atime, attr.mtime)),
    }
}
