//! `unlink`: remove a name that is no directory's.
//!
//! A file that is open somewhere lives on, without a name, until it is closed everywhere. Where
//! there is a trash, the last name of a file moves there.
//!
//! Cost: two locked reads and one batch; one read more for a file with several names, and where
//! cores share the locks (the entry once more when its inode is locked).
//! POSIX: unlink(2). EISDIR for a directory, as Linux has it.

use base::{Access, Attr, FsError};
use wire::Unlink;

use crate::{
    error::Result,
    record::EntryRecord,
    trash,
    txn::{Dir, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Unlink) -> Result<Attr> {
    let mut dir = txn.dir_for_locked(&req.dir, &req.name)?;
    txn.dir_permits(&dir, Access::EXECUTE)?;
    let entry = txn.entry(&dir, &req.name)?.ok_or(FsError::NotFound)?;
    let attr = remove(txn, &dir, &req.name, &entry)?;
    dir.content.entries = dir.content.entries.saturating_sub(1);
    txn.touch(&mut dir);
    txn.put_dir(&dir);
    txn.note_dir(&dir);
    Ok(attr)
}

/// Removes a name and its link to the inode. The caller adjusts the directory's count and times.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &base::EntryName,
    entry: &EntryRecord,
) -> Result<Attr> {
    if let EntryRecord::Dir(access) = entry {
        txn.removal_permits(dir, access.uid)?;
        return Err(FsError::IsDirectory.into());
    }
    let mut located = txn.entry_inode_locked(dir, name, entry)?;
    txn.removal_permits(dir, located.inode.uid)?;
    if located.inode.nlink == 1 && trash::file(txn, dir, name, &mut located)? {
        return Ok(located.inode.attr());
    }
    trash::file_leaves(txn, dir, name, &mut located)?;
    txn.delete_entry(dir, name);
    Ok(txn.drop_name(located)?.attr())
}
