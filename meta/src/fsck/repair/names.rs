//! Records under names: entries, rename lists, and extended attributes beside an entry.

use base::{DirId, EntryName, Layout, ShardId};
use bytes::Bytes;

use super::{drop_record, files, lost, shares, sound, tell_clients, unsound};
use crate::{
    error::{Fault, Result},
    lock, placing,
    record::{
        Access, Content, Contents, EntryRecord, Inode, Key, Location, RenameList, Slot, XattrSet,
        key, key::Part, system::Origin,
    },
    txn::{Dir, Located, Place, Txn, birthplace},
};

/// Repairs one part of a name.
pub(super) fn name(txn: &mut Txn<'_>, shard: ShardId, key: &Key, lose: bool) -> Result<bool> {
    let Some((id, (pos, name, part))) = key::parse_dir(key).zip(key::parse_name(key)) else {
        return drop_record(txn, key);
    };
    txn.lock(lock::dir_lock(id))?;
    let Some(value) = txn.get_bytes(key)? else { return Ok(false) };
    let share = shares::at(txn, shard, id)?;
    if part == Part::RenameList as u8 && share.as_ref().is_some_and(|share| share.partition > 0) {
        // A rename list belongs to the master's shard, and directories born under the name are
        // noted there.
        return drop_record(txn, key);
    }
    if part == Part::RenameList as u8
        && let Ok(name) = EntryName::new(name)
        && pos == txn.shared.config.hash_key.pos(&name)
    {
        // The directory of the list may be gone; directories that were born there are not.
        return rename_list(txn, (shard, id), &name, key, &value);
    }
    // A missing or misplaced share is repaired first.
    let is_placed = |share: &Dir| {
        key::shard_of(&txn.share_key(share.content.home, id, share.partition)) == shard
    };
    let Some(dir) = share.filter(is_placed) else {
        let mut beside = key.clone();
        beside.pop();
        beside.push(Part::Main as u8);
        let alone = part >= Part::Xattrs as u8 && txn.get_bytes(&beside)?.is_none();
        return if alone { drop_record(txn, key) } else { Ok(false) };
    };
    let Ok(name) = EntryName::new(name) else { return homeless(txn, key, &value) };
    let right = key::name(shard, id, txn.shared.config.hash_key.pos(&name), &name, Part::Main);
    let right_pos = txn.shared.config.hash_key.pos(&name);
    let owner = dir.content.layout.partition(right_pos);
    match part {
        0..=3 if right_pos != pos => misplaced(txn, dir, &name, part, (key, &value)),
        0 if owner != dir.partition => elsewhere(txn, (dir, owner, pos), &name, (key, &value)),
        0 => entry(txn, dir, &name, key, &value, lose),
        2 => beside(txn, &dir, &name, key),
        3 if sound::<Origin>(txn, key)?.is_some() && txn.get_bytes(&right)?.is_some() => Ok(false),
        _ => drop_record(txn, key),
    }
}

/// Counts one entry less in a directory.
pub(super) fn uncount(txn: &mut Txn<'_>, mut dir: Dir, subdir: bool) {
    dir.content.entries = dir.content.entries.saturating_sub(1);
    dir.content.subdirs = dir.content.subdirs.saturating_sub(u32::from(subdir));
    txn.touch(&mut dir);
    txn.put_dir(&dir);
}

/// Drops a record whose name is not valid, which no directory counts. An inode in it goes to
/// `/lost+found`.
fn homeless(txn: &mut Txn<'_>, key: &Key, value: &Bytes) -> Result<bool> {
    drop_record(txn, key)?;
    if let Some(EntryRecord::Node(inode)) = unsound(value) {
        lost::file(txn, inode)?;
    }
    Ok(true)
}

/// Repairs a record that is not where its name is looked for.
fn misplaced(
    txn: &mut Txn<'_>,
    dir: Dir,
    name: &EntryName,
    part: u8,
    (key, value): (&Key, &Bytes),
) -> Result<bool> {
    let mut right = shares::entry_key(txn, &dir, name);
    if let Some(last) = right.last_mut() {
        *last = part;
    }
    if txn.get_bytes(&right)?.is_none() {
        txn.delete(key.clone());
        txn.put_stored(right, value);
    } else if part == Part::Main as u8 {
        let record = unsound(value);
        uncount(txn, dir, matches!(record, Some(EntryRecord::Dir(_))));
        drop_record(txn, key)?;
        if let Some(EntryRecord::Node(inode)) = record {
            lost::file(txn, inode)?;
        }
    } else {
        drop_record(txn, key)?;
    }
    Ok(true)
}

/// Repairs an entry that another partition should have.
fn elsewhere(
    txn: &mut Txn<'_>,
    (dir, owner, pos): (Dir, u16, u64),
    name: &EntryName,
    (key, value): (&Key, &Bytes),
) -> Result<bool> {
    let Some(record) = unsound::<EntryRecord>(value) else {
        drop_record(txn, key)?;
        uncount(txn, dir, false);
        return Ok(true);
    };
    let place = txn.share_key(dir.content.home, dir.id, owner);
    let to: Option<Content> = sound(txn, &place)?;
    // Partitions that do not agree are repaired first.
    let Some(content) = to.filter(|to| to.layout.partition(pos) == owner) else {
        return Ok(false);
    };
    let mut right = key.clone();
    right[..2].copy_from_slice(&place[..2]);
    if txn.get_bytes(&right)?.is_none() {
        let to = Dir { id: dir.id, partition: owner, content };
        shares::bring(txn, (dir, to), name, (key, value), record)?;
        return Ok(true);
    }
    uncount(txn, dir, matches!(record, EntryRecord::Dir(_)));
    drop_record(txn, key)?;
    if let EntryRecord::Node(inode) = record {
        lost::file(txn, inode)?;
    }
    Ok(true)
}

fn entry(
    txn: &mut Txn<'_>,
    dir: Dir,
    name: &EntryName,
    key: &Key,
    value: &Bytes,
    lose: bool,
) -> Result<bool> {
    match unsound::<EntryRecord>(value) {
        None => {
            drop_record(txn, key)?;
            uncount(txn, dir, false);
            Ok(true)
        }
        Some(EntryRecord::Node(inode)) => node(txn, dir, name, key, &inode, lose),
        Some(EntryRecord::Dir(access)) => child(txn, dir, name, key, &access),
        Some(EntryRecord::Link(ino)) => {
            txn.lock(lock::ino_lock(ino))?;
            let slot = txn.get_bytes(&key::inode(ino, Part::Main))?;
            let there = slot.and_then(|slot| unsound(&slot));
            if matches!(there, Some(Slot::Inode(_))) {
                return Ok(false);
            }
            drop_record(txn, key)?;
            uncount(txn, dir, false);
            Ok(true)
        }
    }
}

/// Repairs an inode in its entry.
fn node(
    txn: &mut Txn<'_>,
    dir: Dir,
    name: &EntryName,
    key: &Key,
    seen: &Inode,
    lose: bool,
) -> Result<bool> {
    if !txn.has_shard(seen.ino.shard()) {
        let text = "it was born on another server, where nobody would look for it here";
        return Err(Fault::Refused(text.into()));
    }
    txn.lock(lock::ino_lock(seen.ino))?;
    // Race: a writer locks only the inode, and may just have changed it.
    let Some(value) = txn.get_bytes(key)? else { return Ok(false) };
    let Some(EntryRecord::Node(inode)) = unsound(&value) else { return Ok(false) };
    let here = Location::of(&dir, name);
    let place = Place::under(txn, &dir, name);
    let mut located = Located { place, inode };
    let was = located.inode.clone();
    let born_here = was.ino.shard() == key::shard_of(key);
    if dir.content.layout != Layout::Whole && !born_here {
        // No request looks for the inode here: entries of partitions come and go without their
        // inodes.
        let mut beside = key.clone();
        beside.pop();
        beside.push(Part::Xattrs as u8);
        let link = shares::in_slot(txn, was, &beside)?;
        txn.put(key.clone(), &link);
        return Ok(true);
    }
    let mut mended = !was.is_sound();
    if !files::mend(txn, &mut located, Some(dir.content.quota), lose, &mut mended)? {
        // The inode cannot be read at all.
        drop_record(txn, key)?;
        uncount(txn, dir, false);
        return Ok(true);
    }
    located.inode.nlink = 1;
    let (slot_key, here_key) = (key::inode(was.ino, Part::Main), key.clone());
    let slot: Option<Slot> = sound(txn, &slot_key)?;
    let said = matches!(&slot, Some(Slot::Moved(at)) if *at == here);
    located.inode.moved |= said || !born_here;
    let elsewhere = match &slot {
        None => false,
        Some(Slot::Inode(_)) => true,
        Some(Slot::Moved(at)) => {
            let key = txn.name_key(at.home, at.dir, &at.name, Part::Main);
            let there: Option<EntryRecord> = if key == here_key { None } else { sound(txn, &key)? };
            matches!(there, Some(EntryRecord::Node(other)) if other.ino == was.ino)
        }
    };
    if located.inode.moved && !said && !elsewhere {
        txn.put(slot_key, &Slot::Moved(here));
        mended = true;
    }
    if located.inode != was || mended {
        txn.put_inode(&located);
        mended = true;
    }
    Ok(mended)
}

/// Repairs the entry of a directory.
fn child(
    txn: &mut Txn<'_>,
    dir: Dir,
    name: &EntryName,
    key: &Key,
    access: &Access,
) -> Result<bool> {
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.lock(lock::dir_lock(access.id))?;
    let content: Option<Content> = sound(txn, &txn.content_key(access.home, access.id))?;
    let Some(content) = content else {
        if let Some(master) = shares::master_again(txn, access.id, Some(access))? {
            txn.put_dir(&master);
            return Ok(true);
        }
        if let Some(child) = super::dirs::elsewhere(txn, access)? {
            tell_clients(txn, child.id)?;
            txn.put_entry(&dir, name, &EntryRecord::Dir(Txn::access_of(&child)));
            return Ok(true);
        }
        let child = super::dirs::rebuilt(txn, access, &dir, name)?;
        txn.put_dir(&child);
        txn.put_entry(&dir, name, &EntryRecord::Dir(Txn::access_of(&child)));
        return Ok(true);
    };
    let mut child = Dir::master(access.id, content);
    if child.content.parent != dir.id || child.content.name.as_ref() != Some(name) {
        if child.id == DirId::ROOT || super::dirs::is_entered(txn, &child)? {
            // The directory is somewhere else, and one name is enough.
            drop_record(txn, key)?;
            uncount(txn, dir, true);
        } else {
            tell_clients(txn, child.id)?;
            super::dirs::doubt_birth(txn, &mut child);
            birthplace::note_move(txn, &mut child, &dir, name)?;
            txn.put_entry(&dir, name, &EntryRecord::Dir(Txn::access_of(&child)));
            txn.put_dir(&child);
        }
        return Ok(true);
    }
    let right = Txn::access_of(&child);
    if *access == right {
        return Ok(false);
    }
    tell_clients(txn, child.id)?;
    txn.put_entry(&dir, name, &EntryRecord::Dir(right));
    Ok(true)
}

/// Repairs a list of directories that were born here and live elsewhere.
fn rename_list(
    txn: &mut Txn<'_>,
    at: (ShardId, DirId),
    name: &EntryName,
    key: &Key,
    value: &Bytes,
) -> Result<bool> {
    // Race: a move of one of them locks this directory, so their records here cannot change.
    let Some(list) = unsound::<RenameList>(value) else { return drop_record(txn, key) };
    let mut right = RenameList::default();
    for version in &list.versions {
        if !right.versions.contains(version) && lives_elsewhere(txn, at, name, *version)? {
            right.versions.push(*version);
        }
    }
    if right.versions.is_empty() {
        txn.delete(key.clone());
    } else if right != list {
        txn.put(key.clone(), &right);
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn lives_elsewhere(
    txn: &Txn<'_>,
    (shard, dir): (ShardId, DirId),
    name: &EntryName,
    version: base::NameVersion,
) -> Result<bool> {
    let config = &txn.shared.config;
    let id = config.hash_key.dir_id(dir, name, version);
    let shard = placing::shard_of_born(config.placement(), shard, id, version);
    let content: Option<Content> = sound(txn, &key::content(shard, id, 0, Part::Main))?;
    Ok(content.is_some_and(|content| {
        let born_here = content.birth_parent == dir && content.birth_name.as_ref() == Some(name);
        let is_here = content.parent == dir && content.name.as_ref() == Some(name);
        born_here && content.birth_version == version && !is_here
    }))
}

/// Repairs extended attributes beside an entry.
fn beside(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName, key: &Key) -> Result<bool> {
    let entry: Option<EntryRecord> = sound(txn, &shares::entry_key(txn, dir, name))?;
    let Some(EntryRecord::Node(inode)) = entry else { return drop_record(txn, key) };
    txn.lock(lock::ino_lock(inode.ino))?;
    let mut located = Located { place: Place::under(txn, dir, name), inode };
    if !located.inode.xattrs.is_spilled() {
        return drop_record(txn, key);
    }
    let right: Option<XattrSet> = files::right_xattrs(txn, &located.inode.xattrs, key)?;
    let Some(right) = right else { return Ok(false) };
    txn.put_file_xattrs(&mut located, right);
    Ok(true)
}

/// Gives an inode a number of its own when another inode has its number, or none can have it. An
/// inode with contents in blocks would lose them: it stays, and stays a finding, unless there are
/// no chunks under its number.
pub(super) fn renumber(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    let Some((id, (_, _, 0))) = key::parse_dir(key).zip(key::parse_name(key)) else {
        return Ok(false);
    };
    txn.lock(lock::dir_lock(id))?;
    let Some(EntryRecord::Node(mut inode)) = sound(txn, key)? else { return Ok(false) };
    txn.lock(lock::ino_lock(inode.ino))?;
    let shard = key::shard_of(key);
    if inode.contents == Contents::Blocks {
        if files::measure(txn, inode.ino)?.end > 0 {
            return Ok(false);
        }
        // The chunks are under another number, and are saved with that.
        let share = shares::at(txn, shard, id)?;
        drop_record(txn, key)?;
        if let Some(share) = share {
            uncount(txn, share, false);
        }
        return Ok(true);
    }
    inode.ino = txn.new_ino(shard, id)?;
    inode.moved = false;
    txn.put(key.clone(), &EntryRecord::Node(inode));
    Ok(true)
}
