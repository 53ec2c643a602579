//! Names on stable storage: a file that was synced is found after a power cut only when the
//! directory that names it was synced too.
//!
//! Engines, blocks and `cli` call it for what they have made or renamed.

use std::{fs::File, io, path::Path};

/// Makes the names in a directory stable.
///
/// # Errors
/// When it cannot be opened or synced.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the name of `path` stable.
///
/// # Errors
/// As [`sync_folder`].
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        Some(_) | None => sync_folder(Path::new(".")),
    }
}

/// Makes the name of `path` stable, and those of all directories above it.
///
/// # Errors
/// As [`sync_folder`].
pub fn sync_above(path: &Path) -> io::Result<()> {
    std::path::absolute(path)?.ancestors().skip(1).try_for_each(sync_folder)
}
