//! Invariants of the model after every operation.

use std::collections::{BTreeMap, BTreeSet};

use base::{Ino, limits::LINKS_MAX};

use super::{Body, Model, State};

impl Model {
    /// Checks the tree: every directory is reached from the root exactly once, names its parent,
    /// and has an id of its own; link counts are numbers of names; whatever has no name is open.
    ///
    /// # Panics
    /// When something is not so.
    pub fn check(&self) {
        self.state.lock().expect("no operation panics halfway").check();
    }
}

impl State {
    fn check(&self) {
        self.locks.check();
        let names = self.names();
        let mut ids = BTreeSet::new();
        let mut opens: BTreeMap<Ino, u32> = BTreeMap::new();
        for open in self.handles.values() {
            *opens.entry(open.ino).or_default() += 1;
        }
        for (ino, inode) in &self.inodes {
            let named = names.get(ino).copied().unwrap_or(0);
            let attr = &inode.attr;
            assert_eq!(attr.ino, *ino);
            assert_eq!(inode.opens, opens.get(ino).copied().unwrap_or(0), "opens of {ino}");
            assert!(named > 0 || inode.opens > 0, "{ino} has no name and is not open");
            match &inode.body {
                Body::Directory(directory) => {
                    assert_eq!(named, 1, "directory {ino} is reached once");
                    assert!(ids.insert(directory.id), "directory {ino} has an id of its own");
                    let below = directory.entries.values().filter(|child| self.is_dir(**child));
                    assert_eq!(attr.nlink as usize, 2 + below.count(), "links of directory {ino}");
                }
                Body::File(contents) => {
                    assert_eq!(attr.nlink, named, "links of {ino}");
                    assert!(contents.is_zero_beyond_its_end(), "contents of {ino}");
                }
                Body::Symlink(_) | Body::Special => assert_eq!(attr.nlink, named, "links of {ino}"),
            }
            assert!(named <= LINKS_MAX, "{ino} has too many names");
        }
    }

    /// How many names each inode has, counted on a walk from the root, which counts as named. The
    /// walk ends because it enters a directory only when it sees it for the first time.
    fn names(&self) -> BTreeMap<Ino, u32> {
        let mut names = BTreeMap::from([(Ino::ROOT, 1)]);
        let mut walk = vec![Ino::ROOT];
        while let Some(dir) = walk.pop() {
            for child in self.directory(dir).entries.values() {
                let count = names.entry(*child).or_default();
                *count += 1;
                if self.is_dir(*child) {
                    assert_eq!(*count, 1, "directory {child} is reached once");
                    assert_eq!(self.directory(*child).parent, dir, "parent of {child}");
                    walk.push(*child);
                }
            }
        }
        names
    }
}
