//! Names: making and removing them in the table. What needs a hold is in `structural`.

use std::sync::Arc;

use base::{
    Attr, Cred, EntryName, FileKind, FsError, Ino,
    attr::{MODE_BITS, MODE_SETGID, MODE_STICKY},
    limits::SYMLINK_BYTES_MAX,
};
use bytes::Bytes;
use client::{Handle, New};
use wire::{DirRef, Entry};

use crate::{
    Path,
    table::{Body, Directory, Node, Result, Slot, Table, dir_ref},
};

/// Mode bits that `mkdir` keeps.
const MKDIR_BITS: u32 = MODE_STICKY | 0o777;

/// The fate of a name that was to be made.
pub(crate) enum Made {
    New(Entry, Option<Handle>),
    /// The name was taken.
    There(Entry),
    /// Only the file system below can make it right.
    Below(Path, Attr),
}

impl Table {
    pub(crate) fn lookup(&mut self, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        let path = self.dir_path(dir)?.child(name);
        let ino = self.find(&path)?.ok_or(FsError::NotFound)?;
        Ok(self.show(ino))
    }

    /// A file that a program has open beside the mount, whatever its name is.
    pub(crate) fn look_opened(&mut self, ino: Ino) -> Result<Entry> {
        let apart = self.nodes.get(&ino).filter(|node| node.apart > 0);
        apart.ok_or(FsError::NotFound)?;
        Ok(self.show(ino))
    }

    /// Makes a file, directory, symbolic link or special file, unless the name is taken.
    pub(crate) fn make(
        &mut self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        body: Body,
        new: New,
        open: bool,
    ) -> Result<Made> {
        let path = self.dir_path(dir)?.child(name);
        if let Some(ino) = self.find(&path)? {
            return Ok(Made::There(self.answer(ino)));
        }
        self.room()?;
        let attr = self.new_attr(cred, dir.ino, new);
        // Default ACLs and devices are left to the file system below.
        let above = self.node(dir.ino).directory().expect("found as one");
        if above.default_acl || matches!(body, Body::Special) {
            return Ok(Made::Below(path, attr));
        }
        let ino = self.number();
        let mut node = Node::loaded(Attr { ino, ..attr }, body, path.clone());
        node.fresh = true;
        node.attr.size = node.contents_bytes() as u64;
        self.memory += node.contents_bytes();
        self.nodes.insert(ino, node);
        self.add_name(&path, dir.ino, name, ino);
        self.changed(&path);
        let handle = open.then(|| self.add_handle(ino));
        Ok(Made::New(self.answer(ino), handle))
    }

    /// Attributes of something new in a directory. Linux: `inode_init_owner`.
    pub(crate) fn new_attr(&self, cred: &Cred, dir: Ino, new: New) -> Attr {
        let above = &self.node(dir).attr;
        let is_dir = new.kind == FileKind::Directory;
        let (mut gid, mut mode) = (cred.gid, new.mode & MODE_BITS);
        if is_dir {
            mode &= MKDIR_BITS;
        }
        if above.mode & MODE_SETGID != 0 {
            gid = above.gid;
            // The kernel has seen to the rest of the bit's meaning for a file's mode.
            if is_dir {
                mode |= MODE_SETGID;
            }
        }
        let is_device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let now = self.now;
        Attr {
            mode,
            uid: cred.uid,
            gid,
            rdev: if is_device { new.rdev } else { 0 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attr::blank(Ino(0), new.kind)
        }
    }

    /// Gives a node a path, and has the directory know of it.
    pub(crate) fn add_name(&mut self, path: &Path, dir: Ino, name: &EntryName, ino: Ino) {
        let below = self.entries.get(path).is_some_and(|entry| entry.below);
        self.put(path.clone(), Slot::Node(ino), below);
        self.node_mut(ino).path = Some(path.clone());
        self.directory_mut(dir).children.insert(name.clone());
        if self.node(ino).is_dir() {
            self.add_links(dir, 1);
        }
        self.touch_dir(dir);
    }

    /// Takes a path from the node that it stands for; the entry then stands for nothing. A node
    /// with no other path and no handle is gone.
    pub(crate) fn take_name(&mut self, path: &Path) {
        let (dir, name) = self.above(path).expect("a name is in a directory");
        let entry = self.entries.get_mut(path).expect("a name has an entry");
        let Slot::Node(ino) = entry.slot else { unreachable!("the caller has found a node") };
        entry.slot = Slot::Absent(None);
        self.directory_mut(dir).children.remove(&name);
        if self.node(ino).is_dir() {
            self.add_links(dir, -1);
            self.late.remove(path);
        }
        self.failed.remove(path);
        self.touch_dir(dir);
        let now = self.now;
        let node = self.node_mut(ino);
        node.attr.ctime = now;
        if node.path.as_ref() == Some(path) {
            node.path = None;
        }
        node.attr.nlink = if node.is_dir() { 0 } else { node.attr.nlink.saturating_sub(1) };
        if node.attr.nlink > 0 && node.path.is_none() {
            self.find_other_name(ino);
        }
        self.forget_unused(ino);
    }

    /// Looks for another path of a file with several names; where the table has none, the file is
    /// one that nobody here knows any more.
    fn find_other_name(&mut self, ino: Ino) {
        let mut entries = self.entries.iter();
        let other = entries.find(|(_, entry)| entry.slot == Slot::Node(ino));
        let other = other.map(|(path, _)| path.clone());
        self.node_mut(ino).path = other;
    }

    fn add_links(&mut self, dir: Ino, links: i32) {
        let attr = &mut self.node_mut(dir).attr;
        // File systems that do not count subdirectories say 1.
        if attr.nlink >= 2 {
            attr.nlink = attr.nlink.saturating_add_signed(links).max(2);
        }
    }

    /// Removes a file's name. `None`: the file has several names, so below must remove it.
    pub(crate) fn unlink(&mut self, dir: &DirRef, name: &EntryName) -> Result<Option<Attr>> {
        let path = self.dir_path(dir)?.child(name);
        let ino = self.find(&path)?.ok_or(FsError::NotFound)?;
        let node = self.node(ino);
        if node.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        if node.attr.nlink > 1 {
            return Ok(None);
        }
        let attr = Attr { nlink: 0, ctime: self.now, ..node.attr };
        self.take_name(&path);
        self.changed(&path);
        Ok(Some(attr))
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Result<Bytes> {
        match &self.node(ino).body {
            Body::Symlink(target) => Ok(target.clone()),
            Body::Directory(_)
            | Body::Unread
            | Body::Inline(_)
            | Body::Passed(_)
            | Body::Special => Err(FsError::Invalid.into()),
        }
    }
}

/// The body of something new; `target` is that of a symbolic link.
pub(crate) fn body(kind: FileKind, target: &Bytes) -> Body {
    match kind {
        FileKind::File => Body::Inline(Arc::default()),
        FileKind::Directory => {
            Body::Directory(Directory { born_here: true, ..Directory::default() })
        }
        FileKind::Symlink => Body::Symlink(target.clone()),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            Body::Special
        }
    }
}

/// Checks the target of a new symbolic link.
pub(crate) fn target(target: &Bytes) -> std::result::Result<(), FsError> {
    if target.is_empty() {
        return Err(FsError::NotFound);
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if target.contains(&0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// How to name a node of the table.
pub(crate) fn node_ref(table: &Table, ino: Ino) -> Option<wire::NodeRef> {
    let node = table.nodes.get(&ino)?;
    if node.is_dir() {
        return node.path.as_ref().map(|_| wire::NodeRef::Dir(dir_ref(ino)));
    }
    let found = node.path.as_ref().and_then(|path| table.above(path));
    Some(wire::NodeRef::File(match found {
        Some((dir, name)) => wire::FileRef { dir: dir_ref(dir), name, ino },
        None => wire::FileRef::unnamed(DirRef::ROOT, ino),
    }))
}
