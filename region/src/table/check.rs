//! Invariants of the table after every operation.

use base::{HashMap, Ino};

use super::{Node, Slot, Table, entry_bytes};

impl Table {
    /// Checks that entries, nodes and directories fit; that what is dirty is known to be (R3), that
    /// nothing lives in a directory that is not there (R6), and that counts add up.
    ///
    /// # Panics
    /// When something is not so.
    pub(crate) fn check(&self) {
        let mut names: HashMap<Ino, u32> = HashMap::default();
        let mut pending = 0;
        for (path, entry) in &self.entries {
            pending += entry.pending;
            let dirty = match entry.slot {
                Slot::Absent(_) => entry.below,
                Slot::Node(ino) => {
                    *names.entry(ino).or_default() += 1;
                    assert!(self.nodes.contains_key(&ino), "{path} stands for no node");
                    let node = self.node(ino);
                    assert!(
                        !node.fresh || !node.is_passed(),
                        "{path} is passed before it is below"
                    );
                    if path.split().is_some() {
                        let above = self.above(path).and_then(|(dir, name)| {
                            Some(self.node(dir).directory()?.children.contains(&name))
                        });
                        assert_eq!(above, Some(true), "whether {path} is in its directory");
                    }
                    (node.fresh || node.changed.any()) && node.failed.is_none()
                }
            };
            let known = self.dirty.contains(path);
            assert_eq!(known, dirty || entry.committing, "whether {path} is dirty");
        }
        for path in &self.dirty {
            assert!(self.entries.contains_key(path), "{path} is dirty and has no entry");
        }
        let of_entries: usize = self.entries.keys().map(entry_bytes).sum();
        let of_nodes: usize = self.nodes.values().map(Node::contents_bytes).sum();
        assert_eq!(self.memory, of_entries + of_nodes, "memory that is accounted for");
        let mut opens: HashMap<Ino, u32> = HashMap::default();
        for ino in self.handles.values() {
            *opens.entry(*ino).or_default() += 1;
        }
        for (ino, node) in &self.nodes {
            assert_eq!(node.attr.ino, *ino);
            assert_eq!(node.opens, opens.get(ino).copied().unwrap_or(0), "opens of {ino}");
            assert!(node.apart <= node.opens, "opens of {ino} beside the mount");
            let named = names.get(ino).copied().unwrap_or(0);
            assert_eq!(node.path.is_some(), named > 0, "whether {ino} has a path");
            assert!(named > 0 || node.opens > 0, "{ino} is nowhere");
            if let Some(path) = &node.path {
                let entry = self.entries.get(path).expect("a node's path has an entry");
                assert_eq!(entry.slot, Slot::Node(*ino), "what {path} stands for");
            }
            if let (Some(directory), Some(path)) = (node.directory(), &node.path) {
                for name in &directory.children {
                    let child = self.entries.get(&path.child(name));
                    let stands = child.is_some_and(|child| matches!(child.slot, Slot::Node(_)));
                    assert!(stands, "{name:?} in {path} stands for something");
                }
            }
        }
        let known = self.counts.committed + self.counts.superseded + self.counts.failed;
        let under_way = self.dirty.iter().any(|path| self.entries[path].committing);
        if !under_way {
            assert_eq!(self.counts.acknowledged, known + pending, "changes that are accounted for");
        }
    }
}
