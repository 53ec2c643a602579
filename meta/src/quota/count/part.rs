//! One part of a walk, on the server that has it: a page of names, or inodes in their slots.

use std::ops::ControlFlow;

use base::{EntryName, Ino};
use bytes::Bytes;
use wire::{Count, CountNames, CountShare, CountWhat, Counted, DirRef};

use crate::{
    error::{Fault, Result},
    lock,
    record::{
        Accounts, EntryRecord, Inode, Key, QuotaId, Record as _, Slot, Usage, key, key::Part,
    },
    txn::{Dir, Txn, unshown},
};

/// Number of records of a directory that one step takes.
const RECORDS_A_STEP: usize = 256;

/// The two roots of a walk: records charged to `from` are charged to `to` from now on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Border {
    pub(super) from: QuotaId,
    pub(super) to: QuotaId,
}

/// Does a part on this server.
pub(crate) fn run(txn: &mut Txn<'_>, count: &Count) -> Result<Counted> {
    let border = Border { from: QuotaId(count.from), to: QuotaId(count.to) };
    match &count.what {
        CountWhat::Share(share) => self::share(txn, border, share),
        CountWhat::Names(names) => self::names(txn, border, names),
        CountWhat::Slots(inos) => {
            for ino in inos {
                slot(txn, border, *ino)?;
            }
            Ok(Counted::default())
        }
    }
}

/// The share of a request, locked; `None` if it is gone.
fn locked(txn: &mut Txn<'_>, share: &CountShare) -> Result<Option<Dir>> {
    let CountShare { dir: DirRef { id, home, ino, .. }, partition } = *share;
    txn.lock(lock::dir_lock(id))?;
    let key = txn.share_key(home, id, partition);
    if !txn.has_shard(key::shard_of(&key)) {
        return Err(Fault::Retry(wire::Retry::Busy));
    }
    let content = txn.get_content(&key)?;
    let shard = key::shard_of(&key);
    if content.is_none() && txn.may_be_born(shard, ino) {
        return Err(txn.no_dir(shard, ino));
    }
    Ok(content.filter(|content| content.ino == ino).map(|content| Dir { id, partition, content }))
}

fn share(txn: &mut Txn<'_>, border: Border, share: &CountShare) -> Result<Counted> {
    let Some(mut dir) = locked(txn, share)? else { return Ok(Counted::default()) };
    // A lost entry takes its charge with it, so the directory must be confirmed first.
    txn.settle_early_mkdir(&dir)?;
    let quota = dir.content.quota;
    if quota != border.from && quota != border.to {
        // The directory may also have been moved away after it was found.
        let is_root = quota == QuotaId(dir.content.ino);
        return Ok(Counted { is_root, ..Counted::default() });
    }
    if quota == border.from && border.from != border.to {
        if dir.partition == 0 {
            txn.recharge_freely(
                Accounts::root(border.from),
                Accounts::root(border.to),
                Usage::of(1, 0),
            );
        }
        dir.content.quota = border.to;
        txn.put_dir(&dir);
    }
    Ok(Counted { layout: Some(dir.content.layout), ..Counted::default() })
}

fn names(txn: &mut Txn<'_>, border: Border, names: &CountNames) -> Result<Counted> {
    let mut counted = Counted::default();
    let Some(dir) = locked(txn, &names.share)? else { return Ok(counted) };
    if dir.content.quota != border.to || !dir.content.is_live() {
        return Ok(counted);
    }
    let all = key::names(txn.shard_of_share(&dir), dir.id);
    let start = match names.from.starts_with(&all) {
        true => Key::from_slice(&names.from),
        false => all.clone(),
    };
    let mut records: Vec<(Key, Bytes)> = Vec::new();
    txn.scan(&start, &key::end_of(&all), &mut |key, value| {
        records.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
        let more = records.len() < RECORDS_A_STEP;
        if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if records.len() == RECORDS_A_STEP {
        counted.next = records.last().map(|(key, _)| [&key[..], &[0]].concat().into());
    }
    for (key, value) in records {
        let Some((pos, name, part)) = key::parse_name(&key) else { continue };
        // Names that have not arrived yet, or have left and are not swept yet, are the other
        // partition's.
        let is_its = dir.content.layout.partition(pos) == dir.partition;
        if is_its && part == Part::Main as u8 && EntryName::new(name).is_ok() {
            one_entry(txn, border, key, &EntryRecord::from_record(&value)?, &mut counted)?;
        }
    }
    Ok(counted)
}

/// Charges the inode of an entry. Directories, and inodes in slots of other servers, are noted in
/// `counted`.
fn one_entry(
    txn: &mut Txn<'_>,
    border: Border,
    key: Key,
    entry: &EntryRecord,
    counted: &mut Counted,
) -> Result<()> {
    match entry {
        EntryRecord::Dir(access) => {
            counted.dirs.push(unshown(access.id, access.ino, access.home));
        }
        EntryRecord::Node(inode) => {
            txn.lock(lock::ino_lock(inode.ino))?;
            // Race: a writer locks only the inode, and may just have changed it.
            if let Some(EntryRecord::Node(mut inode)) = txn.get(&key)?
                && moves(txn, border, &mut inode)
            {
                txn.put(key, &EntryRecord::Node(inode));
            }
        }
        // A file with several names counts where it was made, or where it is found first.
        EntryRecord::Link(ino) if txn.has_shard(ino.shard()) => slot(txn, border, *ino)?,
        EntryRecord::Link(ino) => counted.slots.push(*ino),
    }
    Ok(())
}

fn slot(txn: &mut Txn<'_>, border: Border, ino: Ino) -> Result<()> {
    txn.lock(lock::ino_lock(ino))?;
    let key = key::inode(ino, Part::Main);
    if let Some(Slot::Inode(mut inode)) = txn.get(&key)?
        && moves(txn, border, &mut inode)
    {
        txn.put(key, &Slot::Inode(inode));
    }
    Ok(())
}

/// Charges what an inode uses to the other root; `false` if it was not charged to `from`.
fn moves(txn: &mut Txn<'_>, border: Border, inode: &mut Inode) -> bool {
    let moves = inode.quota == border.from;
    if moves {
        txn.count_freely_for(inode, border.to);
    }
    moves
}
