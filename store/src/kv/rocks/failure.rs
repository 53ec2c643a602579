//! RocksDB's errors, which are texts, as ours.

use std::{io, path::Path};

use rocksdb::ErrorKind;

use crate::Error;

/// An error of opening the database at `path`.
pub(super) fn of_opening(error: rocksdb::Error, path: &Path) -> Error {
    let text = error.as_ref();
    if text.contains("While lock file") || text.contains("lock hold by current process") {
        return Error::InUse(path.to_owned());
    }
    of_using(error)
}

/// An error of anything else.
pub(super) fn of_using(error: rocksdb::Error) -> Error {
    let text = error.as_ref();
    if text.contains("No space left on device") || text.contains("Disk quota exceeded") {
        return Error::Full(io::Error::new(io::ErrorKind::StorageFull, error));
    }
    if error.kind() == ErrorKind::Corruption {
        return Error::Corrupt(text.to_owned());
    }
    Error::Io(io::Error::other(error))
}
