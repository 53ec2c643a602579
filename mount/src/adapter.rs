//! Kernel call to `FileSystem` call, errno back: the list of all operations.
//!
//! `serve` calls [`Adapter::call`] with every request and sends the answer. Each operation is one
//! method, in the file that its kind suggests: `names`, `attributes`, `xattrs`, `files`,
//! `directories`. None of them checks permissions, none retries, and none waits for anything but
//! the file system.

mod attributes;
mod directories;
mod files;
mod locks;
mod names;
mod ranges;
mod xattrs;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{Attr, HashMap, HashSet, acl::with_umask};
use client::{FileSystem, Handle};
use fuse::{
    Errno, NodeId, Notifier, Op, OpenFlags, OwnedRequest, Reply, Request, StatFs, StatxExtra,
    Transport, Unique,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::DirRef;

use crate::{
    answer::{Answer, Found, Outcome},
    convert::{self, Failed},
    counts::Counts,
    listing::Listings,
    nodes::Nodes,
    options::Synchronous,
    walks::Walks,
};

/// Behaviour of the mount: how long the kernel may believe answers, and which changes are stable
/// when they are answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) attr: Duration,
    pub(crate) entry: Duration,
    pub(crate) synchronous: Synchronous,
}

/// Space and inodes as they were when they were asked for.
#[derive(Clone, Copy)]
struct Space {
    told: StatFs,
    asked: Instant,
    /// Counts of what was changed and sent through this mount until then.
    own: (u64, u64),
}

/// One mount.
pub(crate) struct Adapter<S> {
    fs: S,
    nodes: Mutex<Nodes>,
    listings: Mutex<Listings>,
    /// Open files that the kernel has not released.
    handles: Mutex<HashSet<Handle>>,
    /// Requests that wait for locks, to be woken by signals.
    waits: Mutex<HashMap<Unique, Arc<Notify>>>,
    walks: Mutex<Walks>,
    manners: Manners,
    /// The way by which requests come, once that is sure.
    transport: OnceLock<Transport>,
    /// Counts what was changed through this mount.
    changes: AtomicU64,
    /// Requests of the kernel, by kind.
    counts: Counts,
    /// Facts of the root that the server told last, for its quota.
    root_info: Mutex<Vec<(String, String)>>,
    /// Counts when written data may have been sent.
    sends: AtomicU64,
    /// The last answer to STATFS.
    space: Mutex<Option<Space>>,
    notifier: Notifier,
}

impl<S: FileSystem> Adapter<S> {
    pub(crate) fn new(
        fs: S,
        root: (DirRef, Attr),
        manners: Manners,
        notifier: Notifier,
    ) -> Adapter<S> {
        Adapter {
            fs,
            nodes: Mutex::new(Nodes::new(root.0, root.1)),
            listings: Mutex::default(),
            handles: Mutex::default(),
            waits: Mutex::default(),
            walks: Mutex::default(),
            manners,
            transport: OnceLock::new(),
            changes: AtomicU64::new(0),
            counts: Counts::new(),
            root_info: Mutex::default(),
            sends: AtomicU64::new(0),
            space: Mutex::new(None),
            notifier,
        }
    }

    /// Requests come by this way.
    pub(crate) fn comes_by(&self, transport: Transport) {
        self.transport.get_or_init(|| transport);
    }

    /// Only who serves a ring is asked before it is told.
    fn transport(&self) -> Transport {
        self.transport.get().copied().unwrap_or(Transport::IoUring)
    }

    /// Executes one request.
    pub(crate) async fn call(self: Arc<Self>, owned: OwnedRequest) -> Outcome {
        let request = owned.get();
        self.counts.request(request.header.opcode, request.name());
        let outcome = self.execute(&request).await;
        let who = (request.header.pid, request.header.node);
        self.walks.lock().tell(who, &request.op, outcome, |answer| match answer {
            Answer::Entry(found) => Some(self.nodes.lock().id(found.attr.ino)),
            _ => None,
        })
    }

    async fn execute(&self, request: &Request<'_>) -> Outcome {
        let (node, cred) = (request.header.node, convert::cred(&request.header));
        let cred = &cred;
        match request.op {
            Op::Lookup { name } => self.lookup(cred, node, name).await,
            Op::Symlink { name, target } => {
                self.named(self.symlink(cred, node, name, request.keep(target)).await).await
            }
            Op::MkNod { name, mode, rdev, umask } => {
                self.named(self.mknod(cred, node, name, (mode, umask), rdev).await).await
            }
            Op::MkDir { name, mode, umask } => {
                self.named(self.mkdir(cred, node, name, with_umask(mode, umask)).await).await
            }
            Op::Unlink { name } => self.named(self.unlink(cred, node, name).await).await,
            Op::RmDir { name } => self.named(self.rmdir(cred, node, name).await).await,
            Op::Rename { name, new_parent, new_name, flags } => {
                let (from, to) = ((node, name), (new_parent, new_name));
                self.named(self.rename(cred, from, to, flags).await).await
            }
            Op::Link { node: target, name } => {
                self.named(self.link(cred, target, node, name).await).await
            }

            Op::GetAttr { .. } => self.getattr(cred, node).await,
            Op::Statx { .. } => self.statx(cred, node).await,
            Op::SetAttr(set) => self.set(self.setattr(cred, node, &set).await).await,
            Op::ReadLink => self.readlink(cred, node).await,
            Op::StatFs => self.statfs().await,

            Op::GetXattr { name, size } => self.getxattr(cred, node, name, size).await,
            Op::ListXattr { size } => self.listxattr(cred, node, size).await,
            Op::SetXattr { name, value, flags, acl_kill_sgid } => {
                let (name, value) = (request.keep(name), request.keep(value));
                let outcome = self.setxattr(cred, node, (name, value), flags, acl_kill_sgid).await;
                self.set(outcome).await
            }
            Op::RemoveXattr { name } => {
                self.set(self.removexattr(cred, node, request.keep(name)).await).await
            }

            Op::Open { flags, .. } => self.open(&request.header, cred, flags).await,
            Op::Create { name, mode, umask, flags, .. } => {
                self.named(self.create(cred, node, name, with_umask(mode, umask), flags).await)
                    .await
            }
            Op::TmpFile { mode, umask, flags } => {
                self.changed(self.tmpfile(cred, node, with_umask(mode, umask), flags).await)
            }
            Op::Read { fh, offset, size, .. } => self.read(fh, offset, size).await,
            Op::Write { fh, offset, data, kill_suidgid, .. } => {
                self.changed(self.write(node, fh, offset, request.keep(data), kill_suidgid).await)
            }
            Op::Flush { fh, lock_owner } => self.flush(fh, lock_owner).await,
            Op::FSync { fh, .. } => self.fsync(fh).await,
            Op::Release { fh, .. } => self.release(fh).await,

            Op::SetLk { fh, owner, lock, kind, wait } => {
                self.setlk(&request.header, cred, fh, (kind, lock, owner), wait).await
            }
            Op::GetLk { fh, owner, lock, kind } => self.getlk(fh, (kind, lock, owner)).await,
            Op::FAllocate { fh, offset, length, mode } => {
                self.set(self.allocate(cred, node, (fh, offset, length), mode).await).await
            }
            Op::LSeek { fh, offset, whence } => self.seek(fh, offset, whence).await,
            Op::CopyFileRange { fh_in, offset_in, node_out, fh_out, offset_out, len, .. } => {
                let (from, to) = ((fh_in, offset_in), (fh_out, offset_out));
                let copied = self.copy_range(cred, from, to, node_out, len).await;
                self.changed(self.copied(fh_out, copied).await)
            }

            Op::OpenDir { .. } => self.opendir(node),
            Op::ReadDir { fh, offset, size } => self.readdir(cred, fh.0, offset, size).await,
            Op::ReadDirPlus { fh, offset, size } => {
                self.readdirplus(cred, fh.0, offset, size).await
            }
            Op::ReleaseDir { fh, .. } => self.releasedir(fh.0),
            Op::FSyncDir { .. } => self.sync_dir(node).await,
            Op::SyncFs => self.sync().await,

            Op::Ioctl { .. } => Err(Failed(Errno::NOTTY)),
            // Told once that we do not do these, the kernel does what it does for file systems
            // without them, or it never asks: permissions are its own.
            Op::Access { .. } | Op::BMap { .. } | Op::Poll { .. } => Err(Failed(Errno::NOSYS)),
        }
    }

    /// Sees a change of names in directories through, and keeps what its answer tells of them, for
    /// the kernel's next question.
    async fn change<T, const N: usize>(
        &self,
        dirs: [NodeId; N],
        change: impl Future<Output = client::Result<T>>,
    ) -> client::Result<T> {
        let asked = Instant::now();
        let begun = dirs.map(|dir| {
            let mut nodes = self.nodes.lock();
            // An answer that nobody waited for may have left something.
            self.fs.changed_dir(nodes.ino(dir));
            nodes.begin_change(dir)
        });
        let done = change.await;
        for change in &begun {
            let mut nodes = self.nodes.lock();
            let left = self.fs.changed_dir(nodes.ino(change.dir));
            nodes.end_change(change, left.filter(|_| done.is_ok()), asked);
        }
        done
    }

    /// Something may have been changed through this mount: what was read before is old.
    fn changed(&self, outcome: Outcome) -> Outcome {
        self.changes.fetch_add(1, Ordering::AcqRel);
        outcome
    }

    /// Like `changed`, for a change of a name. The change is on stable storage if the mount says
    /// so.
    async fn named(&self, outcome: Outcome) -> Outcome {
        match self.manners.synchronous {
            Synchronous::OnDemand => self.changed(outcome),
            Synchronous::Names | Synchronous::Everything => self.synced(outcome).await,
        }
    }

    /// Like `named`, for a change of attributes.
    async fn set(&self, outcome: Outcome) -> Outcome {
        match self.manners.synchronous {
            Synchronous::OnDemand | Synchronous::Names => self.changed(outcome),
            Synchronous::Everything => self.synced(outcome).await,
        }
    }

    async fn synced(&self, outcome: Outcome) -> Outcome {
        let outcome = self.changed(outcome);
        if outcome.is_ok()
            && let Err(error) = self.fs.sync().await
        {
            self.discard(outcome).await;
            return Err(error.into());
        }
        outcome
    }

    /// Sends the answer, and counts what the kernel is given with it.
    pub(crate) fn send(&self, reply: Reply, outcome: Outcome) {
        let ttl = self.manners.attr;
        match outcome {
            Err(Failed(errno)) => reply.error(errno),
            Ok(Answer::Done) => reply.ok(),
            Ok(Answer::Entry(found)) => reply.entry(&self.entry(found)),
            Ok(Answer::Created(found, handle)) => {
                self.handles.lock().insert(handle);
                let entry = self.entry(found);
                let mut nodes = self.nodes.lock();
                let ctime = nodes.ctime(entry.node);
                nodes.has_no_capability(entry.node, ctime);
                drop(nodes);
                reply.created(&entry, fuse::Handle(handle.0), OpenFlags::empty());
            }
            Ok(Answer::Attr(told)) => {
                self.nodes.lock().told(&told);
                reply.attr(&convert::attr(&told.attr), ttl.saturating_sub(told.age));
            }
            Ok(Answer::Statx(told)) => {
                self.nodes.lock().told(&told);
                let btime = Some(convert::time(told.attr.btime));
                let birth = StatxExtra { btime, ..StatxExtra::default() };
                reply.statx(&convert::attr(&told.attr), &birth, ttl.saturating_sub(told.age));
            }
            Ok(Answer::Data(data)) => reply.data(&data),
            Ok(Answer::Size(size)) => reply.xattr_size(size),
            Ok(Answer::Opened(handle, keep_pages)) => {
                self.handles.lock().insert(handle);
                let mut flags = OpenFlags::empty();
                flags.set(OpenFlags::KEEP_CACHE, keep_pages);
                reply.opened(fuse::Handle(handle.0), flags);
            }
            Ok(Answer::OpenedDir(handle)) => {
                reply.opened(fuse::Handle(handle), OpenFlags::empty());
            }
            Ok(Answer::Written(size)) => reply.written(size),
            Ok(Answer::Copied(bytes)) => reply.copied(bytes),
            Ok(Answer::Offset(offset)) => reply.offset(offset),
            Ok(Answer::StatFs(statfs)) => reply.statfs(&statfs),
            Ok(Answer::Lock(lock)) => reply.lock(&lock),
            Ok(Answer::Dir(page)) => reply.dir(&page),
            Ok(Answer::DirPlus(page, found)) => {
                let mut nodes = self.nodes.lock();
                for Found { at, attr, age } in found {
                    nodes.found(at, &attr, age);
                }
                drop(nodes);
                reply.dir_plus(&page);
            }
        }
    }

    /// Takes back what an answer would have given to the kernel, which did not wait for it.
    pub(crate) async fn discard(&self, outcome: Outcome) {
        match outcome {
            Ok(Answer::Opened(handle, _) | Answer::Created(_, handle)) => {
                self.give_back(handle).await;
            }
            Ok(Answer::OpenedDir(handle)) => self.listings.lock().close(handle),
            Ok(
                Answer::Done
                | Answer::Entry(_)
                | Answer::Attr(..)
                | Answer::Statx(..)
                | Answer::Data(_)
                | Answer::Size(_)
                | Answer::Written(_)
                | Answer::Copied(_)
                | Answer::Offset(_)
                | Answer::StatFs(_)
                | Answer::Lock(_)
                | Answer::Dir(_)
                | Answer::DirPlus(..),
            )
            | Err(_) => {}
        }
    }

    /// The mount has ended: closes what the kernel had open and sent no release for.
    pub(crate) async fn end(&self) {
        let handles = std::mem::take(&mut *self.handles.lock());
        for handle in handles {
            self.give_back(handle).await;
        }
    }

    async fn give_back(&self, handle: Handle) {
        if let Err(error) = self.fs.release(handle).await {
            tracing::warn!(%error, "an open file was not released");
        }
    }

    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        self.counts.forget();
        self.nodes.lock().forget(node, lookups);
    }

    /// An entry as it is sent now: counts a look-up.
    fn entry(&self, found: Found) -> fuse::Entry {
        let node = self.nodes.lock().found(found.at, &found.attr, found.age);
        self.entry_of(node, &found.attr, found.age)
    }

    /// An entry whose attributes are of some time ago.
    fn entry_of(&self, node: NodeId, attr: &Attr, age: Duration) -> fuse::Entry {
        fuse::Entry {
            node,
            generation: 0,
            attr: convert::attr(attr),
            entry_ttl: self.manners.entry.saturating_sub(age),
            attr_ttl: self.manners.attr.saturating_sub(age),
        }
    }
}
