//! Subsets by consistent hashing: the master decides on their number.
//!
//! A name belongs to the subset that jump consistent hashing gives for their number. A *step* is
//! from one number to another, at most twice as many or half. The *lower* subsets are there before
//! and after the step. The *upper* ones come, and get some names of each lower one, or go, and give
//! these back. A lower and an upper subset are a *pair*. The pairs of a step move in any order, and
//! those of different subsets at the same time; the master begins a step only when all pairs of the
//! one before have moved.
//!
//! Paper: Duplex §III-C1, with a name for each step, so that operations go on while one is under
//! way.

use std::sync::Arc;

use super::{Moving, Part, Transfer, subset_of};
use crate::{
    codec,
    codec::{Decode, DecodeError, Element, Encode, Reader},
    limits::SHARDS_MAX,
};

/// Most pairs of a step, which bounds the bits in its layout.
const PAIRS_MAX: u16 = SHARDS_MAX;

/// The number of subsets, and the progress of its latest change.
///
/// When all pairs have moved, `from` is `to`, and `moved` is empty. Records from before steps had
/// several subsets may still have all bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsets {
    turn: u32,
    /// Number of changes that were begun.
    step: u32,
    /// The number of subsets before the latest change, and after it.
    from: u16,
    to: u16,
    /// A bit for each pair that has moved, 64 in a word: those of one upper subset after those of
    /// the one before.
    moved: Arc<[u64]>,
}

codec! {
    /// The names that change between two subsets with a step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Pair {
        /// The subset that is there before and after the step. It has these names while there are
        /// `few` subsets.
        pub lower: u16,
        /// The subset that comes or goes. It has these names while there are `many` subsets.
        pub upper: u16,
        /// The lesser of the numbers of subsets before and after the step.
        pub few: u16,
        /// The greater of the two numbers.
        pub many: u16,
    }
}

impl Pair {
    /// The names that subset `lower` has without subset `upper`, which is the last one.
    pub(super) fn of_last((lower, upper): (u16, u16)) -> Pair {
        Pair { lower, upper, few: upper, many: upper.saturating_add(1) }
    }

    /// Whether a name at `pos` is one of the pair.
    #[must_use]
    pub fn contains(&self, pos: u64) -> bool {
        subset_of(pos, self.many) == self.upper && subset_of(pos, self.few) == self.lower
    }
}

impl Subsets {
    /// A layout of one subset.
    #[must_use]
    pub fn new(turn: u32) -> Subsets {
        Subsets::started(turn, 1)
    }

    /// `count` subsets from the beginning.
    ///
    /// # Panics
    /// When there are none, or more than shards can be.
    #[must_use]
    pub fn started(turn: u32, count: u16) -> Subsets {
        assert!((1..=SHARDS_MAX).contains(&count), "subsets={count}");
        Subsets { turn, step: 0, from: count, to: count, moved: Arc::new([]) }
    }

    /// See [`Layout::turn`](super::Layout::turn).
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Number of subsets that have any names.
    #[must_use]
    pub fn count(&self) -> u16 {
        let upper = (self.few()..self.many()).filter(|upper| self.is_active(*upper));
        self.few() + u16::try_from(upper.count()).expect("one for each shard at most")
    }

    /// Number of subsets once the latest change is done.
    #[must_use]
    pub fn goal(&self) -> u16 {
        self.to
    }

    /// Whether the latest change is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let moved: u32 = self.moved.iter().map(|word| word.count_ones()).sum();
        moved == self.pairs()
    }

    fn grows(&self) -> bool {
        self.to > self.from
    }

    /// Number of lower subsets; while there is no step, of all.
    fn few(&self) -> u16 {
        self.from.min(self.to)
    }

    /// Number of subsets, the upper ones included.
    pub(super) fn many(&self) -> u16 {
        self.from.max(self.to)
    }

    fn pairs(&self) -> u32 {
        u32::from(self.few()) * u32::from(self.many() - self.few())
    }

    /// Index of the bit of a pair.
    fn bit(&self, lower: u16, upper: u16) -> usize {
        usize::from(upper - self.few()) * usize::from(self.few()) + usize::from(lower)
    }

    fn has_moved(&self, lower: u16, upper: u16) -> bool {
        let bit = self.bit(lower, upper);
        let word = self.moved.get(bit / 64).copied().unwrap_or(0);
        word & 1 << (bit % 64) != 0
    }

    /// Whether the upper subset of a pair has the pair's names.
    fn is_upper(&self, lower: u16, upper: u16) -> bool {
        self.grows() == self.has_moved(lower, upper)
    }

    /// Whether a subset is active.
    #[must_use]
    pub fn is_active(&self, subset: u16) -> bool {
        let has_some = || (0..self.few()).any(|lower| self.is_upper(lower, subset));
        subset < self.few() || (subset < self.many() && has_some())
    }

    /// The subset that has names at `pos`.
    #[must_use]
    pub fn partition(&self, pos: u64) -> u16 {
        let of_many = subset_of(pos, self.many());
        if of_many < self.few() {
            return of_many;
        }
        let of_few = subset_of(pos, self.few());
        if self.is_upper(of_few, of_many) { of_many } else { of_few }
    }

    /// See [`Layout::agrees_about`](super::Layout::agrees_about).
    pub(super) fn part(&self, partition: u16) -> Part {
        let of = |count: u16| match count {
            count if partition >= count => Part::Nothing,
            1 => Part::WHOLE,
            count => Part::Subset(count),
        };
        let (few, many) = (self.few(), self.many());
        // For each pair of the partition, whether the upper subset has the names.
        let upper: Vec<bool> = if partition < few {
            (few..many).map(|upper| self.is_upper(partition, upper)).collect()
        } else if partition < many {
            (0..few).map(|lower| self.is_upper(lower, partition)).collect()
        } else {
            Vec::new()
        };
        match (upper.contains(&true), upper.contains(&false)) {
            (false, _) => of(few),
            (true, false) => of(many),
            (true, true) => Part::Pairs { few, many, upper },
        }
    }

    /// All transfers of the latest change that are still to be made.
    pub fn transfers(&self) -> impl Iterator<Item = Transfer> + '_ {
        let sources = if self.grows() { 0..self.few() } else { self.few()..self.many() };
        sources.flat_map(|source| self.transfers_of(source))
    }

    /// All transfers that one source is still to make, in the order in which it tries them. Each
    /// source begins with another target, so that they do not all wait for the same one.
    pub fn transfers_of(&self, source: u16) -> impl Iterator<Item = Transfer> + '_ {
        let (first, targets) = match self.grows() {
            true => (self.few(), self.many() - self.few()),
            false => (0, self.few()),
        };
        let transfers = (0..targets).map(move |next| {
            let target = (u32::from(source) + u32::from(next)) % u32::from(targets);
            let target = u16::try_from(target).expect("less than the number of targets");
            Transfer { source, target: first + target }
        });
        transfers.filter(|transfer| self.pair(*transfer).is_some())
    }

    /// The pair that is still to move with a transfer.
    fn pair(&self, transfer: Transfer) -> Option<Pair> {
        let Transfer { source, target } = transfer;
        let (lower, upper) = if self.grows() { (source, target) } else { (target, source) };
        let pair = Pair { lower, upper, few: self.few(), many: self.many() };
        let is_one = lower < pair.few && (pair.few..pair.many).contains(&upper);
        (is_one && !self.has_moved(lower, upper)).then_some(pair)
    }

    /// See [`Layout::moving`](super::Layout::moving).
    #[must_use]
    pub fn moving(&self, transfer: Transfer) -> Option<Moving> {
        self.pair(transfer).map(Moving::Pair)
    }

    /// See [`Layout::after`](super::Layout::after).
    #[must_use]
    pub fn after(&self, transfer: Transfer) -> Option<Subsets> {
        let pair = self.pair(transfer)?;
        let bit = self.bit(pair.lower, pair.upper);
        let mut moved = self.moved.to_vec();
        moved.resize(moved.len().max(bit / 64 + 1), 0);
        moved[bit / 64] |= 1 << (bit % 64);
        Some(Subsets { moved: moved.into(), ..self.clone() }.without_a_done_step())
    }

    /// Forgets a step that is done, so that a layout is long only while names move.
    fn without_a_done_step(self) -> Subsets {
        match self.is_settled() {
            true => Subsets { from: self.to, moved: Arc::new([]), ..self },
            false => self,
        }
    }

    /// Begins a step towards `goal` subsets, which only the master does: to at most twice as many
    /// or at least half as many, and with a bounded number of pairs. `None` when the step before is
    /// not done, the number does not change, or there is no shard for another.
    #[must_use]
    pub fn begin(&self, goal: u16, shards: u16) -> Option<Subsets> {
        let (now, goal) = (self.to, goal.clamp(1, shards.min(SHARDS_MAX)));
        if !self.is_settled() || goal == now {
            return None;
        }
        let most = PAIRS_MAX / now;
        let to = if goal > now {
            now + (goal - now).min(most.min(now))
        } else {
            now - (now - goal).min(most.min(now / 2))
        };
        let step = self.step.checked_add(1)?;
        Some(Subsets { turn: self.turn, step, from: now, to, moved: Arc::new([]) })
    }

    /// Number of subsets that a directory with `entries` should have. It has `count` now, one
    /// subset is to have `entries_max`, and there are never fewer than `least`. The number shrinks
    /// only when half a subset would be free, so that small changes of the directory's size change
    /// nothing.
    ///
    /// Paper: Duplex §III-C1, `floor(size / max) + 1`.
    #[must_use]
    pub fn wanted(count: u16, entries: u64, entries_max: u64, least: u16) -> u16 {
        let (max, most) = (entries_max.max(1), u64::from(SHARDS_MAX));
        let of = |entries: u64| u16::try_from((entries / max + 1).min(most)).expect("at most that");
        let (up, down) = (of(entries), of(entries.saturating_add(max / 2)));
        if up > count { up } else { down.min(count) }.max(least)
    }

    /// Takes in another layout of this turn. Returns whether anything was news.
    pub fn learn(&mut self, other: &Subsets) -> bool {
        if other.step < self.step {
            return false;
        }
        if !self.is_of_step(other) {
            *self = other.clone();
            return true;
        }
        if self.is_settled() {
            return false;
        }
        if other.is_settled() {
            *self = other.clone();
            return true;
        }
        let len = self.moved.len().max(other.moved.len());
        let of = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        let moved: Arc<[u64]> =
            (0..len).map(|at| of(&self.moved, at) | of(&other.moved, at)).collect();
        let news = moved != self.moved;
        *self = Subsets { moved, ..self.clone() }.without_a_done_step();
        news
    }

    /// Whether both layouts are of the same step. Of two steps with one number, only one counts: a
    /// server told of the other, and lost it in a power cut.
    fn is_of_step(&self, other: &Subsets) -> bool {
        let is_done = self.is_settled() || other.is_settled();
        (self.step, self.to) == (other.step, other.to) && (is_done || self.from == other.from)
    }

    fn is_sound(&self) -> bool {
        let numbers = [self.from, self.to].iter().all(|n| (1..=SHARDS_MAX).contains(n));
        let is_a_step =
            || self.many() - self.few() <= self.few() && self.pairs() <= u32::from(PAIRS_MAX);
        let only_pairs = || match self.moved.last() {
            None => true,
            Some(0) => false,
            Some(last) => {
                let bits = self.moved.len() * 64 - last.leading_zeros() as usize;
                bits <= self.pairs() as usize
            }
        };
        numbers && is_a_step() && only_pairs()
    }
}

impl Element for Subsets {}

impl Encode for Subsets {
    fn encode(&self, out: &mut Vec<u8>) {
        self.turn.encode(out);
        self.step.encode(out);
        self.from.encode(out);
        self.to.encode(out);
        self.moved.to_vec().encode(out);
    }
}

impl Decode for Subsets {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (turn, step) = (u32::decode(input)?, u32::decode(input)?);
        let (from, to) = (u16::decode(input)?, u16::decode(input)?);
        let subsets = Subsets { turn, step, from, to, moved: Vec::<u64>::decode(input)?.into() };
        if subsets.is_sound() { Ok(subsets) } else { Err(DecodeError::Invalid("subsets")) }
    }
}
