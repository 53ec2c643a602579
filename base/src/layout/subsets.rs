//! Subsets by consistent hashing: the master says how many there are.
//!
//! A name belongs to the subset that jump consistent hashing gives for their number, so with one subset more each of the
//! others gives some of its names to the new one, and with one less that one gives all it has to the others. Both ways
//! the names that go are told by a pair: who has them without the last subset. A *step* is from one number to the next,
//! one pair after the other, in any order; the master begins a step only when all pairs of the one before have moved.
//!
//! Paper: Duplex §III-C1, with a name for each step, so that nobody must stop while one is under way.

use std::sync::Arc;

use super::{Moving, Part, Shift, subset_of};
use crate::{
    codec::{Decode, DecodeError, Element, Encode, Reader},
    limits::SHARDS_MAX,
};

/// How many subsets there are, and how far the latest change of that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsets {
    turn: u32,
    /// How many changes were begun.
    step: u32,
    /// The number before the latest change, and after it.
    from: u16,
    to: u16,
    /// A bit for each pair that has moved, 64 in a word.
    moved: Arc<[u64]>,
}

/// What stands at `pos` belongs to subset `last` while that is there, and otherwise to this one; `None`: subset `last`
/// does not have it as long as it is the last.
pub(super) fn pair_of(pos: u64, last: u16) -> Option<u16> {
    (subset_of(pos, last + 1) == last).then(|| subset_of(pos, last))
}

impl Subsets {
    /// One subset.
    #[must_use]
    pub fn new(turn: u32) -> Subsets {
        Subsets::started(turn, 1)
    }

    /// So many subsets from the beginning.
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

    /// How many subsets there are, and those that come or go included once the first names have moved, and until the
    /// last have.
    #[must_use]
    pub fn count(&self) -> u16 {
        let (grows, moved) = (self.to > self.from, self.moved_count());
        match (grows, moved) {
            (true, 0) => self.from,
            (true, _) => self.to,
            (false, moved) if moved == self.pairs() => self.to,
            (false, _) => self.from,
        }
    }

    /// How many subsets there will be when the latest change is done.
    #[must_use]
    pub fn target(&self) -> u16 {
        self.to
    }

    /// Whether the latest change is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.moved_count() == self.pairs()
    }

    /// The subset that comes or goes; all others before it give to it, or get from it.
    fn last(&self) -> u16 {
        self.from.min(self.to)
    }

    fn pairs(&self) -> u32 {
        if self.from == self.to { 0 } else { u32::from(self.last()) }
    }

    fn moved_count(&self) -> u32 {
        self.moved.iter().map(|word| word.count_ones()).sum()
    }

    fn has_moved(&self, pair: u16) -> bool {
        let word = self.moved.get(usize::from(pair / 64)).copied().unwrap_or(0);
        word & 1 << (pair % 64) != 0
    }

    /// The subset of what stands at `pos`.
    #[must_use]
    pub fn partition(&self, pos: u64) -> u16 {
        if self.from == self.to {
            return subset_of(pos, self.to);
        }
        let (last, grows) = (self.last(), self.to > self.from);
        match pair_of(pos, last) {
            None => subset_of(pos, last + 1),
            Some(pair) if grows == self.has_moved(pair) => last,
            Some(pair) => pair,
        }
    }

    /// See [`Layout::agrees_about`](super::Layout::agrees_about).
    pub(super) fn part(&self, partition: u16) -> Part {
        let of = |count: u16| match count {
            count if partition >= count => Part::Nothing,
            1 => Part::WHOLE,
            count => Part::Subset(count),
        };
        if self.from == self.to {
            return of(self.to);
        }
        let (last, grows) = (self.last(), self.to > self.from);
        if partition != last {
            // With what the last subset would have of it, or without.
            return of(if grows == self.has_moved(partition) { last + 1 } else { last });
        }
        let had = if grows { self.moved_count() } else { self.pairs() - self.moved_count() };
        match had {
            0 => Part::Nothing,
            had if had == self.pairs() => of(last + 1),
            _ => Part::Pairs(last + 1, self.pairs_of_last()),
        }
    }

    /// A bit for each pair that the last subset has.
    fn pairs_of_last(&self) -> Arc<[u64]> {
        let mut words = vec![0; usize::from(self.last() / 64) + 1];
        let grows = self.to > self.from;
        (0..self.last()).filter(|pair| grows == self.has_moved(*pair)).for_each(|pair| {
            words[usize::from(pair / 64)] |= 1 << (pair % 64);
        });
        words.into()
    }

    /// All shifts of the latest change that are still to be made.
    pub fn shifts(&self) -> impl Iterator<Item = Shift> + '_ {
        let (last, grows) = (self.last(), self.to > self.from);
        let pairs = u16::try_from(self.pairs()).expect("at most one for each shard");
        (0..pairs).filter(|pair| !self.has_moved(*pair)).map(move |pair| match grows {
            true => Shift { giver: pair, taker: last },
            false => Shift { giver: last, taker: pair },
        })
    }

    fn pair(&self, shift: Shift) -> Option<u16> {
        self.shifts().find(|next| *next == shift).map(|shift| shift.giver.min(shift.taker))
    }

    /// See [`Layout::moving`](super::Layout::moving).
    #[must_use]
    pub fn moving(&self, shift: Shift) -> Option<Moving> {
        self.pair(shift).map(|pair| Moving::Subset((pair, self.last())))
    }

    /// See [`Layout::after`](super::Layout::after).
    #[must_use]
    pub fn after(&self, shift: Shift) -> Option<Subsets> {
        let pair = self.pair(shift)?;
        let mut moved = self.moved.to_vec();
        let word = usize::from(pair / 64);
        if moved.len() <= word {
            moved.resize(word + 1, 0);
        }
        moved[word] |= 1 << (pair % 64);
        Some(Subsets { moved: moved.into(), ..self.clone() })
    }

    /// The master begins to have one subset more or one less, as `target` lies; `None`: the change before is not done,
    /// or there is nothing to change, or no shard for another.
    #[must_use]
    pub fn begin(&self, target: u16, shards: u16) -> Option<Subsets> {
        let (now, target) = (self.to, target.clamp(1, shards.min(SHARDS_MAX)));
        if !self.is_settled() || target == now {
            return None;
        }
        let to = if target > now { now + 1 } else { now - 1 };
        let step = self.step.checked_add(1)?;
        Some(Subsets { turn: self.turn, step, from: now, to, moved: Arc::new([]) })
    }

    /// How many subsets a directory with `entries` should have that has `count` now, if one is to have `entries_max`,
    /// and there are never fewer than `least`. It shrinks when half a subset would be free, so that a directory whose
    /// size goes up and down a little stays as it is.
    ///
    /// Paper: Duplex §III-C1, `floor(size / max) + 1`.
    #[must_use]
    pub fn wanted(count: u16, entries: u64, entries_max: u64, least: u16) -> u16 {
        let (max, most) = (entries_max.max(1), u64::from(SHARDS_MAX));
        let of = |entries: u64| u16::try_from((entries / max + 1).min(most)).expect("at most that");
        let (up, down) = (of(entries), of(entries.saturating_add(max / 2)));
        if up > count { up } else { down.min(count) }.max(least)
    }

    /// Takes in another layout of this turn; whether anything was news.
    pub fn learn(&mut self, other: &Subsets) -> bool {
        if other.step != self.step {
            let news = other.step > self.step;
            if news {
                *self = other.clone();
            }
            return news;
        }
        let before = self.moved_count();
        let len = self.moved.len().max(other.moved.len());
        let of = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        let moved: Arc<[u64]> =
            (0..len).map(|at| of(&self.moved, at) | of(&other.moved, at)).collect();
        self.moved = moved;
        self.moved_count() > before
    }

    fn is_sound(&self) -> bool {
        let numbers = [self.from, self.to].iter().all(|n| (1..=SHARDS_MAX).contains(n));
        let only_pairs = || {
            let words = u16::try_from(self.moved.len() * 64).unwrap_or(u16::MAX);
            let mut moved = (0..words).filter(|pair| self.has_moved(*pair));
            moved.all(|pair| u32::from(pair) < self.pairs())
        };
        numbers
            && self.from.abs_diff(self.to) <= 1
            && self.moved.len() <= usize::from(SHARDS_MAX) / 64
            && self.moved.last() != Some(&0)
            && only_pairs()
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
