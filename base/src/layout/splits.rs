//! Extendible hashing: partitions that split in two and merge again, each without asking the
//! others.
//!
//! A partition of depth `r` has the names whose hashes end in the `r` bits of its number. It splits
//! by giving those whose next bit is set to partition `i + 2^r`; then both have depth `r + 1`. As a
//! position is the reversed hash, each partition is one range of positions, and the half that goes
//! is its upper half. The partition that was split off last merges back first.
//!
//! The layout counts for each partition how often it was split off or merged back: an odd number
//! means that it is there. Only a partition and the one that it is split off from change that
//! count, together. So of two layouts the greater count is the later one, partition by partition.
//!
//! Paper: SFS §3.3, §3.4. There is no merging in the paper, so a bit for each partition is enough
//! there.

use std::sync::Arc;

use super::{Moving, POS_MAX, Transfer};
use crate::{
    codec::{Decode, DecodeError, Element, Encode, Reader},
    limits::SHARDS_MAX,
};

/// Bits of a position.
const POS_BITS: u32 = 63;
/// Number of partitions for each server at which splits end. The product is rounded up to a power
/// of two.
const FOR_EACH_SERVER: u16 = 4;

/// The partitions of a directory that splits, and their history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splits {
    turn: u32,
    /// For each partition, how often it came or went; partitions beyond the last were never there.
    steps: Arc<[u32]>,
}

/// Number of bits in a partition's number: its depth when it was split off.
fn bits(partition: u16) -> u32 {
    u16::BITS - partition.leading_zeros()
}

/// The partition that another one is split off from.
fn parent(partition: u16) -> Option<u16> {
    let highest = bits(partition).checked_sub(1)?;
    Some(partition & !(1 << highest))
}

impl Splits {
    /// A layout of one partition.
    #[must_use]
    pub fn new(turn: u32) -> Splits {
        Splits::started(turn, 1)
    }

    /// The first `count` partitions, as if they had been split off one after the other.
    ///
    /// # Panics
    /// When there are none, or more than shards can be.
    #[must_use]
    pub fn started(turn: u32, count: u16) -> Splits {
        assert!((1..=SHARDS_MAX).contains(&count), "partitions={count}");
        Splits { turn, steps: vec![1; count.into()].into() }
    }

    /// See [`Layout::turn`](super::Layout::turn).
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// The number after that of the last partition that was ever there.
    #[must_use]
    pub fn end(&self) -> u16 {
        u16::try_from(self.steps.len()).expect("at most one for each shard")
    }

    /// Whether a partition is active.
    #[must_use]
    pub fn is_active(&self, partition: u16) -> bool {
        self.steps.get(usize::from(partition)).is_some_and(|steps| steps % 2 == 1)
    }

    /// Number of bits of a hash that decide whether a name belongs to an active partition.
    #[must_use]
    pub fn depth(&self, partition: u16) -> u32 {
        let mut depth = bits(partition);
        while self.is_active_at(partition, depth) {
            depth += 1;
        }
        depth
    }

    /// Whether the partition that is split off at `depth` is active.
    fn is_active_at(&self, partition: u16, depth: u32) -> bool {
        child(partition, depth).is_some_and(|child| self.is_active(child))
    }

    /// The partition that has names at `pos`: the deepest active one whose bits are those of the
    /// hash.
    #[must_use]
    pub fn partition(&self, pos: u64) -> u16 {
        let hash = pos.reverse_bits() >> (u64::BITS - POS_BITS);
        let mask = (1u64 << bits(self.end() - 1)) - 1;
        let mut found = u16::try_from(hash & mask).expect("as many bits as a partition's number");
        while !self.is_active(found) {
            found = parent(found).expect("partition 0 is there");
        }
        found
    }

    /// The first and the last position of an active partition.
    #[must_use]
    pub fn range(&self, partition: u16) -> (u64, u64) {
        let first = u64::from(partition).reverse_bits() >> (u64::BITS - POS_BITS);
        (first, first | (POS_MAX >> self.depth(partition)))
    }

    /// Number of partitions up to which a directory splits on `servers` servers: some for each
    /// server, so that all have nearly as many names, also when servers are added. Further splits
    /// would only move names.
    #[must_use]
    pub fn partitions_max(servers: u16, shards: u16) -> u16 {
        let enough = servers.saturating_mul(FOR_EACH_SERVER).checked_next_power_of_two();
        enough.map_or(shards, |enough| enough.min(shards))
    }

    /// The split of partition `source`, if the new partition's number is below `partitions`.
    ///
    /// Paper: SFS §3.3, `i + 2^r`.
    #[must_use]
    pub fn split(&self, source: u16, partitions: u16) -> Option<Transfer> {
        let target = child(source, self.depth(source)).filter(|target| *target < partitions);
        target.filter(|_| self.is_active(source)).map(|target| Transfer { source, target })
    }

    /// The merge of a partition into the one that it was split off from, if neither has been split
    /// since.
    #[must_use]
    pub fn merge(&self, source: u16) -> Option<Transfer> {
        let target = parent(source).filter(|_| self.is_active(source))?;
        let depth = self.depth(source);
        (depth == bits(source) && depth == self.depth(target))
            .then_some(Transfer { source, target })
    }

    fn is_next(&self, transfer: Transfer) -> bool {
        self.split(transfer.source, SHARDS_MAX) == Some(transfer)
            || self.merge(transfer.source) == Some(transfer)
    }

    /// See [`Layout::moving`](super::Layout::moving).
    #[must_use]
    pub fn moving(&self, transfer: Transfer) -> Option<Moving> {
        if !self.is_next(transfer) {
            return None;
        }
        let (first, last) = self.range(transfer.source);
        // A split gives the upper half, a merge all.
        let first =
            if transfer.target > transfer.source { first + (last - first) / 2 + 1 } else { first };
        Some(Moving::Range((first, last)))
    }

    /// See [`Layout::after`](super::Layout::after).
    #[must_use]
    pub fn after(&self, transfer: Transfer) -> Option<Splits> {
        if !self.is_next(transfer) {
            return None;
        }
        let changed = usize::from(transfer.source.max(transfer.target));
        let mut steps = self.steps.to_vec();
        if steps.len() <= changed {
            steps.resize(changed + 1, 0);
        }
        steps[changed] = steps[changed].checked_add(1)?;
        Some(Splits { turn: self.turn, steps: steps.into() })
    }

    /// Takes in another layout of this turn. Returns whether anything was news.
    pub fn learn(&mut self, other: &Splits) -> bool {
        let news =
            |(at, theirs): (usize, &u32)| self.steps.get(at).is_none_or(|ours| theirs > ours);
        if !other.steps.iter().enumerate().any(news) {
            return false;
        }
        let len = self.steps.len().max(other.steps.len());
        let of = |steps: &[u32], at: usize| steps.get(at).copied().unwrap_or(0);
        self.steps = (0..len).map(|at| of(&self.steps, at).max(of(&other.steps, at))).collect();
        true
    }

    /// Whether splits and merges can make this layout: each active partition was split off from an
    /// active one, in order.
    fn is_sound(&self) -> bool {
        let in_order = |partition: u16| {
            let highest = bits(partition).saturating_sub(1);
            let Some(parent) = parent(partition).filter(|_| self.is_active(partition)) else {
                return true;
            };
            let before = (bits(parent)..highest).all(|depth| self.is_active_at(parent, depth));
            self.is_active(parent) && before
        };
        let known = (1..=usize::from(SHARDS_MAX)).contains(&self.steps.len());
        known
            && self.steps[0] == 1
            && self.steps.last() != Some(&0)
            && (0..self.end()).all(in_order)
    }
}

/// The partition that `partition` splits off at `depth`, if it has a number.
fn child(partition: u16, depth: u32) -> Option<u16> {
    let bit = 1u16.checked_shl(depth).filter(|bit| *bit < SHARDS_MAX.next_power_of_two())?;
    partition.checked_add(bit)
}

impl Element for Splits {}

impl Encode for Splits {
    fn encode(&self, out: &mut Vec<u8>) {
        self.turn.encode(out);
        self.end().encode(out);
        self.steps.iter().for_each(|steps| steps.encode(out));
    }
}

impl Decode for Splits {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (turn, len) = (u32::decode(input)?, u16::decode(input)?);
        if usize::from(len) > input.left() {
            return Err(DecodeError::Short);
        }
        let steps: Result<Vec<u32>, _> = (0..len).map(|_| u32::decode(input)).collect();
        let splits = Splits { turn, steps: steps?.into() };
        if splits.is_sound() { Ok(splits) } else { Err(DecodeError::Invalid("splits")) }
    }
}
