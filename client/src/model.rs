//! The model: a whole file system in memory, which defines what the right answer is.
//!
//! Tests call it: random operations on the real client and on the model must give equal answers,
//! and the mount is tested over it. It never talks to a server, never caches and is never clever: a
//! map of inodes, directories that are maps from names to inode numbers, contents in pages. Where
//! POSIX leaves a choice, or says nothing of which error comes first, it does what Linux does on
//! ext4.
//!
//! Always true after every operation: what [`Model::check`] checks. An operation that fails changes
//! nothing: each one reads, checks, and only then writes.

mod acl;
mod attributes;
mod check;
mod contents;
mod locks;
mod namespace;
mod ranges;
mod rename;
#[cfg(test)]
mod tests;
mod who;
mod xattrs;

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex},
};

use base::{
    Access, AclKind, Attr, ByteRange, Clock, Cred, DirId, EntryName, FileKind, FsError, HashKey,
    Ino, LockKind, SetAttr, Time,
    attr::{MODE_ACL, MODE_XATTRS},
};
use bytes::Bytes;
use futures::future::{Either, select};
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

use self::{contents::Contents, who::Who};
use crate::{FileLock, FileSystem, Handle, LocalLocks, LockTurn, Made, New, Result, Unnamed};

/// Capacity that the model reports, in bytes and in inodes.
const CAPACITY: u64 = 1 << 40;

/// One client of a file system in memory. A clone is the same client; [`Model::client`] makes
/// another one.
#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    trusted: bool,
    limited: bool,
    number: u64,
}

impl Model {
    /// An empty file system, its root `0755` of the superuser, and a client of it.
    ///
    /// `trusted`: what mode bits, the sticky bit, ownership and privilege forbid is not checked,
    /// because the caller's kernel has done so.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, key: HashKey, trusted: bool) -> Model {
        Model::with_pages(clock, key, trusted, 4096)
    }

    /// A model as [`Model::new`] makes it, with contents kept in pages of `page_bytes` bytes. No
    /// answer but `allocated` depends on the size of pages.
    ///
    /// # Panics
    /// When a page has no bytes.
    #[must_use]
    pub fn with_pages(
        clock: Arc<dyn Clock>,
        key: HashKey,
        trusted: bool,
        page_bytes: u32,
    ) -> Model {
        assert!(page_bytes > 0, "a page has bytes");
        Model {
            state: Arc::new(Mutex::new(State::new(clock, key, page_bytes))),
            trusted,
            limited: false,
            number: 0,
        }
    }

    /// Another client of the same file system.
    #[must_use]
    pub fn client(&self, trusted: bool) -> Model {
        let mut state = self.state.lock().expect("no operation panics halfway");
        state.last_client += 1;
        let number = state.last_client;
        Model { state: Arc::clone(&self.state), trusted, limited: false, number }
    }

    /// The same client, with a token that does not let it see everything: it must not learn where
    /// something was moved to.
    #[must_use]
    pub fn limited(self) -> Model {
        Model { limited: true, ..self }
    }

    fn with<T>(
        &self,
        act: impl FnOnce(&mut State) -> std::result::Result<T, FsError>,
    ) -> Result<T> {
        let mut state = self.state.lock().expect("no operation panics halfway");
        Ok(act(&mut state)?)
    }

    fn who<'a>(&self, cred: &'a Cred) -> Who<'a> {
        Who { cred, trusted: self.trusted, limited: self.limited, client: self.number }
    }
}

/// The file system. Each operation is one method, in the file that its name suggests.
struct State {
    clock: Arc<dyn Clock>,
    key: HashKey,
    page_bytes: u32,
    /// Everything that has a name or is open.
    inodes: BTreeMap<Ino, Inode>,
    handles: BTreeMap<Handle, Open>,
    locks: LocalLocks,
    /// The highest numbers given out.
    last_ino: u64,
    last_handle: u64,
    last_client: u64,
}

/// A file, directory, symbolic link or special file.
struct Inode {
    /// All but `size` and `allocated`, which [`State::attr`] takes from the body.
    attr: Attr,
    xattrs: BTreeMap<Bytes, Bytes>,
    /// How many handles are on it.
    opens: u32,
    /// Whether the file has no name, and may get one.
    linkable: bool,
    body: Body,
}

enum Body {
    File(Contents),
    Directory(Directory),
    Symlink(Bytes),
    Special,
}

struct Directory {
    id: DirId,
    /// Inode of the present parent; the root's is the root itself.
    parent: Ino,
    entries: BTreeMap<EntryName, Ino>,
}

/// An open file, and the client that has it open.
struct Open {
    ino: Ino,
    client: u64,
    /// Access that this handle allows.
    may: Access,
    /// Access by user: what the client's users may do with the file as long as the client has any
    /// handle on it. Every open since then adds the access that it was for.
    granted: BTreeMap<u32, Access>,
    /// Whether a write through this handle clears set-id bits.
    clears_set_id: bool,
}

impl State {
    fn new(clock: Arc<dyn Clock>, key: HashKey, page_bytes: u32) -> State {
        let mut state = State {
            clock,
            key,
            page_bytes,
            inodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            locks: LocalLocks::default(),
            last_ino: Ino::ROOT.0 - 1,
            last_handle: 0,
            last_client: 0,
        };
        let entries = BTreeMap::new();
        let root = Directory { id: DirId::ROOT, parent: Ino::ROOT, entries };
        state.add_inode(Body::Directory(root), FileKind::Directory, 0o755, 0, 0);
        state
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// A new inode, without a name yet; a directory's link count is 2 from the start, others' is 1.
    fn add_inode(&mut self, body: Body, kind: FileKind, mode: u32, uid: u32, gid: u32) -> Ino {
        self.last_ino += 1;
        let (ino, now) = (Ino(self.last_ino), self.now());
        let attr = Attr {
            mode,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attr::blank(ino, kind)
        };
        self.inodes
            .insert(ino, Inode { attr, xattrs: BTreeMap::new(), opens: 0, linkable: false, body });
        ino
    }

    /// An inode that is known to be there.
    fn inode(&self, ino: Ino) -> &Inode {
        self.inodes.get(&ino).expect("names and handles keep an inode")
    }

    fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("names and handles keep an inode")
    }

    fn attr(&self, ino: Ino) -> Attr {
        let inode = self.inode(ino);
        let (size, allocated) = match &inode.body {
            Body::File(contents) => (contents.len(), contents.stored()),
            Body::Directory(directory) => (directory.entries.len() as u64, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        let has_acl = inode.xattrs.keys().any(|name| AclKind::of(name).is_some());
        let has_others = inode.xattrs.keys().any(|name| AclKind::of(name).is_none());
        let of_xattrs = if has_others && !self.is_dir(ino) { MODE_XATTRS } else { 0 };
        let mode = inode.attr.mode | if has_acl { MODE_ACL } else { 0 } | of_xattrs;
        Attr { mode, size, allocated, ..inode.attr }
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.inode(ino).attr.kind == FileKind::Directory
    }

    /// A directory that is known to be one.
    fn directory(&self, ino: Ino) -> &Directory {
        match &self.inode(ino).body {
            Body::Directory(directory) => directory,
            Body::File(_) | Body::Symlink(_) | Body::Special => unreachable!("checked before"),
        }
    }

    fn directory_mut(&mut self, ino: Ino) -> &mut Directory {
        match &mut self.inode_mut(ino).body {
            Body::Directory(directory) => directory,
            Body::File(_) | Body::Symlink(_) | Body::Special => unreachable!("checked before"),
        }
    }

    /// The directory that (id, ino) names, if it is still there.
    fn find_dir(&self, dir: &DirRef) -> Option<Ino> {
        match &self.inodes.get(&dir.ino)?.body {
            Body::Directory(found) if found.id == dir.id => Some(dir.ino),
            Body::Directory(_) | Body::File(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The directory for an operation on a name in it.
    ///
    /// Linux: ESTALE makes the kernel walk the path once more, and find the directory that stands
    /// there now. Where the same kernel has removed the directory, it says ENOENT without asking.
    fn dir(&self, dir: &DirRef) -> std::result::Result<Ino, FsError> {
        self.find_dir(dir).ok_or(FsError::Stale)
    }

    /// The inode for an operation on the node itself.
    fn node(&self, who: Who<'_>, node: &NodeRef) -> std::result::Result<Ino, FsError> {
        match node {
            NodeRef::Dir(dir) => self.dir(dir),
            NodeRef::File(file) => self.file(who, file),
        }
    }

    /// Returns the inode of a file, which may have another name by now, or none. A caller that is
    /// checked must be allowed to search the directory in which the file was found, unless it has
    /// the file open.
    fn file(&self, who: Who<'_>, file: &FileRef) -> std::result::Result<Ino, FsError> {
        if self.granted(who, file.ino).is_none() {
            if !who.trusted {
                self.may(who, self.dir(&file.dir)?, Access::EXECUTE)?;
            }
            if who.limited && self.child(self.dir(&file.dir)?, &file.name) != Some(file.ino) {
                return Err(FsError::Stale);
            }
        }
        self.inodes.contains_key(&file.ino).then_some(file.ino).ok_or(FsError::Stale)
    }

    fn dir_ref(&self, ino: Ino) -> DirRef {
        let id = self.directory(ino).id;
        DirRef { id, ino, home: id, ticket: 0 }
    }

    fn entry(&self, ino: Ino) -> Entry {
        let (dir, target) = match &self.inode(ino).body {
            Body::Directory(_) => (Some(self.dir_ref(ino)), None),
            Body::Symlink(target) => (None, Some(target.clone())),
            Body::File(_) | Body::Special => (None, None),
        };
        Entry { attr: self.attr(ino), dir, target, whole: true }
    }

    /// Drops an inode that has neither a name nor a handle.
    fn forget_unused(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        if inode.attr.nlink == 0 && inode.opens == 0 {
            self.inodes.remove(&ino);
        }
    }
}

impl FileSystem for Model {
    fn root(&self) -> (DirRef, Attr) {
        self.with(|state| Ok((state.dir_ref(Ino::ROOT), state.attr(Ino::ROOT))))
            .expect("nothing in it fails")
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.with(|state| state.lookup(self.who(cred), dir, name))
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        self.with(|state| Ok(state.attr(state.node(self.who(cred), node)?)))
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.with(|state| state.setattr(self.who(cred), node, &set))
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        self.with(|state| state.readlink(self.who(cred), file))
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made> {
        self.with(|state| state.create(self.who(cred), dir, name, new, exclusive, open))
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        self.with(|state| state.tmpfile(self.who(cred), dir, mode, linkable))
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        self.with(|state| state.mkdir(self.who(cred), dir, name, mode))
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        self.with(|state| state.symlink(self.who(cred), dir, name, target))
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        self.with(|state| state.link(self.who(cred), target, dir, name))
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.with(|state| state.unlink(self.who(cred), dir, name))
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        self.with(|state| state.rmdir(self.who(cred), dir, name))
    }

    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.with(|state| state.rename(self.who(cred), from, to, mode))
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        self.with(|state| state.readdir(self.who(cred), dir, after, entries_max, plus))
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        self.with(|state| state.open(self.who(cred), file, access))
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        self.with(|state| Ok(state.attr(state.opened(handle)?.ino))).ok()
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.with(|state| state.read(handle, offset, len))
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        self.with(|state| state.write(handle, offset, &data, clear_set_id))
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        self.with(|state| state.opened(handle).map(|_| ()))
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        self.with(|state| state.opened(handle).map(|_| ()))
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.with(|state| state.release(handle))
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.with(|state| state.lock(handle, owner, lock, false).map(drop))
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        let (wait, told) = match self.with(|state| state.lock(handle, owner, lock, true))? {
            LockTurn::Now => return Ok(()),
            LockTurn::Later(wait, told) => (wait, told),
        };
        // The sender is dropped only when the wait is cancelled, and that is done here.
        match select(told, pin!(interrupted)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => {
                let waited = self.with(|state| Ok(state.cancel_lock(wait)))?;
                if waited { Err(FsError::Interrupted.into()) } else { Ok(()) }
            }
        }
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.with(|state| state.unlock(handle, owner, kind, range))
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        self.with(|state| state.unlock_closed(handle, owner))
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        self.with(|state| state.find_lock(handle, owner, lock))
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn sync_dir(&self, _: &DirRef) -> Result<()> {
        Ok(())
    }

    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        self.with(|state| state.xattrs(self.who(cred), node))
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.with(|state| state.setxattr(self.who(cred), node, name, value, mode))
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.with(|state| state.removexattr(self.who(cred), node, &name))
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        self.with(|state| state.allocate(handle, offset, len, mode, clear_set_id))
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        self.with(|state| state.seek(handle, offset, to))
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        let (root, _) = FileSystem::root(self);
        self.with(|state| match &state.inodes.get(&ino).ok_or(FsError::Stale)?.body {
            Body::Directory(_) => Ok(NodeRef::Dir(state.dir_ref(ino))),
            Body::File(_) | Body::Symlink(_) | Body::Special => {
                Ok(NodeRef::File(FileRef::unnamed(root, ino)))
            }
        })
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.with(|state| {
            let used: u64 = state.inodes.keys().map(|ino| state.attr(*ino).allocated).sum();
            let files = state.inodes.len() as u64;
            Ok(Statfs {
                bytes: CAPACITY,
                bytes_free: CAPACITY.saturating_sub(used),
                files,
                files_free: CAPACITY.saturating_sub(files),
            })
        })
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.with(|state| {
            let attr = state.attr(state.node(self.who(&Cred::ROOT), node)?);
            Ok(vec![
                ("kind".to_owned(), format!("{:?}", attr.kind).to_lowercase()),
                ("ino".to_owned(), attr.ino.to_string()),
            ])
        })
    }
}
