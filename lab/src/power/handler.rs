//! The disk's answers to the kernel. Nothing is cached there, so that a cut needs no unmount.

use std::{cell::RefCell, sync::Arc, time::Duration};

use base::HashMap;
use fuse::{
    Attr, Capabilities, DirPage, Entry, Errno, Handle, Handler, InitOptions, NodeId, Op, OpenFlags,
    Reply, Request, SetAttr, StatFs, Timespec,
};
use parking_lot::Mutex;

use super::{
    Lie, State,
    content::Content,
    tree::{Dir, Kind, List, Node, Tree},
};

const PAGE: u64 = 4096;
/// Free space that the disk reports, in pages: 16 GiB.
const ROOM: u64 = 4 << 20;

pub(super) struct PowerFs {
    state: Arc<Mutex<State>>,
    /// Names in each open directory when its listing began.
    listings: RefCell<(u64, HashMap<Handle, List>)>,
    now: Box<dyn Fn() -> Timespec + Send>,
}

impl PowerFs {
    pub(super) fn new(
        state: Arc<Mutex<State>>,
        now: impl Fn() -> Timespec + Send + 'static,
    ) -> PowerFs {
        PowerFs { state, listings: RefCell::default(), now: Box::new(now) }
    }

    pub(super) fn init_options() -> InitOptions {
        let capabilities = Capabilities::ASYNC_READ | Capabilities::PARALLEL_DIROPS;
        InitOptions { capabilities, ..InitOptions::default() }
    }

    fn make(
        &self,
        request: &Request<'_>,
        name: &[u8],
        mode: u32,
        kind: Kind,
    ) -> Result<Entry, Errno> {
        let tree = &mut self.state.lock().tree;
        let header = &request.header;
        let node = Node {
            kind,
            mode,
            uid: header.uid,
            gid: header.gid,
            mtime: (self.now)(),
            name: name.into(),
            parent: header.node,
        };
        let made = tree.make(node)?;
        entry(tree, made)
    }

    fn set_attr(&self, node: NodeId, set: &SetAttr) -> Result<Attr, Errno> {
        let tree = &mut self.state.lock().tree;
        if let Some(size) = set.size {
            tree.content_mut(node)?.truncate(size);
        }
        let found = tree.node_mut(node)?;
        found.mode = set.mode.map_or(found.mode, |mode| found.mode & !0o7777 | mode & 0o7777);
        found.uid = set.uid.unwrap_or(found.uid);
        found.gid = set.gid.unwrap_or(found.gid);
        found.mtime = (self.now)();
        Ok(attr(node, found))
    }

    fn write(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let tree = &mut self.state.lock().tree;
        tree.content_mut(node)?.write(offset, data);
        tree.node_mut(node)?.mtime = (self.now)();
        u32::try_from(data.len()).map_err(|_| Errno::INVAL)
    }

    fn sync(&self, node: NodeId) -> Result<(), Errno> {
        let State { tree, lie } = &mut *self.state.lock();
        let found = tree.node(node)?;
        let is_dir = matches!(found.kind, Kind::Dir(_));
        let lied = match *lie {
            Lie::None => false,
            Lie::FilesNamed(part) => !is_dir && found.is_named(part.as_bytes()),
            Lie::Below(name) => tree.is_below(node, name.as_bytes()),
            Lie::Directories => is_dir,
        };
        if lied { Ok(()) } else { tree.sync(node) }
    }

    fn open_dir(&self, reply: Reply) {
        let (last, _) = &mut *self.listings.borrow_mut();
        *last += 1;
        reply.opened(Handle(*last), OpenFlags::empty());
    }

    /// Pages of the names that existed when the listing began, or began anew.
    fn read_dir(&self, node: NodeId, fh: Handle, offset: u64, size: u32) -> Result<DirPage, Errno> {
        let tree = &self.state.lock().tree;
        let (_, listings) = &mut *self.listings.borrow_mut();
        if offset == 0 {
            let mut names: List = vec![(Box::from(&b"."[..]), node), (Box::from(&b".."[..]), node)];
            names.extend(tree.list(node)?);
            listings.insert(fh, names);
        }
        let names = listings.get(&fh).ok_or(Errno::INVAL)?;
        let mut page = DirPage::new(size);
        let from = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        for (next, (name, child)) in (offset + 1..).zip(names.iter().skip(from)) {
            let mode = tree.node(*child).map_or(0, |node| node.mode);
            if !page.push(child.0, mode, next, name) {
                break;
            }
        }
        Ok(page)
    }
}

impl Handler for PowerFs {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let node = request.header.node;
        let tree = || self.state.lock();
        let sent = |reply: Reply, entry: Entry| reply.entry(&entry);
        let done = |reply: Reply, (): ()| reply.ok();
        let attributes = |reply: Reply, attr: Attr| reply.attr(&attr, Duration::ZERO);
        match request.op {
            Op::Lookup { name } => {
                let tree = &tree().tree;
                answer(reply, tree.lookup(node, name).and_then(|node| entry(tree, node)), sent);
            }
            Op::GetAttr { .. } => {
                answer(reply, tree().tree.node(node).map(|found| attr(node, found)), attributes);
            }
            Op::SetAttr(set) => answer(reply, self.set_attr(node, &set), attributes),
            Op::MkDir { name, mode, .. } => {
                let made = self.make(&request, name, 0o040_000 | mode, Kind::Dir(Dir::default()));
                answer(reply, made, sent);
            }
            Op::Create { name, mode, .. } => {
                let made = self.make(&request, name, mode, Kind::File(Content::default()));
                answer(reply, made, |reply, entry| {
                    reply.created(&entry, Handle(0), OpenFlags::empty());
                });
            }
            Op::Unlink { name } => answer(reply, tree().tree.unlink(node, name), done),
            Op::RmDir { name } => answer(reply, tree().tree.rmdir(node, name), done),
            Op::Rename { name, new_parent, new_name, flags: 0 } => {
                answer(reply, tree().tree.rename((node, name), (new_parent, new_name)), done);
            }
            Op::Link { node: linked, name } => {
                let tree = &mut tree().tree;
                let made = tree.link(linked, node, name).and_then(|()| entry(tree, linked));
                answer(reply, made, sent);
            }
            Op::Open { .. } => reply.opened(Handle(0), OpenFlags::empty()),
            Op::Read { offset, size, .. } => {
                let data = tree().tree.content_mut(node).map(|content| content.read(offset, size));
                answer(reply, data, |reply, data| reply.data(&data));
            }
            Op::Write { offset, data, .. } => {
                answer(reply, self.write(node, offset, data), Reply::written);
            }
            Op::FSync { .. } | Op::FSyncDir { .. } => answer(reply, self.sync(node), done),
            Op::OpenDir { .. } => self.open_dir(reply),
            Op::ReadDir { fh, offset, size } => {
                let page = self.read_dir(node, fh, offset, size);
                answer(reply, page, |reply, page| reply.dir(&page));
            }
            Op::ReleaseDir { fh, .. } => {
                self.listings.borrow_mut().1.remove(&fh);
                reply.ok();
            }
            Op::Flush { .. } | Op::Release { .. } => reply.ok(),
            Op::StatFs => reply.statfs(&StatFs {
                blocks: 2 * ROOM,
                bfree: ROOM,
                bavail: ROOM,
                files: ROOM,
                ffree: ROOM,
                bsize: 4096,
                namelen: 255,
                frsize: 4096,
            }),
            // A database's folder needs none of these; the kernel does by itself what it can.
            Op::Statx { .. }
            | Op::ReadLink
            | Op::Symlink { .. }
            | Op::MkNod { .. }
            | Op::Rename { .. }
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ReadDirPlus { .. }
            | Op::GetLk { .. }
            | Op::SetLk { .. }
            | Op::Access { .. }
            | Op::TmpFile { .. }
            | Op::BMap { .. }
            | Op::Ioctl { .. }
            | Op::Poll { .. }
            | Op::FAllocate { .. }
            | Op::LSeek { .. }
            | Op::CopyFileRange { .. }
            | Op::SyncFs => reply.error(Errno::NOSYS),
        }
    }

    /// Keeps the node: all nodes stay until a cut.
    fn forget(&self, _node: NodeId, _lookups: u64) {}
}

fn answer<T>(reply: Reply, result: Result<T, Errno>, send: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

fn entry(tree: &Tree, node: NodeId) -> Result<Entry, Errno> {
    let attr = attr(node, tree.node(node)?);
    Ok(Entry { node, generation: 0, attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO })
}

fn attr(node: NodeId, found: &Node) -> Attr {
    let (size, nlink) = match &found.kind {
        Kind::File(content) => (content.size(), 1),
        Kind::Dir(_) => (0, 2),
    };
    Attr {
        ino: node.0,
        size,
        blocks: size.div_ceil(PAGE) * (PAGE / 512),
        atime: found.mtime,
        mtime: found.mtime,
        ctime: found.mtime,
        mode: found.mode,
        nlink,
        uid: found.uid,
        gid: found.gid,
        rdev: 0,
        blksize: 4096,
    }
}
