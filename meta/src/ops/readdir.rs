//! `readdir`: a page of a listing, in the order of `pos`.
//!
//! Cost: one read, a scan of the page, and, where attributes are asked for, a read for each
//! directory and each file with several names. Where some of those are on other servers, the page
//! is scanned a second time when they have answered; so the first time nothing is done that could
//! be in vain.
//! An entry that cannot be read is listed by its name alone: asking more about it gives EIO. So is
//! an entry of which a silent server knows more, or that a transaction in doubt is about to change:
//! asking more about it waits.
//! Of a directory with several partitions, a page has the names of the partition that was asked,
//! and says up to which position these are all.
//! POSIX: getdents(2). An entry that is there all the time is returned exactly once, whatever else
//! changes.

use std::ops::{ControlFlow, Range};

use base::{Access, EntryName, FileKind, FsError, Ino, layout::POS_MAX};
use bytes::Bytes;
use wire::{Readdir, ReaddirEntry, ReaddirPage, Retry};

use crate::{
    bugs::Bug,
    error::{Fault, Result},
    record::{EntryRecord, Record as _, key, key::Part},
    trash,
    txn::{Dir, Txn},
};

/// The most entries of one page, so that it fits in a frame.
const ENTRIES_MAX: u32 = 4096;
/// The most bytes of records of one page, for the same reason.
const BYTES_MAX: usize = 1 << 20;

/// Typical bytes of a record.
const RECORD_BYTES: usize = 96;

/// The number that the kernel reads as unknown.
const INO_UNKNOWN: Ino = Ino(0xffff_ffff);

pub(crate) fn run(txn: &mut Txn<'_>, req: &Readdir) -> Result<ReaddirPage> {
    let first = req.after.saturating_add(1).min(POS_MAX);
    let dir = txn.share_from(&req.dir, first)?;
    txn.settle_shown_counts(&dir)?;
    txn.dir_permits(&dir, Access::READ)?;
    // Only those who may look names up are told more than names and kinds.
    let plus = req.plus && txn.dir_permits(&dir, Access::EXECUTE).is_ok();
    let mut page = Vec::new();
    let mut after = req.after;
    let (end, reach) = loop {
        let (found, end) = scan(txn, &dir, after, req.entries_max)?;
        after = found.last().unwrap_or(after);
        if !fill(txn, &dir, &mut page, found, plus)? {
            break (false, page.last().map_or(after, |entry| entry.pos));
        }
        // All of them may have been removed since the scan.
        if end || !page.is_empty() {
            let of_all = txn.shared.bugs.has(Bug::ListingEndsEarly);
            let reach = if of_all { POS_MAX } else { dir.content.layout.reach(first) };
            break (end, if end { reach } else { after });
        }
    };
    txn.still_has(&dir)?;
    let (attr, parent_ino) = (dir.attr(), dir.content.parent_ino);
    let layout = dir.is_divided().then_some(dir.content.layout);
    Ok(ReaddirPage { entries: page, end, attr, parent_ino, reach, layout })
}

/// Fills the page. Returns `false` when it is full before everything found is in it.
fn fill(
    txn: &Txn<'_>,
    dir: &Dir,
    page: &mut Vec<ReaddirEntry>,
    found: Found,
    plus: bool,
) -> Result<bool> {
    let mut bytes = 0;
    let links = found.links().filter_map(|record| match EntryRecord::from_record(&record) {
        Ok(EntryRecord::Link(ino)) => Some(key::inode(ino, Part::Main)),
        Ok(EntryRecord::Node(_) | EntryRecord::Dir(_)) | Err(_) => None,
    });
    txn.want_if_told(&links.collect::<Vec<_>>())?;
    page.reserve(found.names.len());
    for (pos, name, place) in found.names {
        let value = found.bytes.slice(place);
        // A link's record is short, but the inode behind it need not be.
        if bytes >= BYTES_MAX && page.last().is_some_and(|entry: &ReaddirEntry| entry.pos != pos) {
            return Ok(false);
        }
        let listed = match EntryRecord::from_record(&value) {
            Ok(record) => list(txn, dir, pos, name, &record, plus)?,
            Err(error) => {
                tracing::error!(%error, dir = %dir.id, %name, "an entry is damaged; run `pando fsck`");
                let (ino, kind) = (INO_UNKNOWN, Some(FileKind::File));
                Some(ReaddirEntry { pos, name, ino, kind, entry: None })
            }
        };
        if let Some(entry) = listed {
            let target = entry.entry.as_ref().and_then(|entry| entry.target.as_ref());
            bytes += 128 + entry.name.as_bytes().len() + target.map_or(0, Bytes::len);
            page.push(entry);
        }
    }
    Ok(true)
}

/// Result of a scan: positions and names, and where in `bytes` the record of each is.
struct Found {
    names: Vec<(u64, EntryName, Range<usize>)>,
    bytes: Bytes,
}

impl Found {
    /// The last position.
    fn last(&self) -> Option<u64> {
        self.names.last().map(|(pos, _, _)| *pos)
    }

    /// The records of links, whose inodes are elsewhere.
    fn links(&self) -> impl Iterator<Item = Bytes> + '_ {
        let places = self.names.iter().map(|(_, _, place)| place.clone());
        let links = places.filter(|place| EntryRecord::is_link(&self.bytes[place.clone()]));
        links.map(|place| self.bytes.slice(place))
    }
}

/// The records of the page, and whether nothing comes after them.
fn scan(txn: &Txn<'_>, dir: &Dir, after: u64, entries_max: u32) -> Result<(Found, bool)> {
    let max = entries_max.clamp(1, ENTRIES_MAX) as usize;
    let shard = txn.shard_of_share(dir);
    let layout = Some(&dir.content.layout).filter(|_| dir.is_divided());
    let is_elsewhere = |pos| layout.is_some_and(|layout| layout.partition(pos) != dir.partition);
    let from = key::names_from(shard, dir.id, after.saturating_add(1));
    let to = key::end_of(&key::names(shard, dir.id));
    let expected = usize::try_from(dir.content.entries).unwrap_or(max).min(max);
    let mut names: Vec<(u64, EntryName, Range<usize>)> = Vec::with_capacity(expected);
    let mut records = Vec::with_capacity(expected * RECORD_BYTES);
    let (mut bytes, mut end) = (0, true);
    txn.scan_listed(&from, &to, &mut |key, value| {
        let Some((pos, name, part)) = key::parse_name(key) else {
            tracing::error!(dir = %dir.id, "the key of an entry is damaged; run `pando fsck`");
            return ControlFlow::Continue(());
        };
        if part != Part::Main as u8 || is_elsewhere(pos) {
            return ControlFlow::Continue(());
        }
        // A page ends only between two positions, so that the listing can go on after its last one.
        let full = names.len() >= max || bytes >= BYTES_MAX;
        let parts = txn.shared.bugs.has(Bug::PageEndsInRun);
        if full && names.last().is_some_and(|(last, _, _)| *last != pos || parts) {
            end = false;
            return ControlFlow::Break(());
        }
        match EntryName::new(name) {
            Ok(name) => {
                bytes += key.len() + value.len();
                let start = records.len();
                records.extend_from_slice(value);
                names.push((pos, name, start..records.len()));
                ControlFlow::Continue(())
            }
            Err(error) => {
                tracing::error!(%error, dir = %dir.id, "a name is damaged; run `pando fsck`");
                ControlFlow::Continue(())
            }
        }
    })?;
    Ok((Found { names, bytes: records.into() }, end))
}

fn list(
    txn: &Txn<'_>,
    dir: &Dir,
    pos: u64,
    name: EntryName,
    record: &EntryRecord,
    plus: bool,
) -> Result<Option<ReaddirEntry>> {
    if let EntryRecord::Dir(access) = record
        && trash::is_trash(txn, access.id)
    {
        // The trash is found by its name, but not listed, so that a copy of everything leaves it
        // out.
        return Ok(None);
    }
    if let Some(kind) = untold(txn, dir, &name, record, plus)? {
        return Ok(Some(ReaddirEntry { pos, name, ino: record.ino(), kind, entry: None }));
    }
    let show = |record: &EntryRecord| match (record, plus) {
        (EntryRecord::Node(inode), false) => Ok((inode.ino, inode.kind, None)),
        (EntryRecord::Dir(access), false) => Ok((access.ino, FileKind::Directory, None)),
        (EntryRecord::Link(ino), false) => Ok((*ino, txn.slot_inode(*ino)?.kind, None)),
        (_, true) => {
            let entry = txn.show(record)?;
            Ok((entry.attr.ino, entry.attr.kind, Some(entry)))
        }
    };
    let shown = match show(record) {
        // The entry's target is gone, by a transaction that has been in doubt here for long.
        Err(Fault::Retry(Retry::Busy))
            if txn.is_in_doubt(&txn.entry_key(dir, &name, Part::Main)) =>
        {
            return Ok(Some(ReaddirEntry {
                pos,
                name,
                ino: record.ino(),
                kind: None,
                entry: None,
            }));
        }
        // The entry was changed since the scan, or is damaged.
        Err(Fault::Retry(Retry::Busy)) => txn.settled(|txn| match txn.entry(dir, &name)? {
            Some(record) => show(&record).map(Some),
            None => Ok(None),
        }),
        shown => shown.map(Some),
    };
    match shown {
        Ok(shown) => {
            let listed = |(ino, kind, entry)| {
                let kind = Some(kind);
                ReaddirEntry { pos, name, ino, kind, entry }
            };
            Ok(shown.map(listed))
        }
        // Of a damaged entry it can only be told that it is there.
        Err(Fault::Answer(FsError::Io)) => {
            let kind = match record {
                EntryRecord::Dir(_) => FileKind::Directory,
                EntryRecord::Node(_) | EntryRecord::Link(_) => FileKind::File,
            };
            let kind = Some(kind);
            Ok(Some(ReaddirEntry { pos, name, ino: record.ino(), kind, entry: None }))
        }
        Err(fault) => Err(fault),
    }
}

/// Whether an entry can be listed only by its name, and with which kind, if that is known. Either a
/// transaction that is about to change the name has been in doubt for long, or the inode or content
/// record behind the entry cannot be read.
fn untold(
    txn: &Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    record: &EntryRecord,
    plus: bool,
) -> Result<Option<Option<FileKind>>> {
    let in_doubt = || txn.is_in_doubt(&txn.entry_key(dir, name, Part::Main));
    Ok(match record {
        EntryRecord::Link(ino) if txn.is_untold(&key::inode(*ino, Part::Main))? => Some(None),
        EntryRecord::Node(inode) if plus && in_doubt() => Some(Some(inode.kind)),
        EntryRecord::Link(_) if in_doubt() => Some(None),
        EntryRecord::Dir(access) if plus => {
            let content = txn.content_key(access.home, access.id);
            (in_doubt() || txn.is_untold(&content)?).then_some(Some(FileKind::Directory))
        }
        EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_) => None,
    })
}
