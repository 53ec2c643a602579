//! The one name in a region that its programs do not see: that of the note by which other machines
//! find its lead.

use base::{EntryName, FsError, Ino};
use wire::DirRef;

/// Name of the note in a region's directory.
pub(crate) const NOTE: &[u8] = b".pando-region";

/// Whether this is the name of the note by which other machines find the region.
fn is_note(dir: &DirRef, name: &EntryName) -> bool {
    dir.ino == Ino::ROOT && name.as_bytes() == NOTE
}

/// Checks that programs see what has this name, if something has.
pub(crate) fn is_seen(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_note(dir, name) { Err(FsError::NotFound) } else { Ok(()) }
}

/// Checks that programs may give something this name.
pub(crate) fn is_free(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_note(dir, name) { Err(FsError::NotPermitted) } else { Ok(()) }
}
