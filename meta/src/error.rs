//! The ways in which an operation can fail, or must wait.

pub(crate) use base::error::describe;
use base::{DecodeError, FsError};
use wire::{Answer, Retry};

use crate::{
    problem::Problem,
    server::Shared,
    session::{Spent, Unfit},
    wait::{Wait, WaitNow},
};

/// The result of an operation's step.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// The reason why an operation did not succeed. None of its effects are kept.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file system's own answer; the application sees its errno.
    Answer(FsError),
    /// Ask again, where and when the reason says.
    Retry(Retry),
    /// The request itself is not allowed; the text says why.
    Refused(String),
    /// Something is in the way: run the operation again when the wait is over.
    Wait(Wait),
    /// The operation needs records of other servers: `transact` reads them and runs it from then
    /// on.
    Remote,
    /// This server can no longer vouch for its data and stops serving.
    Halt(Problem),
}

impl Fault {
    /// The answer that the fault becomes. An operation that waits is asked for again.
    pub(crate) fn answer(self, shared: &Shared) -> Answer {
        match self {
            Fault::Answer(error) => Answer::Failed(error),
            Fault::Retry(retry) => Answer::Retry(retry),
            Fault::Refused(reason) => Answer::Refused(reason),
            Fault::Wait(_) | Fault::Remote => Answer::Retry(Retry::Busy),
            Fault::Halt(reason) => {
                shared.halt(reason);
                Answer::Halted
            }
        }
    }
}

impl From<FsError> for Fault {
    fn from(error: FsError) -> Fault {
        Fault::Answer(error)
    }
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Fault {
        match error {
            // A block of the store cannot be read: this file is broken, everything else works.
            store::Error::Corrupt(reason) => {
                tracing::error!(reason, "the store is damaged; run `pando fsck`");
                Fault::Answer(FsError::Io)
            }
            error @ (store::Error::Io(_)
            | store::Error::Full(_)
            | store::Error::InUse(_)
            | store::Error::Version { .. }
            | store::Error::Unordered) => Fault::Halt(Problem::of(&error)),
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Fault {
        tracing::error!(%error, "a record is damaged; run `pando fsck`");
        Fault::Answer(FsError::Io)
    }
}

impl<W: WaitNow + 'static> From<W> for Fault {
    fn from(wait: W) -> Fault {
        Fault::Wait(Wait::Now(Box::new(wait)))
    }
}

impl From<Unfit> for Fault {
    fn from(unfit: Unfit) -> Fault {
        match unfit {
            Unfit::Unknown => Fault::Retry(Retry::NoSession),
            Unfit::Ended(error) => Fault::Refused(error.to_string()),
            Unfit::Forbidden(error) => Fault::Answer(error),
        }
    }
}

impl From<Spent> for Fault {
    fn from(spent: Spent) -> Fault {
        Fault::Refused(spent.to_string())
    }
}
