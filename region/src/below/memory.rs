//! A file system below that lives in memory, for tests and simulations.
//!
//! All clones are the same file system, so a test that keeps one is an outsider. The semantics are
//! those of Linux' ext4 for the superuser, as far as [`Below`] shows them; no permission is
//! checked. Nothing depends on anything but the calls and the clock, so a run can be replayed.
//!
//! Faults: see [`Memory::fail`], [`Memory::full`] and [`Memory::after`].

mod acl;
mod contents;
mod faults;
mod pages;
mod state;

use std::{collections::BTreeMap, fmt, sync::Arc};

use base::{Attr, Clock, EntryName, FsError, Ino};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use wire::{RenameMode, Statfs, XattrMode};

pub use self::faults::Call;
use self::{
    contents::File,
    faults::Faults,
    state::{Body, State},
};
use super::{Below, Change, Contents, Found, Listed, Meta, New, Result};
use crate::Path;

/// Bytes that the file system says it has.
const BYTES: u64 = 1 << 40;
/// Inodes that the file system says it has.
const FILES: u64 = 1 << 20;

/// A file system in memory.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    faults: Faults,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// An empty file system whose times come from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Memory {
        let inner = Inner { state: State::new(clock.now()), faults: Faults::default() };
        Memory(Arc::new(Shared { clock, inner: Mutex::new(inner) }))
    }

    /// Asks `plan` about each call from now on, before the call does anything; a call for which it
    /// has an error fails with it. Plans that were given before are asked first.
    ///
    /// The plan must not call this file system.
    pub fn fail(&self, plan: impl FnMut(&Call<'_>) -> Option<FsError> + Send + 'static) {
        self.inner().faults.plans.push(Box::new(plan));
    }

    /// Fails the next `calls` calls with `error`.
    pub fn fail_next(&self, calls: u64, error: FsError) {
        let mut left = calls;
        self.fail(move |_| {
            let fails = left > 0;
            left = left.saturating_sub(1);
            fails.then_some(error)
        });
    }

    /// Fails each change of a path within `path` with `error`.
    pub fn fail_within(&self, path: Path, error: FsError) {
        self.fail(move |call| {
            let within = call.paths().any(|at| at.is_within(&path));
            (call.is_change && within).then_some(error)
        });
    }

    /// Ends all plans of [`Memory::fail`] and what [`Memory::after`] did.
    pub fn heal(&self) {
        let faults = &mut self.inner().faults;
        faults.plans.clear();
        faults.changes_left = None;
    }

    /// From now on changes that need space fail with `NoSpace`, until [`Memory::room`].
    pub fn full(&self) {
        self.inner().faults.is_full = true;
    }

    /// There is space again.
    pub fn room(&self) {
        self.inner().faults.is_full = false;
    }

    /// After `changes` more changes every call fails with `Io`, like those to a server that died,
    /// until [`Memory::heal`].
    pub fn after(&self, changes: u64) {
        self.inner().faults.changes_left = Some(changes);
    }

    /// Number of calls that there were of each method, failed ones included. Methods of
    /// [`Contents`] have `file.` before their names.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.inner().faults.calls.clone()
    }

    /// Number of calls that there were of one method.
    #[must_use]
    pub fn calls_of(&self, method: &str) -> u64 {
        self.inner().faults.calls.get(method).copied().unwrap_or_default()
    }

    /// Counts calls and changes from zero again.
    pub fn forget_calls(&self) {
        let faults = &mut self.inner().faults;
        faults.calls.clear();
        faults.changes = 0;
    }

    /// Number of changes that were made, failed ones excepted.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.inner().faults.changes
    }

    /// Everything that has a path, with its attributes and the contents of a regular file or the
    /// target of a symbolic link. No call, and never a fault.
    #[must_use]
    pub fn tree(&self) -> BTreeMap<Path, (Attr, Bytes)> {
        let inner = self.inner();
        let mut tree = BTreeMap::new();
        let mut todo = vec![(Path::root(), state::ROOT)];
        while let Some((path, ino)) = todo.pop() {
            let node = inner.state.node(ino);
            let bytes = match &node.body {
                Body::File(pages) => pages.read(0, node.attr.size, node.attr.size).into(),
                Body::Symlink(target) => target.clone(),
                Body::Directory(entries) => {
                    todo.extend(entries.iter().map(|(name, ino)| (path.child(name), *ino)));
                    Bytes::new()
                }
                Body::Special => Bytes::new(),
            };
            tree.insert(path, (node.found().attr, bytes));
        }
        tree
    }

    /// Checks what must always hold of the structures in memory.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.inner().state.check();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock()
    }

    /// A call that changes nothing.
    fn ask<T>(
        &self,
        method: &'static str,
        path: Option<&Path>,
        run: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let inner = &mut *self.inner();
        inner.faults.meet(&Call {
            method,
            path,
            to: None,
            is_change: false,
            needs_space: false,
        })?;
        run(&mut inner.state)
    }

    /// A call that is a change.
    fn change<T>(&self, call: &Call<'_>, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let inner = &mut *self.inner();
        inner.faults.meet(call)?;
        inner.state.now = self.0.clock.now();
        let done = run(&mut inner.state);
        if done.is_ok() {
            inner.faults.changed();
        }
        done
    }
}

fn changes<'a>(method: &'static str, path: &'a Path) -> Call<'a> {
    Call { method, path: Some(path), to: None, is_change: true, needs_space: false }
}

impl Below for Memory {
    fn look(&self, path: &Path) -> Result<Option<Found>> {
        self.ask("look", Some(path), |state| match state.find(path) {
            Ok(ino) => Ok(Some(state.node(ino).found())),
            Err(FsError::NotFound | FsError::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn list(&self, path: &Path, entries_max: usize) -> Result<Vec<Listed>> {
        self.ask("list", Some(path), |state| {
            let dir = state.find_dir(path)?;
            let entries = state.entries(dir).iter().take(entries_max);
            let listed = entries.map(|(name, ino)| Listed {
                name: name.clone(),
                ino: Ino(*ino),
                kind: Some(state.node(*ino).attr.kind),
            });
            Ok(listed.collect())
        })
    }

    fn read(&self, path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
        self.ask("read", Some(path), |state| {
            let ino = state.find_file(path)?;
            Ok(state.read(ino, 0, bytes_max as u64))
        })
    }

    fn target(&self, path: &Path) -> Result<Bytes> {
        self.ask("target", Some(path), |state| match &state.node(state.find(path)?).body {
            Body::Symlink(target) => Ok(target.clone()),
            Body::File(_) | Body::Directory(_) | Body::Special => Err(FsError::Invalid),
        })
    }

    fn make(&self, path: &Path, new: &New, meta: &Meta) -> Result<Found> {
        let call = Call { needs_space: true, ..changes("make", path) };
        self.change(&call, |state| {
            let (dir, name) = state.parent(path)?;
            let name = name.ok_or(FsError::Exists)?;
            state.make(dir, &name, new, meta)
        })
    }

    fn set(&self, path: &Path, change: &Change) -> Result<Found> {
        let needs_space = change.contents.as_ref().is_some_and(|contents| !contents.is_empty());
        self.change(&Call { needs_space, ..changes("set", path) }, |state| {
            let ino = state.find(path)?;
            if let Some(contents) = &change.contents {
                state.must_be_file(ino)?;
                state.set_contents(ino, contents);
            }
            state.set(ino, change)?;
            Ok(state.node(ino).found())
        })
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.change(&changes("unlink", path), |state| {
            let (dir, name) = state.parent(path)?;
            state.unlink(dir, &name.ok_or(FsError::IsDirectory)?)
        })
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.change(&changes("rmdir", path), |state| {
            let (dir, name) = state.parent(path)?;
            state.rmdir(dir, &name.ok_or(FsError::Invalid)?)
        })
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        self.change(&Call { to: Some(to), ..changes("rename", from) }, |state| {
            let ((from_dir, from_name), (to_dir, to_name)) =
                (state.parent(from)?, state.parent(to)?);
            let from_name = from_name.ok_or(FsError::Busy)?;
            let to_name = to_name.ok_or(match mode {
                RenameMode::NoReplace => FsError::Exists,
                RenameMode::Replace | RenameMode::Exchange => FsError::Busy,
            })?;
            state.rename((from_dir, &from_name), (to_dir, &to_name), mode)
        })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(&Call { to: Some(to), ..changes("link", from) }, |state| {
            let ((from_dir, from_name), (dir, name)) = (state.parent(from)?, state.parent(to)?);
            let ino = state.child(from_dir, from_name.as_ref())?;
            state.link(ino, dir, name.as_ref())
        })
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(Bytes, Bytes)>> {
        self.ask("xattrs", Some(path), |state| {
            let xattrs = state.node(state.find(path)?).xattrs.iter();
            Ok(xattrs.map(|(name, value)| (name.clone(), value.clone())).collect())
        })
    }

    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let call = Call { needs_space: true, ..changes("set_xattr", path) };
        self.change(&call, |state| {
            let ino = state.find(path)?;
            acl::set_xattr(state, ino, name, value, mode)
        })
    }

    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()> {
        self.change(&changes("remove_xattr", path), |state| {
            let ino = state.find(path)?;
            acl::remove_xattr(state, ino, name)
        })
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Contents>> {
        let ino = self.ask("open", Some(path), |state| {
            let ino = state.find_file(path)?;
            state.opened(ino);
            Ok(ino)
        })?;
        Ok(Arc::new(File::new(self.clone(), ino)))
    }

    fn unnamed(&self, dir: &Path, meta: &Meta) -> Result<(Found, Arc<dyn Contents>)> {
        let call = Call { needs_space: true, ..changes("unnamed", dir) };
        let found = self.change(&call, |state| {
            let dir = state.find_dir(dir)?;
            let found = state.unnamed(dir, meta)?;
            state.opened(found.attr.ino.0);
            Ok(found)
        })?;
        Ok((found.clone(), Arc::new(File::new(self.clone(), found.attr.ino.0))))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.ask("sync_file", Some(path), |state| state.find(path).map(|_| ()))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.ask("sync_dir", Some(path), |state| state.find_dir(path).map(|_| ()))
    }

    fn sync_all(&self) -> Result<()> {
        self.ask("sync_all", None, |_| Ok(()))
    }

    fn statfs(&self) -> Result<Statfs> {
        let inner = &mut *self.inner();
        let call =
            Call { method: "statfs", path: None, to: None, is_change: false, needs_space: false };
        inner.faults.meet(&call)?;
        let (bytes, files) = inner.state.used();
        let free = if inner.faults.is_full { 0 } else { BYTES.saturating_sub(bytes) };
        Ok(Statfs {
            bytes: BYTES,
            bytes_free: free,
            files,
            files_free: FILES.saturating_sub(files),
        })
    }
}

/// A name in a directory, which `None` is for the region's own directory.
type At = (u64, Option<EntryName>);
