//! Checks of operations that remove something: who owns it, and whether it is empty.

use base::{EntryName, FsError, Layout};
use wire::Retry;

use super::{Dir, Txn, birthplace};
use crate::{
    error::{Fault, Result},
    record::{EntryRecord, Usage, key},
};

/// The user who owns an entry's node.
pub(crate) fn owner(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    entry: &EntryRecord,
) -> Result<u32> {
    match entry {
        EntryRecord::Dir(access) => Ok(access.uid),
        EntryRecord::Node(inode) => Ok(inode.uid),
        EntryRecord::Link(_) => Ok(txn.entry_inode_locked(dir, name, entry)?.inode.uid),
    }
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

/// Removes the content record of an empty directory, its other shares, and its note at its birth
/// place. The caller removes the entry.
pub(crate) fn remove(txn: &mut Txn<'_>, child: &Dir, others: &[Dir]) -> Result<()> {
    if child.content.xattrs.is_spilled() {
        let key = txn.dir_xattrs_key(child);
        txn.delete(key);
    }
    birthplace::forget_move(txn, child)?;
    txn.charge_freely(child.content.accounts(), Usage::of(1, 0).minus());
    txn.end_root(&child.content);
    for share in others.iter().chain([child]) {
        let key = txn.share_key(share.content.home, share.id, share.partition);
        if txn.shared.cluster.is_some() && txn.is_here(&key) {
            txn.facts.freed.push(key.clone());
        }
        txn.delete(key);
    }
    Ok(())
}
