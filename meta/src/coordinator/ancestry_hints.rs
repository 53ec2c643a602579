//! The ancestors of directories that renames have seen, so that later renames can read them at
//! once.
//!
//! A rename reads the directories between its new place and the root, and the record of its
//! directory's birth place. Each of them names the next, so without hints they are read one after
//! the other. `ops::rename` asks here first and reads all that was ever seen there in one round.
//! That round shows what has changed since, which is read after it.
//!
//! Nothing here is believed: a wrong hint is a record read for nothing.

use base::{DirId, EntryName, HashMap};

use crate::record::Key;

/// Number of hints of each kind that are kept; then all are forgotten.
const REMEMBERED_MAX: usize = 1 << 16;
/// Number of ancestors that are read at once; a longer path is read in pieces.
const LEVELS_MAX: usize = 256;

/// The hints.
#[derive(Default)]
pub(crate) struct AncestryHints {
    above: HashMap<DirId, HomedDir>,
    moved: HashMap<(DirId, EntryName), Moved>,
}

/// A directory and its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomedDir {
    pub(crate) id: DirId,
    pub(crate) home: DirId,
}

/// A directory that lives elsewhere than where it was born.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) group: HomedDir,
    /// Key of the rename list at the directory's birth place.
    pub(crate) birth: Key,
}

impl AncestryHints {
    /// Notes that `parent` was seen above `dir`.
    pub(crate) fn is_below(&mut self, dir: DirId, parent: HomedDir) {
        if self.above.len() >= REMEMBERED_MAX {
            self.above.clear();
        }
        self.above.insert(dir, parent);
    }

    /// The directories from `dir` to the root, both excluded, as far as they are known.
    pub(crate) fn up(&self, dir: DirId) -> impl Iterator<Item = HomedDir> + '_ {
        let above = |dir: DirId| self.above.get(&dir).copied().filter(|up| up.id != DirId::ROOT);
        std::iter::successors(above(dir), move |at| above(at.id)).take(LEVELS_MAX)
    }

    /// Notes that a directory was moved to `name` in `parent`.
    pub(crate) fn has_moved(&mut self, parent: DirId, name: &EntryName, moved: Moved) {
        if self.moved.len() >= REMEMBERED_MAX {
            self.moved.clear();
        }
        self.moved.insert((parent, name.clone()), moved);
    }

    /// The directory that was seen to be moved to `name` in `parent`.
    pub(crate) fn moved(&self, parent: DirId, name: &EntryName) -> Option<Moved> {
        self.moved.get(&(parent, name.clone())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: u128) -> HomedDir {
        HomedDir { id: DirId(id), home: DirId(id) }
    }

    #[test]
    fn the_way_up_ends_below_the_root_or_where_nothing_is_known() {
        let mut hints = AncestryHints::default();
        hints.is_below(DirId(4), group(3));
        hints.is_below(DirId(3), group(2));
        assert_eq!(hints.up(DirId(4)).collect::<Vec<_>>(), [group(3), group(2)]);
        hints.is_below(DirId(2), HomedDir { id: DirId::ROOT, home: DirId::ROOT });
        assert_eq!(hints.up(DirId(4)).collect::<Vec<_>>(), [group(3), group(2)]);
        assert_eq!(hints.up(DirId(9)).count(), 0);
    }

    #[test]
    fn a_loop_of_old_hints_ends() {
        let mut hints = AncestryHints::default();
        hints.is_below(DirId(4), group(3));
        hints.is_below(DirId(3), group(4));
        assert_eq!(hints.up(DirId(4)).count(), LEVELS_MAX);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut hints = AncestryHints::default();
        let name = EntryName::new(b"a").unwrap();
        let most = REMEMBERED_MAX as u128;
        for dir in 0..=most {
            hints.is_below(DirId(dir), group(dir + 1));
            let moved = Moved { group: group(dir), birth: Key::new() };
            hints.has_moved(DirId(dir), &name, moved);
        }
        assert_eq!((hints.above.len(), hints.moved.len()), (1, 1));
        assert_eq!(hints.moved(DirId(most), &name).unwrap().group, group(most));
    }
}
