//! Content records: their own fields, and the tree that their back pointers make.

use base::{
    DirId, EntryName, Ino, Layout, Locality, NameVersion, SearchClass, ShardId, attr::MODE_BITS,
    permissions::Listing,
};

use super::{
    drop_record, files, is_here, lost, names, shares, sound, tell_clients, unsound, was_given_out,
};
use crate::{
    error::Result,
    format::root_content,
    lock, permissions, placing,
    record::{
        Access, Accounts, Content, ContentState, EntryRecord, Key, Placing, Policy, QuotaId,
        Record as _, StoredListing, Times, Usage, Xattrs, key, key::Part,
    },
    txn::{Dir, Txn, birthplace::note_birthplace},
};

/// Number of versions of its name that are tried to find a directory's birth.
const VERSIONS_TRIED: usize = 64;
/// Number of records of a group that one repair moves.
const MOVED_AT_ONCE: usize = 4096;

/// Repairs a content record, or the extended attributes beside one.
pub(super) fn directory(txn: &mut Txn<'_>, shard: ShardId, key: &Key) -> Result<bool> {
    let parsed = key::parse_dir(key).zip(key::parse_share(key));
    let Some((id, (partition, part @ (0 | 2)))) = parsed else {
        return drop_record(txn, key);
    };
    if partition > 0 {
        return shares::share(txn, shard, (id, partition), key);
    }
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.lock(lock::dir_lock(id))?;
    let main = key::content(shard, id, 0, Part::Main);
    let content: Option<Content> = sound(txn, &main)?;
    let Some(content) = content else {
        if id == DirId::ROOT && shard == ShardId(0) {
            // Directories below may grant less than a new root would promise.
            let listing = StoredListing(Listing { below: SearchClass::Nothing, listed: true });
            let placing = placing::of_root(txn.shared.config.locality);
            let root = Content { listing, placing, ..root_content(txn.now) };
            txn.put_dir(&Dir::master(id, root));
            return Ok(true);
        }
        return drop_record(txn, key);
    };
    let mut dir = Dir::master(id, content);
    if part != 0 && !dir.content.xattrs.is_spilled() {
        return drop_record(txn, key);
    }
    let was = dir.content.clone();
    if id == DirId::ROOT {
        be_root(&mut dir.content);
    } else if placing::has_own_home(txn.shared.config.placement(), dir.content.birth_version) {
        let version = dir.content.birth_version;
        dir.content.home = txn.shared.config.placement().home_of(id, version, id);
    }
    let right = txn.content_key(dir.content.home, id);
    if right != main {
        drop_record(txn, &main)?;
        if txn.get_bytes(&right)?.is_none() {
            txn.put(right, &dir.content);
        }
        return Ok(true);
    }
    if let Some(twin) = twin(txn, &dir)? {
        // One of two records of a directory is enough: the one that its names are with.
        let mut other = key::names(shard, id);
        other[..2].copy_from_slice(&twin[..2]);
        is_here(txn, &main)?;
        is_here(txn, &other)?;
        let is_here = !txn.scan_prefix(&key::names(shard, id), 1)?.is_empty();
        if !is_here || !txn.scan_prefix(&other, 1)?.is_empty() {
            return drop_record(txn, &main);
        }
        drop_record(txn, &twin)?;
    }
    let mut mended = if id == DirId::ROOT { false } else { in_tree(txn, &mut dir)? };
    mended |= shares::complete(txn, &dir)?;
    let key = txn.dir_xattrs_key(&dir);
    let xattrs = files::right_xattrs(txn, &dir.content.xattrs, &key)?;
    if !mended && xattrs.is_none() && dir.content == was {
        return Ok(false);
    }
    txn.put_dir(&dir);
    if let Some(xattrs) = xattrs {
        txn.put_dir_xattrs(&mut dir, xattrs);
    }
    Ok(true)
}

/// Gives the root's record the values that a root must have, with neither name nor parent.
fn be_root(content: &mut Content) {
    let right = root_content(content.times.mtime);
    *content = Content {
        mode: content.mode,
        uid: content.uid,
        gid: content.gid,
        times: content.times,
        entries: content.entries,
        subdirs: content.subdirs,
        xattrs: content.xattrs.clone(),
        quota: content.quota,
        layout: content.layout.clone(),
        policy: content.policy,
        placing: Placing { birth_home: None, ..content.placing },
        listing: StoredListing(Listing { below: content.listing.0.below.clone(), listed: true }),
        ..right
    };
}

/// Puts a directory in its place in the tree, or in `/lost+found`; `true` if anything but its
/// record was written.
fn in_tree(txn: &mut Txn<'_>, dir: &mut Dir) -> Result<bool> {
    dir.content.state = ContentState::Live;
    doubt_birth(txn, dir);
    let above = match &dir.content.name {
        Some(name) => {
            let Content { parent, parent_home, .. } = dir.content;
            shares::of_name(txn, parent_home, parent, name)?.zip(Some(name.clone()))
        }
        None => None,
    };
    let Some((mut above, name)) = above else {
        tell_clients(txn, dir.id)?;
        lost::directory(txn, dir)?;
        return Ok(true);
    };
    if is_in_loop(txn, dir)? {
        tell_clients(txn, dir.id)?;
        txn.lock(lock::dir_lock(dir.content.parent))?;
        leave(txn, dir, &name)?;
        lost::directory(txn, dir)?;
        return Ok(true);
    }
    dir.content.parent_ino = above.content.ino;
    if permissions::wrong(&dir.content, Some(&above.content.listing.0.below)).is_some() {
        dir.content.listing.0.listed = true;
    }
    txn.lock(lock::dir_lock(dir.content.parent))?;
    let key = shares::entry_key(txn, &above, &name);
    let mut mended = false;
    match txn.get_bytes(&key)? {
        None => {
            tell_clients(txn, dir.id)?;
            txn.put_entry(&above, &name, &EntryRecord::Dir(Txn::access_of(dir)));
            above.content.entries += 1;
            above.content.subdirs = above.content.subdirs.saturating_add(1);
            txn.put_dir(&above);
            mended = true;
        }
        Some(bytes) => match unsound(&bytes) {
            Some(EntryRecord::Dir(access)) if access.id == dir.id => {
                if access != Txn::access_of(dir) {
                    tell_clients(txn, dir.id)?;
                    txn.put_entry(&above, &name, &EntryRecord::Dir(Txn::access_of(dir)));
                    mended = true;
                }
            }
            Some(EntryRecord::Dir(_) | EntryRecord::Node(_) | EntryRecord::Link(_)) | None => {
                tell_clients(txn, dir.id)?;
                lost::directory(txn, dir)?;
                return Ok(true);
            }
        },
    }
    recharge(txn, dir, above.content.quota);
    Ok(note_birthplace(txn, dir)? | mended)
}

/// Drops the birth name of a directory whose id does not fit it: the birth place is unknown. Only
/// clients that guess its id would need it.
pub(super) fn doubt_birth(txn: &Txn<'_>, dir: &mut Dir) {
    let Content { birth_parent, birth_version, .. } = dir.content;
    let hash_key = &txn.shared.config.hash_key;
    let born_so = |name: &EntryName| hash_key.dir_id(birth_parent, name, birth_version) == dir.id;
    if dir.content.birth_name.as_ref().is_some_and(|name| !born_so(name)) {
        dir.content.birth_name = None;
    }
}

/// Key of another record of a directory, if its entry leads there.
fn twin(txn: &Txn<'_>, dir: &Dir) -> Result<Option<Key>> {
    let Content { parent, parent_home, name, .. } = &dir.content;
    let Some(name) = name else { return Ok(None) };
    let Some(above) = shares::of_name(txn, *parent_home, *parent, name)? else { return Ok(None) };
    let entry = sound(txn, &shares::entry_key(txn, &above, name))?;
    let Some(EntryRecord::Dir(access)) = entry else { return Ok(None) };
    let there = txn.content_key(access.home, access.id);
    let another = access.id == dir.id && there != txn.content_key(dir.content.home, dir.id);
    Ok(if another && sound::<Content>(txn, &there)?.is_some() { Some(there) } else { None })
}

/// Charges a directory like its parent, unless it is an accounting root.
fn recharge(txn: &mut Txn<'_>, dir: &mut Dir, to: QuotaId) {
    let quotas = &txn.shared.quotas;
    let from = dir.content.quota;
    let accounts = from == QuotaId(dir.content.ino) && quotas.get(from).is_some();
    // With several servers only the coordinator knows which roots are being counted.
    let alone = txn.shared.cluster.is_none();
    if alone && from != to && !accounts && !quotas.is_moving(from, to) {
        txn.recharge_freely(Accounts::root(from), Accounts::root(to), Usage::of(1, 0));
        dir.content.quota = to;
    }
}

/// Whether walking up from a directory leads back to it.
fn is_in_loop(txn: &Txn<'_>, dir: &Dir) -> Result<bool> {
    let mut at = (dir.content.parent_home, dir.content.parent);
    let mut walked = vec![dir.id];
    while at.1 != DirId::ROOT {
        if walked.contains(&at.1) {
            return Ok(at.1 == dir.id);
        }
        txn.stays(at.1);
        walked.push(at.1);
        match sound::<Content>(txn, &txn.content_key(at.0, at.1))? {
            Some(content) => at = (content.parent_home, content.parent),
            None => return Ok(false),
        }
    }
    Ok(false)
}

/// Removes the entry of a directory from its old place, if it is there.
fn leave(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName) -> Result<()> {
    let Content { parent, parent_home, .. } = dir.content;
    let Some(above) = shares::of_name(txn, parent_home, parent, name)? else { return Ok(()) };
    let key = shares::entry_key(txn, &above, name);
    let entry: Option<EntryRecord> = sound(txn, &key)?;
    if matches!(entry, Some(EntryRecord::Dir(access)) if access.id == dir.id) {
        drop_record(txn, &key)?;
        names::uncount(txn, above, true);
    }
    Ok(())
}

/// Whether the entry that a directory's back pointer names leads to it.
pub(super) fn is_entered(txn: &Txn<'_>, dir: &Dir) -> Result<bool> {
    let Some(name) = &dir.content.name else { return Ok(false) };
    let Content { parent, parent_home, .. } = dir.content;
    let Some(above) = shares::of_name(txn, parent_home, parent, name)? else { return Ok(false) };
    let entry: Option<EntryRecord> = sound(txn, &shares::entry_key(txn, &above, name))?;
    Ok(matches!(entry, Some(EntryRecord::Dir(access)) if access.id == dir.id))
}

/// Rebuilds a lost content record from the directory's entry. The next sweep finds its counts.
pub(super) fn rebuilt(
    txn: &mut Txn<'_>,
    access: &Access,
    parent: &Dir,
    name: &EntryName,
) -> Result<Dir> {
    let mut access = *access;
    let config = &txn.shared.config;
    let (key, placement) = (config.hash_key, config.placement());
    let born = placing::levels(placement)
        .flat_map(|level| NameVersion::all(level).take(VERSIONS_TRIED))
        .find(|version| key.dir_id(parent.id, name, *version) == access.id);
    let unknown = NameVersion::first(placing::level_at(placement, access.id, access.home));
    let version = born.unwrap_or(unknown);
    if placing::has_own_home(placement, version) {
        access.home = placement.home_of(access.id, version, access.id);
    }
    if !was_given_out(txn, access.ino) {
        access.ino = txn.new_ino_near(&[txn.shard(access.home)], access.id)?;
    }
    let own = QuotaId(access.ino);
    let quota = if txn.shared.quotas.get(own).is_some() { own } else { parent.content.quota };
    let content = Content {
        state: ContentState::Live,
        confirmed: true,
        ino: access.ino,
        birth_parent: parent.id,
        birth_name: born.map(|_| name.clone()),
        birth_version: version,
        home: access.home,
        layout: Layout::Whole,
        parent: parent.id,
        parent_ino: parent.content.ino,
        parent_home: parent.content.home,
        name: Some(name.clone()),
        mode: access.mode & MODE_BITS,
        uid: access.uid,
        gid: access.gid,
        times: Times::born(txn.now),
        entries: 0,
        subdirs: 0,
        xattrs: Xattrs::NONE,
        quota,
        policy: Policy::NONE,
        placing: placing::of_new(&txn.shared.config, (parent.id, &parent.content), version.level()),
        listing: permissions::made_again(&parent.content),
    };
    txn.charge_freely(content.accounts(), Usage::of(1, 0));
    Ok(Dir::master(access.id, content))
}

/// The directory of an entry, where its record is not at the home that the entry says.
pub(super) fn elsewhere(txn: &Txn<'_>, access: &Access) -> Result<Option<Dir>> {
    let key = |shard| key::content(shard, access.id, 0, Part::Main);
    let all = (0..txn.shared.config.shards).map(ShardId);
    txn.want(&all.clone().map(key).collect::<Vec<_>>())?;
    for shard in all {
        let key = key(shard);
        let content: Option<Content> = sound(txn, &key)?;
        if let Some(content) = content.filter(|content| txn.shard(content.home) == shard) {
            return Ok(Some(Dir::master(access.id, content)));
        }
    }
    Ok(None)
}

/// Gives a directory another number when its own was never given out.
pub(super) fn renumber(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    let Some(id) = key::parse_dir(key) else { return Ok(false) };
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.lock(lock::dir_lock(id))?;
    let Some(mut content) = sound::<Content>(txn, key)? else { return Ok(false) };
    if was_given_out(txn, content.ino) {
        return Ok(false);
    }
    tell_clients(txn, id)?;
    // The entry, and directories below, are repaired when they are looked at.
    content.ino = txn.new_ino_near(&[txn.shard(content.home)], id)?;
    txn.put_dir(&Dir::master(id, content));
    Ok(true)
}

/// Repairs names on a shard where their directory has no content record: moves them to the shard of
/// the record, or makes one.
pub(super) fn group(txn: &mut Txn<'_>, shard: ShardId, id: DirId) -> Result<bool> {
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.lock(lock::dir_lock(id))?;
    if shares::at(txn, shard, id)?.is_some() {
        return Ok(false);
    }
    let prefix = key::names(shard, id);
    is_here(txn, &prefix)?;
    let names = txn.scan_prefix(&prefix, MOVED_AT_ONCE)?;
    let Some(home) = home_of(txn, shard, id, &names) else { return Ok(false) };
    let right = txn.shard(home);
    let content: Option<Content> = sound(txn, &key::content(right, id, 0, Part::Main))?;
    let Some(content) = content else {
        if let Some(master) = shares::master_again(txn, id, None)? {
            txn.put_dir(&master);
            return Ok(true);
        }
        let ino = txn.new_ino_near(&[right], id)?;
        let access = Access { id, ino, home, mode: 0o700, uid: 0, gid: 0 };
        let above = lost::and_found(txn)?;
        let mut dir = rebuilt(txn, &access, &above, &lost::name_of(ino))?;
        lost::directory(txn, &mut dir)?;
        // No client has cached the directory with its new number; on a cluster none need be told.
        if txn.shared.cluster.is_none() {
            txn.alone()?;
        }
        txn.facts.moved.push(dir.id);
        txn.put_dir(&dir);
        return Ok(true);
    };
    let shards = txn.shared.config.shards;
    let partition = (shard.0 + shards - right.0) % shards;
    if partition > 0 && content.layout.is_active(partition) {
        txn.put_dir(&Dir { id, partition, content: content.share() });
        return Ok(true);
    }
    is_here(txn, &key::names(right, id))?;
    // Names of another partition go there from the master.
    let mut dir = Dir { id, partition: 0, content };
    for (key, value) in names {
        txn.delete(key.clone());
        let mut moved = key.clone();
        moved[..2].copy_from_slice(&right.0.to_be_bytes());
        let is_entry = key.last() == Some(&(Part::Main as u8));
        let record: Option<EntryRecord> = if is_entry { unsound(&value) } else { None };
        if txn.get_bytes(&moved)?.is_none() {
            txn.put_stored(moved, &value);
            dir.content.entries += u64::from(is_entry);
            let subdir = matches!(record, Some(EntryRecord::Dir(_)));
            dir.content.subdirs = dir.content.subdirs.saturating_add(u32::from(subdir));
        } else if let Some(EntryRecord::Node(inode)) = record {
            lost::file(txn, inode)?;
        }
    }
    txn.put_dir(&dir);
    Ok(true)
}

/// The home of a directory whose names are on `shard`.
fn home_of(
    txn: &Txn<'_>,
    shard: ShardId,
    id: DirId,
    names: &[(Key, bytes::Bytes)],
) -> Option<DirId> {
    let config = &txn.shared.config;
    match config.locality {
        Locality::Directory => Some(id),
        Locality::Subtree | Locality::Hybrid => {
            let of_child = |(_, value): &(Key, bytes::Bytes)| match EntryRecord::from_record(value)
            {
                Ok(EntryRecord::Dir(access)) => Some(access.home),
                Ok(EntryRecord::Node(_) | EntryRecord::Link(_)) | Err(_) => None,
            };
            // Any home that leads to the shard will do.
            let any = (2..u128::from(u16::MAX)).map(DirId);
            let on_shard = |home: &DirId| config.placement().shard_of(*home, 0) == shard;
            let of_children = names.iter().find_map(of_child).into_iter();
            let usual = placing::usual_homes(config.placement(), id);
            of_children.chain(usual).chain(any).find(on_shard)
        }
    }
}

/// Changes a directory's counts by the differences found.
pub(super) fn count(
    txn: &mut Txn<'_>,
    (shard, id, ino): (ShardId, DirId, Ino),
    entries: i64,
    subdirs: i64,
) -> Result<bool> {
    txn.lock(lock::dir_lock(id))?;
    // A share that belongs on another shard is repaired first.
    let share = shares::at(txn, shard, id)?.filter(|share| {
        let key = txn.share_key(share.content.home, id, share.partition);
        key::shard_of(&key) == shard && share.content.ino == ino
    });
    let Some(Dir { partition, mut content, .. }) = share else { return Ok(false) };
    content.entries = content.entries.saturating_add_signed(entries);
    let more = i32::try_from(subdirs).unwrap_or(if subdirs < 0 { i32::MIN } else { i32::MAX });
    content.subdirs = content.subdirs.saturating_add_signed(more);
    txn.put_dir(&Dir { id, partition, content });
    Ok(true)
}
