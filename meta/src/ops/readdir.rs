//! `readdir`: a page of a listing, in the order of `pos`.
//!
//! Cost: one read, a scan of the page, and, where attributes are asked for, a read for each directory and each
//! file with several names.
//! POSIX: getdents(2). An entry that is there all the time is returned exactly once, whatever else changes.

use std::ops::ControlFlow;

use base::{Access, EntryName, FileKind};
use bytes::Bytes;
use wire::{Readdir, ReaddirEntry, ReaddirPage, Retry};

use crate::{
    error::{Fault, Result},
    record::{EntryRecord, Record as _, key, key::Part},
    txn::{Dir, Txn},
};

/// The most entries of one page, so that it fits in a frame.
const ENTRIES_MAX: u32 = 4096;
/// The most bytes of records of one page, for the same reason.
const BYTES_MAX: usize = 1 << 20;

pub(crate) fn run(txn: &mut Txn<'_>, req: &Readdir) -> Result<ReaddirPage> {
    let dir = txn.dir(&req.dir)?;
    txn.dir_permits(&dir, Access::READ)?;
    // What a listing says besides names and kinds is for those who may look them up.
    let plus = req.plus && txn.dir_permits(&dir, Access::EXECUTE).is_ok();
    let (records, end) = scan(txn, &dir, req)?;
    let mut entries = Vec::with_capacity(records.len());
    for (pos, name, value) in records {
        let record = EntryRecord::from_record(&value)?;
        if let Some(entry) = list(txn, pos, name, &record, plus)? {
            entries.push(entry);
        }
    }
    let parent_ino = dir.content.parent_ino;
    Ok(ReaddirPage { entries, end, attr: dir.attr(), parent_ino })
}

type Found = Vec<(u64, EntryName, Bytes)>;

/// The records of the page, and whether nothing comes after them.
fn scan(txn: &Txn<'_>, dir: &Dir, req: &Readdir) -> Result<(Found, bool)> {
    let max = req.entries_max.clamp(1, ENTRIES_MAX) as usize;
    let shard = txn.shard(dir.content.home);
    let from = key::names_from(shard, dir.id, req.after.saturating_add(1));
    let to = key::end_of(&key::names(shard, dir.id));
    let mut found: Found = Vec::new();
    let (mut bytes, mut end) = (0, true);
    let mut damaged = false;
    txn.scan(&from, &to, &mut |key, value| {
        let Some((pos, name, part)) = key::parse_name(key) else {
            damaged = true;
            return ControlFlow::Break(());
        };
        if part != Part::Main as u8 {
            return ControlFlow::Continue(());
        }
        // A page ends only between two positions, so that its last one is where to go on.
        let full = found.len() >= max || bytes >= BYTES_MAX;
        if full && found.last().is_some_and(|(last, _, _)| *last != pos) {
            end = false;
            return ControlFlow::Break(());
        }
        match EntryName::new(name) {
            Ok(name) => {
                bytes += key.len() + value.len();
                found.push((pos, name, Bytes::copy_from_slice(value)));
                ControlFlow::Continue(())
            }
            Err(_) => {
                damaged = true;
                ControlFlow::Break(())
            }
        }
    })?;
    if damaged {
        return Err(base::DecodeError::Invalid("name key").into());
    }
    Ok((found, end))
}

fn list(
    txn: &Txn<'_>,
    pos: u64,
    name: EntryName,
    record: &EntryRecord,
    plus: bool,
) -> Result<Option<ReaddirEntry>> {
    let (ino, kind) = match record {
        EntryRecord::Node(inode) => (inode.ino, inode.kind),
        EntryRecord::Dir(access) => (access.ino, FileKind::Directory),
        EntryRecord::Link(ino) => match txn.slot_inode(*ino) {
            Ok(inode) => (*ino, inode.kind),
            Err(Fault::Retry(Retry::Busy)) => return Ok(None),
            Err(fault) => return Err(fault),
        },
    };
    let entry = match plus {
        false => None,
        true => match txn.show(record) {
            Ok(entry) => Some(entry),
            // Read without a lock: it was removed since the scan.
            Err(Fault::Retry(Retry::Busy)) => return Ok(None),
            Err(fault) => return Err(fault),
        },
    };
    Ok(Some(ReaddirEntry { pos, name, ino, kind, entry }))
}
