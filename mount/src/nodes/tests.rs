//! Tests of what the kernel is taken to know.

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

/// Attributes that were asked for after all changes are sent.
fn told(nodes: &mut Nodes, node: NodeId, attr: Attr) {
    let since = nodes.changes(node);
    nodes.told(&Told { node, attr, age: NOW, since });
}

fn nodes(root: u64) -> Nodes {
    Nodes::new(dir(root), attr(root, FileKind::Directory))
}

#[test]
fn the_root_is_node_1_whatever_its_number_and_no_other_node_is() {
    let nodes = nodes(7);
    assert_eq!(nodes.id(Ino(7)), NodeId::ROOT);
    // The one whose id would be 1 has that of the root.
    let first = Ino(1 << Ino::COUNTER_BITS);
    assert_eq!(nodes.id(first), NodeId(7 << SHARD_BITS));
    for ino in [Ino(7), first, Ino(1), Ino(8), Ino(u64::MAX)] {
        assert_eq!(nodes.ino(nodes.id(ino)), ino);
        assert_eq!(nodes.id(ino) == NodeId::ROOT, ino == Ino(7));
    }
    assert_eq!(nodes.dir(NodeId::ROOT), Ok(dir(7)));
}

#[test]
fn inodes_of_different_shards_differ_where_the_kernel_looks() {
    let nodes = nodes(1);
    let low = |shard: u16, counter| {
        let id = nodes.id(Ino::new(base::ShardId(shard), counter));
        id.0 & 0xffff
    };
    let ids: std::collections::BTreeSet<u64> = (0..1024).map(|shard| low(shard, 5)).collect();
    assert_eq!(ids.len(), 1024);
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
    told(&mut nodes, id, seen);
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
    told(&mut nodes, id, seen);
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
    nodes.has_no_capability(id, nodes.ctime(id));
    assert!(nodes.lacks_capability(id));
    seen.ctime.nsec += 1;
    told(&mut nodes, id, seen);
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
    told(&mut nodes, NodeId::ROOT, with_entries(9));
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
    told(&mut nodes, id, Attr { mode: seen.mode | MODE_XATTRS, ..seen });
    assert!(!nodes.lacks_xattrs(id, SECOND));
    told(&mut nodes, id, Attr { mode: seen.mode | MODE_ACL, ..seen });
    assert!(nodes.lacks_xattrs(id, SECOND) && !nodes.lacks_acl(id));
    told(&mut nodes, id, seen);
    nodes.disbelieved(id);
    assert!(!nodes.lacks_xattrs(id, SECOND), "the kernel asks for attributes now");
    told(&mut nodes, id, seen);
    nodes.opened(id, &Attr { mode: seen.mode | MODE_XATTRS, ..seen });
    assert!(!nodes.lacks_xattrs(id, SECOND), "an open has seen one");
    told(&mut nodes, id, seen);
    assert!(!nodes.lacks_xattrs(id, SECOND), "a listing may tell what it has read before");
    let id = nodes.found(file(6, "b"), &attr(6, FileKind::File), NOW);
    assert!(nodes.lacks_xattrs(id, SECOND) && nodes.lacks_acl(id));
    nodes.gives_xattr(id);
    told(&mut nodes, id, attr(6, FileKind::File));
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

#[test]
fn attributes_from_before_a_write_or_a_removal_are_not_noted_after_it() {
    let mut nodes = nodes(7);
    let before = Attr { size: 5, ..attr(8, FileKind::File) };
    let node = nodes.found(file(8, "a"), &before, NOW);
    let late = Told { node, attr: before, age: NOW, since: nodes.changes(node) };
    nodes.written(node, 100);
    nodes.told(&late);
    let now = Attr { size: 100, ..before };
    assert!(!nodes.opened(node, &now).wrong_end, "the kernel has written up to there");
    let late = Told { since: nodes.changes(node), ..late };
    nodes.removed(Ino(8), Some(Attr { nlink: 0, ..now }));
    nodes.told(&late);
    assert_eq!(nodes.epitaph(node).map(|attr| attr.nlink), Some(0));
}
