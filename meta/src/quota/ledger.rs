//! What the coordinator has allowed each server to charge to a root with limits. Pure.
//!
//! Invariant: once every server has said what it uses, no server may charge more than is noted of it here, and all of that
//! together is within the limits, or no more than they use already.

use wire::{Allowed, AskRoom, Room};

use crate::record::{QuotaRecord, Usage};

/// Who asks gets besides what it needs one part of so many of its share of what is left.
const SPARE_PART: i64 = 2;

/// One root's.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The root, as it was when servers said what they use.
    record: QuotaRecord,
    /// So often something that was used below it had come to count elsewhere.
    left: u64,
    /// By server; `None`: it has not said what it uses.
    holders: Vec<Option<Allowed>>,
    /// The last round that has begun,
    round: u64,
    /// and whether it is over.
    is_over: bool,
    /// Nothing was allowed since: until the next round nobody comes to use more.
    is_still: bool,
    /// It was so before the last round as well: all that was said in it was used at one moment, when it began.
    is_of_one_moment: bool,
    /// Some server has not heard yet what the roots are.
    is_behind: bool,
}

/// What to do for who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Answer.
    Answer(Room),
    /// Have all servers say what they use.
    Gather,
    /// Somebody else does.
    Wait,
}

impl Ledger {
    pub(crate) fn new(servers: u16, record: QuotaRecord, left: u64) -> Ledger {
        let holders = vec![None; usize::from(servers)];
        Ledger {
            record,
            left,
            holders,
            round: 0,
            is_over: true,
            is_still: false,
            is_of_one_moment: false,
            is_behind: false,
        }
    }

    /// Whether it is of a root as that is now.
    pub(crate) fn is_of(&self, record: &QuotaRecord, left: u64) -> bool {
        self.record.allows_as(record) && self.left == left
    }

    /// The last round that has begun.
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// What to do for a server that has asked when `then` was the last round.
    pub(crate) fn ask(&mut self, from: u16, ask: &AskRoom, then: u64) -> Next {
        if !self.is_over {
            return Next::Wait;
        }
        let heard_since = self.round != then;
        let holder = self.holders.get(usize::from(from)).copied().flatten();
        // After a round it is known what the server uses, if not what it may.
        let used = match holder {
            Some(holder) if holder.round == ask.round => Some(Usage::from(ask.used)),
            Some(holder) if heard_since && holder.round == self.round => {
                Some(holder.amounts.into())
            }
            Some(_) | None => None,
        };
        let all = self.holders.iter().copied().collect::<Option<Vec<Allowed>>>();
        if let (Some(holder), Some(used), Some(all)) = (holder, used, &all)
            && let Some(amounts) = self.grown(all, holder, used, ask.more.into())
        {
            let allowed = Allowed { amounts: amounts.into(), ..holder };
            let same = allowed == holder;
            self.is_still &= same;
            self.is_of_one_moment &= same;
            self.holders[usize::from(from)] = Some(allowed);
            return Next::Answer(Room::Allowed(allowed));
        }
        // What one has released another may have used in the middle of a round.
        if !heard_since || !self.is_of_one_moment {
            return Next::Gather;
        }
        let known = used.is_some() && all.is_some() && !self.is_behind;
        Next::Answer(if known { Room::Full } else { Room::Unknown })
    }

    /// What a server may use that needs so much more; `None`: there is no room for it.
    fn grown(&self, all: &[Allowed], holder: Allowed, used: Usage, more: Usage) -> Option<Usage> {
        let grow = |of: fn(Usage) -> i64| {
            let (limit, upto) = (of(self.record.limits()), of(holder.amounts.into()));
            let wanted = of(used).saturating_add(of(more));
            if limit == i64::MAX {
                return Some(limit);
            }
            if of(more) <= 0 || wanted <= upto {
                return Some(upto);
            }
            let given: i128 = all.iter().map(|held| i128::from(of(held.amounts.into()))).sum();
            let free = i128::from(limit) - given - i128::from(wanted) + i128::from(upto);
            let spare = i64::try_from(free).ok().filter(|spare| *spare >= 0)?;
            let servers = i64::try_from(all.len()).unwrap_or(i64::MAX);
            Some(wanted.saturating_add(spare / servers / SPARE_PART))
        };
        Some(Usage { bytes: grow(|usage| usage.bytes)?, entries: grow(|usage| usage.entries)? })
    }

    /// A round begins.
    pub(crate) fn begin(&mut self, round: u64) {
        self.round = round;
        self.is_over = false;
        self.is_of_one_moment = self.is_still;
    }

    /// A round is over, in which servers have said that they use this. Who has said nothing keeps what it has; it may be
    /// that what some say does not count, as they are `behind`.
    pub(crate) fn end(&mut self, round: u64, used: &[(u16, Usage)], behind: bool) {
        if round != self.round {
            return;
        }
        self.is_behind = behind;
        for (server, used) in used {
            if let Some(holder) = self.holders.get_mut(usize::from(*server)) {
                *holder = Some(Allowed { round, amounts: (*used).into() });
            }
        }
        self.is_over = true;
        self.is_still = true;
    }
}

#[cfg(test)]
mod tests;
