//! The answers that a session was given: those that the client may still ask for, and the slots of
//! the records in which they are stored.
//!
//! A group stores all its answers to one session in one record. Its slot is used again when the
//! record is written and the client has said that it needs none of the answers any more: a client
//! may give up a number before it is answered. Each record says, too, below which number the client
//! needed no answer. So a client that comes back after a restart and names the last answer that it
//! has had is known by it, also where the record of that answer has gone: whatever the client had by
//! then was written before.
//!
//! Always true: no two records with answers that may be asked for have the same slot, and no two
//! writes to one slot are under way.

use std::collections::{BTreeSet, VecDeque};

use base::{Seq, limits::REQUESTS_IN_FLIGHT_MAX};
use bytes::Bytes;

use crate::record::system::StoredAnswers;

/// A session has used up the numbers that it may.
#[derive(Debug, thiserror::Error)]
#[error("more requests in flight than a session may have")]
pub(crate) struct Spent;

/// State of a mutating request before it is executed.
pub(crate) enum Seen {
    /// The request is new: execute it.
    New,
    /// The request was executed, with this answer.
    Answered(Bytes),
    /// The request is being executed, or its client has had the answer: it is an echo of an older
    /// connection.
    Echo,
}

/// Answers to mutating requests that the client may still ask for.
pub(super) struct Answers {
    /// Number of the first slot: the lowest that the client has no answer to.
    first: u64,
    slots: VecDeque<Slot>,
    /// The numbers before the first, as far as a window back, that were answered here.
    had: Had,
}

#[derive(Clone, Default)]
pub(super) enum Slot {
    #[default]
    Unseen,
    Executing,
    Answered(Bytes),
}

/// A bit for each number of a window, by its rest.
struct Had([u64; HAD_WORDS]);

#[expect(clippy::cast_possible_truncation, reason = "it is 64")]
const HAD_WORDS: usize = REQUESTS_IN_FLIGHT_MAX as usize / 64;

const _: () = assert!(REQUESTS_IN_FLIGHT_MAX.is_multiple_of(64), "words have no rest");

impl Had {
    fn place(seq: u64) -> (usize, u64) {
        let bit = seq % REQUESTS_IN_FLIGHT_MAX;
        (usize::try_from(bit / 64).expect("it is in the window"), 1 << (bit % 64))
    }

    fn set(&mut self, seq: u64, had: bool) {
        let (word, bit) = Had::place(seq);
        if had {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    fn has(&self, seq: u64) -> bool {
        let (word, bit) = Had::place(seq);
        self.0[word] & bit != 0
    }
}

impl Answers {
    pub(super) fn new() -> Answers {
        Answers { first: 1, slots: VecDeque::new(), had: Had([u64::MAX; HAD_WORDS]) }
    }

    /// The lowest number that the client has no answer to, as far as it has said.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn forget_before(&mut self, unanswered: u64) {
        while self.first < unanswered
            && let Some(slot) = self.slots.pop_front()
        {
            self.had.set(self.first, matches!(slot, Slot::Answered(_)));
            self.first += 1;
        }
        let in_window = unanswered.saturating_sub(REQUESTS_IN_FLIGHT_MAX);
        for unseen in self.first.max(in_window)..unanswered {
            self.had.set(unseen, false);
        }
        self.first = self.first.max(unanswered);
    }

    pub(super) fn begin(&mut self, seq: u64) -> Result<Seen, Spent> {
        if seq < self.first {
            return Ok(Seen::Echo);
        }
        let slot = self.slot(seq).ok_or(Spent)?;
        Ok(match slot {
            Slot::Unseen => {
                *slot = Slot::Executing;
                Seen::New
            }
            Slot::Executing => Seen::Echo,
            Slot::Answered(answer) => Seen::Answered(answer.clone()),
        })
    }

    /// Notes how it stands with `seq`, unless the client has had its answer.
    pub(super) fn set(&mut self, seq: u64, state: Slot) {
        if let Some(slot) = self.slot(seq) {
            *slot = state;
        }
    }

    /// Whether `seq` was answered here, as far as can be told: what the client needed no more when
    /// the process started, and what is a window behind, was. 0 stands for none.
    pub(super) fn knows(&self, seq: u64) -> bool {
        if seq == 0 {
            return true;
        }
        let Some(ahead) = seq.checked_sub(self.first) else {
            let is_ahead = self.first - seq > REQUESTS_IN_FLIGHT_MAX;
            return is_ahead || self.had.has(seq);
        };
        let slot = usize::try_from(ahead).ok().and_then(|index| self.slots.get(index));
        matches!(slot, Some(Slot::Answered(_)))
    }

    /// Takes in answers that were stored before a restart.
    pub(super) fn restore(&mut self, stored: Vec<(u16, StoredAnswers)>) {
        self.first = settled_by(&stored).0;
        for (seq, answer) in stored.into_iter().flat_map(|(_, stored)| stored.answers) {
            self.set(seq.0, Slot::Answered(answer));
        }
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let index = seq.checked_sub(self.first).filter(|index| *index < REQUESTS_IN_FLIGHT_MAX)?;
        let index = usize::try_from(index).ok()?;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::Unseen);
        }
        self.slots.get_mut(index)
    }
}

/// Below this number the client needed no answer when these were stored.
pub(crate) fn settled_by(stored: &[(u16, StoredAnswers)]) -> Seq {
    let newest = stored.iter().map(|(_, stored)| stored.newest().0).max().unwrap_or_default();
    // The client has asked for the newest, so it had all that are not in one window with it.
    let before = newest.saturating_sub(REQUESTS_IN_FLIGHT_MAX - 1).max(1);
    Seq(stored.iter().map(|(_, stored)| stored.settled.0).fold(before, u64::max))
}

/// A record that is about to be written, or may be asked for.
struct Kept {
    slot: u16,
    /// The highest number that it answers.
    last: u64,
    is_written: bool,
}

/// The slots of a session's records.
#[derive(Default)]
pub(super) struct Records {
    kept: Vec<Kept>,
    /// Slots that can be used again.
    free: Vec<u16>,
    /// The first slot that was never used.
    unused: u32,
    /// The lowest number without an answer, when it was looked last for slots that are free.
    first: u64,
}

impl Records {
    /// The slots of records that were stored before a restart.
    pub(super) fn of(stored: &[(u16, StoredAnswers)]) -> Records {
        let kept = stored.iter().map(|(slot, stored)| {
            let last = stored.newest().0;
            Kept { slot: *slot, last, is_written: true }
        });
        let kept = kept.collect();
        let taken: BTreeSet<_> = stored.iter().map(|(slot, _)| *slot).collect();
        let unused = taken.last().map_or(0, |last| u32::from(*last) + 1);
        let slots = (0..unused).filter_map(|slot| u16::try_from(slot).ok());
        let free = slots.filter(|slot| !taken.contains(slot)).collect();
        Records { kept, free, unused, first: 0 }
    }

    /// The slot for a record with answers up to `last`. The client needs none before `first`.
    pub(super) fn take(&mut self, last: Seq, first: u64) -> u16 {
        // A client with one slow request has thousands of records and gives none back.
        if std::mem::replace(&mut self.first, first) < first {
            let free = &mut self.free;
            self.kept.retain(|kept| {
                let stays = kept.last >= first || !kept.is_written;
                if !stays {
                    free.push(kept.slot);
                }
                stays
            });
        }
        let slot = self.free.pop().unwrap_or_else(|| match u16::try_from(self.unused) {
            Ok(slot) => {
                self.unused += 1;
                slot
            }
            // Nearly each record answers a number of the window, so there are fewer than slots.
            Err(_) => self.kept.remove(0).slot,
        });
        self.kept.push(Kept { slot, last: last.0, is_written: false });
        slot
    }

    /// Notes that the record with this slot is written.
    pub(super) fn written(&mut self, slot: u16) {
        if let Some(kept) = self.kept.iter_mut().rev().find(|kept| kept.slot == slot) {
            kept.is_written = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(answers: &mut Answers, seq: u64, unanswered: u64) -> Seen {
        answers.forget_before(unanswered);
        answers.begin(seq).unwrap()
    }

    fn answer(answers: &mut Answers, seq: u64, answer: &'static str) {
        answers.set(seq, Slot::Answered(Bytes::from_static(answer.as_bytes())));
    }

    fn stored(slot: u16, settled: u64, seqs: &[u64]) -> (u16, StoredAnswers) {
        let answers = seqs.iter().map(|seq| (Seq(*seq), Bytes::from(seq.to_string())));
        (slot, StoredAnswers { settled: Seq(settled), answers: answers.collect() })
    }

    #[test]
    fn a_number_that_is_asked_again_gets_its_answer() {
        let answers = &mut Answers::new();
        assert!(matches!(begin(answers, 1, 1), Seen::New));
        assert!(matches!(begin(answers, 1, 1), Seen::Echo));
        answer(answers, 1, "one");
        assert!(matches!(begin(answers, 1, 1), Seen::Answered(answer) if answer == "one"));
        assert!(matches!(begin(answers, 2, 2), Seen::New));
        assert!(matches!(begin(answers, 1, 1), Seen::Echo));
    }

    #[test]
    fn a_session_keeps_to_its_window() {
        let answers = &mut Answers::new();
        let beyond = REQUESTS_IN_FLIGHT_MAX + 1;
        assert!(matches!(answers.begin(beyond), Err(Spent)));
        assert!(matches!(begin(answers, beyond, 2), Seen::New));
    }

    #[test]
    fn answers_survive_a_restart() {
        let answers = &mut Answers::new();
        answers.restore(vec![stored(4, 1, &[9, 7]), stored(2, 1, &[10])]);
        assert!(matches!(begin(answers, 9, 7), Seen::Answered(answer) if answer == "9"));
        assert!(matches!(begin(answers, 8, 7), Seen::New));
    }

    #[test]
    fn an_answer_is_known_as_long_as_a_client_may_name_it() {
        let answers = &mut Answers::new();
        assert!(answers.knows(0) && !answers.knows(1));
        for seq in [1, 3] {
            assert!(matches!(begin(answers, seq, 1), Seen::New));
            assert!(!answers.knows(seq), "it is being executed");
            answer(answers, seq, "done");
            assert!(answers.knows(seq));
        }
        // 2 and 4 had no success.
        assert!(matches!(begin(answers, 5, 5), Seen::New));
        assert_eq!([1, 2, 3, 4].map(|seq| answers.knows(seq)), [true, false, true, false]);
        let late = REQUESTS_IN_FLIGHT_MAX + 4;
        begin(answers, late, late);
        assert_eq!([2, 3, 4].map(|seq| answers.knows(seq)), [true, true, false], "2 is long ago");
        // A number that nobody can have had.
        begin(answers, u64::MAX, u64::MAX);
        assert!(!answers.knows(u64::MAX - 1));
    }

    #[test]
    fn after_a_restart_what_is_not_stored_is_not_known() {
        let answers = &mut Answers::new();
        let newest = 3 * REQUESTS_IN_FLIGHT_MAX;
        answers.restore(vec![stored(0, 1, &[newest])]);
        assert!(answers.knows(newest) && !answers.knows(newest - 1) && !answers.knows(newest + 1));
        assert!(answers.knows(newest - REQUESTS_IN_FLIGHT_MAX), "it had that before it asked");
        begin(answers, newest + 2, newest + 2);
        assert!(answers.knows(newest) && !answers.knows(newest - 1) && !answers.knows(newest + 1));
    }

    #[test]
    fn after_a_restart_what_was_settled_is_known() {
        let answers = &mut Answers::new();
        // The slot of 3 was used for 9, as nobody needed 3 any more.
        answers.restore(vec![stored(0, 5, &[9]), stored(1, 4, &[6])]);
        assert_eq!(
            [3, 4, 5, 6, 8, 9].map(|seq| answers.knows(seq)),
            [true, true, false, true, false, true]
        );
        assert!(matches!(begin(answers, 4, 1), Seen::Echo), "the client has had it");
    }

    fn take(records: &mut Records, last: u64, first: u64) -> u16 {
        let slot = records.take(Seq(last), first);
        records.written(slot);
        slot
    }

    #[test]
    fn a_slot_is_free_when_nobody_needs_its_answers() {
        let records = &mut Records::default();
        assert_eq!([1, 2, 3].map(|seq| take(records, seq, 1)), [0, 1, 2]);
        assert_eq!(take(records, 4, 2), 0, "that of 1");
        assert_eq!(take(records, 5, 2), 3);
        assert_eq!(take(records, 6, 4), 2, "those of 2 and 3");
        assert_eq!(take(records, 7, 4), 1);
        assert_eq!(take(records, 8, 4), 4);
    }

    #[test]
    fn a_record_that_is_not_written_keeps_its_slot() {
        let records = &mut Records::default();
        // Another core is about to write the answer to 7, which the client has given up.
        let of_seven = records.take(Seq(7), 5);
        assert_ne!(take(records, 8, 8), of_seven);
        assert_ne!(take(records, 9, 9), of_seven);
        records.written(of_seven);
        let freed = [take(records, 10, 10), take(records, 11, 10), take(records, 12, 10)];
        assert!(freed.contains(&of_seven), "{freed:?}");
    }

    #[test]
    fn a_client_that_goes_on_needs_as_many_records_as_it_has_under_way() {
        let records = &mut Records::default();
        for seq in 1..10_000_u64 {
            assert!(take(records, seq, seq.saturating_sub(8).max(1)) < 10);
        }
    }

    #[test]
    fn records_of_before_a_restart_keep_their_slots() {
        let stored = [stored(1, 1, &[7, 9]), stored(3, 1, &[8])];
        let records = &mut Records::of(&stored);
        let slots = [11, 12, 13].map(|seq| take(records, seq, 7));
        assert_eq!(slots, [2, 0, 4], "those of records are taken");
        assert_eq!(take(records, 14, 9), 3, "that of 8 alone");
        assert_eq!(take(records, 15, 10), 1);
    }

    #[test]
    fn where_all_slots_are_taken_the_oldest_goes() {
        let last = u16::MAX;
        let records = &mut Records::of(&[stored(last, 1, &[7])]);
        for seq in 8..8 + u64::from(last) {
            assert_ne!(take(records, seq, 1), last);
        }
        assert_eq!(take(records, 1 << 20, 1), last, "7 is the oldest");
        // The slot has one owner: when 8 to 99 are free, the newest record still has its own.
        assert_ne!(take(records, 1 << 21, 100), last);
    }
}
