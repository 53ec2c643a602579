//! `lookup` and `walk`: find the entries of names.
//!
//! Cost: a read for each name, and one for each directory on the way (its content record), the
//! first and the last too.
//! POSIX: path resolution. ENOENT, ENOTDIR, EACCES without execute permission.

use base::{Access, EntryName, FsError, limits::PATH_BYTES_MAX};
use wire::{Entry, Lookup, Retry, Walk, Walked};

use crate::{
    error::{Fault, Result},
    txn::{Dir, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Lookup) -> Result<Entry> {
    find(txn, txn.dir_for(&req.dir, &req.name)?, &req.name)
}

/// The entry under a name, in the share that has the name.
pub(super) fn find(txn: &Txn<'_>, dir: Dir, name: &EntryName) -> Result<Entry> {
    txn.dir_permits(&dir, Access::EXECUTE)?;
    txn.settled(|txn| {
        let entry = txn.entry(&dir, name)?.ok_or_else(|| txn.missing(&dir))?;
        txn.show(&entry)
    })
}

/// No path has more names than this.
pub(super) const NAMES_MAX: usize = PATH_BYTES_MAX / 2 + 1;

pub(crate) fn walk(txn: &mut Txn<'_>, req: &Walk) -> Result<Walked> {
    if req.names.len() > NAMES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    let mut walked = Walked { entries: Vec::with_capacity(req.names.len()), error: None };
    let mut at = req.from;
    for (depth, name) in req.names.iter().enumerate() {
        // The request was sent for the first name.
        let dir = if depth == 0 { txn.dir_for(&at, name) } else { txn.dir_here(&at, name) };
        match dir.and_then(|dir| find(txn, dir, name)) {
            Ok(entry) => {
                let next = entry.dir.filter(|dir| txn.has_shard(txn.shard(dir.home)));
                walked.entries.push(entry);
                // The client goes on where another server has the group.
                let Some(next) = next else { break };
                at = next;
            }
            Err(Fault::Answer(error)) => {
                walked.error = Some(error);
                break;
            }
            // Another server has the partition: the client goes on there.
            Err(Fault::Retry(Retry::StaleLayout(_))) if depth > 0 => break,
            // The directory was removed after it was found: as if it had never been.
            Err(Fault::Retry(Retry::StaleDir)) if depth > 0 => {
                walked.error = Some(FsError::NotFound);
                break;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(walked)
}
