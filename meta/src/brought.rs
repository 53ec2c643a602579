//! State of the blocks that a write brings, which are stored before it is executed (`data`).

use base::FsError;

/// State of the blocks that a write brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Brought {
    /// Not stored yet.
    #[default]
    Unstored,
    /// Stored. A block that was there before may not be named: `unnamed` knows.
    Stored,
    /// One of them could not be stored.
    Failed(FsError),
    /// The session has too many blocks that no file names, for now.
    TooMany,
}
