//! `lookup` and `walk`: names to what stands under them.
//!
//! Cost: two reads for each name (the directory's content record, the entry), and one for a directory found.
//! POSIX: path resolution. ENOENT, ENOTDIR, EACCES without execute permission.

use base::{Access, FsError, limits::PATH_BYTES_MAX};
use wire::{Entry, Lookup, Retry, Walk, Walked};

use crate::{
    error::{Fault, Result},
    txn::Txn,
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Lookup) -> Result<Entry> {
    let dir = txn.dir(&req.dir)?;
    txn.dir_permits(&dir, Access::EXECUTE)?;
    txn.settled(|txn| {
        let entry = txn.entry(&dir, &req.name)?.ok_or(FsError::NotFound)?;
        txn.show(&entry)
    })
}

/// More names than this are in no path.
const NAMES_MAX: usize = PATH_BYTES_MAX / 2 + 1;

pub(crate) fn walk(txn: &mut Txn<'_>, req: &Walk) -> Result<Walked> {
    if req.names.len() > NAMES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    let mut walked = Walked { entries: Vec::with_capacity(req.names.len()), error: None };
    let mut at = req.from;
    for (depth, name) in req.names.iter().enumerate() {
        let step = Lookup { dir: at, name: name.clone() };
        match run(txn, &step) {
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
            // It was removed after we found it: as if it had never been.
            Err(Fault::Retry(Retry::StaleDir)) if depth > 0 => {
                walked.error = Some(FsError::NotFound);
                break;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(walked)
}
