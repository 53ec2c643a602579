//! The names in a region's directory that its programs do not see: that of the note by which other
//! machines find its lead, and those by which the preloaded library opens files by number.

use base::{EntryName, FsError, Ino, preload::opened_number};
use wire::DirRef;

/// Name of the note in a region's directory.
pub(crate) const NOTE: &[u8] = b".pando-region";

fn is_hidden(dir: &DirRef, name: &EntryName) -> bool {
    dir.ino == Ino::ROOT && (name.as_bytes() == NOTE || opened_number(name.as_bytes()).is_some())
}

/// The number of an open file that this name stands for, which the library gives to the kernel.
pub(crate) fn opened(dir: &DirRef, name: &EntryName) -> Option<Ino> {
    opened_number(name.as_bytes()).filter(|_| dir.ino == Ino::ROOT)
}

/// Checks that programs see what has this name, if something has.
pub(crate) fn is_seen(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_hidden(dir, name) { Err(FsError::NotFound) } else { Ok(()) }
}

/// Checks that programs may give something this name.
pub(crate) fn is_free(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_hidden(dir, name) { Err(FsError::NotPermitted) } else { Ok(()) }
}
