//! Inodes and names of a file system in memory, and every change of them.
//!
//! Invariant: an inode is here as long as it has a name or is open. [`State::check`] checks that,
//! the numbers of names and the pages of files.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use base::{
    Attr, EntryName, FileKind, FsError, Ino, Time,
    acl::AclKind,
    attr::{MODE_ACL, MODE_BITS, MODE_XATTRS},
    limits::{LINKS_MAX, SYMLINK_BYTES_MAX},
};
use bytes::Bytes;
use wire::{AllocateMode, RenameMode};

use super::{
    At, acl,
    pages::{PAGE_BYTES, Pages},
};
use crate::{
    Path,
    below::{Change, Found, Meta, New, Result},
};

/// Number of the region's own directory.
pub(super) const ROOT: u64 = 2;
/// The largest file, as of ext4.
const FILE_BYTES_MAX: u64 = (1 << 44) - PAGE_BYTES;

/// Entries of a directory.
pub(super) type Entries = BTreeMap<EntryName, u64>;

/// Everything that is in the file system.
pub(super) struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// The time of the change that is being made.
    pub(super) now: Time,
}

/// An inode.
pub(super) struct Node {
    /// Attributes, without the bits that tell of extended ones.
    pub(super) attr: Attr,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Bytes, Bytes>,
    /// How often it is open.
    opens: u32,
    /// Whether it was made without a name and may get its first.
    is_unnamed: bool,
}

/// Contents of an inode.
pub(super) enum Body {
    File(Pages),
    Directory(Entries),
    Symlink(Bytes),
    Special,
}

impl Node {
    pub(super) fn found(&self) -> Found {
        let mut attr = self.attr;
        match &self.body {
            Body::File(pages) => attr.allocated = pages.allocated(),
            Body::Directory(entries) => attr.size = entries.len() as u64,
            Body::Symlink(_) | Body::Special => {}
        }
        for name in self.xattrs.keys() {
            if AclKind::of(name).is_some() {
                attr.mode |= MODE_ACL;
            } else if attr.kind != FileKind::Directory {
                attr.mode |= MODE_XATTRS;
            }
        }
        Found { attr, default_acl: self.xattrs.contains_key(base::acl::DEFAULT) }
    }
}

/// Finding.
impl State {
    pub(super) fn new(now: Time) -> State {
        let mut attr = Attr::blank(Ino(ROOT), FileKind::Directory);
        attr.mode = 0o755;
        (attr.atime, attr.mtime, attr.ctime, attr.btime) = (now, now, now, now);
        let body = Body::Directory(Entries::new());
        let root = Node { attr, body, xattrs: BTreeMap::new(), opens: 0, is_unnamed: false };
        State { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1, now }
    }

    pub(super) fn node(&self, ino: u64) -> &Node {
        self.nodes.get(&ino).expect("named or open")
    }

    pub(super) fn node_mut(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).expect("named or open")
    }

    /// An inode whose attributes change.
    pub(super) fn change(&mut self, ino: u64) -> &mut Node {
        let now = self.now;
        let node = self.node_mut(ino);
        node.attr.ctime = now;
        node
    }

    pub(super) fn entries(&self, dir: u64) -> &Entries {
        match &self.node(dir).body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) | Body::Special => unreachable!("a directory"),
        }
    }

    /// The entries of a directory, which change.
    fn entries_mut(&mut self, dir: u64) -> &mut Entries {
        let now = self.now;
        let node = self.change(dir);
        node.attr.mtime = now;
        match &mut node.body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) | Body::Special => unreachable!("a directory"),
        }
    }

    /// The inode that has a name in a directory; without a name, the directory itself.
    pub(super) fn child(&self, dir: u64, name: Option<&EntryName>) -> Result<u64> {
        let Some(name) = name else { return Ok(dir) };
        self.entries(dir).get(name).copied().ok_or(FsError::NotFound)
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.node(ino).attr.kind == FileKind::Directory
    }

    /// The inode at a path.
    pub(super) fn find(&self, path: &Path) -> Result<u64> {
        match path.split() {
            None => Ok(ROOT),
            Some((above, name)) => self.child(self.find_dir(&above)?, Some(&name)),
        }
    }

    pub(super) fn find_dir(&self, path: &Path) -> Result<u64> {
        let ino = self.find(path)?;
        match self.node(ino).attr.kind {
            FileKind::Directory => Ok(ino),
            FileKind::Symlink => Err(FsError::Loop),
            _ => Err(FsError::NotDirectory),
        }
    }

    pub(super) fn find_file(&self, path: &Path) -> Result<u64> {
        let ino = self.find(path)?;
        self.must_be_file(ino)?;
        Ok(ino)
    }

    pub(super) fn must_be_file(&self, ino: u64) -> Result<()> {
        match self.node(ino).attr.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory),
            FileKind::Symlink => Err(FsError::Loop),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Err(FsError::Invalid)
            }
        }
    }

    /// The directory above a path, and the name in it.
    pub(super) fn parent(&self, path: &Path) -> Result<At> {
        match path.split() {
            None => Ok((ROOT, None)),
            Some((above, name)) => Ok((self.find_dir(&above)?, Some(name))),
        }
    }

    /// Bytes and inodes that are in use.
    pub(super) fn used(&self) -> (u64, u64) {
        let bytes = self.nodes.values().map(|node| node.found().attr.allocated).sum();
        (bytes, self.nodes.len() as u64)
    }
}

/// Names.
impl State {
    pub(super) fn make(
        &mut self,
        dir: u64,
        name: &EntryName,
        new: &New,
        meta: &Meta,
    ) -> Result<Found> {
        if self.entries(dir).contains_key(name) {
            return Err(FsError::Exists);
        }
        check_owner((meta.uid, meta.gid))?;
        let mut meta = *meta;
        let mut rdev = 0;
        let (kind, body, size) = match new {
            New::File(contents) => {
                let mut pages = Pages::default();
                pages.write(0, contents);
                (FileKind::File, Body::File(pages), contents.len())
            }
            New::Directory => {
                meta.mode |= 0o700;
                (FileKind::Directory, Body::Directory(Entries::new()), 0)
            }
            New::Symlink(target) if target.is_empty() => return Err(FsError::NotFound),
            New::Symlink(target) if target.len() > SYMLINK_BYTES_MAX => {
                return Err(FsError::NameTooLong);
            }
            New::Symlink(target) => {
                meta.mode = 0o777;
                (FileKind::Symlink, Body::Symlink(target.clone()), target.len())
            }
            New::Special(FileKind::File | FileKind::Directory | FileKind::Symlink, _) => {
                return Err(FsError::Invalid);
            }
            New::Special(kind, number) => {
                if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    rdev = *number;
                }
                (*kind, Body::Special, 0)
            }
        };
        let ino = self.add(dir, kind, body, &meta);
        let attr = &mut self.node_mut(ino).attr;
        attr.size = size as u64;
        attr.rdev = rdev;
        if kind == FileKind::Directory {
            attr.mode |= 0o700;
            let mode = attr.mode;
            acl::follow_mode(self, ino, mode);
            self.node_mut(dir).attr.nlink += 1;
        }
        self.entries_mut(dir).insert(name.clone(), ino);
        Ok(self.node(ino).found())
    }

    pub(super) fn unnamed(&mut self, dir: u64, meta: &Meta) -> Result<Found> {
        check_owner((meta.uid, meta.gid))?;
        let ino = self.add(dir, FileKind::File, Body::File(Pages::default()), meta);
        let node = self.node_mut(ino);
        node.attr.nlink = 0;
        node.is_unnamed = true;
        Ok(node.found())
    }

    /// A new inode with its metadata, in a directory that may have a default ACL.
    fn add(&mut self, dir: u64, kind: FileKind, body: Body, meta: &Meta) -> u64 {
        let ino = self.next;
        self.next += 1;
        let mut attr = Attr::blank(Ino(ino), kind);
        attr.mode = meta.mode & MODE_BITS;
        (attr.uid, attr.gid) = (meta.uid, meta.gid);
        (attr.atime, attr.mtime) = (meta.atime, meta.mtime);
        (attr.ctime, attr.btime) = (self.now, self.now);
        let mut xattrs = BTreeMap::new();
        let default = acl::of(self, dir, AclKind::Default);
        if kind != FileKind::Symlink
            && let Some(default) = default
        {
            let inherited = default.inherit(attr.mode, kind);
            attr.mode = inherited.mode;
            let acls =
                [(base::acl::ACCESS, inherited.access), (base::acl::DEFAULT, inherited.default)];
            for (name, acl) in acls {
                xattrs.extend(acl.map(|acl| (Bytes::from_static(name), acl.to_bytes())));
            }
        }
        self.nodes.insert(ino, Node { attr, body, xattrs, opens: 0, is_unnamed: false });
        ino
    }

    pub(super) fn unlink(&mut self, dir: u64, name: &EntryName) -> Result<()> {
        let ino = self.child(dir, Some(name))?;
        if self.is_dir(ino) {
            return Err(FsError::IsDirectory);
        }
        self.entries_mut(dir).remove(name);
        self.lose_name(ino);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, dir: u64, name: &EntryName) -> Result<()> {
        let ino = self.child(dir, Some(name))?;
        if !self.is_dir(ino) {
            return Err(FsError::NotDirectory);
        }
        if !self.entries(ino).is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.entries_mut(dir).remove(name);
        self.node_mut(dir).attr.nlink -= 1;
        self.nodes.remove(&ino);
        Ok(())
    }

    pub(super) fn link(&mut self, ino: u64, dir: u64, name: Option<&EntryName>) -> Result<()> {
        let name = name.ok_or(FsError::Exists)?;
        if self.entries(dir).contains_key(name) {
            return Err(FsError::Exists);
        }
        if self.is_dir(ino) {
            return Err(FsError::NotPermitted);
        }
        let node = self.node(ino);
        if node.attr.nlink == 0 && !node.is_unnamed {
            return Err(FsError::NotFound);
        }
        if node.attr.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let node = self.change(ino);
        node.attr.nlink += 1;
        node.is_unnamed = false;
        self.entries_mut(dir).insert(name.clone(), ino);
        Ok(())
    }

    /// Moves an entry; the checks are in the order in which Linux makes them.
    pub(super) fn rename(
        &mut self,
        (from_dir, from_name): (u64, &EntryName),
        (to_dir, to_name): (u64, &EntryName),
        mode: RenameMode,
    ) -> Result<()> {
        let ino = self.child(from_dir, Some(from_name))?;
        let target = self.entries(to_dir).get(to_name).copied();
        let target = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, target) => target,
        };
        if self.holds(ino, to_dir) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target
            && self.holds(target, from_dir)
        {
            let exchanges = mode == RenameMode::Exchange;
            return Err(if exchanges { FsError::Invalid } else { FsError::NotEmpty });
        }
        if target == Some(ino) {
            return Ok(());
        }
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.entries_mut(from_dir).insert(from_name.clone(), target);
                self.entries_mut(to_dir).insert(to_name.clone(), ino);
                self.move_dir(target, to_dir, from_dir);
                self.change(target);
            }
            target => {
                if let Some(target) = target {
                    self.replace(ino, target, to_dir)?;
                }
                self.entries_mut(from_dir).remove(from_name);
                self.entries_mut(to_dir).insert(to_name.clone(), ino);
            }
        }
        self.move_dir(ino, from_dir, to_dir);
        self.change(ino);
        Ok(())
    }

    /// Takes away what a rename of `ino` replaces.
    fn replace(&mut self, ino: u64, target: u64, dir: u64) -> Result<()> {
        match (self.is_dir(ino), self.is_dir(target)) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (false, false) => {
                self.lose_name(target);
                Ok(())
            }
            (true, true) if self.entries(target).is_empty() => {
                self.nodes.remove(&target);
                self.node_mut(dir).attr.nlink -= 1;
                Ok(())
            }
            (true, true) => Err(FsError::NotEmpty),
        }
    }

    /// Whether `dir` is `ino` or lies below it.
    fn holds(&self, ino: u64, dir: u64) -> bool {
        let Body::Directory(entries) = &self.node(ino).body else { return false };
        ino == dir || entries.values().any(|child| self.holds(*child, dir))
    }

    /// Counts a directory that has another one above it.
    fn move_dir(&mut self, ino: u64, from: u64, to: u64) {
        if self.is_dir(ino) {
            self.node_mut(from).attr.nlink -= 1;
            self.node_mut(to).attr.nlink += 1;
        }
    }

    fn lose_name(&mut self, ino: u64) {
        self.change(ino).attr.nlink -= 1;
        self.drop_unused(ino);
    }

    fn drop_unused(&mut self, ino: u64) {
        let Entry::Occupied(node) = self.nodes.entry(ino) else { return };
        if node.get().attr.nlink == 0 && node.get().opens == 0 {
            node.remove();
        }
    }

    pub(super) fn opened(&mut self, ino: u64) {
        self.node_mut(ino).opens += 1;
    }

    pub(super) fn closed(&mut self, ino: u64) {
        self.node_mut(ino).opens -= 1;
        self.drop_unused(ino);
    }
}

/// Attributes and contents.
impl State {
    /// Changes all but the contents.
    pub(super) fn set(&mut self, ino: u64, change: &Change) -> Result<()> {
        change.owner.map_or(Ok(()), check_owner)?;
        let kind = self.node(ino).attr.kind;
        if let Some((uid, gid)) = change.owner {
            let attr = &mut self.change(ino).attr;
            (attr.uid, attr.gid) = (uid, gid);
        }
        // A symbolic link has no mode that somebody could change.
        if let Some(mode) = change.mode.filter(|_| kind != FileKind::Symlink) {
            self.change(ino).attr.mode = mode & MODE_BITS;
            acl::follow_mode(self, ino, mode);
        }
        if let Some((atime, mtime)) = change.times {
            let attr = &mut self.change(ino).attr;
            (attr.atime, attr.mtime) = (atime, mtime);
        }
        Ok(())
    }

    /// The pages of a file, and its size.
    pub(super) fn pages(&self, ino: u64) -> (&Pages, u64) {
        let node = self.node(ino);
        match &node.body {
            Body::File(pages) => (pages, node.attr.size),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => unreachable!("a file"),
        }
    }

    /// The pages of a file, which change, and its size.
    fn pages_mut(&mut self, ino: u64) -> (&mut Pages, &mut u64) {
        let now = self.now;
        let node = self.change(ino);
        node.attr.mtime = now;
        match &mut node.body {
            Body::File(pages) => (pages, &mut node.attr.size),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => unreachable!("a file"),
        }
    }

    pub(super) fn read(&self, ino: u64, offset: u64, len: u64) -> Vec<u8> {
        let (pages, size) = self.pages(ino);
        pages.read(offset, len, size)
    }

    /// Makes `contents` all that is in a file.
    pub(super) fn set_contents(&mut self, ino: u64, contents: &Arc<Vec<u8>>) {
        let (pages, size) = self.pages_mut(ino);
        *size = contents.len() as u64;
        pages.write(0, contents);
        pages.cut(*size);
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = range_end(offset, data.len() as u64)?;
        let (pages, size) = self.pages_mut(ino);
        pages.write(offset, data);
        *size = end.max(*size);
        Ok(())
    }

    pub(super) fn truncate(&mut self, ino: u64, new: u64) -> Result<()> {
        range_end(new, 0)?;
        let (pages, size) = self.pages_mut(ino);
        pages.cut(new);
        *size = new;
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        ino: u64,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<()> {
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let end = range_end(offset, len)?;
        let (pages, size) = self.pages_mut(ino);
        match mode {
            AllocateMode::Grow => *size = end.max(*size),
            // Pages are taken when they are written.
            AllocateMode::Keep => {}
            AllocateMode::Zero => {
                pages.zero(offset, end);
                *size = end.max(*size);
            }
            AllocateMode::ZeroWithin => pages.zero(offset, end.min(*size).max(offset)),
        }
        Ok(())
    }

    pub(super) fn check(&self) {
        let mut names: BTreeMap<u64, u32> = BTreeMap::new();
        for (ino, node) in &self.nodes {
            let Body::Directory(entries) = &node.body else { continue };
            let below = entries.values().filter(|child| self.is_dir(**child)).count();
            assert_eq!(node.attr.nlink as usize, 2 + below, "names of directory {ino}");
            for child in entries.values() {
                *names.entry(*child).or_default() += 1;
            }
        }
        for (ino, node) in &self.nodes {
            let named = names.get(ino).copied().unwrap_or_default();
            if self.is_dir(*ino) {
                assert_eq!(named, u32::from(*ino != ROOT), "directory {ino}");
            } else {
                assert_eq!(node.attr.nlink, named, "names of {ino}");
                assert!(named > 0 || node.opens > 0, "{ino} is not in use");
            }
            if let Body::File(pages) = &node.body {
                let behind = node.attr.size.div_ceil(PAGE_BYTES);
                assert!(pages.last().is_none_or(|last| last < behind), "pages of {ino}");
            }
        }
    }
}

/// Fails for what stands for no user or group.
fn check_owner((uid, gid): (u32, u32)) -> Result<()> {
    if uid == u32::MAX || gid == u32::MAX { Err(FsError::Invalid) } else { Ok(()) }
}

/// The end of a range of bytes that a file can have.
fn range_end(offset: u64, len: u64) -> Result<u64> {
    if offset > i64::MAX as u64 {
        return Err(FsError::Invalid);
    }
    let end = offset.checked_add(len).ok_or(FsError::Invalid)?;
    if end > FILE_BYTES_MAX { Err(FsError::FileTooBig) } else { Ok(end) }
}
