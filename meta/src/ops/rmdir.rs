//! `rmdir`: remove an empty directory, its access record and its content record, in every
//! partition.
//!
//! Cost: four locked reads and one batch.
//! POSIX: rmdir(2). ENOTEMPTY, ENOTDIR, EBUSY for the root of a session.

use base::{Access, EntryName, FsError, Ino, Layout};
use wire::{Retry, Rmdir};

use crate::{
    error::{Fault, Result},
    record::{EntryRecord, Usage, key},
    trash,
    txn::{Dir, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Rmdir) -> Result<Ino> {
    let mut parent = txn.dir_for_locked(&req.dir, &req.name)?;
    txn.dir_permits(&parent, Access::EXECUTE)?;
    let entry = txn.entry(&parent, &req.name)?.ok_or(FsError::NotFound)?;
    let owner = super::rename::owner(txn, &parent, &req.name, &entry)?;
    txn.removal_permits(&parent, owner)?;
    let access = match entry {
        EntryRecord::Dir(access) => access,
        EntryRecord::Node(_) | EntryRecord::Link(_) => return Err(FsError::NotDirectory.into()),
    };
    if trash::stays(txn, &parent, access.id) {
        return Err(FsError::Busy.into());
    }
    let mut child = txn.child_locked(&access)?;
    let others = others_empty(txn, &child)?;

    // Race: the child is locked until we commit, so nothing can be made in it after we saw it
    // empty.
    discard(txn, &parent, &req.name, &mut child, &others)?;
    parent.content.entries = parent.content.entries.saturating_sub(1);
    parent.content.subdirs = parent.content.subdirs.saturating_sub(1);
    txn.touch(&mut parent);
    txn.put_dir(&parent);
    Ok(access.ino)
}

/// The shares of a directory besides its master. Refuses with `NotEmpty` if any share has an entry.
pub(crate) fn others_empty(txn: &Txn<'_>, child: &Dir) -> Result<Vec<Dir>> {
    if child.content.entries > 0 {
        return Err(not_empty(txn, child));
    }
    let others = txn.all_shares(child)?;
    // Names that the directory has given away may still be stored, and the next directory here may
    // have its id.
    if child.content.layout != Layout::Whole {
        let at = key::handoff(txn.shard_of_share(child), child.id, child.partition);
        if txn.get_bytes(&at)?.is_some() {
            return Err(Fault::Retry(Retry::Busy));
        }
    }
    if let Some(share) = others.iter().find(|share| share.content.entries > 0) {
        return Err(not_empty(txn, share));
    }
    Ok(others)
}

/// Refuses to remove a directory that has entries.
///
/// Race: the last name may have moved away, and the server of the share not know it yet. So the
/// answer stands only if the count is still the same when no transaction is about to change it.
fn not_empty(txn: &Txn<'_>, share: &Dir) -> Fault {
    txn.keep_counts(share);
    FsError::NotEmpty.into()
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
    remove(txn, child, others)?;
    trash::leave(txn, parent, name);
    txn.delete_entry(parent, name);
    Ok(())
}

/// Removes the content record of an empty directory, its other shares, and its note at its birth
/// place. The caller removes the entry.
pub(crate) fn remove(txn: &mut Txn<'_>, child: &Dir, others: &[Dir]) -> Result<()> {
    if child.content.xattrs.is_spilled() {
        let key = txn.dir_xattrs_key(child);
        txn.delete(key);
    }
    super::rename::forget_move(txn, child)?;
    let quota = child.content.quota;
    txn.charge_freely(quota, Usage::of(1, 0).minus());
    txn.end_root(&child.content);
    for share in others.iter().chain([child]) {
        let key = txn.share_key(share.content.home, share.id, share.partition);
        txn.delete(key);
    }
    Ok(())
}
