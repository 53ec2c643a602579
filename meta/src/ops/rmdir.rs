//! `rmdir`: remove an empty directory, its access record and its content record.
//!
//! Cost: four locked reads and one batch.
//! POSIX: rmdir(2). ENOTEMPTY, ENOTDIR, EBUSY for the root of a session.

use base::{Access, FsError, Ino};
use wire::Rmdir;

use crate::{
    error::Result,
    record::{EntryRecord, QuotaId, QuotaRecord, QuotaState, Usage},
    txn::{Dir, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Rmdir) -> Result<Ino> {
    let mut parent = txn.dir_locked(&req.dir)?;
    txn.dir_permits(&parent, Access::EXECUTE)?;
    let entry = txn.entry(&parent, &req.name)?.ok_or(FsError::NotFound)?;
    let owner = super::rename::owner(txn, &parent, &req.name, &entry)?;
    txn.removal_permits(&parent, owner)?;
    let access = match entry {
        EntryRecord::Dir(access) => access,
        EntryRecord::Node(_) | EntryRecord::Link(_) => return Err(FsError::NotDirectory.into()),
    };
    let child = txn.child_locked(&access)?;
    if child.content.entries > 0 {
        return Err(FsError::NotEmpty.into());
    }

    // Race: the child is locked until we commit, so nothing can be made in it after we saw it empty.
    remove(txn, &child)?;
    txn.delete_entry(&parent, &req.name);
    parent.content.entries = parent.content.entries.saturating_sub(1);
    parent.content.subdirs = parent.content.subdirs.saturating_sub(1);
    txn.touch(&mut parent);
    txn.put_dir(&parent);
    Ok(access.ino)
}

/// Removes an empty directory's content record, and what its birth place knows of it. The entry is the
/// caller's to remove.
pub(crate) fn remove(txn: &mut Txn<'_>, child: &Dir) -> Result<()> {
    if child.content.xattrs.is_spilled() {
        let key = txn.dir_xattrs_key(child);
        txn.delete(key);
    }
    super::rename::forget_move(txn, child)?;
    let quota = child.content.quota;
    txn.charge_freely(quota, Usage::of(1, 0).minus());
    if quota == QuotaId(child.content.ino)
        && let Some(seen) = txn.shared.quotas.get(quota)
    {
        txn.put_quota(quota, &QuotaRecord { state: QuotaState::Gone, ..seen.record });
    }
    let key = txn.content_key(child.content.home, child.id);
    txn.delete(key);
    Ok(())
}
