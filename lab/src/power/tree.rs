//! Files and directories, each as programs see it and as it is on stable storage.
//!
//! Nodes are kept until a cut: a name that was removed, but not for good, still leads to one. A cut
//! does not undo permissions, owners and times: nothing that is tested depends on them.

use std::collections::BTreeMap;

use fuse::{Errno, NodeId, Timespec};

use super::{Left, content::Content};
use crate::sim::random::SimRandom;

type Names = BTreeMap<Box<[u8]>, NodeId>;
/// Names of a listing, with their nodes.
pub(super) type List = Vec<(Box<[u8]>, NodeId)>;
/// Names that one system call changed, with the nodes that they lead to now.
type Change = Vec<(Box<[u8]>, Option<NodeId>)>;

/// A directory's names.
#[derive(Debug, Default)]
pub(super) struct Dir {
    live: Names,
    stable: Names,
    /// Changes since the last sync, in order.
    changes: Vec<Change>,
}

/// Kind of a node.
#[derive(Debug)]
pub(super) enum Kind {
    Dir(Dir),
    File(Content),
}

/// A file or directory.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timespec,
    /// The name with which the node was made or last moved, and its parent: what
    /// [`Lie`](super::Lie) looks at.
    pub(super) name: Box<[u8]>,
    pub(super) parent: NodeId,
}

/// All files and directories.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    last: u64,
}

impl Node {
    /// Whether its name contains `part`, which is not empty.
    pub(super) fn is_named(&self, part: &[u8]) -> bool {
        self.name.windows(part.len()).any(|there| there == part)
    }
}

impl Tree {
    pub(super) fn new() -> Tree {
        let root = Node {
            kind: Kind::Dir(Dir::default()),
            mode: 0o040_755,
            uid: 0,
            gid: 0,
            mtime: Timespec::default(),
            name: Box::default(),
            parent: NodeId::ROOT,
        };
        Tree { nodes: BTreeMap::from([(NodeId::ROOT, root)]), last: NodeId::ROOT.0 }
    }

    pub(super) fn node(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    pub(super) fn content_mut(&mut self, node: NodeId) -> Result<&mut Content, Errno> {
        match &mut self.node_mut(node)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Dir(_) => Err(Errno::ISDIR),
        }
    }

    fn dir(&self, node: NodeId) -> Result<&Dir, Errno> {
        match &self.node(node)?.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn dir_mut(&mut self, node: NodeId) -> Result<&mut Dir, Errno> {
        match &mut self.node_mut(node)?.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        self.dir(parent)?.live.get(name).copied().ok_or(Errno::NOENT)
    }

    /// The names of a directory, in order.
    pub(super) fn list(&self, dir: NodeId) -> Result<List, Errno> {
        Ok(self.dir(dir)?.live.iter().map(|(name, node)| (name.clone(), *node)).collect())
    }

    /// Adds a node by a name that is free. `name` and `parent` in `node` say where.
    pub(super) fn make(&mut self, node: Node) -> Result<NodeId, Errno> {
        if self.lookup(node.parent, &node.name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.last += 1;
        let made = NodeId(self.last);
        self.change(node.parent, vec![(node.name.clone(), Some(made))])?;
        self.nodes.insert(made, node);
        Ok(made)
    }

    /// Adds a free name to a file.
    pub(super) fn link(&mut self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.content_mut(node)?;
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.change(parent, vec![(name.into(), Some(node))])
    }

    pub(super) fn unlink(&mut self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.dir(self.lookup(parent, name)?).map_or(Ok(()), |_| Err(Errno::ISDIR))?;
        self.change(parent, vec![(name.into(), None)])
    }

    pub(super) fn rmdir(&mut self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        if !self.dir(self.lookup(parent, name)?)?.live.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.change(parent, vec![(name.into(), None)])
    }

    /// Moves a file, over another one if there is one; moves a directory to a free name.
    pub(super) fn rename(
        &mut self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
    ) -> Result<(), Errno> {
        let node = self.lookup(from.0, from.1)?;
        match self.lookup(to.0, to.1) {
            Ok(there) if there == node => return Ok(()),
            Ok(there) if self.dir(there).is_ok() || self.dir(node).is_ok() => {
                return Err(Errno::EXIST);
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let (gone, come) = ((from.1.into(), None), (to.1.into(), Some(node)));
        if from.0 == to.0 {
            self.change(from.0, vec![gone, come])?;
        } else {
            self.change(from.0, vec![gone])?;
            self.change(to.0, vec![come])?;
        }
        let node = self.node_mut(node)?;
        (node.parent, node.name) = (to.0, to.1.into());
        Ok(())
    }

    fn change(&mut self, dir: NodeId, change: Change) -> Result<(), Errno> {
        let dir = self.dir_mut(dir)?;
        apply(&mut dir.live, &change);
        dir.changes.push(change);
        Ok(())
    }

    /// Makes a file's contents or a directory's names stable.
    pub(super) fn sync(&mut self, node: NodeId) -> Result<(), Errno> {
        match &mut self.node_mut(node)?.kind {
            Kind::File(content) => content.sync(),
            Kind::Dir(dir) => {
                for change in std::mem::take(&mut dir.changes) {
                    apply(&mut dir.stable, &change);
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is unsynced in the files with `part` in their name, except those that were
    /// removed.
    pub(super) fn is_stable(&self, part: &[u8]) -> bool {
        self.unstable().all(|(_, node)| !node.is_named(part))
    }

    /// Files that have a name, and of which something is unsynced.
    fn unstable(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let dirs = self.nodes.values().filter_map(|node| match &node.kind {
            Kind::Dir(dir) => Some(dir),
            Kind::File(_) => None,
        });
        let there = dirs.flat_map(|dir| dir.live.values());
        let there = there.filter_map(|id| Some((*id, self.nodes.get(id)?)));
        there.filter(|(_, node)| match &node.kind {
            Kind::File(content) => !content.is_stable(),
            Kind::Dir(_) => false,
        })
    }

    /// Whether nothing is unsynced in the files below the directory `name`.
    pub(super) fn is_stable_below(&self, name: &[u8]) -> bool {
        self.unstable().all(|(id, _)| !self.is_below(id, name))
    }

    /// Whether the node or a directory above it has this name.
    pub(super) fn is_below(&self, mut node: NodeId, name: &[u8]) -> bool {
        while let Some(found) = self.nodes.get(&node) {
            if &*found.name == name {
                return true;
            }
            if node == NodeId::ROOT {
                return false;
            }
            node = found.parent;
        }
        false
    }

    /// Cuts the power.
    pub(super) fn cut(&mut self, left: Left, random: &SimRandom) {
        for node in self.nodes.values_mut() {
            if let Left::FilesNamed(part) = left
                && node.is_named(part.as_bytes())
                && let Kind::File(content) = &mut node.kind
            {
                content.sync();
            }
            match &mut node.kind {
                Kind::File(content) => content.cut(left, random),
                Kind::Dir(dir) => {
                    let kept = match left {
                        Left::Nothing | Left::FilesNamed(_) => 0,
                        Left::Some => random.index(dir.changes.len() + 1),
                    };
                    dir.changes.drain(..).take(kept).for_each(|change| {
                        apply(&mut dir.stable, &change);
                    });
                    dir.live = dir.stable.clone();
                }
            }
        }
        self.drop_unreachable();
    }

    fn drop_unreachable(&mut self) {
        let mut reached = BTreeMap::new();
        let mut walk = vec![NodeId::ROOT];
        while let Some(node) = walk.pop() {
            let Some(found) = self.nodes.remove(&node) else { continue };
            if let Kind::Dir(dir) = &found.kind {
                walk.extend(dir.live.values());
            }
            reached.insert(node, found);
        }
        self.nodes = reached;
    }
}

fn apply(names: &mut Names, change: &Change) {
    for (name, node) in change {
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}
