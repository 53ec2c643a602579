//! `rmdir`: remove an empty directory, its access record and its content record, in every
//! partition.
//!
//! Cost: four locked reads and one batch.
//! POSIX: rmdir(2). ENOTEMPTY, ENOTDIR, EBUSY for the root of a session.

use base::{Access, EntryName, FsError, Ino};
use wire::Rmdir;

use crate::{
    error::Result,
    record::EntryRecord,
    trash,
    txn::{Dir, Txn, removal},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Rmdir) -> Result<Ino> {
    let mut parent = txn.dir_for_locked(&req.dir, &req.name)?;
    txn.dir_permits(&parent, Access::EXECUTE)?;
    let entry = txn.entry(&parent, &req.name)?.ok_or(FsError::NotFound)?;
    let owner = removal::owner(txn, &parent, &req.name, &entry)?;
    txn.removal_permits(&parent, owner)?;
    let access = match entry {
        EntryRecord::Dir(access) => access,
        EntryRecord::Node(_) | EntryRecord::Link(_) => return Err(FsError::NotDirectory.into()),
    };
    if trash::stays(txn, &parent, access.id) && !trash::is_hour(&req.name) {
        return Err(FsError::Busy.into());
    }
    let mut child = txn.child_locked(&access)?;
    let others = removal::others_empty(txn, &child)?;

    // Race: the child is locked until we commit, so nothing can be made in it after we saw it
    // empty.
    discard(txn, &parent, &req.name, &mut child, &others)?;
    parent.content.entries = parent.content.entries.saturating_sub(1);
    parent.content.subdirs = parent.content.subdirs.saturating_sub(1);
    txn.touch(&mut parent);
    txn.put_dir(&parent);
    txn.note_dir(&parent);
    Ok(access.ino)
}

/// Removes an empty directory with its entry, or moves it to the trash. The caller adjusts the
/// counts of the parent.
pub(crate) fn discard(
    txn: &mut Txn<'_>,
    parent: &Dir,
    name: &EntryName,
    child: &mut Dir,
    others: &[Dir],
) -> Result<()> {
    if trash::directory(txn, parent, name, child, others)? {
        return Ok(());
    }
    removal::remove(txn, child, others)?;
    trash::leave(txn, parent, name);
    txn.delete_entry(parent, name);
    Ok(())
}
