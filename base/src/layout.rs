//! The layout of a directory: how its entries are divided, and which partition has a name.
//!
//! Clients and servers compute with layouts, and need not have the newest one. Every change is made
//! by two partitions, a *source* and a *target* ([`Transfer`]), and counted in the layout. Each
//! layout that a partition has seen is a cut through the history of these changes. So two layouts
//! of one directory can always be joined ([`Layout::learn`]), in any order. The result is again how
//! the directory was, or could have been, at one moment. A partition's own layout is always right
//! about that partition.
//!
//! Always true: each position belongs to exactly one partition, and that one is active. Partition
//! 0, the master, is always active. The number of a partition is less than the number of shards, so
//! each shard has at most one partition of a directory.
//!
//! Paper: SFS §3.3 to §3.5 (`splits`), Duplex §III-C (`subsets`).

mod splits;
mod subsets;
#[cfg(test)]
mod tests;

pub use splits::Splits;
pub use subsets::{Pair, Subsets};

use crate::{codec, placement::jump_hash};

/// The greatest position that a name can have.
pub const POS_MAX: u64 = (1 << 63) - 1;

codec! {
    /// How a directory that outgrows one partition is divided.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Spread {
        /// The directory is never divided.
        None = 1,
        /// A partition that is too large splits in two, by itself (SFS).
        Extendible = 2,
        /// The master keeps as many subsets as the directory's size needs (Duplex).
        Subsets = 3,
    }
}

codec! {
    /// How the entries of one directory are divided now.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Layout {
        /// One partition with everything, which was never divided.
        Whole = 1,
        /// Partitions that split and merge, each by itself.
        Extendible(Splits) = 2,
        /// Subsets, whose number the master decides.
        Subsets(Subsets) = 3,
    }
}

/// A transfer of names from one partition to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transfer {
    /// Number of the partition that has the names.
    pub source: u16,
    /// Number of the partition that gets them.
    pub target: u16,
}

codec! {
    /// The names of the source that move.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Moving {
        /// Names at positions between these two, both included.
        Range((u64, u64)) = 1,
        /// Names of subset `.0` that subset `.1` has while it is there. `.1` comes or goes as the
        /// last one. Read, and not written any more: a step had one such subset.
        Subset((u16, u16)) = 2,
        /// Names of one subset that another subset, which comes or goes, has while it is there.
        Pair(Pair) = 3,
    }
}

impl Moving {
    /// Whether a name at `pos` moves.
    #[must_use]
    pub fn contains(&self, pos: u64) -> bool {
        match *self {
            Moving::Range((first, last)) => (first..=last).contains(&pos),
            Moving::Subset(of_last) => Pair::of_last(of_last).contains(pos),
            Moving::Pair(pair) => pair.contains(pos),
        }
    }

    /// The first and the last position of names that can move.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        match *self {
            Moving::Range(bounds) => bounds,
            Moving::Subset(_) | Moving::Pair(_) => (0, POS_MAX),
        }
    }
}

impl Layout {
    /// The partition that has names at `pos`.
    #[must_use]
    pub fn partition(&self, pos: u64) -> u16 {
        match self {
            Layout::Whole => 0,
            Layout::Extendible(splits) => splits.partition(pos),
            Layout::Subsets(subsets) => subsets.partition(pos),
        }
    }

    /// Whether a partition is active.
    #[must_use]
    pub fn is_active(&self, partition: u16) -> bool {
        match self {
            Layout::Whole => partition == 0,
            Layout::Extendible(splits) => splits.is_active(partition),
            Layout::Subsets(subsets) => subsets.is_active(partition),
        }
    }

    /// All active partitions, in ascending order.
    pub fn active(&self) -> impl Iterator<Item = u16> + '_ {
        let end = match self {
            Layout::Whole => 1,
            Layout::Extendible(splits) => splits.end(),
            Layout::Subsets(subsets) => subsets.many(),
        };
        (0..end).filter(|partition| self.is_active(*partition))
    }

    /// The last position up to which every name from `pos` on belongs to the partition that has
    /// `pos`. Where names are scattered over all partitions, the greatest position of all.
    #[must_use]
    pub fn reach(&self, pos: u64) -> u64 {
        match self {
            Layout::Whole | Layout::Subsets(_) => POS_MAX,
            Layout::Extendible(splits) => splits.range(splits.partition(pos)).1,
        }
    }

    /// Whether each partition has names at positions all over the listing, so that pages of all
    /// must be merged.
    #[must_use]
    pub fn scatters(&self) -> bool {
        // Partition 1 comes before all later ones, and goes after them.
        matches!(self, Layout::Subsets(subsets) if subsets.is_active(1))
    }

    /// Takes in another layout of the same directory. Returns whether any of it was news.
    pub fn learn(&mut self, other: &Layout) -> bool {
        let news = match (&mut *self, other) {
            (Layout::Extendible(ours), Layout::Extendible(theirs))
                if ours.turn() == theirs.turn() =>
            {
                return ours.learn(theirs);
            }
            (Layout::Subsets(ours), Layout::Subsets(theirs)) if ours.turn() == theirs.turn() => {
                return ours.learn(theirs);
            }
            (ours, theirs) => theirs.turn() > ours.turn(),
        };
        if news {
            *self = other.clone();
        }
        news
    }

    /// Whether both layouts say the same of the names that `partition` has. A partition is right
    /// about itself. So answers of several partitions go together when a layout agrees with each of
    /// them about itself: then no name was in two of them, or in none.
    #[must_use]
    pub fn agrees_about(&self, other: &Layout, partition: u16) -> bool {
        self.part(partition) == other.part(partition)
    }

    fn part(&self, partition: u16) -> Part {
        match self {
            Layout::Whole if partition == 0 => Part::WHOLE,
            Layout::Whole => Part::Nothing,
            Layout::Extendible(splits) if splits.is_active(partition) => {
                Part::Range(splits.range(partition))
            }
            Layout::Extendible(_) => Part::Nothing,
            Layout::Subsets(subsets) => subsets.part(partition),
        }
    }

    /// Number of times that the directory has changed the way in which it is divided. A layout of a
    /// later turn replaces any earlier one.
    #[must_use]
    pub fn turn(&self) -> u32 {
        match self {
            Layout::Whole => 0,
            Layout::Extendible(splits) => splits.turn(),
            Layout::Subsets(subsets) => subsets.turn(),
        }
    }

    /// The layout with which a directory in one partition begins to be divided as `spread` says.
    /// `None` when it cannot be now, or is not to be.
    #[must_use]
    pub fn turned(&self, spread: Spread) -> Option<Layout> {
        let changes = matches!(self, Layout::Subsets(subsets) if !subsets.is_settled());
        if changes || self.active().nth(1).is_some() {
            return None;
        }
        match (spread, self) {
            (Spread::None, _)
            | (Spread::Extendible, Layout::Extendible(_))
            | (Spread::Subsets, Layout::Subsets(_)) => None,
            (Spread::Extendible, Layout::Whole | Layout::Subsets(_)) => {
                Some(Layout::Extendible(Splits::new(self.turn().checked_add(1)?)))
            }
            (Spread::Subsets, Layout::Whole | Layout::Extendible(_)) => {
                Some(Layout::Subsets(Subsets::new(self.turn().checked_add(1)?)))
            }
        }
    }

    /// The names that move with a transfer whose source has this layout; `None` when there is no
    /// such transfer now.
    #[must_use]
    pub fn moving(&self, transfer: Transfer) -> Option<Moving> {
        match self {
            Layout::Whole => None,
            Layout::Extendible(splits) => splits.moving(transfer),
            Layout::Subsets(subsets) => subsets.moving(transfer),
        }
    }

    /// The layout after a transfer; `None` when there is no such transfer now.
    #[must_use]
    pub fn after(&self, transfer: Transfer) -> Option<Layout> {
        match self {
            Layout::Whole => None,
            Layout::Extendible(splits) => splits.after(transfer).map(Layout::Extendible),
            Layout::Subsets(subsets) => subsets.after(transfer).map(Layout::Subsets),
        }
    }
}

/// The names that one partition has.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Nothing,
    /// Names at positions between these two, both included.
    Range((u64, u64)),
    /// The partition's subset out of this number of subsets.
    Subset(u16),
    /// The partition's subset out of `few` or `many`, pair by pair, for the pairs that the
    /// partition is in. `upper` says for each whether the upper subset has its names.
    Pairs {
        few: u16,
        many: u16,
        upper: Vec<bool>,
    },
}

impl Part {
    const WHOLE: Part = Part::Range((0, POS_MAX));
}

/// The subset, out of `count`, of names at `pos`: the first of the two hashes. The second is that
/// of [`shard_of`](crate::placement::shard_of).
fn subset_of(pos: u64, count: u16) -> u16 {
    u16::try_from(jump_hash(pos, u32::from(count))).expect("less than the count")
}
