//! The locks that are held of one file, in one family.

use std::collections::BTreeMap;

use super::{ByteRange, LockMode, LockOwner};
use crate::{HashMap, SessionId};

/// One lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHeld {
    /// Owner of the lock.
    pub owner: LockOwner,
    /// The process that asked for it, as its client numbers processes.
    pub pid: u32,
    /// Bytes that the lock covers.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub mode: LockMode,
}

/// All of them.
///
/// Cost: a change looks at those locks of its owner that it touches. A search for conflicts looks
/// at [`Places`] of the mode that is in the way. Neither looks at the other locks of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldLocks {
    /// By owner and first byte. The ranges of one owner do not overlap.
    held: BTreeMap<(LockOwner, u64), LockHeld>,
    places: Places,
    /// Number of locks of each session that has any.
    sessions: HashMap<SessionId, usize>,
    /// The same of each process.
    processes: HashMap<(SessionId, u32), usize>,
}

impl HeldLocks {
    /// Every lock.
    pub fn iter(&self) -> impl Iterator<Item = &LockHeld> {
        self.held.values()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of locks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Number of locks of a session.
    #[must_use]
    pub fn count(&self, session: SessionId) -> usize {
        self.sessions.get(&session).copied().unwrap_or_default()
    }

    /// Whether a process of a session holds anything.
    pub(super) fn are_of(&self, session: SessionId, pid: u32) -> bool {
        self.processes.contains_key(&(session, pid))
    }

    /// Returns the locks of other owners that are in the way of `asked`.
    pub fn conflicts(&self, asked: LockHeld) -> impl Iterator<Item = &LockHeld> {
        let found = self.places.conflicts(asked);
        found.filter_map(|(owner, first)| self.held.get(&(owner, first)))
    }

    /// Gives the range to `asked.owner` in `asked.mode`, whatever that owner had there; locks of
    /// other owners do not change.
    pub fn take(&mut self, asked: LockHeld) {
        let mut range = asked.range;
        let beside = ByteRange {
            first: asked.range.first.saturating_sub(1),
            last: asked.range.last.saturating_add(1),
        };
        for held in self.of(asked.owner, beside).filter(|held| held.mode == asked.mode) {
            range.first = range.first.min(held.range.first);
            range.last = range.last.max(held.range.last);
        }
        self.give_back(asked.owner, range);
        self.insert(LockHeld { range, ..asked });
    }

    /// The range is not `owner`'s any more. What sticks out on either side stays.
    pub fn give_back(&mut self, owner: LockOwner, range: ByteRange) {
        let given: Vec<LockHeld> = self.of(owner, range).copied().collect();
        for held in given {
            self.remove(&held);
            if held.range.first < range.first {
                let before = ByteRange { last: range.first - 1, ..held.range };
                self.insert(LockHeld { range: before, ..held });
            }
            if held.range.last > range.last {
                let after = ByteRange { first: range.last + 1, ..held.range };
                self.insert(LockHeld { range: after, ..held });
            }
        }
    }

    /// Whether giving back the range would leave more locks than there were.
    #[must_use]
    pub fn splits(&self, owner: LockOwner, range: ByteRange) -> bool {
        let sticks_out =
            |held: &LockHeld| held.range.first < range.first && held.range.last > range.last;
        self.of(owner, range).any(sticks_out)
    }

    /// Drops those that `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(&LockHeld) -> bool) {
        let dropped: Vec<LockHeld> = self.iter().filter(|held| !keep(held)).copied().collect();
        dropped.iter().for_each(|held| self.remove(held));
    }

    /// Locks of an owner that overlap a range, the last one first.
    pub(super) fn of(&self, owner: LockOwner, range: ByteRange) -> impl Iterator<Item = &LockHeld> {
        let begun = self.held.range((owner, 0)..=(owner, range.last)).rev();
        begun.map(|(_, held)| held).take_while(move |held| {
            looks();
            held.range.last >= range.first
        })
    }

    fn insert(&mut self, held: LockHeld) {
        let LockHeld { owner, pid, range, .. } = held;
        self.held.insert((owner, range.first), held);
        self.places.insert(held, 0);
        *self.sessions.entry(owner.session).or_default() += 1;
        *self.processes.entry((owner.session, pid)).or_default() += 1;
    }

    fn remove(&mut self, held: &LockHeld) {
        let LockHeld { owner, pid, range, .. } = *held;
        if self.held.remove(&(owner, range.first)).is_none() {
            return;
        }
        self.places.remove(held, 0);
        count_down(&mut self.sessions, owner.session);
        count_down(&mut self.processes, (owner.session, pid));
    }
}

/// One less of `of`.
pub(super) fn count_down<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, of: K) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

/// The ranges of locks, to be searched for conflicts.
///
/// Ranges may overlap, so they are kept by their length: a class has those with more than half of
/// 2^class bytes, and no more than that. Of a class only ranges that begin less than 2^class bytes
/// before the range that is searched for can overlap it. So besides those that do, a search looks
/// at two ranges of each owner in each class, at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// The last byte, by mode, class, first byte, and whose it is.
    lasts: BTreeMap<(LockMode, u32, u64, Whose), u64>,
}

/// The owner of a range, and a number that tells apart what one owner has at one place.
type Whose = (LockOwner, usize);

const FIRST: Whose = (LockOwner { session: SessionId(0), owner: 0 }, 0);

impl Places {
    pub(super) fn insert(&mut self, held: LockHeld, number: usize) {
        self.lasts.insert(Places::key(&held, number), held.range.last);
    }

    fn remove(&mut self, held: &LockHeld, number: usize) {
        self.lasts.remove(&Places::key(held, number));
    }

    fn key(held: &LockHeld, number: usize) -> (LockMode, u32, u64, Whose) {
        let LockHeld { owner, range, mode, .. } = *held;
        let class = u64::BITS - (range.last - range.first).leading_zeros();
        (mode, class, range.first, (owner, number))
    }

    /// Owners and first bytes of the ranges that are in the way of `asked`.
    pub(super) fn conflicts(&self, asked: LockHeld) -> impl Iterator<Item = (LockOwner, u64)> {
        let modes = match asked.mode {
            LockMode::Shared => &[LockMode::Exclusive][..],
            LockMode::Exclusive => &[LockMode::Exclusive, LockMode::Shared],
        };
        let found = modes.iter().flat_map(move |mode| self.overlapping(*mode, asked.range));
        found.filter(move |(owner, _)| *owner != asked.owner)
    }

    fn overlapping(
        &self,
        mode: LockMode,
        range: ByteRange,
    ) -> impl Iterator<Item = (LockOwner, u64)> {
        let (mut next, end) = (0, range.last.max(range.first).saturating_add(1));
        let classes = std::iter::from_fn(move || {
            looks();
            let ((of, class, ..), _) = self.lasts.range((mode, next, 0, FIRST)..).next()?;
            next = class + 1;
            (*of == mode).then_some(*class)
        });
        classes.flat_map(move |class| {
            let longest = 1_u64.checked_shl(class).unwrap_or(u64::MAX);
            let first = range.first.saturating_sub(longest - 1);
            let begun = self.lasts.range((mode, class, first, FIRST)..(mode, class, end, FIRST));
            begun.filter_map(move |((_, _, first, (owner, _)), last)| {
                looks();
                (*last >= range.first).then_some((*owner, *first))
            })
        })
    }
}

/// Whether two locks cannot be held at once.
pub(super) fn in_conflict(one: &LockHeld, other: &LockHeld) -> bool {
    let both_share = one.mode == LockMode::Shared && other.mode == LockMode::Shared;
    one.owner != other.owner && !both_share && one.range.overlaps(other.range)
}

/// Something that is kept of locks is looked at; tests count that.
pub(super) fn looks() {
    #[cfg(test)]
    super::tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
}
