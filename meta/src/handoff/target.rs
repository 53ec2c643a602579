//! The target's side: the messages that it takes, what it stores for them, and how that ends.
//!
//! Pure. The caller reads and writes the record of the partition, [`HandoffRecord`], within a group
//! of a core, as an operation does, and holds the lock of the directory. Received names are not all
//! stable before they are promised, so they count only while the server runs. A handoff that was
//! not promised ends with the run.
//!
//! Always true: a partition receives one handoff at a time, and none while anything is to be swept
//! there.

use bytes::Bytes;

use wire::Tally;

use super::{Change, HandoffRecord, Receiving};

/// A handoff that is being received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) what: Receiving,
    /// Number of the next message.
    next: u64,
    tally: Tally,
    /// The greatest key received, empty at first. `Some` only if nothing was stored in the target
    /// range at the beginning, and all records since have come in ascending order.
    came: Option<Bytes>,
}

/// How the target treats a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// Store it, and then answer with this.
    Store(Tally),
    /// The message came again and is stored already: answer with this tally.
    Again(Tally),
    /// The message is of no handoff that is known here.
    Refuse,
}

impl Target {
    /// A source wants to begin. `record` is the stored record; `received` is the handoff that this
    /// run is receiving; `empty` says that nothing is stored in the target range. Returns the
    /// handoff to receive, or `None` when the partition is not free for it.
    pub(crate) fn begin(
        what: Receiving,
        record: Option<&HandoffRecord>,
        received: Option<&Target>,
        empty: bool,
    ) -> Option<Target> {
        let came = empty.then(Bytes::new);
        match (record, received) {
            (None, _) => Some(Target { what, next: 0, tally: Tally::default(), came }),
            // The same source begins again: the answer was lost.
            (Some(HandoffRecord::Receiving(same)), Some(target)) if *same == what => {
                (target.next == 0).then(|| target.clone())
            }
            (Some(_), _) => None,
        }
    }

    /// The record that is stored for this handoff.
    pub(crate) fn record(&self) -> HandoffRecord {
        HandoffRecord::Receiving(self.what)
    }

    /// Whether it is known without a read that nothing is stored under any key of these changes.
    /// Then all of them are puts.
    pub(crate) fn are_new(&self, changes: &[Change]) -> bool {
        let Some(came) = &self.came else { return false };
        let mut last = came;
        changes.iter().all(|(key, value)| {
            let ascends = key > last;
            last = key;
            ascends && value.is_some()
        })
    }

    /// Takes a message of changes. `was` finds what is stored under a key, and `weigh` says what a
    /// record counts.
    pub(crate) fn put(
        &mut self,
        number: u64,
        changes: &[Change],
        was: impl Fn(&[u8]) -> Option<Bytes>,
        weigh: impl Fn(&[u8], &Bytes) -> Tally,
    ) -> Taking {
        if number < self.next {
            return Taking::Again(self.tally);
        }
        if number > self.next {
            return Taking::Refuse;
        }
        self.next += 1;
        let last = changes.last().map(|(key, _)| key.clone());
        self.came = if self.are_new(changes) { last.or(self.came.take()) } else { None };
        for (key, value) in changes {
            let of =
                |value: Option<&Bytes>| value.map_or(Tally::default(), |value| weigh(key, value));
            self.tally = self.tally.changed(of(was(key).as_ref()), of(value.as_ref()));
        }
        Taking::Store(self.tally)
    }
}

/// The record after a handoff whose transaction did not happen, or whose target stopped before it
/// had promised anything. `None` when the record stays as it is.
pub(crate) fn abandoned(record: &HandoffRecord) -> Option<HandoffRecord> {
    match record {
        HandoffRecord::Receiving(what) => Some(HandoffRecord::Sweeping(what.ino)),
        HandoffRecord::Given(_) | HandoffRecord::Sweeping(_) => None,
    }
}

/// The record after the master has learnt the layout that a source has made. `None` when the record
/// stays as it is.
pub(crate) fn told(record: &HandoffRecord) -> Option<HandoffRecord> {
    match record {
        HandoffRecord::Given(ino) => Some(HandoffRecord::Sweeping(*ino)),
        HandoffRecord::Receiving(_) | HandoffRecord::Sweeping(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use base::{Ino, Moving};
    use wire::TxnId;

    use super::*;

    fn puts(keys: &[&'static str]) -> Vec<Change> {
        keys.iter().map(|key| (Bytes::from_static(key.as_bytes()), Some(Bytes::new()))).collect()
    }

    fn begun(empty: bool) -> Target {
        let txn = TxnId { server: 1, run: 1, number: 1 };
        let what = Receiving { txn, ino: Ino(5), source: 0, moving: Moving::Range((0, 9)) };
        Target::begin(what, None, None, empty).unwrap()
    }

    fn takes(target: &mut Target, changes: &[Change]) {
        let one = |_: &[u8], _: &Bytes| Tally { entries: 1, subdirs: 0 };
        assert!(matches!(target.put(target.next, changes, |_| None, one), Taking::Store(_)));
    }

    #[test]
    fn what_comes_in_order_to_where_nothing_was_is_new() {
        let mut target = begun(true);
        assert!(target.are_new(&puts(&["b", "c"])) && target.are_new(&[]));
        assert!(!target.are_new(&puts(&["c", "b"])) && !target.are_new(&puts(&["b", "b"])));
        takes(&mut target, &puts(&["b", "c"]));
        assert!(target.are_new(&puts(&["d"])) && !target.are_new(&puts(&["c"])));
        takes(&mut target, &[]);
        assert!(!target.are_new(&[("d".into(), None)]), "nor is what is removed");
        takes(&mut target, &puts(&["a"]));
        assert!(!target.are_new(&puts(&["d"])), "from then on it may have come already");
        assert!(!begun(false).are_new(&puts(&["b"])));
    }
}
