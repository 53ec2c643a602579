//! Partitions of directories: each exists and repeats its master, and names are with their
//! partitions.
//!
//! A directory may have lost its master or a share, but the names in the others are not lost. Each
//! share has all that is needed to make the master again, and the next sweep counts its names. A
//! name in the wrong partition goes to the right one; its inode stays on its shard of birth, in its
//! slot.

use base::{DirId, EntryName, Locality, ShardId};
use bytes::Bytes;

use super::{dirs, drop_record, sound};
use crate::{
    error::{Fault, Result},
    fsck::shares::{Way, expected, is_of_one_turn, keys_of},
    lock,
    record::{Access, Content, EntryRecord, Inode, Key, Slot, key, key::Part},
    txn::{Dir, Txn},
};

/// More records than a directory has on one shard, unless something is damaged.
const SHARES_MAX: usize = 64;

/// The partition of a directory that is on a shard.
pub(super) fn at(txn: &Txn<'_>, shard: ShardId, id: DirId) -> Result<Option<Dir>> {
    let stored = match txn.shared.config.locality {
        Locality::Hybrid => txn.scan_prefix(&key::shares(shard, id), SHARES_MAX)?,
        Locality::Directory | Locality::Subtree => Vec::new(),
    };
    let stored = || stored.into_iter().map(|(key, _)| key).collect();
    for (partition, key) in keys_of(&txn.shared.config, shard, id, stored) {
        if let Some(content) = sound(txn, &key)? {
            return Ok(Some(Dir { id, partition, content }));
        }
    }
    Ok(None)
}

/// The partition of a directory that has a name; `None` if there is no such directory.
pub(super) fn of_name(
    txn: &Txn<'_>,
    home: DirId,
    id: DirId,
    name: &EntryName,
) -> Result<Option<Dir>> {
    let config = &txn.shared.config;
    let mut way = Way::to(home, id, config.hash_key.pos(name));
    loop {
        let content: Option<Content> = sound(txn, &way.key(config.placement()))?;
        let Some(content) = content else {
            // A missing share is made before anything else is put into it.
            return if way.partition() == 0 { Ok(None) } else { Err(missing()) };
        };
        if way.arrives(Some(&content), config.shards) {
            return Ok(Some(Dir { id, partition: way.partition(), content }));
        }
    }
}

fn missing() -> Fault {
    Fault::Refused("a partition of its directory is not there".into())
}

/// The key of an entry.
pub(super) fn entry_key(txn: &Txn<'_>, dir: &Dir, name: &EntryName) -> Key {
    let config = &txn.shared.config;
    let shard = config.placement().shard_of(dir.content.home, dir.partition);
    key::name(shard, dir.id, config.hash_key.pos(name), name, Part::Main)
}

/// Repairs a record of a partition other than the master.
pub(super) fn share(
    txn: &mut Txn<'_>,
    shard: ShardId,
    (id, partition): (DirId, u16),
    key: &Key,
) -> Result<bool> {
    txn.lock(lock::dir_lock(id))?;
    let share: Option<Content> = if key::is_content(key) { sound(txn, key)? } else { None };
    let Some(share) = share else { return drop_record(txn, key) };
    let config = &txn.shared.config;
    let known = Some(share.home).filter(|_| config.locality == Locality::Hybrid);
    let placed = expected(config, shard, id, known).any(|other| other == partition)
        && config.placement().shard_of(share.home, partition) == shard;
    if !placed {
        return drop_record(txn, key);
    }
    let Some(master) = sound::<Content>(txn, &txn.content_key(share.home, id))? else {
        let of_names = !txn.scan_prefix(&key::names(shard, id), 1)?.is_empty();
        let master = master_of(id, &share);
        if !of_names && !dirs::is_entered(txn, &master)? {
            return drop_record(txn, key);
        }
        txn.put_dir(&master);
        return Ok(true);
    };
    let mut layout = master.layout.clone();
    layout.learn(&share.layout);
    if !share.is_live() && txn.get_bytes(&key::handoff(shard, id, partition))?.is_some() {
        // The share goes when its handoff is over.
        return Ok(false);
    }
    if master.ino != share.ino || !layout.is_active(partition) {
        // Names in the share are brought to their places when they are found without it.
        return drop_record(txn, key);
    }
    let Content { times, entries, subdirs, .. } = share;
    // The share may know more or less of other partitions, all of it true.
    let same = is_of_one_turn(&master.layout, &share.layout);
    let layout = if same { share.layout.clone() } else { layout };
    let right = Content { times, entries, subdirs, layout, ..master.share() };
    if right == share {
        return Ok(false);
    }
    txn.put_dir(&Dir { id, partition, content: right });
    Ok(true)
}

/// Makes the master of a share's directory. The next sweep finds its counts. A share does not know
/// whether the directory was listed, so it is from now on.
fn master_of(id: DirId, share: &Content) -> Dir {
    let mut content = Content { entries: 0, subdirs: 0, ..share.clone() };
    content.listing.0.listed = true;
    Dir { id, partition: 0, content }
}

/// Makes a lost master from any of the directory's shares; only of the inode number in `access`, if
/// given.
pub(super) fn master_again(
    txn: &Txn<'_>,
    id: DirId,
    access: Option<&Access>,
) -> Result<Option<Dir>> {
    let config = &txn.shared.config;
    let home = access.map(|access| access.home);
    let home = home.filter(|_| config.locality == Locality::Hybrid);
    let of = |shard| expected(config, shard, id, home).map(move |partition| (shard, partition));
    let all = (0..config.shards).map(ShardId).flat_map(of);
    let all: Vec<_> = all.filter(|(_, partition)| *partition > 0).collect();
    let key = |(shard, partition)| key::content(shard, id, partition, Part::Main);
    txn.want(&all.iter().copied().map(key).collect::<Vec<_>>())?;
    for (shard, partition) in all {
        let share: Option<Content> = sound(txn, &key((shard, partition)))?;
        let fits = |share: &Content| {
            let placed = config.placement().shard_of(share.home, partition) == shard;
            placed && access.is_none_or(|access| access.ino == share.ino)
        };
        if let Some(share) = share.filter(fits) {
            return Ok(Some(master_of(id, &share)));
        }
    }
    Ok(None)
}

/// Writes missing shares that a master's layout names; `true` if there were any.
pub(super) fn complete(txn: &mut Txn<'_>, master: &Dir) -> Result<bool> {
    let mut written = false;
    let config = &txn.shared.config;
    let others: Vec<u16> = master.content.layout.active().filter(|other| *other > 0).collect();
    for partition in others {
        let shard = config.placement().shard_of(master.content.home, partition);
        let key = key::content(shard, master.id, partition, Part::Main);
        if txn.get_bytes(&key)?.is_none() {
            txn.put_dir(&Dir { id: master.id, partition, content: master.content.share() });
            written = true;
        }
    }
    Ok(written)
}

/// Brings an entry from its partition to the one that should have it, with the other records of the
/// name that are here.
pub(super) fn bring(
    txn: &mut Txn<'_>,
    (from, mut to): (Dir, Dir),
    name: &EntryName,
    (key, value): (&Key, &Bytes),
    record: EntryRecord,
) -> Result<()> {
    let place = txn.share_key(to.content.home, to.id, to.partition);
    let mut beside = key.clone();
    beside.pop();
    beside.push(Part::Xattrs as u8);
    let subdir = matches!(record, EntryRecord::Dir(_));
    let entry = match record {
        EntryRecord::Node(inode) if inode.ino.shard() != key::shard_of(&place) => {
            in_slot(txn, inode, &beside)?
        }
        record @ (EntryRecord::Node(_) | EntryRecord::Dir(_) | EntryRecord::Link(_)) => {
            if let Some(xattrs) = txn.get_bytes(&beside)? {
                let mut moved = beside.clone();
                moved[..2].copy_from_slice(&place[..2]);
                txn.put_stored(moved, &xattrs);
                txn.delete(beside);
            }
            record
        }
    };
    tracing::warn!(value = crate::fsck::hex::hex(value), "an entry goes to its partition");
    txn.delete(key.clone());
    super::names::uncount(txn, from, subdir);
    txn.put_entry(&to, name, &entry);
    to.content.entries += 1;
    to.content.subdirs = to.content.subdirs.saturating_add(u32::from(subdir));
    txn.touch(&mut to);
    txn.put_dir(&to);
    Ok(())
}

/// Puts an inode that was in an entry into its slot; returns the entry that leads there. Its
/// extended attributes may be at `beside`.
pub(super) fn in_slot(txn: &mut Txn<'_>, mut inode: Inode, beside: &Key) -> Result<EntryRecord> {
    let ino = inode.ino;
    txn.lock(lock::ino_lock(ino))?;
    let slot = key::inode(ino, Part::Main);
    if matches!(sound(txn, &slot)?, Some(Slot::Inode(_))) {
        return Err(Fault::Refused("there is another inode of that number".into()));
    }
    if let Some(xattrs) = txn.get_bytes(beside)? {
        txn.put_stored(key::inode(ino, Part::Xattrs), &xattrs);
        txn.delete(beside.clone());
    }
    inode.moved = false;
    txn.put(slot, &Slot::Inode(inode));
    Ok(EntryRecord::Link(ino))
}
