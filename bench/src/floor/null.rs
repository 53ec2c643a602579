//! A file system that is nothing but the kernel's share and that of our `fuse` crate: names and
//! attributes in memory, behind one lock, with no client, server or contents.
//!
//! The file system lets the kernel believe nothing (every time to live is zero), answers FLUSH, and
//! leaves permissions to the kernel. Any number of threads serve it, each with a runtime and a
//! descriptor of its own.
//!
//! [`NullMount::with_contents`] is the file system in memory that `fuse` is tested with, for
//! programs: the kernel may believe names and attributes there.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use base::{Clock as _, HashMap};
use client::SystemClock;
use fuse::{
    Attr, Connection, DirPage, DirPlusPage, Entry, Handle, Handler, InitOptions, IoUring,
    MountError, MountOptions, NodeId, NullFs, Op, OpenFlags, Reply, Request, Session, SessionError,
    StatFs, StatxExtra, Threads, Timespec, Unmount, Worker,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::task::LocalSet;

/// Time for which the kernel may believe names and attributes of a file system with contents.
const BELIEVED: Duration = Duration::from_secs(1);

/// Why there is no null file system.
#[derive(Debug, thiserror::Error)]
pub enum NullError {
    /// The file system could not be mounted or unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The file system could not be served.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The kernel cannot be made to offer io_uring.
    #[error("cannot turn on FUSE over io_uring; it needs root and Linux 6.14")]
    Offer(#[source] io::Error),
    /// There are no threads.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A null file system that is mounted.
pub struct NullMount {
    path: PathBuf,
    threads: Vec<JoinHandle<Result<(), NullError>>>,
    unmounted: bool,
}

impl NullMount {
    /// Mounts a null file system on `path` and serves it from so many threads, which is at least
    /// one. Over io_uring each CPU has a thread for its requests in place of them.
    ///
    /// # Errors
    /// When the kernel or the machine refuses.
    pub fn mount(path: &Path, threads: usize, io_uring: IoUring) -> Result<NullMount, NullError> {
        offer(io_uring)?;
        let mut connection = fuse::mount(&mount_options(), path)?;
        let tree = Arc::new(Mutex::new(Tree::new()));
        let mut mounted =
            NullMount { path: path.to_owned(), threads: Vec::new(), unmounted: false };
        for number in 0..threads.max(1) {
            let (give, ready) = std::sync::mpsc::channel();
            let tree = Arc::new(Null(Arc::clone(&tree)));
            let thread = thread::Builder::new().name(format!("null-{number}"));
            let work = move || serve(connection, io_uring, &tree, &give);
            mounted.threads.push(thread.spawn(work).map_err(NullError::Thread)?);
            connection = match ready.recv() {
                Ok(next) => next,
                // A thread that could not begin says why when it is joined.
                Err(_) => return Err(mounted.failed()),
            };
        }
        Ok(mounted)
    }

    /// Mounts a null file system with contents on `path`, served by one thread, or over io_uring by
    /// one for each CPU: programs find in it what they wrote. The kernel may believe names and
    /// attributes for a second, as on a mount of ours.
    ///
    /// # Errors
    /// When the kernel or the machine refuses.
    pub fn with_contents(path: &Path, io_uring: IoUring) -> Result<NullMount, NullError> {
        offer(io_uring)?;
        let connection = fuse::mount(&mount_options(), path)?;
        let mut mounted =
            NullMount { path: path.to_owned(), threads: Vec::new(), unmounted: false };
        let thread = thread::Builder::new().name("null".to_owned());
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(NullError::Thread)?;
            LocalSet::new().block_on(&runtime, async {
                let session = Session::start(connection, &init_options(io_uring)).await?;
                run(session, &Arc::new(NullFs::new(BELIEVED, now))).await
            })
        };
        mounted.threads.push(thread.spawn(work).map_err(NullError::Thread)?);
        Ok(mounted)
    }

    /// Why its last thread has ended.
    fn failed(&mut self) -> NullError {
        let ended = self.threads.pop().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => NullError::Thread(io::Error::other("it ended")),
        }
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When it is in use, or was not served to its end.
    pub fn unmount(mut self) -> Result<(), NullError> {
        fuse::unmount(&self.path, Unmount::WhenIdle)?;
        self.unmounted = true;
        for thread in self.threads.drain(..) {
            thread
                .join()
                .unwrap_or_else(|_| Err(NullError::Thread(io::Error::other("it panicked"))))?;
        }
        Ok(())
    }
}

/// Has the kernel offer io_uring where the measurement is of that.
fn offer(io_uring: IoUring) -> Result<(), NullError> {
    if io_uring == IoUring::On {
        fuse::enable_io_uring().map_err(NullError::Offer)?;
    }
    Ok(())
}

/// Wishes of the sessions.
fn init_options(io_uring: IoUring) -> InitOptions {
    InitOptions { io_uring, threads: Threads::EachCpu, ..NullFs::init_options() }
}

/// Options of the mounts.
fn mount_options() -> MountOptions {
    MountOptions {
        fsname: "null".to_owned(),
        subtype: "pando-null".to_owned(),
        allow_other: rustix::process::geteuid().is_root(),
        // Every mount of ours has this option: the kernel then asks for the attributes of each
        // directory on the way.
        default_permissions: true,
        nosuid: true,
        nodev: true,
        ..MountOptions::default()
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        if !self.unmounted {
            // The mount is dropped because something failed, and that failure is reported.
            let _ = fuse::unmount(&self.path, Unmount::Lazy);
        }
    }
}

/// Serves one descriptor, and gives away the next.
fn serve(
    connection: Connection,
    io_uring: IoUring,
    null: &Arc<Null>,
    give: &std::sync::mpsc::Sender<Connection>,
) -> Result<(), NullError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(NullError::Thread)?.block_on(async {
        let session = Session::start(connection, &init_options(io_uring)).await?;
        let next = session.try_clone_connection().map_err(NullError::Thread)?;
        // The copy that the last thread makes has no receiver.
        let _ = give.send(next);
        run(session, null).await
    })
}

/// Serves a session, and on each CPU if it has agreed on io_uring.
async fn run<H: Handler + Send + Sync + 'static>(
    mut session: Session,
    handler: &Arc<H>,
) -> Result<(), NullError> {
    let shared = Arc::clone(handler);
    let work = move |worker: Worker| {
        let handler = Arc::clone(&shared);
        async move { worker.run(&*handler).await }
    };
    session.start_workers("null", work).await?;
    session.run(&**handler).await?;
    Ok(())
}

/// Time of the machine, for inodes.
fn now() -> Timespec {
    let now = SystemClock.now();
    Timespec { secs: now.sec, nanos: now.nsec }
}

struct Node {
    attr: Attr,
    /// Number of look-ups that the kernel counts of the node and has not forgotten.
    lookups: u64,
    children: HashMap<Box<[u8]>, u64>,
    /// The children in the order of their numbers, which are the places of a listing.
    listing: BTreeMap<u64, Box<[u8]>>,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
}

type Answered<T> = Result<T, Errno>;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

impl Tree {
    fn new() -> Tree {
        let mut tree = Tree { nodes: HashMap::default(), last: NodeId::ROOT.0 - 1 };
        tree.add(DIRECTORY | 0o777, 0, 0);
        tree
    }

    fn add(&mut self, mode: u32, uid: u32, gid: u32) -> u64 {
        self.last += 1;
        let zero = Timespec::default();
        let attr = Attr {
            ino: self.last,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            mode,
            nlink: if mode & DIRECTORY == 0 { 1 } else { 2 },
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
        };
        let (children, listing) = (HashMap::default(), BTreeMap::new());
        self.nodes.insert(self.last, Node { attr, lookups: 0, children, listing });
        self.last
    }

    fn node(&mut self, node: u64) -> Answered<&mut Node> {
        self.nodes.get_mut(&node).ok_or(Errno::NOENT)
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Answered<u64> {
        self.node(parent)?.children.get(name).copied().ok_or(Errno::NOENT)
    }

    fn entry(&mut self, node: u64) -> Answered<Entry> {
        let node = self.node(node)?;
        node.lookups += 1;
        Ok(Entry {
            node: NodeId(node.attr.ino),
            generation: 0,
            attr: node.attr,
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
        })
    }

    fn make(&mut self, request: &Request<'_>, name: &[u8], mode: u32) -> Answered<Entry> {
        let header = &request.header;
        if self.child(header.node.0, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let new = self.add(mode, header.uid, header.gid);
        self.bind(header.node.0, name, new)?;
        self.entry(new)
    }

    fn bind(&mut self, parent: u64, name: &[u8], child: u64) -> Answered<()> {
        let parent = self.node(parent)?;
        parent.children.insert(name.into(), child);
        parent.listing.insert(child, name.into());
        Ok(())
    }

    fn unbind(&mut self, parent: u64, name: &[u8]) -> Answered<u64> {
        let parent = self.node(parent)?;
        let child = parent.children.remove(name).ok_or(Errno::NOENT)?;
        parent.listing.remove(&child);
        Ok(child)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Answered<()> {
        let child = self.child(parent, name)?;
        if !self.node(child)?.children.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.unbind(parent, name)?;
        let node = self.node(child)?;
        node.attr.nlink = 0;
        if node.lookups == 0 {
            self.nodes.remove(&child);
        }
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answered<()> {
        let moved = self.child(from.0, from.1)?;
        if self.child(to.0, to.1).is_ok() {
            self.remove(to.0, to.1)?;
        }
        self.unbind(from.0, from.1)?;
        self.bind(to.0, to.1, moved)
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        if let Some(found) = self.nodes.get_mut(&node) {
            found.lookups = found.lookups.saturating_sub(lookups);
            if found.lookups == 0 && found.attr.nlink == 0 {
                self.nodes.remove(&node);
            }
        }
    }

    /// The children after a place, one by one, until `push` has no room.
    fn list(
        &mut self,
        dir: u64,
        after: u64,
        mut push: impl FnMut(&mut Tree, u64, &[u8]) -> Answered<bool>,
    ) -> Answered<()> {
        let mut after = after;
        loop {
            let mut rest = self.node(dir)?.listing.range(after + 1..);
            let Some((child, name)) = rest.next().map(|(child, name)| (*child, name.clone()))
            else {
                return Ok(());
            };
            if !push(self, child, &name)? {
                return Ok(());
            }
            after = child;
        }
    }
}

/// The handler of one thread.
struct Null(Arc<Mutex<Tree>>);

fn answer<T>(reply: Reply, result: Answered<T>, send: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

impl Null {
    fn list(&self, dir: u64, after: u64, size: u32) -> Answered<DirPage> {
        let mut page = DirPage::new(size);
        self.0.lock().list(dir, after, |tree, child, name| {
            let mode = tree.node(child)?.attr.mode;
            Ok(page.push(child, mode, child, name))
        })?;
        Ok(page)
    }

    fn list_plus(&self, dir: u64, after: u64, size: u32) -> Answered<DirPlusPage> {
        let mut page = DirPlusPage::new(size);
        self.0.lock().list(dir, after, |tree, child, name| {
            let entry = tree.entry(child)?;
            let fits = page.push(&entry, child, name);
            if !fits {
                tree.forget(child, 1);
            }
            Ok(fits)
        })?;
        Ok(page)
    }
}

impl Handler for Null {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let node = request.header.node.0;
        let entry = |reply: Reply, entry: Entry| reply.entry(&entry);
        let done = |reply: Reply, (): ()| reply.ok();
        match request.op {
            Op::Lookup { name } => {
                let found = {
                    let mut tree = self.0.lock();
                    tree.child(node, name).and_then(|child| tree.entry(child))
                };
                answer(reply, found, entry);
            }
            Op::GetAttr { .. } | Op::SetAttr(_) => {
                let attr = self.0.lock().node(node).map(|node| node.attr);
                answer(reply, attr, |reply, attr| reply.attr(&attr, Duration::ZERO));
            }
            Op::Statx { .. } => {
                let attr = self.0.lock().node(node).map(|node| node.attr);
                let extra = StatxExtra::default();
                answer(reply, attr, |reply, attr| reply.statx(&attr, &extra, Duration::ZERO));
            }
            Op::MkDir { name, mode, .. } => {
                let made = self.0.lock().make(&request, name, DIRECTORY | mode);
                answer(reply, made, entry);
            }
            Op::Create { name, mode, .. } => {
                let made = self.0.lock().make(&request, name, REGULAR | mode);
                answer(reply, made, |reply, entry| {
                    reply.created(&entry, NO_HANDLE, OpenFlags::empty());
                });
            }
            Op::Unlink { name } | Op::RmDir { name } => {
                let removed = self.0.lock().remove(node, name);
                answer(reply, removed, done);
            }
            Op::Rename { name, new_parent, new_name, .. } => {
                let renamed = self.0.lock().rename((node, name), (new_parent.0, new_name));
                answer(reply, renamed, done);
            }
            Op::Open { .. } | Op::OpenDir { .. } => reply.opened(NO_HANDLE, OpenFlags::empty()),
            Op::ReadDir { offset, size, .. } => {
                answer(reply, self.list(node, offset, size), |reply, page| reply.dir(&page));
            }
            Op::ReadDirPlus { offset, size, .. } => {
                answer(reply, self.list_plus(node, offset, size), |reply, page| {
                    reply.dir_plus(&page)
                });
            }
            Op::Read { .. } => reply.data(&[]),
            Op::StatFs => reply.statfs(&StatFs { bsize: 4096, namelen: 255, ..StatFs::default() }),
            Op::Flush { .. }
            | Op::Release { .. }
            | Op::ReleaseDir { .. }
            | Op::FSync { .. }
            | Op::FSyncDir { .. }
            | Op::SyncFs => reply.ok(),
            // No benchmark of names and attributes needs them.
            Op::ReadLink
            | Op::Symlink { .. }
            | Op::MkNod { .. }
            | Op::Link { .. }
            | Op::Write { .. }
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::GetLk { .. }
            | Op::SetLk { .. }
            | Op::Access { .. }
            | Op::TmpFile { .. }
            | Op::BMap { .. }
            | Op::Ioctl { .. }
            | Op::Poll { .. }
            | Op::FAllocate { .. }
            | Op::LSeek { .. }
            | Op::CopyFileRange { .. } => reply.error(Errno::NOSYS),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.0.lock().forget(node.0, lookups);
    }
}

/// Files need no state while they are open.
const NO_HANDLE: Handle = Handle(0);
