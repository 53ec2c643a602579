//! Phases of transactions over several servers, as timed by the initiator.
//!
//! `transact::run` and `transact::tell` report the end of each part ([`Laps`]). The times are
//! recorded when the transaction has committed, and when the others have heard of that.
//! Transactions that do not commit are not recorded.
//!
//! Always true: the parts before the commit add up to the time since the first run of the operation
//! found that it needs other servers.

use std::cell::Cell;

use wire::Distribution;

use super::{Histogram, Nanos};

const PARTS: usize = 7;

/// A part of a transaction's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Attempts that met another transaction, or something that had changed, with the pauses after
    /// them.
    Again,
    /// Reading from other servers, and running without effect.
    Read,
    /// Waiting for the others to prepare.
    Prepare,
    /// Announcing to all servers that directories move.
    Announce,
    /// Running for good, and writing the group.
    Commit,
    /// Waiting until the commit is stable. The client may have its answer.
    Sync,
    /// Telling the others, which apply the commit.
    Tell,
}

impl Part {
    /// All parts with their names, by index.
    const ALL: [(Part, &str); PARTS] = [
        (Part::Again, "again"),
        (Part::Read, "read"),
        (Part::Prepare, "prepare"),
        (Part::Announce, "announce"),
        (Part::Commit, "commit"),
        (Part::Sync, "sync"),
        (Part::Tell, "tell"),
    ];

    /// Parts before the commit.
    pub(crate) const BEFORE: [Part; 5] =
        [Part::Again, Part::Read, Part::Prepare, Part::Announce, Part::Commit];
    /// Parts after the commit.
    pub(crate) const AFTER: [Part; 2] = [Part::Sync, Part::Tell];

    fn index(self) -> usize {
        match self {
            Part::Again => 0,
            Part::Read => 1,
            Part::Prepare => 2,
            Part::Announce => 3,
            Part::Commit => 4,
            Part::Sync => 5,
            Part::Tell => 6,
        }
    }
}

/// Times of the parts of one transaction.
pub(crate) struct Laps {
    last: Cell<Nanos>,
    nanos: [Cell<u64>; PARTS],
}

impl Laps {
    /// Begins the first part.
    pub(crate) fn begin(now: Nanos) -> Laps {
        Laps { last: Cell::new(now), nanos: std::array::from_fn(|_| Cell::new(0)) }
    }

    /// Ends a part, and begins the next one.
    pub(crate) fn end(&self, part: Part, now: Nanos) {
        let nanos = &self.nanos[part.index()];
        nanos.set(nanos.get() + now.since(self.last.replace(now)));
    }

    /// Counts everything up to now as [`Part::Again`]: it was in vain.
    pub(crate) fn again(&self, now: Nanos) {
        let lost: u64 = self.nanos.iter().map(Cell::take).sum();
        self.nanos[Part::Again.index()].set(lost);
        self.end(Part::Again, now);
    }
}

/// Times of the transactions of one core: those that move directories, and others.
#[derive(Default)]
pub(crate) struct Transactions {
    moves: [Histogram; PARTS],
    others: [Histogram; PARTS],
}

impl Transactions {
    /// Records parts of a transaction.
    pub(crate) fn record(&self, moves: bool, parts: &[Part], laps: &Laps) {
        let all = if moves { &self.moves } else { &self.others };
        for part in parts {
            all[part.index()].record(laps.nanos[part.index()].get());
        }
    }
}

/// Distributions over all cores; empty ones are left out.
pub(crate) fn distributions(cores: &[&Transactions]) -> Vec<(String, Distribution)> {
    let mut found = Vec::new();
    for (kind, of) in [
        ("move", (|core| &core.moves) as fn(&Transactions) -> &[Histogram; PARTS]),
        ("other", |core| &core.others),
    ] {
        for (part, name) in Part::ALL {
            let mut total = Distribution::default();
            cores.iter().for_each(|core| of(core)[part.index()].add_to(&mut total));
            if total.buckets.iter().any(|count| *count > 0) {
                found.push((format!("transaction.{kind}.{name}"), total));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_vain_is_one_part_and_all_parts_add_up() {
        let laps = Laps::begin(Nanos(100));
        laps.end(Part::Read, Nanos(110));
        laps.end(Part::Prepare, Nanos(130));
        laps.again(Nanos(135));
        laps.end(Part::Read, Nanos(136));
        laps.again(Nanos(140));
        laps.end(Part::Read, Nanos(150));
        laps.end(Part::Prepare, Nanos(170));
        laps.end(Part::Commit, Nanos(175));
        let taken = |part: Part| laps.nanos[part.index()].get();
        assert_eq!(Part::BEFORE.map(taken), [40, 10, 20, 0, 5]);
        let core = Transactions::default();
        core.record(true, &Part::BEFORE, &laps);
        let found = distributions(&[&core]);
        let sums: Vec<_> = found.iter().map(|(name, of)| (name.as_str(), of.sum)).collect();
        assert_eq!(sums[..2], [("transaction.move.again", 40), ("transaction.move.read", 10)]);
        assert_eq!(sums.iter().map(|(_, sum)| sum).sum::<u64>(), 75);
        assert!(Part::ALL.iter().enumerate().all(|(at, (part, _))| part.index() == at));
    }
}
