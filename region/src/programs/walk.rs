//! Paths of programs, from a directory to a name in another one, and what their users may do.

use base::{
    Attr, EntryName, FileKind, FsError, Ino,
    attr::{MODE_ACL, MODE_XATTRS},
};
use wire::DirRef;

use super::Peer;
use crate::{
    Path,
    hidden::is_seen,
    table::{Result, Table, dir_ref},
};

/// The table's answer to a program; `None`: the mount is to be asked.
pub(super) type Quick<T> = Result<Option<T>>;

/// The end of a path.
pub(super) struct Walked {
    /// The directory that has the name.
    pub(super) dir: DirRef,
    /// The name.
    pub(super) name: EntryName,
    /// The node that has it.
    pub(super) found: Option<Ino>,
}

/// Permissions that an owner has, with the bits of access(2).
pub(super) const READ: u32 = 4;
/// See [`READ`].
pub(super) const WRITE: u32 = 2;
/// See [`READ`].
pub(super) const EXECUTE: u32 = 1;

impl Peer {
    /// Whether the user may do this with a node for certain: as root, or as its owner. Of others
    /// the kernel knows.
    pub(super) fn may(self, attr: &Attr, want: u32) -> bool {
        if self.uid == 0 {
            let runs = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
            return want & EXECUTE == 0 || runs;
        }
        self.uid == attr.uid && (attr.mode >> 6) & want == want
    }

    /// Whether the user is a node's owner, or root.
    pub(super) fn owns(self, attr: &Attr) -> bool {
        self.uid == 0 || self.uid == attr.uid
    }
}

/// Whether a node has attributes that the table does not know.
pub(super) fn has_more(attr: &Attr) -> bool {
    attr.mode & (MODE_ACL | MODE_XATTRS) != 0
}

/// Follows a path of plain directories.
///
/// # Errors
/// `NotFound` where one of them is not there.
pub(super) fn walk(table: &Table, peer: Peer, from: Ino, path: &[u8]) -> Quick<Walked> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let Some(mut last) = names.next() else { return Ok(None) };
    if path.ends_with(b"/") || path.ends_with(b"/.") {
        return Ok(None);
    }
    let is_dir = |node: &crate::table::Node| node.is_dir() && node.path.is_some();
    if !table.nodes.get(&from).is_some_and(is_dir) {
        return Ok(None);
    }
    let mut dir = from;
    let mut at: Path = table.dir_path(&dir_ref(dir))?;
    loop {
        let next = names.next();
        if !peer.may(&table.node(dir).attr, EXECUTE) {
            return Ok(None);
        }
        let Ok(name) = EntryName::new(last) else { return Ok(None) };
        if is_seen(&dir_ref(dir), &name).is_err() {
            return Ok(None);
        }
        let path = at.child(&name);
        let found = table.find(&path)?;
        let Some(next) = next else {
            return Ok(Some(Walked { dir: dir_ref(dir), name, found }));
        };
        let ino = found.ok_or(FsError::NotFound)?;
        if !table.node(ino).is_dir() {
            return Ok(None);
        }
        (dir, at, last) = (ino, path, next);
    }
}
