//! `link`: give an existing file one more name.
//!
//! The inode leaves its entry for its slot on the shard of birth, and both names point there.
//!
//! Cost: three locked reads, one more for a file with several names, and one batch of up to five
//! puts and the stored answer; for a first name the note that it has none is read and deleted as
//! well. A session that must prove its walks, and would be refused, costs one read more at the
//! server where the file was born: whether it has the file open.
//! POSIX: link(2). EEXIST when the name is taken, EPERM when the target is a directory, EMLINK,
//! ENOENT when it has no name any more, or none but in the trash and was not found there, EDQUOT
//! when its first name is below a quota that is full. ESTALE when the session's token is for a
//! subtree and the file, which it has open, is not under the name that it gives: the file may have
//! left the subtree.

use base::{Access, FsError, Ino, limits::LINKS_MAX};
use wire::{Entry, Link, NodeRef};

use crate::{
    error::Result,
    record::{EntryRecord, Reclaim, ReclaimKind, key},
    trash,
    txn::{Dir, Place, Txn, show_inode},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Link) -> Result<Entry> {
    txn.follow();
    let file = match &req.target {
        NodeRef::File(file) => file,
        NodeRef::Dir(target) => {
            txn.master(target)?;
            let dir = txn.dir_for_locked(&req.dir, &req.name)?;
            vacant(txn, &dir, req)?;
            return Err(FsError::NotPermitted.into());
        }
    };
    // The old name becomes a pointer: its directory must stay as it is meanwhile.
    txn.lock(crate::lock::dir_lock(file.dir.id))?;
    let mut target = txn.file_locked(file)?;
    if let Place::Entry(at, _) = &target.place
        && at.dir != file.dir.id
    {
        // The file was found under another name than the given one.
        txn.lock(crate::lock::dir_lock(at.dir))?;
        target = txn.file_locked(file)?;
    }
    let mut dir = txn.dir_for_locked(&req.dir, &req.name)?;
    vacant(txn, &dir, req)?;
    // Race: the file was found by its number, and its last name was removed since its path was
    // walked.
    if trash::has_all(txn, &target.inode, file)? {
        return Err(FsError::NotFound.into());
    }
    if target.inode.nlink > 0 {
        txn.has_name_within(file)?;
    }
    // The old name may not be lost with the new one.
    txn.settle_early_mkdir(&dir)?;
    if target.inode.nlink == 0 {
        first_name(txn, target.inode.ino)?;
    }
    // A walk that counts may have been here already, and may never come where the other names are.
    let (from, to) = (target.inode.quota, dir.content.quota);
    if target.inode.nlink == 0 || txn.shared.quotas.is_counted_from(from, to) {
        txn.count_for(&mut target.inode, to)?;
    }
    if target.inode.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }

    let ino = target.inode.ino;
    if let Place::Entry(at, shard) = target.place.clone() {
        txn.move_inode(&mut target, Place::Slot)?;
        let key = txn.key_on(shard, at.dir, &at.name, key::Part::Main);
        txn.put(key, &EntryRecord::Link(ino));
    }
    target.inode.nlink += 1;
    target.inode.times.ctime = txn.now;
    txn.put_inode(&target);
    txn.put_entry(&dir, &req.name, &EntryRecord::Link(ino));
    dir.content.entries += 1;
    txn.touch(&mut dir);
    txn.put_dir(&dir);
    txn.note_dir(&dir);
    Ok(show_inode(&target.inode))
}

/// Takes away the note of a file that was made without a name: it may get one, and counts for
/// quotas where that is. A file that has lost its last name may not, as in Linux.
fn first_name(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    let note = key::reclaim(ino);
    match txn.get::<Reclaim>(&note)?.map(|reclaim| reclaim.kind) {
        Some(ReclaimKind::Unnamed) => txn.delete(note),
        Some(ReclaimKind::Orphan | ReclaimKind::Contents | ReclaimKind::Rest(_)) | None => {
            return Err(FsError::NotFound.into());
        }
    }
    Ok(())
}

/// Checks that the new name is free, and that the caller may take it. Linux does so before it looks
/// at the target.
fn vacant(txn: &Txn<'_>, dir: &Dir, req: &Link) -> Result<()> {
    txn.dir_permits(dir, Access::EXECUTE)?;
    if txn.entry(dir, &req.name)?.is_some() {
        return Err(FsError::Exists.into());
    }
    txn.dir_permits(dir, Access::CHANGE)
}
