//! The note of a request that was executed: its subject, how it ended, and how its time was spent.
//!
//! The counts of `observe` are made of these values, which count nothing themselves.

use base::{DirId, FsError, SessionId};
use wire::Answer;

/// Bound on the tags of requests in the protocol, which tell the kinds apart.
pub(crate) const KINDS: usize = 128;

/// Nanoseconds since the server started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    /// Nanoseconds after `earlier`; 0 when `self` is not later.
    pub(crate) fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    /// The request was done.
    #[default]
    Done,
    /// The request failed with the file system's own answer, an errno.
    Failed(FsError),
    /// The request must be asked again.
    Retry,
    /// The server has stopped serving.
    Halted,
    /// The request is not allowed.
    Refused,
    /// The request was done before, and got its stored answer.
    Repeated,
}

impl Verdict {
    /// Names of the verdicts that are no errno, by index.
    pub(crate) const NAMES: [&str; 5] = ["done", "retry", "halted", "refused", "repeated"];

    /// The verdict of an answer.
    pub(crate) fn of(answer: &Answer) -> Verdict {
        match answer {
            Answer::Done(_) | Answer::Noted(_) | Answer::Granted(_) => Verdict::Done,
            Answer::Failed(error) => Verdict::Failed(*error),
            Answer::Retry(_) => Verdict::Retry,
            Answer::Halted => Verdict::Halted,
            Answer::Refused(_) => Verdict::Refused,
        }
    }

    /// Name of the verdict: one of [`Verdict::NAMES`], or an errno's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Failed(error) => error.name(),
            Verdict::Done => Verdict::NAMES[0],
            Verdict::Retry => Verdict::NAMES[1],
            Verdict::Halted => Verdict::NAMES[2],
            Verdict::Refused => Verdict::NAMES[3],
            Verdict::Repeated => Verdict::NAMES[4],
        }
    }
}

/// How the time of an operation was spent, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    /// Waiting for other requests: those before it, and those of its group after it.
    pub(crate) queue: u64,
    /// Execution, waits for locks of other cores included.
    pub(crate) execute: u64,
    /// Writing its group to the engine.
    pub(crate) write: u64,
    /// Waiting for stable storage.
    pub(crate) sync: u64,
    /// Waiting for something else beside the groups: blocks, a lock.
    pub(crate) wait: u64,
}

impl Stages {
    /// Names in the order of [`Stages::values`].
    pub(crate) const NAMES: [&str; 5] = ["queue", "execute", "write", "sync", "wait"];

    pub(crate) fn values(&self) -> [u64; 5] {
        [self.queue, self.execute, self.write, self.sync, self.wait]
    }

    pub(crate) fn total(&self) -> u64 {
        self.values().iter().sum()
    }
}

/// The directory that an operation is about: its id and its home.
pub(crate) type Subject = (DirId, DirId);

/// A request that was executed, until its answer leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    pub(crate) kind: u8,
    pub(crate) verdict: Verdict,
    pub(crate) session: SessionId,
    /// The client's number for the request, on its connection.
    pub(crate) call: u64,
    pub(crate) subject: Option<Subject>,
    pub(crate) arrived: Nanos,
    pub(crate) begun: Nanos,
    pub(crate) ended: Nanos,
}
