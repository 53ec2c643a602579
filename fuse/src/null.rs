//! A small file system in memory: what this crate is tested with, and the floor that benchmarks
//! compare with: the kernel's and this crate's share of every operation, with nothing behind it.
//!
//! It has directories, files with holes, links, symlinks, special files, xattrs, `O_TMPFILE`,
//! locks, and stable listing cookies. It answers everything inline except locks that must be waited
//! for. It leaves permissions to the kernel (`default_permissions`), keeps nothing after its end,
//! and serves any number of threads, whose tokio runtimes must allow `spawn_local`.

mod content;
mod locks;
mod tree;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustix::{fs::RenameFlags, io::Errno};

use crate::{
    init::{Capabilities, InitOptions},
    reply::{DirPage, DirPlusPage, Reply},
    request::{Op, Request, SetAttr, SetTime},
    session::Handler,
    types::{
        Attr, Entry, FileLock, Handle, LockKind, LockOwner, LockType, NodeId, OpenFlags, StatFs,
        StatxExtra, Timespec,
    },
};
use locks::Locks;
use tree::{Birth, Kind, Tree};

/// The file system in memory.
pub struct NullFs {
    tree: Mutex<Tree>,
    locks: Arc<Locks>,
    ttl: Duration,
    now: Box<dyn Fn() -> Timespec + Send + Sync>,
}

impl NullFs {
    /// An empty file system whose root belongs to root. The kernel may believe names and attributes
    /// for `ttl`; `now` gives the time that is written into inodes.
    pub fn new(ttl: Duration, now: impl Fn() -> Timespec + Send + Sync + 'static) -> Self {
        let root = Birth { mode: 0o040_755, uid: 0, gid: 0, rdev: 0, now: now() };
        let tree = Mutex::new(Tree::new(root));
        NullFs { tree, locks: Arc::default(), ttl, now: Box::new(now) }
    }

    /// Options that this file system asks of the kernel.
    pub fn init_options() -> InitOptions {
        let capabilities = Capabilities::ASYNC_READ
            | Capabilities::POSIX_LOCKS
            | Capabilities::FLOCK_LOCKS
            | Capabilities::DO_READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::PARALLEL_DIROPS
            | Capabilities::ASYNC_DIO
            | Capabilities::CACHE_SYMLINKS
            | Capabilities::HAS_EXPIRE_ONLY;
        InitOptions { capabilities, ..InitOptions::default() }
    }

    fn birth(&self, request: &Request<'_>, mode: u32, rdev: u32) -> Birth {
        let (uid, gid) = (request.header.uid, request.header.gid);
        Birth { mode, uid, gid, rdev, now: (self.now)() }
    }

    /// An entry to send: counts one look-up.
    fn entry(&self, tree: &mut Tree, node: NodeId) -> Result<Entry, Errno> {
        let found = tree.get_mut(node)?;
        found.lookups += 1;
        Ok(Entry {
            node,
            generation: found.generation,
            attr: found.attr,
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
        })
    }

    fn make(
        &self,
        request: &Request<'_>,
        name: &[u8],
        birth: &Birth,
        kind: Kind,
    ) -> Result<Entry, Errno> {
        let tree = &mut *self.tree.lock();
        let node = tree.make(request.header.node, name, birth, kind)?;
        self.entry(tree, node)
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let tree = &mut *self.tree.lock();
        let node = tree.lookup(parent, name)?;
        self.entry(tree, node)
    }

    fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let tree = &mut *self.tree.lock();
        tree.link(node, parent, name, (self.now)())?;
        self.entry(tree, node)
    }

    fn tmpfile(&self, birth: &Birth) -> Result<Entry, Errno> {
        let tree = &mut *self.tree.lock();
        let node = tree.make_nameless(birth);
        self.entry(tree, node)
    }

    fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        Ok(self.tree.lock().get(node)?.attr)
    }

    fn set_attr(&self, node: NodeId, set: &SetAttr) -> Result<Attr, Errno> {
        let now = (self.now)();
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        let tree = &mut *self.tree.lock();
        let node = tree.get_mut(node)?;
        if let Some(size) = set.size {
            node.truncate(size)?;
            node.attr.mtime = now;
        }
        let attr = &mut node.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & !0o7777 | mode & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = set.ctime.unwrap_or(now);
        Ok(*attr)
    }

    fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags: u32) -> Result<(), Errno> {
        let mut tree = self.tree.lock();
        let now = (self.now)();
        match RenameFlags::from_bits(flags) {
            Some(flags) if flags == RenameFlags::EXCHANGE => tree.exchange(from, to, now),
            Some(flags) if flags == RenameFlags::NOREPLACE => {
                if tree.lookup(to.0, to.1).is_ok() {
                    return Err(Errno::EXIST);
                }
                tree.rename(from, to, now)
            }
            Some(flags) if flags.is_empty() => tree.rename(from, to, now),
            Some(_) | None => Err(Errno::INVAL),
        }
    }

    fn write(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        self.tree.lock().get_mut(node)?.write(offset, data, (self.now)())?;
        u32::try_from(data.len()).map_err(|_| Errno::INVAL)
    }

    fn copy(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Result<u64, Errno> {
        let mut tree = self.tree.lock();
        let data = tree.get(from.0)?.read(from.1, len)?;
        tree.get_mut(to.0)?.write(to.1, &data, (self.now)())?;
        u64::try_from(data.len()).map_err(|_| Errno::OVERFLOW)
    }

    fn read_dir(&self, node: NodeId, offset: u64, size: u32) -> Result<DirPage, Errno> {
        let tree = self.tree.lock();
        let mut page = DirPage::new(size);
        for (next, name, child) in tree.list(node, offset)? {
            let attr = &tree.get(child)?.attr;
            if !page.push(attr.ino, attr.mode, next, name) {
                break;
            }
        }
        Ok(page)
    }

    fn read_dir_plus(&self, node: NodeId, offset: u64, size: u32) -> Result<DirPlusPage, Errno> {
        let mut page = DirPlusPage::new(size);
        let mut sent = Vec::new();
        {
            let tree = self.tree.lock();
            for (next, name, child) in tree.list(node, offset)? {
                let found = tree.get(child)?;
                let (entry_ttl, attr_ttl) = (self.ttl, self.ttl);
                let (attr, generation) = (found.attr, found.generation);
                let entry = Entry { node: child, generation, attr, entry_ttl, attr_ttl };
                let plain = name == b"." || name == b"..";
                let fits = if plain {
                    page.push_plain(attr.ino, attr.mode, next, name)
                } else {
                    page.push(&entry, next, name)
                };
                if !fits {
                    break;
                }
                sent.extend((!plain).then_some(child));
            }
        }
        let mut tree = self.tree.lock();
        for child in sent {
            tree.get_mut(child)?.lookups += 1;
        }
        Ok(page)
    }

    fn set_lock(&self, ask: LockAsk, wait: bool, reply: Reply) {
        match self.locks.set(&ask) {
            Ok(()) => reply.ok(),
            Err(_) if wait => {
                let locks = Arc::clone(&self.locks);
                tokio::task::spawn_local(async move { locks.wait(&ask, reply).await });
            }
            Err(_) => reply.error(Errno::AGAIN),
        }
    }

    /// Operations of open files and directories; the rest are `request`'s.
    fn file_request(&self, request: &Request<'_>, reply: Reply) {
        let node = request.header.node;
        match request.op {
            Op::Open { .. } => reply.opened(NO_HANDLE, OpenFlags::KEEP_CACHE),
            Op::OpenDir { .. } => reply.opened(NO_HANDLE, OpenFlags::empty()),
            Op::Read { offset, size, .. } => {
                let data =
                    self.tree.lock().get(node).and_then(|node| node.read(offset, size.into()));
                answer(reply, data, |reply, data| reply.data(&data));
            }
            Op::Write { offset, data, .. } => {
                answer(reply, self.write(node, offset, data), Reply::written);
            }
            Op::ReadDir { offset, size, .. } => {
                answer(reply, self.read_dir(node, offset, size), |reply, page| reply.dir(&page));
            }
            Op::ReadDirPlus { offset, size, .. } => {
                let page = self.read_dir_plus(node, offset, size);
                answer(reply, page, |reply, page| reply.dir_plus(&page));
            }
            Op::Release { flock_owner, .. } => {
                if let Some(owner) = flock_owner {
                    self.locks.release(node, LockKind::Flock, owner);
                }
                reply.ok();
            }
            Op::Flush { lock_owner, .. } => {
                self.locks.release(node, LockKind::Posix, lock_owner);
                reply.ok();
            }
            Op::FSync { .. } | Op::FSyncDir { .. } | Op::ReleaseDir { .. } | Op::SyncFs => {
                reply.ok();
            }
            Op::GetLk { owner, lock, kind, .. } => {
                let ask = LockAsk { node, kind, owner, lock };
                let free = FileLock { kind: LockType::Unlock, ..lock };
                reply.lock(&self.locks.conflict(&ask).unwrap_or(free));
            }
            Op::SetLk { owner, lock, kind, wait, .. } => {
                self.set_lock(LockAsk { node, kind, owner, lock }, wait, reply);
            }
            Op::LSeek { offset, whence, .. } => {
                let found = self.tree.lock().get(node).and_then(|node| node.seek(offset, whence));
                answer(reply, found, Reply::offset);
            }
            Op::CopyFileRange { offset_in, node_out, offset_out, len, .. } => {
                let copied = self.copy((node, offset_in), (node_out, offset_out), len);
                answer(reply, copied, Reply::copied);
            }
            Op::FAllocate { .. } => reply.error(Errno::OPNOTSUPP),
            Op::Ioctl { .. } => reply.error(Errno::NOTTY),
            // The kernel does these by itself when told that we do not.
            Op::Access { .. } | Op::BMap { .. } | Op::Poll { .. } => reply.error(Errno::NOSYS),
            Op::Lookup { .. }
            | Op::GetAttr { .. }
            | Op::Statx { .. }
            | Op::SetAttr(_)
            | Op::ReadLink
            | Op::Symlink { .. }
            | Op::MkNod { .. }
            | Op::MkDir { .. }
            | Op::Create { .. }
            | Op::TmpFile { .. }
            | Op::Unlink { .. }
            | Op::RmDir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::StatFs
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. } => unreachable!("answered by `request`"),
        }
    }
}

/// A lock that someone asks for.
#[derive(Clone, Copy, Debug)]
struct LockAsk {
    node: NodeId,
    kind: LockKind,
    owner: LockOwner,
    lock: FileLock,
}

/// Files need no state while they are open.
const NO_HANDLE: Handle = Handle(0);

fn answer<T>(reply: Reply, result: Result<T, Errno>, send: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

fn xattr(reply: Reply, size: u32, value: Result<Vec<u8>, Errno>) {
    answer(reply, value, |reply, value| match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.xattr_size(len),
        Ok(len) if len <= size => reply.data(&value),
        Ok(_) | Err(_) => reply.error(Errno::RANGE),
    });
}

impl Handler for NullFs {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let node = request.header.node;
        let entry = |reply: Reply, entry: Entry| reply.entry(&entry);
        let done = |reply: Reply, (): ()| reply.ok();
        let attr = |reply: Reply, attr: Attr| reply.attr(&attr, self.ttl);
        match request.op {
            Op::Lookup { name } => answer(reply, self.lookup(node, name), entry),
            Op::GetAttr { .. } => answer(reply, self.attr(node), attr),
            Op::Statx { .. } => {
                let tree = self.tree.lock();
                answer(reply, tree.get(node), |reply, node| {
                    let extra = StatxExtra { btime: Some(node.btime), ..StatxExtra::default() };
                    reply.statx(&node.attr, &extra, self.ttl);
                });
            }
            Op::SetAttr(set) => answer(reply, self.set_attr(node, &set), attr),
            Op::ReadLink => {
                let tree = self.tree.lock();
                let target = tree.get(node).and_then(|node| node.target());
                answer(reply, target, |reply, target| reply.data(target));
            }
            Op::Symlink { name, target } => {
                let birth = self.birth(&request, 0o120_777, 0);
                let made = self.make(&request, name, &birth, Kind::Symlink(target.into()));
                answer(reply, made, entry);
            }
            Op::MkNod { name, mode, rdev, .. } => {
                let birth = self.birth(&request, mode, rdev);
                answer(reply, self.make(&request, name, &birth, Kind::of(mode)), entry);
            }
            Op::MkDir { name, mode, .. } => {
                let birth = self.birth(&request, 0o040_000 | mode, 0);
                answer(reply, self.make(&request, name, &birth, Kind::of(birth.mode)), entry);
            }
            Op::Create { name, mode, .. } => {
                let birth = self.birth(&request, mode, 0);
                let made = self.make(&request, name, &birth, Kind::of(mode));
                answer(reply, made, |reply, entry| {
                    reply.created(&entry, NO_HANDLE, OpenFlags::KEEP_CACHE);
                });
            }
            Op::TmpFile { mode, .. } => {
                let birth = self.birth(&request, mode, 0);
                answer(reply, self.tmpfile(&birth), |reply, entry| {
                    reply.created(&entry, NO_HANDLE, OpenFlags::KEEP_CACHE);
                });
            }
            Op::Unlink { name } => {
                answer(reply, self.tree.lock().unlink(node, name, (self.now)()), done);
            }
            Op::RmDir { name } => {
                answer(reply, self.tree.lock().rmdir(node, name, (self.now)()), done);
            }
            Op::Rename { name, new_parent, new_name, flags } => {
                answer(reply, self.rename((node, name), (new_parent, new_name), flags), done);
            }
            Op::Link { node: target, name } => {
                answer(reply, self.link(target, node, name), entry);
            }
            Op::StatFs => reply.statfs(&StatFs {
                bsize: 4096,
                frsize: 4096,
                namelen: 255,
                ..StatFs::default()
            }),
            Op::SetXattr { name, value, flags, .. } => {
                let mut tree = self.tree.lock();
                let set = tree.get_mut(node).and_then(|node| node.set_xattr(name, value, flags));
                answer(reply, set, done);
            }
            Op::GetXattr { name, size } => {
                let tree = self.tree.lock();
                xattr(reply, size, tree.get(node).and_then(|node| node.xattr(name)));
            }
            Op::ListXattr { size } => {
                let tree = self.tree.lock();
                xattr(reply, size, tree.get(node).map(|node| node.list_xattrs()));
            }
            Op::RemoveXattr { name } => {
                let mut tree = self.tree.lock();
                let removed = tree.get_mut(node).and_then(|node| node.remove_xattr(name));
                answer(reply, removed, done);
            }
            Op::Open { .. }
            | Op::OpenDir { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::ReadDir { .. }
            | Op::ReadDirPlus { .. }
            | Op::Release { .. }
            | Op::ReleaseDir { .. }
            | Op::Flush { .. }
            | Op::FSync { .. }
            | Op::FSyncDir { .. }
            | Op::SyncFs
            | Op::GetLk { .. }
            | Op::SetLk { .. }
            | Op::LSeek { .. }
            | Op::CopyFileRange { .. }
            | Op::FAllocate { .. }
            | Op::Ioctl { .. }
            | Op::Access { .. }
            | Op::BMap { .. }
            | Op::Poll { .. } => self.file_request(&request, reply),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.tree.lock().forget(node, lookups);
    }
}
