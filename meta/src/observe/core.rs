//! The counts of one core.

use base::{FsError, Tagged as _};
use parking_lot::Mutex;
use wire::{Answer, Request};

use super::{
    Count, Histogram, KINDS, Nanos, Note, Observed, Stages, Verdict,
    parked::Waits,
    phases::Transactions,
    sketch::{Busy, Sampler},
    trace,
};

/// Counts of one kind of request.
#[derive(Default)]
pub(crate) struct KindCounts {
    pub(crate) outcomes: Outcomes,
    pub(crate) latency: Histogram,
    pub(crate) stages: [Count; Stages::NAMES.len()],
}

/// How requests of a kind ended.
pub(crate) struct Outcomes {
    /// Counts of verdicts that are no errno, in the order of [`Verdict::NAMES`].
    named: [Count; Verdict::NAMES.len()],
    /// Counts by errno, all of which are below [`ERRNOS`].
    errnos: [Count; ERRNOS],
}

const ERRNOS: usize = 128;

impl Default for Outcomes {
    fn default() -> Outcomes {
        let errnos = std::array::from_fn(|_| Count::default());
        Outcomes { named: Default::default(), errnos }
    }
}

impl Outcomes {
    fn record(&self, verdict: Verdict) {
        let count = match verdict {
            Verdict::Done => &self.named[0],
            Verdict::Retry => &self.named[1],
            Verdict::Halted => &self.named[2],
            Verdict::Refused => &self.named[3],
            Verdict::Repeated => &self.named[4],
            Verdict::Failed(error) => {
                &self.errnos[usize::try_from(error.errno()).unwrap_or(0) % ERRNOS]
            }
        };
        count.add(1);
    }

    /// Names and counts of verdicts: those that every kind can have, and each errno that occurred.
    pub(crate) fn list(all: &[&Outcomes]) -> Vec<(String, u64)> {
        let sum =
            |of: &dyn Fn(&Outcomes) -> u64| all.iter().map(|outcomes| of(outcomes)).sum::<u64>();
        let named = Verdict::NAMES.iter().enumerate();
        let named = named.map(|(at, name)| ((*name).to_owned(), sum(&|all| all.named[at].get())));
        let errnos = (0..=u8::MAX).take(ERRNOS).filter_map(|errno| {
            let count = sum(&|all| all.errnos[usize::from(errno)].get());
            let error = FsError::of_errno(errno).filter(|_| count > 0)?;
            Some((error.name().to_owned(), count))
        });
        named.chain(errnos).collect()
    }
}

/// The counts of one core.
pub(crate) struct CoreCounts {
    /// The core's number.
    index: usize,
    pub(crate) kinds: Box<[KindCounts]>,
    /// Number of requests in each group.
    pub(crate) group_requests: Histogram<1>,
    /// Number of bytes of each engine write.
    pub(crate) group_bytes: Histogram<1>,
    /// Durations of engine writes.
    pub(crate) writes: Histogram,
    /// Times that requests have waited for moving names, of those that have.
    pub(crate) handoff_waits: Waits,
    /// Phases of transactions over several servers that this core initiated.
    pub(crate) transactions: Transactions,
    /// Number of requests that have arrived and are not executed.
    pub(crate) queued: Count,
    pub(crate) connections: Count,
    pub(crate) received_bytes: Count,
    pub(crate) sent_bytes: Count,
    /// Nanosecond at which the requests in execution were taken up; 0 when there are none.
    pub(crate) busy_since: Count,
    sampler: Sampler,
    pub(crate) busy: Mutex<Busy>,
}

impl CoreCounts {
    pub(super) fn new(index: usize) -> CoreCounts {
        CoreCounts {
            index,
            kinds: (0..KINDS).map(|_| KindCounts::default()).collect(),
            group_requests: Histogram::default(),
            group_bytes: Histogram::default(),
            writes: Histogram::default(),
            handoff_waits: Waits::default(),
            transactions: Transactions::default(),
            queued: Count::default(),
            connections: Count::default(),
            received_bytes: Count::default(),
            sent_bytes: Count::default(),
            busy_since: Count::default(),
            sampler: Sampler::default(),
            busy: Mutex::default(),
        }
    }
}

/// Times of a group's progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Time when its last request was executed.
    pub(crate) executed: Nanos,
    /// Time when the group was in the engine; equal to `executed` when there was nothing to write.
    pub(crate) written: Nanos,
    /// Time when its answers left.
    pub(crate) answered: Nanos,
}

impl CoreCounts {
    /// Records the requests of a group, as their answers leave.
    pub(crate) fn answered(&self, observed: &Observed, notes: &[Note], at: Written) {
        let slow = observed.slow_nanos();
        let group = notes.len();
        let traced = trace::is_on().then(|| observed.now());
        if let Some(now) = traced {
            trace::group(self.index, notes, at, now);
        }
        for note in notes {
            if let Some(now) = traced {
                trace::request(self.index, note, at, "sync", now);
            }
            let stages = Stages {
                queue: note.begun.since(note.arrived) + at.executed.since(note.ended),
                execute: note.ended.since(note.begun),
                write: at.written.since(at.executed),
                sync: at.answered.since(at.written),
                wait: 0,
            };
            self.record(note, &stages, at.answered);
            if stages.total() >= slow {
                observed.slow.keep(note, stages, at.answered, group);
            }
        }
    }

    fn record(&self, note: &Note, stages: &Stages, now: Nanos) {
        let kind = &self.kinds[usize::from(note.kind) % KINDS];
        kind.outcomes.record(note.verdict);
        kind.latency.record(stages.total());
        for (count, nanos) in kind.stages.iter().zip(stages.values()) {
            if nanos > 0 {
                count.add(nanos);
            }
        }
        if self.sampler.takes() {
            self.busy.lock().add(note.session, note.subject, now);
        }
    }

    /// Records a request that waited beside the groups, as it is answered.
    pub(crate) fn waited(&self, observed: &Observed, waiting: Waiting, answer: &Answer) {
        let now = observed.now();
        let waited = now.since(waiting.note.ended);
        let is_sync = waiting.note.kind == Request::Sync.tag();
        let note = Note { verdict: Verdict::of(answer), ..waiting.note };
        let stages = Stages {
            queue: note.ended.since(note.arrived),
            sync: if is_sync { waited } else { 0 },
            wait: if is_sync { 0 } else { waited },
            ..Stages::default()
        };
        self.record(&note, &stages, now);
        if trace::is_on() {
            let begun = note.ended;
            let at = Written { executed: begun, written: begun, answered: now };
            trace::request(self.index, &note, at, if is_sync { "sync" } else { "wait" }, now);
        }
        if stages.total() >= observed.slow_nanos() {
            observed.slow.keep(&note, stages, now, 1);
        }
    }
}

/// A request that waits beside the groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    note: Note,
}

impl Waiting {
    /// Begins the wait of a request, which its note describes.
    pub(crate) fn of(note: Note) -> Waiting {
        Waiting { note }
    }
}
