//! Errors of journals, each with its remedy.

use backup::in_short;

/// Why the journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed, or is away. Ask again.
    #[error("the journal's store failed: {}", in_short(.0))]
    Store(object_store::Error),
    /// The store did not answer in time. Ask again.
    #[error("the journal's store did not answer within {} ms", .0.as_millis())]
    Slow(std::time::Duration),
    /// The place of the journal lacks the last segment, as a directory that is not mounted. Ask again.
    #[error("the journal's place does not have segment {0}: is it mounted?")]
    NotMounted(u64),
    /// The directory of the journal is not there. Ask again.
    #[error(transparent)]
    Away(backup::Error),
    /// A manifest of a base could not be read.
    #[error("a base of the journal cannot be read")]
    Base(#[source] backup::Error),
    /// A segment in the middle of the chain is missing.
    #[error("segment {0} of the journal is missing, and a later one is there")]
    Missing(u64),
    /// A segment was changed, cut off, or put under another name.
    #[error("segment {0} of the journal is altered or damaged: its seal does not fit")]
    Altered(u64),
    /// A segment was sealed with another key.
    #[error("segment {number} was sealed with the key {found}, and this is key {given}")]
    OtherKey {
        /// Number of the segment.
        number: u64,
        /// Id of the key that sealed the segment.
        found: String,
        /// Id of the key in use.
        given: String,
    },
    /// A segment is sealed as it should be, and its bytes are not those of a segment.
    #[error("segment {number} of the journal cannot be read: {reason}")]
    Malformed {
        /// Number of the segment.
        number: u64,
        /// The fault.
        reason: String,
    },
    /// A segment belongs to another file system, history or member, or has another number.
    #[error("segment {number} of the journal is foreign: {what} is not the same")]
    Foreign {
        /// Number of the segment.
        number: u64,
        /// The field that differs.
        what: &'static str,
    },
    /// A segment does not follow the one before (J2): the store is broken. Halt.
    #[error("the journal is broken at segment {number}: {fault}")]
    Broken {
        /// Number of the segment that does not fit.
        number: u64,
        /// The fault.
        fault: Fault,
    },
    /// Another process owns the journal: an equal or newer generation has written segment `number`.
    /// Halt, and tell nothing of what was not known to be stored.
    #[error(
        "another server owns the journal: segment {number} is of generation {generation}, run {run}"
    )]
    Fenced {
        /// Number of the foreign segment.
        number: u64,
        /// Generation of its writer.
        generation: u64,
        /// Run of its writer.
        run: u64,
    },
    /// The journal goes on: its owner lives, and is not to be replaced. Nothing was put.
    #[error("the journal goes on at segment {number}: its server still serves")]
    GoesOn {
        /// Number of the segment that was found.
        number: u64,
    },
    /// The journal does not reach back to what the caller has, or has been collected under it.
    /// Begin with a newer base.
    #[error(
        "segment {number} is beyond what is here: position {position}; start from a newer base"
    )]
    NeedsBase {
        /// Number of the segment at which this was found.
        number: u64,
        /// Last sequence number that the caller has.
        position: u64,
    },
    /// The caller has changes that were never in the journal, and a later generation went on
    /// without them. A base: choose another one. The old machine: cut the log after `last`.
    #[error("generation {generation} went on from position {last}: later changes are not valid")]
    Forked {
        /// Number of the fence.
        number: u64,
        /// The later generation.
        generation: u64,
        /// Last sequence number before the fence.
        last: u64,
    },
    /// The journal ends before a position that was stable: this is the wrong place, or a copy.
    #[error("the journal ends at {last}, and {stable} was stable: it is the wrong store or a copy")]
    Behind {
        /// Last sequence number of the journal.
        last: u64,
        /// Position that the roster has.
        stable: u64,
    },
    /// Records do not follow what the journal has.
    #[error("record {sequence} does not follow position {last} of the journal")]
    Gap {
        /// First sequence number of the record.
        sequence: u64,
        /// Last sequence number of the journal.
        last: u64,
    },
    /// Records of one call are longer than a segment.
    #[error("records of {0} bytes are longer than a segment")]
    TooLong(usize),
    /// The caller's data could not be read or written.
    #[error(transparent)]
    Data(Failure),
    /// The caller's data lack what was stable, and the journal has not got it any more.
    #[error(
        "the metadata end at change {position}, and {last} was stable: the disk has lost some. \
         `pando journal recover` makes a directory that has it"
    )]
    Lost {
        /// Last sequence number of the data.
        position: u64,
        /// Last sequence number of the journal.
        last: u64,
    },
    /// The store does not keep conditions on puts (J4).
    #[error("the store at {place} lets two writers win: it must not hold a journal ({reason})")]
    Untrusted {
        /// The place.
        place: String,
        /// The observation.
        reason: String,
    },
}

/// How a segment does not follow the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The number is not the next one.
    #[error("number {0} was expected")]
    Number(u64),
    /// The segment names another predecessor.
    #[error("it follows another segment than the one before")]
    Predecessor,
    /// The generation falls.
    #[error("its generation is {found} after {before}")]
    Generation {
        /// Generation of the segment.
        found: u64,
        /// Generation of the one before.
        before: u64,
    },
    /// One generation has two runs.
    #[error("its generation {0} had another run")]
    Run(u64),
    /// A generation begins with records.
    #[error("its generation {0} begins without a fence")]
    Fence(u64),
    /// Sequence numbers are missing or given twice.
    #[error("it begins at {found} after {before}, and no base lies between")]
    Sequence {
        /// First sequence number of the segment.
        found: u64,
        /// Last sequence number of the one before.
        before: u64,
    },
}

/// Why the data of who takes a journal over, or follows it, could not be read or written.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Error {
        Error::Store(error)
    }
}

impl From<backup::Error> for Error {
    fn from(error: backup::Error) -> Error {
        match error {
            backup::Error::Store(error) => Error::Store(error),
            error @ backup::Error::NoDirectory(_) => Error::Away(error),
            error => Error::Base(error),
        }
    }
}

impl Error {
    /// Whether the same call may succeed later, as the store may answer then.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Store(_) | Error::Slow(_) | Error::NotMounted(_) | Error::Away(_))
    }
}
