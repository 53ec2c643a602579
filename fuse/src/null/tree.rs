//! Nodes and names.
//!
//! Invariants: a node lives as long as it has a name or the kernel knows it; a directory has one
//! name; each entry of a directory has a cookie that no other entry of it ever had, so a listing
//! that is continued skips nothing and repeats nothing, whatever happened in between.

use std::collections::BTreeMap;

use rustix::{fs::XattrFlags, io::Errno};
use slab::Slab;

use super::content::Content;
use crate::types::{Attr, NodeId, Timespec};

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Slab<Node>,
    generation: u64,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) btime: Timespec,
    pub(super) generation: u64,
    /// Look-ups that the kernel counts of the node, less those it forgot.
    pub(super) lookups: u64,
    kind: Kind,
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Dir(Dir),
    File(Content),
    Symlink(Box<[u8]>),
    Special,
}

#[derive(Debug, Default)]
pub(super) struct Dir {
    parent: Option<NodeId>,
    names: BTreeMap<Box<[u8]>, (u64, NodeId)>,
    cookies: BTreeMap<u64, Box<[u8]>>,
    last_cookie: u64,
}

/// Attributes of a new node.
pub(super) struct Birth {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) now: Timespec,
}

/// Cookies of `.` and `..`; those of names come after.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;

const NAME_MAX: usize = 255;

impl Kind {
    /// An empty one of the type that the mode names.
    pub(super) fn of(mode: u32) -> Kind {
        match mode & 0o170_000 {
            0o040_000 => Kind::Dir(Dir { last_cookie: COOKIE_DOT_DOT, ..Dir::default() }),
            0o100_000 => Kind::File(Content::default()),
            _ => Kind::Special,
        }
    }
}

impl Tree {
    pub(super) fn new(root: Birth) -> Self {
        let mut tree = Tree { nodes: Slab::new(), generation: 0 };
        let made = tree.insert(&root, Kind::of(root.mode));
        debug_assert_eq!(made, NodeId::ROOT);
        tree
    }

    pub(super) fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(key(node)).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(key(node)).ok_or(Errno::STALE)
    }

    fn dir_mut(&mut self, node: NodeId) -> Result<(&mut Dir, &mut Attr), Errno> {
        let node = self.get_mut(node)?;
        match &mut node.kind {
            Kind::Dir(dir) => Ok((dir, &mut node.attr)),
            Kind::File(_) | Kind::Symlink(_) | Kind::Special => Err(Errno::NOTDIR),
        }
    }

    fn dir(&self, node: NodeId) -> Result<&Dir, Errno> {
        match &self.get(node)?.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) | Kind::Symlink(_) | Kind::Special => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.dir(parent)?.names.get(name).map(|(_, node)| *node).ok_or(Errno::NOENT)
    }

    pub(super) fn make(
        &mut self,
        parent: NodeId,
        name: &[u8],
        birth: &Birth,
        kind: Kind,
    ) -> Result<NodeId, Errno> {
        match self.lookup(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let node = self.insert(birth, kind);
        self.put_name(parent, name, node, birth.now)?;
        Ok(node)
    }

    /// A file that has no name yet, and maybe never.
    pub(super) fn make_nameless(&mut self, birth: &Birth) -> NodeId {
        let node = self.insert(birth, Kind::of(birth.mode));
        self.nodes[key(node)].attr.nlink = 0;
        node
    }

    pub(super) fn link(
        &mut self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
        now: Timespec,
    ) -> Result<(), Errno> {
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.put_name(parent, name, node, now)?;
        let attr = &mut self.get_mut(node)?.attr;
        attr.nlink += 1;
        attr.ctime = now;
        Ok(())
    }

    pub(super) fn unlink(
        &mut self,
        parent: NodeId,
        name: &[u8],
        now: Timespec,
    ) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        if self.get(node)?.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.take_name(parent, name, now)?;
        let attr = &mut self.get_mut(node)?.attr;
        attr.nlink -= 1;
        attr.ctime = now;
        self.forget(node, 0);
        Ok(())
    }

    pub(super) fn rmdir(
        &mut self,
        parent: NodeId,
        name: &[u8],
        now: Timespec,
    ) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        if !self.dir(node)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.take_name(parent, name, now)?;
        self.get_mut(node)?.attr.nlink = 0;
        self.forget(node, 0);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        now: Timespec,
    ) -> Result<(), Errno> {
        let node = self.lookup(from.0, from.1)?;
        match self.lookup(to.0, to.1) {
            Ok(old) if old == node => return Ok(()),
            Ok(old) => match (self.get(node)?.is_dir(), self.get(old)?.is_dir()) {
                (true, true) => self.rmdir(to.0, to.1, now)?,
                (false, false) => self.unlink(to.0, to.1, now)?,
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        self.take_name(from.0, from.1, now)?;
        self.put_name(to.0, to.1, node, now)?;
        self.get_mut(node)?.attr.ctime = now;
        Ok(())
    }

    pub(super) fn exchange(
        &mut self,
        one: (NodeId, &[u8]),
        two: (NodeId, &[u8]),
        now: Timespec,
    ) -> Result<(), Errno> {
        let (first, second) = (self.lookup(one.0, one.1)?, self.lookup(two.0, two.1)?);
        self.take_name(one.0, one.1, now)?;
        self.take_name(two.0, two.1, now)?;
        self.put_name(one.0, one.1, second, now)?;
        self.put_name(two.0, two.1, first, now)
    }

    /// The entries after a cookie, in the order of their cookies, each with its own.
    pub(super) fn list(
        &self,
        node: NodeId,
        after: u64,
    ) -> Result<impl Iterator<Item = (u64, &[u8], NodeId)>, Errno> {
        let dir = self.dir(node)?;
        let dots: [(u64, &[u8], NodeId); 2] =
            [(COOKIE_DOT, b".", node), (COOKIE_DOT_DOT, b"..", dir.parent.unwrap_or(NodeId::ROOT))];
        let dots = dots.into_iter().filter(move |(cookie, ..)| *cookie > after);
        let names = dir.cookies.range(after.saturating_add(1)..).filter_map(|(cookie, name)| {
            dir.names.get(name).map(|(_, node)| (*cookie, name.as_ref(), *node))
        });
        Ok(dots.chain(names))
    }

    /// Drops look-ups, and the node when it has no name and the kernel does not know it any more.
    pub(super) fn forget(&mut self, node: NodeId, lookups: u64) {
        let Ok(found) = self.get_mut(node) else { return };
        found.lookups = found.lookups.saturating_sub(lookups);
        if found.lookups == 0 && found.attr.nlink == 0 {
            self.nodes.remove(key(node));
        }
    }

    fn insert(&mut self, birth: &Birth, kind: Kind) -> NodeId {
        self.generation += 1;
        let slot = self.nodes.vacant_entry();
        let ino = u64::try_from(slot.key()).expect("a slab is smaller than memory") + 1;
        let size = match &kind {
            Kind::Symlink(target) => u64::try_from(target.len()).expect("a path fits in memory"),
            Kind::Dir(_) | Kind::File(_) | Kind::Special => 0,
        };
        let nlink = if matches!(kind, Kind::Dir(_)) { 2 } else { 1 };
        let (atime, mtime, ctime) = (birth.now, birth.now, birth.now);
        let Birth { mode, uid, gid, rdev, .. } = *birth;
        let (blocks, blksize) = (0, 4096);
        slot.insert(Node {
            attr: Attr {
                ino,
                size,
                blocks,
                atime,
                mtime,
                ctime,
                mode,
                nlink,
                uid,
                gid,
                rdev,
                blksize,
            },
            btime: birth.now,
            generation: self.generation,
            lookups: 0,
            kind,
            xattrs: BTreeMap::new(),
        });
        NodeId(ino)
    }

    /// Adds a name that is free; a directory's parent counts it as a link.
    fn put_name(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: NodeId,
        now: Timespec,
    ) -> Result<(), Errno> {
        let is_dir = self.get(node)?.is_dir();
        let (dir, attr) = self.dir_mut(parent)?;
        dir.last_cookie += 1;
        dir.cookies.insert(dir.last_cookie, name.into());
        dir.names.insert(name.into(), (dir.last_cookie, node));
        attr.nlink += u32::from(is_dir);
        (attr.mtime, attr.ctime) = (now, now);
        if is_dir {
            self.dir_mut(node)?.0.parent = Some(parent);
        }
        Ok(())
    }

    fn take_name(&mut self, parent: NodeId, name: &[u8], now: Timespec) -> Result<(), Errno> {
        let is_dir = self.get(self.lookup(parent, name)?)?.is_dir();
        let (dir, attr) = self.dir_mut(parent)?;
        if let Some((cookie, _)) = dir.names.remove(name) {
            dir.cookies.remove(&cookie);
        }
        attr.nlink -= u32::from(is_dir);
        (attr.mtime, attr.ctime) = (now, now);
        Ok(())
    }
}

impl Node {
    fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir(_))
    }

    fn content(&self) -> Result<&Content, Errno> {
        match &self.kind {
            Kind::File(content) => Ok(content),
            Kind::Dir(_) => Err(Errno::ISDIR),
            Kind::Symlink(_) | Kind::Special => Err(Errno::INVAL),
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Content) -> T) -> Result<T, Errno> {
        let Kind::File(content) = &mut self.kind else { return Err(Errno::INVAL) };
        let changed = change(content);
        (self.attr.size, self.attr.blocks) = (content.size(), content.blocks());
        Ok(changed)
    }

    pub(super) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Errno> {
        Ok(self.content()?.read(offset, len))
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8], now: Timespec) -> Result<(), Errno> {
        self.change(|content| content.write(offset, data))?;
        (self.attr.mtime, self.attr.ctime) = (now, now);
        Ok(())
    }

    pub(super) fn truncate(&mut self, size: u64) -> Result<(), Errno> {
        self.change(|content| content.truncate(size))
    }

    /// lseek(2) with `SEEK_DATA` (3) or `SEEK_HOLE` (4).
    pub(super) fn seek(&self, offset: u64, whence: u32) -> Result<u64, Errno> {
        let content = self.content()?;
        let found = match whence {
            3 => content.data(offset),
            4 => content.hole(offset),
            _ => return Err(Errno::INVAL),
        };
        found.ok_or(Errno::NXIO)
    }

    pub(super) fn target(&self) -> Result<&[u8], Errno> {
        match &self.kind {
            Kind::Symlink(target) => Ok(target),
            Kind::Dir(_) | Kind::File(_) | Kind::Special => Err(Errno::INVAL),
        }
    }

    pub(super) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    pub(super) fn list_xattrs(&self) -> Vec<u8> {
        self.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect()
    }

    pub(super) fn set_xattr(&mut self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let flags = XattrFlags::from_bits_truncate(flags);
        let exists = self.xattrs.contains_key(name);
        if flags.contains(XattrFlags::CREATE) && exists {
            return Err(Errno::EXIST);
        }
        if flags.contains(XattrFlags::REPLACE) && !exists {
            return Err(Errno::NODATA);
        }
        self.xattrs.insert(name.into(), value.into());
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, name: &[u8]) -> Result<(), Errno> {
        self.xattrs.remove(name).map(|_| ()).ok_or(Errno::NODATA)
    }
}

/// Node ids begin with 1, slab keys with 0.
fn key(node: NodeId) -> usize {
    usize::try_from(node.0.wrapping_sub(1)).unwrap_or(usize::MAX)
}
