//! Operations that the file system below answers itself, while nothing else runs on what they
//! concern: rmdir, rename, link, rights of directories, extended attributes, special files, and
//! files that grow large.
//!
//! Each holds its paths, commits what is dirty in them and above them, makes its one call below,
//! and then has the table follow. So below decides, also about files of outsiders; and a process
//! that dies leaves below before or after that call, with nothing of those paths uncommitted.
//!
//! Paper: Pacon §III-E, barrier commit, here of a part of the region.

mod attributes;
mod rename;
mod sync;

use std::{pin::pin, time::Duration};

use base::{Acl, AclKind, Attr, Cred, EntryName, FileKind, FsError, Ino, attr::MODE_BITS};
use bytes::Bytes;
use client::{New, Result, Unnamed};
use tokio::time::Instant;
use wire::{DirRef, Entry, FileRef, NodeRef};

use crate::{
    Path, Region,
    below::{self, Below, Meta},
    commit::within,
    names::Made,
    region::{Calls, look},
    table::{Body, Need, Slot, Table},
};

/// How long an operation waits for commits that fail, and may succeed later.
const PATIENCE: Duration = Duration::from_secs(10);

/// The wait between two tries.
const RETRY: Duration = Duration::from_millis(100);

/// Paths that are held until this is dropped.
pub(crate) struct Held<'a> {
    region: &'a Region,
    number: u64,
}

impl Held<'_> {
    /// Holds the paths for good.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.region.lock().holds.release(self.number);
        self.region.0.changed.notify_waiters();
    }
}

impl Region {
    /// Lets nothing else run on these paths and what is below them.
    pub(crate) async fn hold(&self, scopes: &[Path]) -> Held<'_> {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            {
                let mut table = self.lock();
                let loads = table.loading.iter().any(|path| {
                    scopes.iter().any(|scope| path.is_within(scope) || scope.is_within(path))
                });
                if !loads && let Some(number) = table.holds.take(scopes) {
                    return Held { region: self, number };
                }
            }
            changed.await;
        }
    }

    /// Has everything of these paths below, and the directories above them; with `late` also mode
    /// and times of directories.
    pub(crate) async fn drain(&self, scopes: &[Path], late: bool) -> Result<()> {
        let mut since: Option<Instant> = None;
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let job = {
                let mut table = self.lock();
                if scopes.iter().all(|scope| table.is_committed(scope, late)) {
                    return Ok(());
                }
                let before = table.dirty.len();
                let job = scopes.iter().find_map(|scope| table.take_within(scope, late));
                // Some may have been given up, because the directory above was.
                if job.is_none() && table.dirty.len() < before {
                    continue;
                }
                job
            };
            let Some(job) = job else {
                assert!(self.0.calls == Calls::OnThreads, "alone, a drain waits for nobody");
                changed.await;
                continue;
            };
            self.run_jobs(vec![job]).await;
            let Some(error) = self.lock().trouble.map(|trouble| trouble.error) else {
                since = None;
                continue;
            };
            if self.0.calls == Calls::Here {
                return Err(error.into());
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(error.into());
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Has a path below, but not what is in it.
    pub(crate) async fn drain_itself(&self, path: &Path) -> Result<()> {
        let is_dir = {
            let table = self.lock();
            let entry = table.entries.get(path);
            entry.and_then(|entry| table.node_of(entry)).is_some_and(|node| node.is_dir())
        };
        let scope = if is_dir { inside(path) } else { path.clone() };
        self.drain(&[scope], false).await
    }

    /// Makes something below that only below can make right.
    pub(crate) async fn make_below(
        &self,
        path: Path,
        dir: Ino,
        attr: Attr,
        new: New,
        target: Bytes,
        open: bool,
    ) -> Result<Made> {
        let held = self.hold(std::slice::from_ref(&path)).await;
        self.still(dir, &path)?;
        self.drain(std::slice::from_ref(&path), false).await?;
        if let Some(ino) = self.find_now(&path).await? {
            return Ok(Made::There(self.lock().show(ino)));
        }
        let what = match new.kind {
            FileKind::File => below::New::File(std::sync::Arc::default()),
            FileKind::Directory => below::New::Directory,
            FileKind::Symlink => below::New::Symlink(target),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                below::New::Special(new.kind, new.rdev)
            }
        };
        let made = path.clone();
        let found = self
            .call(move |below| {
                let meta = below_meta(below, &made, &attr, &new)?;
                below.make(&made, &what, &meta)?;
                if new.kind == FileKind::Directory {
                    let mode = Some(meta.mode);
                    below.set(&made, &below::Change { mode, ..below::Change::default() })?;
                }
                look(below, &made, u64::MAX)
            })
            .await?;
        let (found, mut body) = found.ok_or(FsError::NotFound)?;
        let mut table = self.lock();
        match &mut body {
            Body::Directory(directory) => directory.born_here = true,
            Body::Unread => body = Body::Inline(std::sync::Arc::default()),
            Body::Symlink(_) | Body::Inline(_) | Body::Passed(_) | Body::Special => {}
        }
        table.settle_made(&path, found, body);
        let ino = table.find_held(&path).ok().flatten().ok_or(FsError::Stale)?;
        let handle = open.then(|| table.add_handle(ino));
        let entry = table.show(ino);
        drop(table);
        drop(held);
        Ok(Made::New(entry, handle))
    }

    /// Whether a path that was computed before it was held is still one in that directory:
    /// something above may have moved, and `Stale` has the caller look again.
    pub(crate) fn still(&self, dir: Ino, path: &Path) -> Result<()> {
        let above = self.lock().above(path).map(|(ino, _)| ino);
        if above == Some(dir) { Ok(()) } else { Err(FsError::Stale.into()) }
    }

    /// Finds what is at a path that is held.
    pub(crate) async fn find_now(&self, path: &Path) -> Result<Option<Ino>> {
        loop {
            let inline_max = {
                let table = self.lock();
                match table.find_held(path) {
                    Ok(found) => return Ok(found),
                    Err(Need::Answer(error)) => return Err(error.into()),
                    Err(_) if table.above(path).is_none() => return Err(FsError::Stale.into()),
                    Err(_) => table.bounds.inline_max as u64,
                }
            };
            let asked = path.clone();
            let found = self.call(move |below| look(below, &asked, inline_max)).await?;
            self.lock().loaded(path, found);
        }
    }

    /// A file without a name: it is below from the start.
    pub(crate) async fn unnamed(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        let new = New { kind: FileKind::File, mode, rdev: 0 };
        let here = New { mode: base::acl::without_umask(mode), ..new };
        let (path, attr) = self
            .run(|table| Ok((table.dir_path(dir)?, table.new_attr(cred, dir.ino, here))))
            .await?;
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.drain(&[inside(&path)], false).await?;
        let meta = meta(&attr, attr.mode);
        let (found, file) = self.call(move |below| below.unnamed(&path, &meta)).await?;
        let mut table = self.lock();
        let ino = table.number();
        let attr = Attr { ino, nlink: 0, ..found.attr };
        let mut node = crate::table::Node::loaded(attr, Body::Passed(Some(file)), Path::root());
        node.path = None;
        (node.linkable, node.shown) = (linkable, true);
        table.nodes.insert(ino, node);
        let handle = table.add_handle(ino);
        Ok(Unnamed { file: FileRef::unnamed(*dir, ino), attr, handle })
    }

    /// A small file becomes a large one: its contents are below from now on.
    pub(crate) async fn grow(&self, ino: Ino) -> Result<()> {
        let path = self.run(|table| Ok(table.nodes.get(&ino).ok_or(FsError::Stale)?.path.clone()));
        let Some(path) = path.await? else { return self.grow_unnamed(ino).await };
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.drain(std::slice::from_ref(&path), false).await?;
        {
            let table = self.lock();
            let Some(node) = table.nodes.get(&ino) else { return Ok(()) };
            if let Some(error) = node.failed {
                return Err(error.into());
            }
            // Meanwhile it may have moved, or have been removed, or have grown: the operation looks
            // again.
            if node.path.as_ref() != Some(&path) || !matches!(node.body, Body::Inline(_)) {
                return Ok(());
            }
        }
        let opened = self.call(move |below| below.open(&path).map(|file| (file.attr(), file)));
        let (attr, file) = opened.await?;
        let attr = attr?;
        let mut table = self.lock();
        table.pass(ino, &attr, file);
        Ok(())
    }

    /// The same, for a file that has no name any more.
    async fn grow_unnamed(&self, ino: Ino) -> Result<()> {
        let (attr, contents) = {
            let table = self.lock();
            let Some(node) = table.nodes.get(&ino) else { return Ok(()) };
            let Body::Inline(contents) = &node.body else { return Ok(()) };
            (node.attr, std::sync::Arc::clone(contents))
        };
        let meta = meta(&attr, attr.mode);
        let made = self
            .call(move |below| {
                let (_, file) = below.unnamed(&Path::root(), &meta)?;
                file.write_at(0, &contents)?;
                Ok::<_, FsError>((file.attr()?, file, contents))
            })
            .await?;
        let (found, file, contents) = made;
        let mut table = self.lock();
        let Some(node) = table.nodes.get(&ino) else { return Ok(()) };
        // A write that came meanwhile is not in it.
        let same =
            matches!(&node.body, Body::Inline(now) if std::sync::Arc::ptr_eq(now, &contents));
        if same && node.path.is_none() {
            table.pass(ino, &found, file);
        }
        Ok(())
    }

    /// One more name of a file.
    pub(crate) async fn link_below(
        &self,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        let (ino, from, to) = self
            .run(|table| {
                let ino = table.node_ino(target)?;
                let to = table.dir_path(dir)?.child(name);
                if table.find(&to)?.is_some() {
                    return Err(FsError::Exists.into());
                }
                let node = table.node(ino);
                if node.is_dir() {
                    return Err(FsError::NotPermitted.into());
                }
                Ok((ino, node.path.clone(), to))
            })
            .await?;
        let scopes: Vec<Path> = from.iter().chain([&to]).cloned().collect();
        let _held = self.hold(&scopes).await;
        self.still(dir.ino, &to)?;
        self.drain(&scopes, false).await?;
        if self.find_now(&to).await?.is_some() {
            return Err(FsError::Exists.into());
        }
        let file = {
            let table = self.lock();
            let node = table.nodes.get(&ino).ok_or(FsError::Stale)?;
            if let Some(error) = node.failed {
                return Err(error.into());
            }
            match (&node.body, node.path == from) {
                (_, false) => return Err(FsError::Stale.into()),
                (_, true) if from.is_none() && !node.linkable => {
                    return Err(FsError::NotFound.into());
                }
                (Body::Passed(file), true) => file.clone(),
                (_, true) if from.is_none() => return Err(FsError::NotFound.into()),
                (_, true) => None,
            }
        };
        let asked = to.clone();
        let (found, file) = self
            .call(move |below| {
                match (&from, &file) {
                    (Some(from), _) => below.link(from, &asked)?,
                    (None, Some(file)) => file.link(&asked)?,
                    (None, None) => return Err(FsError::NotFound),
                }
                let found = below.look(&asked)?.ok_or(FsError::NotFound)?;
                let is_file = found.attr.kind == FileKind::File;
                let file = if is_file { Some(below.open(&asked)?) } else { None };
                Ok((found, file))
            })
            .await?;
        let mut table = self.lock();
        let (above, name) = table.above(&to).ok_or(FsError::Stale)?;
        if let Some(file) = file {
            table.pass(ino, &found.attr, file);
        }
        table.put(to.clone(), Slot::Node(ino), true);
        table.directory_mut(above).children.insert(name);
        table.touch_dir(above);
        let node = table.node_mut(ino);
        node.attr.nlink = found.attr.nlink;
        node.attr.ctime = found.attr.ctime;
        node.path.get_or_insert(to);
        node.linkable = false;
        table.answered_below();
        Ok(table.show(ino))
    }

    /// Removes one of several names.
    pub(crate) async fn unlink_below(&self, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        let path = self.run(|table| Ok(table.dir_path(dir)?.child(name))).await?;
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.still(dir.ino, &path)?;
        self.drain(std::slice::from_ref(&path), false).await?;
        let ino = self.find_now(&path).await?.ok_or(FsError::NotFound)?;
        let asked = path.clone();
        match self.call(move |below| below.unlink(&asked)).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let mut table = self.lock();
        let nlink = table.node(ino).attr.nlink.saturating_sub(1);
        let attr = Attr { nlink, ctime: table.now, ..table.node(ino).attr };
        table.take_name(&path);
        table.gone_below(&path);
        table.answered_below();
        Ok(attr)
    }

    pub(crate) async fn rmdir_below(&self, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        let found = self
            .run(|table| {
                let path = table.dir_path(dir)?.child(name);
                let ino = table.find(&path)?.ok_or(FsError::NotFound)?;
                let found = table.node(ino).directory().ok_or(FsError::NotDirectory)?;
                if !found.children.is_empty() {
                    return Err(FsError::NotEmpty.into());
                }
                // A directory that was never below needs no call there.
                let entry = &table.entries[&path];
                let only_here = table.node(ino).fresh && !entry.committing;
                if only_here && table.dirty_within(&path).all(|dirty| *dirty == path) {
                    table.take_name(&path);
                    table.changed(&path);
                    return Ok((ino, None));
                }
                Ok((ino, Some(path)))
            })
            .await?;
        let (ino, Some(path)) = found else { return Ok(found.0) };
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.still(dir.ino, &path)?;
        self.drain(std::slice::from_ref(&path), false).await?;
        if self.find_now(&path).await? != Some(ino) {
            return Err(FsError::NotFound.into());
        }
        {
            let table = self.lock();
            let directory = table.node(ino).directory().ok_or(FsError::NotDirectory)?;
            if !directory.children.is_empty() || within(&table.failed, &path).next().is_some() {
                return Err(FsError::NotEmpty.into());
            }
        }
        let asked = path.clone();
        match self.call(move |below| below.rmdir(&asked)).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let mut table = self.lock();
        table.take_name(&path);
        table.gone_below(&path);
        table.answered_below();
        Ok(ino)
    }
}

impl Table {
    /// Takes in something that was made below while its path was held.
    fn settle_made(&mut self, path: &Path, found: below::Found, body: Body) {
        self.drop_entry(path);
        self.loaded(path, Some((found, body)));
        if let Some((above, _)) = self.above(path) {
            let is_dir =
                self.find_held(path).ok().flatten().is_some_and(|ino| self.node(ino).is_dir());
            if is_dir && self.node(above).attr.nlink >= 2 {
                self.node_mut(above).attr.nlink += 1;
            }
            self.touch_dir(above);
        }
        self.answered_below();
    }

    /// A path that was removed below.
    fn gone_below(&mut self, path: &Path) {
        if let Some(entry) = self.entries.get_mut(path) {
            entry.below = false;
        }
        self.sort_out(path);
    }

    /// From now on the contents of a file are below.
    fn pass(&mut self, ino: Ino, found: &Attr, file: std::sync::Arc<dyn below::Contents>) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        self.memory -= node.contents_bytes();
        let Attr { nlink, ctime, btime, .. } = node.attr;
        node.attr = Attr { ino, nlink, ctime, btime, ..*found };
        node.body = Body::Passed((node.opens > 0).then_some(file));
        node.changed = crate::table::Changed::default();
    }

    /// A change was answered that is below already.
    pub(crate) fn answered_below(&mut self) {
        self.counts.acknowledged += 1;
        self.counts.committed += 1;
        self.counts.commits += 1;
    }
}

/// A path in a directory: the directories above a path are committed first, so the directory itself
/// is, too.
fn inside(dir: &Path) -> Path {
    dir.child(&EntryName::new(b"#").expect("a name"))
}

fn meta(attr: &Attr, mode: u32) -> Meta {
    let Attr { uid, gid, atime, mtime, .. } = *attr;
    Meta { mode: mode & MODE_BITS, uid, gid, atime, mtime }
}

/// The metadata of something new, with the mode that a default ACL of the directory makes of the
/// mode that was asked for.
fn below_meta(below: &dyn Below, path: &Path, attr: &Attr, new: &New) -> below::Result<Meta> {
    let (above, _) = path.split().ok_or(FsError::Invalid)?;
    let found = below.look(&above)?.ok_or(FsError::NotFound)?;
    if !found.default_acl || new.kind == FileKind::Symlink {
        return Ok(meta(attr, attr.mode));
    }
    let xattrs = below.xattrs(&above)?;
    let default = xattrs.iter().find(|(name, _)| AclKind::of(name) == Some(AclKind::Default));
    let acl = default.map(|(_, value)| Acl::parse(value)).transpose()?.flatten();
    let asked = attr.mode & !0o777 | new.mode & 0o777;
    Ok(meta(attr, acl.map_or(attr.mode, |acl| acl.inherit(asked, new.kind).mode)))
}
