//! The level of a directory: where it stands to the boundary of hybrid placement.
//!
//! A directory's level is chosen at mkdir, never changes, and is the first part of its name's
//! version. So it goes into the id: directories of two levels have two ids, even where they are made
//! in one place one after the other, and a directory's home follows from its birth.
//!
//! Paper: HSM² §3.1; the boundary is of our own.

use crate::id::{DirId, NameVersion};

/// Where a directory stands to the boundary between hashing and subtrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// With its parent. Every directory of a file system without a boundary is here.
    Below,
    /// At a place of its own, where all that is made below it stays.
    Boundary,
    /// At a place of its own, as are directories that are made in it.
    Above,
}

impl Level {
    /// Said of a directory all of whose levels below have places of their own.
    pub const ALL: u8 = u8::MAX;

    /// The level of directories that are made in one of which so many levels below have places of
    /// their own.
    #[must_use]
    pub fn below(levels: u8) -> Level {
        match levels {
            0 => Level::Below,
            1 => Level::Boundary,
            _ => Level::Above,
        }
    }

    /// How many levels below a directory above the boundary have places of their own, of which so
    /// many are below its parent: at least one.
    #[must_use]
    pub fn left(levels: u8) -> u8 {
        if levels == Level::ALL { levels } else { levels.saturating_sub(1).max(1) }
    }
}

/// How many bits of a version count the directories of a name and level.
const LEVEL_SHIFT: u32 = 30;

impl NameVersion {
    /// The first version of a name, for a directory of this level.
    #[must_use]
    pub fn first(level: Level) -> NameVersion {
        NameVersion((level as u32) << LEVEL_SHIFT)
    }

    /// The level of the directory.
    #[must_use]
    pub fn level(self) -> Level {
        match self.0 >> LEVEL_SHIFT {
            1 => Level::Boundary,
            2 => Level::Above,
            _ => Level::Below,
        }
    }

    /// How many directories of this name and level there were before.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0 & ((1 << LEVEL_SHIFT) - 1)
    }

    /// The versions of a name for directories of this level, from the first on.
    pub fn all(level: Level) -> impl Iterator<Item = NameVersion> + Clone {
        std::iter::successors(Some(NameVersion::first(level)), |version| version.next())
    }

    /// The next version of the name, for a directory of the same level; `None` after the last.
    #[must_use]
    pub fn next(self) -> Option<NameVersion> {
        let next = self.0.checked_add(1)?;
        (next >> LEVEL_SHIFT == self.0 >> LEVEL_SHIFT).then_some(NameVersion(next))
    }
}

impl DirId {
    /// The home of a directory with this id at the boundary: so its home tells it from one above.
    #[must_use]
    pub fn as_boundary(self) -> DirId {
        DirId(self.0 ^ 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_within_their_level() {
        for level in [Level::Below, Level::Boundary, Level::Above] {
            let first = NameVersion::first(level);
            let next = first.next().unwrap();
            assert_eq!((first.level(), first.number()), (level, 0));
            assert_eq!((next.level(), next.number()), (level, 1));
            let last = NameVersion(first.0 | ((1 << LEVEL_SHIFT) - 1));
            assert_eq!((last.level(), last.next()), (level, None));
        }
        assert_eq!(NameVersion::first(Level::Below), NameVersion(0), "as without a boundary");
    }
}
