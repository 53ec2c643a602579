//! The nodes that the kernel knows: which file or directory each number stands for, and what the
//! kernel was told of it.
//!
//! The adapter calls it; it never asks the file system. A node id is the inode number, but the
//! mount's root is always 1, so that where its inode number is another one the two change places.
//! An inode number is never given out twice, so the generation of every node is 0.
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

use std::{collections::VecDeque, time::Duration};

use base::{
    Attr, EntryName, HashMap, Ino, Time,
    attr::{MODE_ACL, MODE_XATTRS, without_set_id},
};
use fuse::{Errno, NodeId};
use tokio::time::Instant;
use wire::{DirRef, FileRef, NodeRef};

use crate::convert::Failed;

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
        if ino == self.root {
            NodeId::ROOT
        } else if ino.0 == NodeId::ROOT.0 {
            NodeId(self.root.0)
        } else {
            NodeId(ino.0)
        }
    }

    /// The inode number of a node id, known or not.
    pub(crate) fn ino(&self, id: NodeId) -> Ino {
        // The two that change places do so both ways.
        Ino(self.id(Ino(id.0)).0)
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
            turn: 0,
            left: None,
        });
        node.at = at;
        node.lookups += 1;
        node.gone = false;
        node.tell(attr, age);
        id
    }

    /// Attributes of this age are being sent to the kernel.
    pub(crate) fn told(&mut self, id: NodeId, attr: &Attr, age: Duration) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.tell(attr, age);
        }
    }

    /// The kernel knows that what it was told has changed.
    pub(crate) fn disbelieved(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.believed = false;
            node.told_at = None;
        }
    }

    /// The kernel has written up to `end`, and knows that attributes have changed.
    pub(crate) fn written(&mut self, id: NodeId, end: u64) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.believed = false;
            node.end = node.end.max(end);
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

    /// Notes that the inode had no `security.capability` at the attributes that the kernel was told
    /// last.
    pub(crate) fn has_no_capability(&mut self, id: NodeId) {
        if let Some(node) = self.table.get_mut(&id.0) {
            node.without_capability = Some(node.told.ctime);
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DirId, FileKind};

    const NOW: Duration = Duration::ZERO;

    fn attr(ino: u64, kind: FileKind) -> Attr {
        Attr { mode: 0o755, ..Attr::blank(Ino(ino), kind) }
    }

    fn dir(ino: u64) -> DirRef {
        DirRef { id: DirId(1000 + u128::from(ino)), ino: Ino(ino), home: DirId(1), ticket: 0 }
    }

    fn name(name: &str) -> EntryName {
        EntryName::new(name.as_bytes()).unwrap()
    }

    fn file(ino: u64, at: &str) -> NodeRef {
        NodeRef::File(FileRef { dir: dir(7), name: name(at), ino: Ino(ino) })
    }

    fn nodes(root: u64) -> Nodes {
        Nodes::new(dir(root), attr(root, FileKind::Directory))
    }

    #[test]
    fn the_root_is_node_1_whatever_its_number_and_no_other_node_is() {
        let nodes = nodes(7);
        assert_eq!(nodes.id(Ino(7)), NodeId::ROOT);
        assert_eq!(nodes.id(Ino(1)), NodeId(7));
        assert_eq!(nodes.id(Ino(8)), NodeId(8));
        for ino in [Ino(7), Ino(1), Ino(8)] {
            assert_eq!(nodes.ino(nodes.id(ino)), ino);
        }
        assert_eq!(nodes.dir(NodeId::ROOT), Ok(dir(7)));
    }

    #[test]
    fn a_node_lives_until_every_look_up_is_forgotten_and_the_root_for_ever() {
        let mut nodes = nodes(1);
        let seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        assert_eq!(nodes.found(file(5, "a"), &seen, NOW), id);
        nodes.forget(id, 1);
        assert!(nodes.get(id).is_ok());
        nodes.forget(id, 1);
        assert_eq!(nodes.get(id), Err(Failed(Errno::IO)));
        nodes.forget(NodeId::ROOT, 100);
        assert!(nodes.get(NodeId::ROOT).is_ok());
    }

    #[test]
    fn what_the_kernel_forgets_is_remembered_for_a_while_unless_it_was_removed() {
        let mut nodes = nodes(1);
        let id = nodes.found(file(5, "a"), &attr(5, FileKind::File), NOW);
        nodes.forget(id, 1);
        assert_eq!(nodes.remembered(id), Some(file(5, "a")));
        let again = nodes.found(file(5, "b"), &attr(5, FileKind::File), NOW);
        nodes.forget(again, 1);
        assert_eq!(nodes.remembered(id), Some(file(5, "b")));
        for ino in 0..FORGOTTEN_MAX as u64 {
            let id = nodes.found(file(100 + ino, "x"), &attr(100 + ino, FileKind::File), NOW);
            nodes.forget(id, 1);
        }
        assert_eq!(nodes.remembered(id), None, "the oldest is dropped");
        let id = nodes.found(file(6, "c"), &attr(6, FileKind::File), NOW);
        nodes.removed(Ino(6), None);
        nodes.forget(id, 1);
        assert_eq!(nodes.remembered(id), None);
        assert!(nodes.forgotten.order.len() <= FORGOTTEN_MAX);
    }

    #[test]
    fn the_name_of_a_file_is_where_it_was_met_last() {
        let mut nodes = nodes(1);
        let id = nodes.found(file(5, "a"), &attr(5, FileKind::File), NOW);
        nodes.found(file(5, "b"), &attr(5, FileKind::File), NOW);
        assert_eq!(nodes.get(id), Ok(file(5, "b")));
        nodes.stands_at(Ino(5), &dir(7), &name("c"));
        assert_eq!(nodes.get(id), Ok(file(5, "c")));
        nodes.stands_at(Ino(6), &dir(7), &name("nobody asked"));
        assert_eq!(nodes.table.len(), 2);
    }

    #[test]
    fn pages_are_kept_only_from_an_open_of_the_same_contents() {
        let mut nodes = nodes(1);
        let mut seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        let opened = |nodes: &mut Nodes, seen: &Attr| {
            let cached = nodes.opened(id, seen);
            (cached.keep_pages, cached.outdated)
        };
        assert_eq!(opened(&mut nodes, &seen), (false, false));
        assert_eq!(opened(&mut nodes, &seen), (true, false));
        seen.ctime.nsec += 1;
        assert_eq!(opened(&mut nodes, &seen), (false, true));
        nodes.told(id, &seen, NOW);
        assert_eq!(opened(&mut nodes, &seen), (true, false));
        seen.size += 1;
        nodes.disbelieved(id);
        assert_eq!(opened(&mut nodes, &seen), (false, false));
    }

    #[test]
    fn the_end_that_the_kernel_knows_is_what_it_was_told_or_wrote_itself() {
        let mut nodes = nodes(1);
        let mut seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        seen.size = 10;
        assert!(nodes.opened(id, &seen).wrong_end);
        nodes.written(id, 4);
        assert!(nodes.opened(id, &seen).wrong_end);
        nodes.written(id, 10);
        nodes.written(id, 4);
        assert!(!nodes.opened(id, &seen).wrong_end);
        seen.size = 3;
        nodes.told(id, &seen, NOW);
        assert!(!nodes.opened(id, &seen).wrong_end);
    }

    #[test]
    fn a_process_is_sent_back_once_and_another_too() {
        let mut nodes = nodes(1);
        let seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        assert!(nodes.sends_back(id, 77));
        assert!(!nodes.sends_back(id, 77));
        assert!(nodes.sends_back(id, 77));
        nodes.opened(id, &seen);
        assert!(nodes.sends_back(id, 77), "it has seen the right end meanwhile");
        assert!(nodes.sends_back(id, 78));
        assert!(!nodes.sends_back(id, 78));
        assert!(!nodes.sends_back(id, 0), "who cannot be told apart is never sent back");
    }

    #[test]
    fn a_capability_is_asked_for_again_once_the_inode_has_changed() {
        let mut nodes = nodes(1);
        let mut seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        assert!(!nodes.lacks_capability(id));
        nodes.has_no_capability(id);
        assert!(nodes.lacks_capability(id));
        seen.ctime.nsec += 1;
        nodes.told(id, &seen, NOW);
        assert!(!nodes.lacks_capability(id));
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// A directory with this many entries.
    fn with_entries(size: u64) -> Attr {
        Attr { size, ..attr(7, FileKind::Directory) }
    }

    /// Ends a change whose answer told a directory with this many entries.
    fn ends(nodes: &mut Nodes, change: &Change, entries: u64) {
        nodes.end_change(change, Some(with_entries(entries)), Instant::now());
    }

    fn left(nodes: &mut Nodes) -> Option<u64> {
        nodes.take_left(NodeId::ROOT, SECOND).map(|(attr, _)| attr.size)
    }

    #[test]
    fn what_a_change_left_of_a_directory_is_given_once_and_while_it_is_new() {
        let mut nodes = nodes(7);
        let change = nodes.begin_change(NodeId::ROOT);
        assert_eq!(left(&mut nodes), None);
        ends(&mut nodes, &change, 1);
        assert_eq!(left(&mut nodes), Some(1));
        assert_eq!(left(&mut nodes), None, "who asks again wants to know");
        let change = nodes.begin_change(NodeId::ROOT);
        ends(&mut nodes, &change, 2);
        assert_eq!(nodes.take_left(NodeId::ROOT, Duration::ZERO), None);
        let change = nodes.begin_change(NodeId::ROOT);
        let asked = Instant::now().checked_sub(2 * SECOND).unwrap();
        nodes.end_change(&change, Some(with_entries(3)), asked);
        assert_eq!(left(&mut nodes), None);
        let change = nodes.begin_change(NodeId::ROOT);
        nodes.end_change(&change, None, Instant::now());
        assert_eq!(left(&mut nodes), None);
    }

    #[test]
    fn an_answer_that_another_may_have_overtaken_leaves_nothing() {
        let mut nodes = nodes(7);
        // Two changes at a time, however they end.
        for first_ends_first in [true, false] {
            let changes = [1, 2].map(|_| nodes.begin_change(NodeId::ROOT));
            let order = if first_ends_first { [0, 1] } else { [1, 0] };
            for at in order {
                ends(&mut nodes, &changes[at], 1);
            }
            assert_eq!(left(&mut nodes), None);
        }
        // The first one is still under way when the second one ends: it may be missing there, and
        // nobody was told of it.
        let slow = nodes.begin_change(NodeId::ROOT);
        let quick = nodes.begin_change(NodeId::ROOT);
        ends(&mut nodes, &quick, 1);
        ends(&mut nodes, &slow, 1);
        assert_eq!(left(&mut nodes), None);
        // Something newer may have been told meanwhile, or since.
        let change = nodes.begin_change(NodeId::ROOT);
        nodes.told(NodeId::ROOT, &with_entries(9), NOW);
        ends(&mut nodes, &change, 1);
        assert_eq!(left(&mut nodes), None);
        let change = nodes.begin_change(NodeId::ROOT);
        ends(&mut nodes, &change, 1);
        nodes.found(NodeRef::Dir(dir(7)), &with_entries(9), NOW);
        assert_eq!(left(&mut nodes), None);
        // chmod, a listing, a rename of the directory itself.
        for before in [true, false] {
            let change = nodes.begin_change(NodeId::ROOT);
            if before {
                nodes.alters(NodeId::ROOT);
            }
            ends(&mut nodes, &change, 1);
            if !before {
                nodes.alters(NodeId::ROOT);
            }
            assert_eq!(left(&mut nodes), None);
        }
        nodes.removed(Ino(7), None);
        let change = nodes.begin_change(NodeId::ROOT);
        ends(&mut nodes, &change, 1);
        assert_eq!(left(&mut nodes), None);
    }

    #[test]
    fn attributes_tell_for_a_while_that_a_file_has_no_extended_ones() {
        let mut nodes = nodes(1);
        let seen = attr(5, FileKind::File);
        let id = nodes.found(file(5, "a"), &seen, NOW);
        assert!(nodes.lacks_xattrs(id, SECOND));
        assert!(!nodes.lacks_xattrs(id, Duration::ZERO));
        nodes.found(file(5, "a"), &seen, 2 * SECOND);
        assert!(!nodes.lacks_xattrs(id, SECOND), "they were told late");
        nodes.told(id, &Attr { mode: seen.mode | MODE_XATTRS, ..seen }, NOW);
        assert!(!nodes.lacks_xattrs(id, SECOND));
        nodes.told(id, &Attr { mode: seen.mode | MODE_ACL, ..seen }, NOW);
        assert!(nodes.lacks_xattrs(id, SECOND) && !nodes.lacks_acl(id));
        nodes.told(id, &seen, NOW);
        nodes.disbelieved(id);
        assert!(!nodes.lacks_xattrs(id, SECOND), "the kernel asks for attributes now");
        nodes.told(id, &seen, NOW);
        nodes.opened(id, &Attr { mode: seen.mode | MODE_XATTRS, ..seen });
        assert!(!nodes.lacks_xattrs(id, SECOND), "an open has seen one");
        nodes.told(id, &seen, NOW);
        assert!(!nodes.lacks_xattrs(id, SECOND), "a listing may tell what it has read before");
        let id = nodes.found(file(6, "b"), &attr(6, FileKind::File), NOW);
        assert!(nodes.lacks_xattrs(id, SECOND) && nodes.lacks_acl(id));
        nodes.gives_xattr(id);
        nodes.told(id, &attr(6, FileKind::File), NOW);
        assert!(!nodes.lacks_xattrs(id, SECOND), "the attributes may be of before");
        assert!(!nodes.lacks_acl(id), "what was given may be an ACL");
        assert!(!nodes.lacks_xattrs(NodeId::ROOT, SECOND), "directories do not tell");
    }

    #[test]
    fn a_removed_inode_leaves_its_last_attributes() {
        let mut nodes = nodes(1);
        let id = nodes.found(NodeRef::Dir(dir(5)), &attr(5, FileKind::Directory), NOW);
        assert_eq!(nodes.epitaph(id), None);
        nodes.removed(Ino(5), None);
        assert_eq!(nodes.epitaph(id).map(|attr| attr.nlink), Some(0));
    }
}
