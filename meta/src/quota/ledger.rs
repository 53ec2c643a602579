//! The coordinator's account of what each server may charge to a root with limits. Pure.
//!
//! Invariant: once every server has said what it uses, no server may charge more than is noted for
//! it here. All of that together is within the limits, or no more than the servers use already.

use wire::{Allowed, AskRoom, Room};

use crate::record::{QuotaRecord, Usage};

/// A server gets, besides what it needs, one part in this many of its share of what is left.
const SPARE_PART: i64 = 2;

/// The account of one root.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The root, as it was when servers said what they use.
    record: QuotaRecord,
    /// Number of times, by then, that usage below the root had come to count elsewhere.
    left: u64,
    /// Grant by server; `None` for a server that has not said what it uses.
    holders: Vec<Option<Allowed>>,
    /// The last round that has begun.
    round: u64,
    /// Whether that round is over.
    is_over: bool,
    /// Whether nothing was allowed since the last round, so that no server comes to use more.
    is_still: bool,
    /// Whether `is_still` also held before the last round. All answers of it were then true at one
    /// moment, when it began, if all servers had answered the round before.
    is_of_one_moment: bool,
    /// Servers that have answered the last round, and those that had answered the one before. One
    /// that has not may come to use more during the next.
    answered: Vec<bool>,
    before: Vec<bool>,
    /// Whether some server has not received the current roots yet.
    is_behind: bool,
}

/// Next step for a server that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Answer the server.
    Answer(Room),
    /// Begin a round: have all servers say what they use.
    Gather,
    /// Wait for a round that another request has begun.
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
            answered: vec![false; usize::from(servers)],
            before: vec![false; usize::from(servers)],
            is_behind: false,
        }
    }

    /// A server has left the cluster, and uses nothing.
    pub(crate) fn leaves(&mut self, server: u16) {
        if let Some(holder) = self.holders.get_mut(usize::from(server)) {
            *holder = Some(Allowed { round: 0, amounts: Usage::default().into() });
        }
    }

    /// Whether the account is of the root as it is now.
    pub(crate) fn is_of(&self, record: &QuotaRecord, left: u64) -> bool {
        self.record.allows_as(record) && self.left == left
    }

    /// The last round that has begun.
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// Next step for a server whose question came when `then` was the last round.
    pub(crate) fn ask(&mut self, from: u16, ask: &AskRoom, then: u64) -> Next {
        if !self.is_over {
            return Next::Wait;
        }
        let heard_since = self.round != then;
        let holder = self.holders.get(usize::from(from)).copied().flatten();
        // After a round the server's usage is known, even if its grant is not.
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
        // Usage that one server released may have been taken by another in the middle of a round.
        // While a server stays silent, nobody waits for it; when it has answered, all say anew.
        let is_back = self.answered.iter().zip(&self.before).any(|(now, then)| *now && !*then);
        if !heard_since || !self.is_of_one_moment || is_back {
            return Next::Gather;
        }
        let known = used.is_some() && all.is_some() && !self.is_behind;
        Next::Answer(if known { Room::Full } else { Room::Unknown })
    }

    /// New grant of a server that needs `more`; `None` if there is no room for it.
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

    /// Begins a round.
    pub(crate) fn begin(&mut self, round: u64) {
        self.round = round;
        self.is_over = false;
        self.is_of_one_moment = self.is_still;
        self.before.clone_from(&self.answered);
    }

    /// Ends a round with the usage that servers have reported. A server that has not answered keeps
    /// its grant. `behind` says that some answers do not count, as those servers lack the
    /// newest roots.
    pub(crate) fn end(&mut self, round: u64, used: &[(u16, Usage)], behind: bool) {
        if round != self.round {
            return;
        }
        self.is_behind = behind;
        self.answered.fill(false);
        for (server, used) in used {
            let at = usize::from(*server);
            if let Some((holder, answered)) =
                self.holders.get_mut(at).zip(self.answered.get_mut(at))
            {
                *holder = Some(Allowed { round, amounts: (*used).into() });
                *answered = true;
            }
        }
        self.is_over = true;
        self.is_still = true;
    }
}

#[cfg(test)]
mod tests;
