//! The nodes that the kernel knows: which file or directory each number stands for, and what the
//! kernel was told of it.
//!
//! The adapter calls it; it never asks the file system. A node id is the inode number with its shard
//! below its counter ([`turned`]), but the mount's root is always 1, so that the one whose id would
//! be 1 has the root's. An inode number is never given out twice, so the generation of every node
//! is 0.
//!
//! Invariant: a node is here as long as the kernel has look-ups of it that it has not forgotten,
//! and the root always. The look-ups of an entry are counted where the entry is sent, and nowhere
//! else.
//!
//! The kernel drops the attributes of a directory after each change of a name there, and asks for
//! them when it walks through the directory next. Where the answer to the change told them, they
//! are kept here for that question ([`Nodes::take_left`]).
//!
//! Invariant: attributes that are kept so are no older than all that was told of the directory, and
//! have every change of it that was answered through this mount.
//!
//! A file is named by (directory, name, inode number). The name is the one under which this mount
//! met the file last: a look-up, a new link and a rename bring it up to date. Where another client
//! renames or removes it, the file system finds the file by its number, or answers ESTALE; the
//! kernel then looks up the path again.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use base::{
    Attr, EntryName, HashMap, Ino, Time,
    attr::{MODE_ACL, MODE_XATTRS, without_set_id},
};
use fuse::{Errno, NodeId};
use tokio::time::Instant;
use wire::{DirRef, FileRef, NodeRef};

use crate::{answer::Told, convert::Failed};

/// Bits of an inode number above its counter: the shard and the lane of its birth.
const SHARD_BITS: u32 = u64::BITS - Ino::COUNTER_BITS;

/// An inode number with its shard below its counter, so that the kernel finds the inode quickly.
///
/// The kernel's hash of inodes takes no account of the highest bits (`hash` in `fs/inode.c`), in
/// which alone the inodes of different directories differ: of 100,000 files in 1,024 shards it
/// would walk past 700 to find one.
fn turned(ino: Ino) -> NodeId {
    NodeId(ino.0.rotate_left(SHARD_BITS))
}

/// The inode number of a node id that is no root's.
fn turned_back(id: NodeId) -> Ino {
    Ino(id.0.rotate_right(SHARD_BITS))
}

/// All nodes that the kernel knows.
pub(crate) struct Nodes {
    root: Ino,
    table: HashMap<u64, Node>,
    forgotten: Forgotten,
}

/// Number of nodes that are remembered after the kernel has forgotten them.
const FORGOTTEN_MAX: usize = 1 << 16;

/// Nodes that the kernel has forgotten, the latest of them: a file handle (`name_to_handle_at`,
/// NFS) may bring one back by its number alone.
#[derive(Default)]
struct Forgotten {
    nodes: HashMap<u64, (NodeRef, u64)>,
    /// In the order of forgetting, with the turn; outdated where `nodes` has a later turn.
    order: VecDeque<(u64, u64)>,
    turn: u64,
}

impl Forgotten {
    fn add(&mut self, id: u64, at: NodeRef) {
        self.turn += 1;
        self.nodes.insert(id, (at, self.turn));
        self.order.push_back((id, self.turn));
        while self.order.len() > FORGOTTEN_MAX {
            let Some((oldest, turn)) = self.order.pop_front() else { return };
            if self.nodes.get(&oldest).is_some_and(|(_, latest)| *latest == turn) {
                self.nodes.remove(&oldest);
            }
        }
    }
}

struct Node {
    at: NodeRef,
    lookups: u64,
    /// The attributes that the kernel was told last, and of when they are; `None` once it was told
    /// that they are outdated.
    told: Attr,
    told_at: Option<Instant>,
    /// The kernel may still believe `told`; not so after a write, which it knows to have changed
    /// them.
    believed: bool,
    /// Where the kernel believes the end of the file to be: as told, or where it has written since.
    end: u64,
    /// Process that was sent back from an open to look the path up again; 0 for none.
    sent_back: u32,
    /// The contents whose pages the kernel may have, as of the open that began to fill its cache.
    filled: Option<Version>,
    /// Whether the last name was removed through this mount.
    gone: bool,
    /// The file's `ctime` at which it had no `security.capability`.
    without_capability: Option<Time>,
    /// Whether this mount has set an extended attribute, or an open has seen one. Attributes from
    /// before that may be told after it.
    given_xattr: bool,
    /// Counts what the kernel knows to have changed.
    changes: u64,
    /// Counts what was told of a directory, and the beginnings and ends of its changes through this
    /// mount.
    turn: u64,
    /// The directory as a change of a name in it left it, and when that change began.
    left: Option<(Attr, Instant)>,
}

/// A change of a name in a directory, under way.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) dir: NodeId,
    turn: u64,
}

/// Contents as far as attributes tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    mtime: Time,
    ctime: Time,
    size: u64,
}

impl Version {
    fn of(attr: &Attr) -> Version {
        Version { mtime: attr.mtime, ctime: attr.ctime, size: attr.size }
    }
}

impl Node {
    fn tell(&mut self, attr: &Attr, age: Duration) {
        (self.told, self.believed, self.end) = (*attr, true, attr.size);
        let now = Instant::now();
        self.told_at = now.checked_sub(age);
        self.next_turn();
    }

    /// Drops attributes that are kept of a directory, and those that a change under way would
    /// leave.
    fn next_turn(&mut self) {
        self.turn += 1;
        self.left = None;
    }
}

/// Consequences of an open for what the kernel has cached of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cached {
    /// Cached pages are still right.
    pub(crate) keep_pages: bool,
    /// Cached attributes are outdated.
    pub(crate) outdated: bool,
    /// An append would go to an end that is not the file's any more.
    pub(crate) wrong_end: bool,
}

impl Nodes {
    /// Only the root.
    pub(crate) fn new(root: DirRef, attr: Attr) -> Nodes {
        let mut nodes =
            Nodes { root: root.ino, table: HashMap::default(), forgotten: Forgotten::default() };
        nodes.found(NodeRef::Dir(root), &attr, Duration::ZERO);
        nodes
    }

    /// The node id of an inode, known or not.
    pub(crate) fn id(&self, ino: Ino) -> NodeId {
        match turned(ino) {
            _ if ino == self.root => NodeId::ROOT,
            NodeId::ROOT => turned(self.root),
            id => id,
        }
    }

    /// The inode number of a node id, known or not.
    pub(crate) fn ino(&self, id: NodeId) -> Ino {
        match id {
            NodeId::ROOT => self.root,
            id if id == turned(self.root) => turned_back(NodeId::ROOT),
            id => turned_back(id),
        }
    }

    fn node(&self, id: NodeId) -> Result<&Node, Failed> {
        self.table.get(&id.0).ok_or_else(|| {
            tracing::error!(node = id.0, "the kernel asks of a node that it has forgotten");
            Failed(Errno::IO)
        })
    }

    /// Returns the reference by which the file system knows a node.
    pub(crate) fn get(&self, id: NodeId) -> Result<NodeRef, Failed> {
        Ok(self.node(id)?.at.clone())
    }

    /// Returns the reference to a node that the kernel may have forgotten; `None` when we have,
    /// too.
    pub(crate) fn remembered(&self, id: NodeId) -> Option<NodeRef> {
        let known = self.table.get(&id.0).map(|node| &node.at);
        known.or_else(|| self.forgotten.nodes.get(&id.0).map(|(at, _)| at)).cloned()
    }

    /// Returns the reference to a directory.
    pub(crate) fn dir(&self, id: NodeId) -> Result<DirRef, Failed> {
        match &self.node(id)?.at {
            NodeRef::Dir(dir) => Ok(*dir),
            NodeRef::File(_) => Err(Failed(Errno::NOTDIR)),
        }
    }

    /// Returns the reference to a node that is no directory.
    pub(crate) fn file(&self, id: NodeId) -> Result<FileRef, Failed> {
        match &self.node(id)?.at {
            NodeRef::File(file) => Ok(file.clone()),
            NodeRef::Dir(_) => Err(Failed(Errno::ISDIR)),
        }
    }

    /// An entry is being sent to the kernel, with attributes of this age: counts one look-up.
    pub(crate) fn found(&mut self, at: NodeRef, attr: &Attr, age: Duration) -> NodeId {
        let id = self.id(attr.ino);
        self.forgotten.nodes.remove(&id.0);
        let node = self.table.entry(id.0).or_insert_with(|| Node {
            at: at.clone(),
            lookups: 0,
            told: *attr,
            told_at: None,
            believed: true,
            end: attr.size,
            sent_back: 0,
            filled: None,
            gone: false,
            without_capability: None,
            given_xattr: false,
            changes: 0,
            turn: 0,
            left: None,
        });
        node.at = at;
        node.lookups += 1;
        node.gone = false;
        node.tell(attr, age);
        id
    }

    /// Counts what the kernel knows to have changed of a node through this mount.
    pub(crate) fn changes(&self, id: NodeId) -> u64 {
        self.table.get(&id.0).map_or(0, |node| node.changes)
    }

    /// Attributes are being sent to the kernel.
    ///
    /// Race: they may be older than a change that the kernel was told of meanwhile. It does not
    /// believe them then, and they are not noted.
    pub(crate) fn told(&mut self, told: &Told) {
        if let Some(node) = self.table.get_mut(&told.node.0)
            && node.changes == told.since
        {
            node.tell(&told.attr, told.age);
        }
    }

    /// The kernel knows that what it was told has changed.
    pub(crate) fn disbelieved(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.believed = false;
            node.told_at = None;
            node.changes += 1;
        }
    }

    /// The kernel has written up to `end`, and knows that attributes have changed.
    pub(crate) fn written(&mut self, id: NodeId, end: u64) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.believed = false;
            node.end = node.end.max(end);
            node.changes += 1;
        }
    }

    /// A change of the contents took the set-id bits; whether the kernel was told of any.
    pub(crate) fn loses_set_id(&mut self, id: NodeId) -> bool {
        let Some(node) = self.table.get_mut(&id.0) else { return false };
        let left = without_set_id(node.told.mode);
        let had_any = node.told.mode != left;
        node.told.mode = left;
        had_any
    }

    /// A file was opened and has these attributes.
    pub(crate) fn opened(&mut self, id: NodeId, attr: &Attr) -> Cached {
        let Some(node) = self.table.get_mut(&id.0) else {
            return Cached { keep_pages: false, outdated: false, wrong_end: false };
        };
        // An open, and a lock, see what others have set before.
        node.given_xattr |= attr.mode & MODE_XATTRS != 0;
        let now = Version::of(attr);
        let keep_pages = node.filled == Some(now);
        node.filled = Some(now);
        let outdated = node.believed && Version::of(&node.told) != now;
        let wrong_end = node.end != attr.size;
        if !wrong_end {
            node.sent_back = 0;
        }
        Cached { keep_pages, outdated, wrong_end }
    }

    /// Whether the process `pid`, which opens the file, is to look its path up again first: once,
    /// for an open that is not by path knows no better the second time.
    pub(crate) fn sends_back(&mut self, id: NodeId, pid: u32) -> bool {
        let Some(node) = self.table.get_mut(&id.0) else { return false };
        let first = node.sent_back != pid;
        node.sent_back = if first { pid } else { 0 };
        first
    }

    /// Notes the name under which this mount has just found an inode, without telling the kernel.
    pub(crate) fn stands_at(&mut self, ino: Ino, dir: &DirRef, name: &EntryName) {
        let id = self.id(ino);
        if let Some(node) = self.table.get_mut(&id.0)
            && let NodeRef::File(file) = &mut node.at
        {
            *file = FileRef { dir: *dir, name: name.clone(), ino };
        }
    }

    /// This mount removed the last name of an inode; what it was then, where that is known.
    pub(crate) fn removed(&mut self, ino: Ino, last: Option<Attr>) {
        let id = self.id(ino);
        if let Some(node) = self.table.get_mut(&id.0) {
            node.told = last.unwrap_or(Attr { nlink: 0, ..node.told });
            node.believed = false;
            node.gone = true;
            node.changes += 1;
            node.next_turn();
        }
    }

    /// A name in a directory is about to be changed.
    pub(crate) fn begin_change(&mut self, dir: NodeId) -> Change {
        let turn = self.table.get_mut(&dir.0).map_or(0, |node| {
            node.next_turn();
            node.turn
        });
        Change { dir, turn }
    }

    /// A change that began at `asked` has ended, and its answer told what it left.
    ///
    /// Race: where something was told of the directory meanwhile, or another change began or ended,
    /// the answer may be older than that. Nothing is kept then, and the kernel's question goes to
    /// the file system.
    pub(crate) fn end_change(&mut self, change: &Change, left: Option<Attr>, asked: Instant) {
        let Some(node) = self.table.get_mut(&change.dir.0) else { return };
        let alone = node.turn == change.turn;
        node.next_turn();
        node.left = left.filter(|_| alone && !node.gone).map(|attr| (attr, asked));
    }

    /// A directory changes otherwise than by a name in it, or has changed: its attributes, its own
    /// name, its access time.
    pub(crate) fn alters(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.next_turn();
        }
    }

    /// Takes what the last change of a name left of a directory, and its age, if that is below
    /// `age_max`. It is given once: a kernel that asks again has a reason.
    pub(crate) fn take_left(&mut self, id: NodeId, age_max: Duration) -> Option<(Attr, Duration)> {
        let (attr, asked) = self.table.get_mut(&id.0)?.left.take()?;
        let age = asked.elapsed();
        (age < age_max).then_some((attr, age))
    }

    /// The last attributes of an inode that has gone, for those who still have it open or work in
    /// it.
    pub(crate) fn epitaph(&self, id: NodeId) -> Option<Attr> {
        self.table.get(&id.0).filter(|node| node.gone).map(|node| node.told)
    }

    /// The `ctime` that the kernel was told last.
    pub(crate) fn ctime(&self, id: NodeId) -> Option<Time> {
        self.table.get(&id.0).map(|node| node.told.ctime)
    }

    /// Notes that the inode had no `security.capability` when it had this `ctime`.
    pub(crate) fn has_no_capability(&mut self, id: NodeId, ctime: Option<Time>) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.without_capability = ctime;
        }
    }

    /// Notes that the inode is being given an attribute, which may be a capability.
    pub(crate) fn gives_xattr(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.without_capability = None;
            node.given_xattr = true;
        }
    }

    /// Whether the inode has no extended attributes but ACLs by what the kernel was told last, if
    /// that is younger than `age_max`. Directories do not tell.
    pub(crate) fn lacks_xattrs(&self, id: NodeId, age_max: Duration) -> bool {
        self.table.get(&id.0).is_some_and(|node| {
            let tells = matches!(node.at, NodeRef::File(_)) && !node.given_xattr;
            let young = node.told_at.is_some_and(|at| at.elapsed() < age_max);
            tells && young && node.told.mode & MODE_XATTRS == 0
        })
    }

    /// Whether the inode is known to have no `security.capability`, as far as its attributes are
    /// believed.
    pub(crate) fn lacks_capability(&self, id: NodeId) -> bool {
        let node = self.table.get(&id.0);
        node.is_some_and(|node| node.without_capability == Some(node.told.ctime))
    }

    /// Notes that the inode was given an ACL, and that the attributes which the kernel knows are
    /// old.
    pub(crate) fn may_have_acl(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.told.mode |= MODE_ACL;
            node.believed = false;
        }
    }

    /// Whether the inode had no ACL when the kernel was told its attributes last.
    pub(crate) fn lacks_acl(&self, id: NodeId) -> bool {
        let node = self.table.get(&id.0);
        node.is_some_and(|node| !node.given_xattr && node.told.mode & MODE_ACL == 0)
    }

    /// Drops so many look-ups that the kernel forgets.
    pub(crate) fn forget(&mut self, id: NodeId, lookups: u64) {
        let Some(node) = self.table.get_mut(&id.0) else { return };
        if node.lookups < lookups {
            tracing::error!(node = id.0, lookups, "the kernel forgets more than it was told");
        }
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && id != NodeId::ROOT
            && let Some(node) = self.table.remove(&id.0)
            && !node.gone
        {
            self.forgotten.add(id.0, node.at);
        }
    }
}
