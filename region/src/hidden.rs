//! The names in a region's directory that its programs do not see: that of the note by which other
//! machines find its lead, and those by which the preloaded library opens files by number.

use base::{
    EntryName, FsError, Ino,
    preload::{OPEN_PREFIX, opened_number},
};
use wire::DirRef;

/// Name of the note in a region's directory.
pub(crate) const NOTE: &[u8] = b".pando-region";

fn is_hidden(dir: &DirRef, name: &EntryName) -> bool {
    let name = name.as_bytes();
    dir.ino == Ino::ROOT && (name == NOTE || name.starts_with(OPEN_PREFIX))
}

/// The number of an open file that this name stands for, for whoever has the token.
pub(crate) fn opened(token: Option<&[u8]>, dir: &DirRef, name: &EntryName) -> Option<Ino> {
    let (told, ino) = opened_number(name.as_bytes()).filter(|_| dir.ino == Ino::ROOT)?;
    (Some(told) == token).then_some(ino)
}

/// Checks that programs see what has this name, if something has.
pub(crate) fn is_seen(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_hidden(dir, name) { Err(FsError::NotFound) } else { Ok(()) }
}

/// Checks that programs may give something this name.
pub(crate) fn is_free(dir: &DirRef, name: &EntryName) -> Result<(), FsError> {
    if is_hidden(dir, name) { Err(FsError::NotPermitted) } else { Ok(()) }
}
