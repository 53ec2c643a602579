//! Where the trash is on a file system of several servers.
//!
//! Each server has a directory of its own in `/.trash`, named by the number of one of its shards,
//! and in that its hours' directories. Their ids are chosen, by name version, so that they are on
//! that shard: a server moves what it removes to its own trash without a message to the others. On
//! a single server the hours' directories are in `/.trash` itself.
//!
//! Always true: with several servers the directories in `/.trash` are neither moved nor removed
//! (`stays`), and an hour's directory never divides itself.

use std::ops::ControlFlow;

use base::{DirId, EntryName, FsError, Layout, Locality, NameVersion, ShardId};
use bytes::Bytes;
use wire::DirRef;

use super::{hours, latest::Hour};
use crate::{
    error::Result,
    lock, permissions, placing,
    record::{
        Config, Content, ContentState, EntryRecord, Policy, Record as _, Times, Trash, Usage,
        Xattrs, key,
    },
    server::Shared,
    txn::{Caller, Dir, Txn},
};

/// Number of versions of a name that are tried for an id on a certain shard. With 4096 shards one
/// search in e^16 fails.
const VERSIONS_MAX: usize = 1 << 16;

/// Number of candidate ids that are searched for an existing directory. Usually it has the first.
/// An earlier directory may have taken that id and been removed since.
const LOOKS_MAX: usize = 64;

/// The same for one that has come here with its shard. This is asked for each shard, and each look
/// costs as many hashes as there are shards: a server with 1,024 takes some 0.1 s, once.
const LOOKS_MOVED_MAX: usize = 4;

/// A directory that has hours' directories in it: `/.trash`, or a server's directory there.
#[derive(Clone, Copy)]
pub(super) struct Above {
    pub(super) id: DirId,
    pub(super) home: DirId,
}

/// An id that no directory has, with its home and name version.
#[derive(Clone, Copy)]
pub(super) struct Free {
    pub(super) id: DirId,
    pub(super) home: DirId,
    pub(super) version: NameVersion,
}

/// The shard of this server's trash: its first one. With subtree locality, the shard of `/.trash`.
fn shard(shared: &Shared, trash: &Trash) -> Option<ShardId> {
    let placement = shared.config.placement();
    match placement.locality {
        Locality::Subtree => Some(placement.shard_of(trash.home, 0)),
        Locality::Directory | Locality::Hybrid => {
            (0..placement.shards).map(ShardId).find(|shard| shared.owns(*shard))
        }
    }
}

fn called(shard: ShardId) -> EntryName {
    EntryName::new(shard.0.to_string().as_bytes()).expect("a number is a name")
}

/// Candidate ids of a name in a directory, by version, each with its home.
fn ids<'a>(
    shared: &'a Shared,
    above: Above,
    name: &'a EntryName,
) -> impl Iterator<Item = Free> + 'a {
    let placement = shared.config.placement();
    let versions = NameVersion::all(placing::level_of_servers(placement));
    versions.take(VERSIONS_MAX).map(move |version| {
        let id = shared.config.hash_key.dir_id(above.id, name, version);
        Free { id, home: placement.home_of(id, version, above.home), version }
    })
}

/// Like [`ids`], but only those that are placed on `shard`.
fn ids_on<'a>(
    shared: &'a Shared,
    above: Above,
    name: &'a EntryName,
    shard: ShardId,
) -> impl Iterator<Item = Free> + 'a {
    let placement = shared.config.placement();
    ids(shared, above, name).filter(move |free| placement.shard_of(free.home, 0) == shard)
}

fn is_kept(content: &Content, above: DirId, name: &EntryName) -> bool {
    content.parent == above && content.name.as_ref() == Some(name)
}

/// Directories in which this server empties hours.
pub(super) fn above(shared: &Shared, trash: &Trash) -> store::Result<Vec<Above>> {
    let top = Above { id: trash.dir, home: trash.home };
    if shared.cluster.is_none() {
        let mut all = vec![top];
        all.extend(of_several(shared, top)?);
        return Ok(all);
    }
    let own = own(shared, trash, top)?;
    let mut all: Vec<Above> = own.into_iter().collect();
    // Hours of when this server was alone.
    if shared.owns(shared.config.placement().shard_of(top.home, 0)) {
        all.push(top);
    }
    if shared.map().epoch.moves() > 0 {
        let others = shared.trash.moved(trash.dir, || of_moved(shared, trash, top))?;
        let is_own = |id| own.is_some_and(|own| own.id == id);
        let others = others.into_iter().filter(|(id, _)| !is_own(*id));
        all.extend(others.map(|(id, home)| Above { id, home }));
    }
    Ok(all)
}

/// Whether the directory of an hour, of which this is the entry, is on this server: one of when the
/// file system had one server may be elsewhere.
pub(super) fn is_here(shared: &Shared, entry: &[u8]) -> bool {
    let entry = EntryRecord::from_record(&Bytes::copy_from_slice(entry));
    let home = match entry {
        Ok(EntryRecord::Dir(access)) => access.home,
        Ok(EntryRecord::Node(_) | EntryRecord::Link(_)) | Err(_) => return false,
    };
    shared.owns(shared.config.placement().shard_of(home, 0))
}

/// Directories of servers from which shards have come here: nothing is put there any more, but what
/// is there goes when its time has come.
fn of_moved(shared: &Shared, trash: &Trash, top: Above) -> store::Result<Vec<(DirId, DirId)>> {
    let shards = (0..shared.config.shards).map(ShardId).filter(|shard| shared.owns(*shard));
    let mut found = Vec::new();
    for shard in shards {
        let there = there(shared, trash, (top, shard), LOOKS_MOVED_MAX)?;
        found.extend(there.map(|above| (above.id, above.home)));
    }
    Ok(found)
}

/// Servers' directories of a file system that had several before it was dumped and loaded.
fn of_several(shared: &Shared, top: Above) -> store::Result<Vec<Above>> {
    let mut found = Vec::new();
    let shard = shared.config.placement().shard_of(top.home, 0);
    let prefix = key::names(shard, top.id);
    shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        if let Some((_, name, 0)) = key::parse_name(key)
            && name.iter().all(u8::is_ascii_digit)
            && let Ok(EntryRecord::Dir(access)) =
                EntryRecord::from_record(&Bytes::copy_from_slice(value))
        {
            found.push(Above { id: access.id, home: access.home });
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// The trash of this server of several; `None` while there is none.
fn own(shared: &Shared, trash: &Trash, top: Above) -> store::Result<Option<Above>> {
    let Some(shard) = shard(shared, trash).filter(|shard| shared.owns(*shard)) else {
        return Ok(None);
    };
    there(shared, trash, (top, shard), LOOKS_MAX)
}

/// The directory of the trash that is called by a shard, on that shard.
fn there(
    shared: &Shared,
    trash: &Trash,
    (top, shard): (Above, ShardId),
    looks: usize,
) -> store::Result<Option<Above>> {
    let name = called(shard);
    for Free { id, home, .. } in ids_on(shared, top, &name, shard).take(looks) {
        let key = key::content(shard, id, 0, key::Part::Main);
        let Some(content) = shared.engine.get(&key)? else { continue };
        // Damaged records are left to `fsck`.
        if Content::from_record(&content).is_ok_and(|content| is_kept(&content, trash.dir, &name)) {
            return Ok(Some(Above { id, home }));
        }
    }
    Ok(None)
}

/// This server's directory of the current hour, locked. It is made if missing.
pub(super) fn hour(txn: &mut Txn<'_>, trash: &Trash) -> Result<Dir> {
    let name = hours::name_of(txn.now);
    if let Some(Hour { above, id, home, .. }) = txn.shared.trash.get(trash.dir, &name) {
        txn.lock(lock::dir_lock(id))?;
        let content = txn.get_content(&txn.content_key(home, id))?;
        if let Some(content) = content.filter(|content| is_kept(content, above, &name)) {
            return Ok(Dir::master(id, content));
        }
    }
    let shard = shard(txn.shared, trash).ok_or(FsError::Io)?;
    let caller = std::mem::replace(&mut txn.caller, Caller::SERVER);
    let found = found(txn, trash, &name, shard);
    txn.caller = caller;
    found
}

fn found(txn: &mut Txn<'_>, trash: &Trash, name: &EntryName, shard: ShardId) -> Result<Dir> {
    let top = txn.dir_ref(trash.dir, trash.ino, trash.home);
    let (server, _) = directory(txn, &top, &called(shard), shard)?;
    let above = txn.dir_ref(server.id, server.content.ino, server.content.home);
    let (hour, is_new) = directory(txn, &above, name, shard)?;
    if !is_new {
        let (id, home) = (hour.id, hour.content.home);
        let name = name.clone();
        txn.shared.trash.set(Hour { trash: trash.dir, name, above: above.id, id, home });
    }
    Ok(hour)
}

/// A directory of the trash on a shard, locked, and whether it was just made.
fn directory(
    txn: &mut Txn<'_>,
    above: &DirRef,
    name: &EntryName,
    shard: ShardId,
) -> Result<(Dir, bool)> {
    let shared = txn.shared;
    for free in ids_on(shared, Above { id: above.id, home: above.home }, name, shard) {
        txn.lock(lock::dir_lock(free.id))?;
        match txn.get_content(&txn.content_key(free.home, free.id))? {
            Some(content) if is_kept(&content, above.id, name) => {
                return Ok((Dir::master(free.id, content), false));
            }
            // Another directory has the id, or the directory was moved.
            Some(_) => {}
            None => return make(txn, above, name, Some(free)),
        }
    }
    Err(FsError::NoSpace.into())
}

/// Makes `/.trash` itself.
pub(super) fn make_trash(txn: &mut Txn<'_>, root: &Dir, name: &EntryName) -> Result<Dir> {
    let caller = std::mem::replace(&mut txn.caller, Caller::SERVER);
    let above = txn.dir_ref(root.id, root.content.ino, root.content.home);
    let made = make(txn, &above, name, None);
    txn.caller = caller;
    let (made, is_new) = made?;
    if is_new { Ok(made) } else { Err(FsError::Exists.into()) }
}

/// Makes a directory that only root may use, unless one exists under another id.
fn make(
    txn: &mut Txn<'_>,
    above: &DirRef,
    name: &EntryName,
    free: Option<Free>,
) -> Result<(Dir, bool)> {
    let start = txn.hint(above, name);
    let mut above = txn.dir_anywhere_locked(above, name, start)?;
    match txn.entry(&above, name)? {
        Some(EntryRecord::Dir(access)) => return Ok((txn.child_locked(&access)?, false)),
        // Root has put something else here.
        Some(EntryRecord::Node(_) | EntryRecord::Link(_)) => return Err(FsError::Io.into()),
        None => {}
    }
    let free = match free {
        Some(free) => free,
        None => free_id(txn, &above, name, |_, _| true)?.ok_or(FsError::NoSpace)?,
    };
    // Names stay on this shard, however many they are.
    let policy = Policy { split_threshold: u32::MAX, ..Policy::NONE };
    let like = Content {
        mode: 0o700,
        uid: 0,
        gid: 0,
        times: Times::born(txn.now),
        xattrs: Xattrs::NONE,
        policy,
        ..above.content.clone()
    };
    let ino = txn.new_ino_near(&[txn.shard(free.home)], free.id)?;
    let made = born(&txn.shared.config, &above, name, free, &Content { ino, ..like });
    txn.charge_freely(made.content.accounts(), Usage::of(1, 0));
    txn.put_dir(&made);
    txn.put_subdir(&mut above, name, &made);
    Ok((made, true))
}

/// An id for a new directory whose home fits; `None` when all versions were tried in vain.
pub(super) fn free_id(
    txn: &mut Txn<'_>,
    above: &Dir,
    name: &EntryName,
    fits: impl Fn(&Txn<'_>, DirId) -> bool,
) -> Result<Option<Free>> {
    let shared = txn.shared;
    for free in ids(shared, Above { id: above.id, home: above.content.home }, name) {
        if !fits(txn, free.home) {
            continue;
        }
        txn.lock(lock::dir_lock(free.id))?;
        if txn.get_content(&txn.content_key(free.home, free.id))?.is_none() {
            return Ok(Some(free));
        }
    }
    Ok(None)
}

/// An empty directory to be made in `above`, like another one in all else.
pub(super) fn born(
    config: &Config,
    above: &Dir,
    name: &EntryName,
    free: Free,
    like: &Content,
) -> Dir {
    let content = Content {
        state: ContentState::Live,
        confirmed: true,
        ino: like.ino,
        birth_parent: above.id,
        birth_name: Some(name.clone()),
        birth_version: free.version,
        home: free.home,
        layout: Layout::Whole,
        parent: above.id,
        parent_ino: above.content.ino,
        parent_home: above.content.home,
        name: Some(name.clone()),
        mode: like.mode,
        uid: like.uid,
        gid: like.gid,
        times: like.times,
        entries: 0,
        subdirs: 0,
        xattrs: like.xattrs.clone(),
        quota: above.content.quota,
        policy: like.policy,
        placing: placing::of_new(config, (above.id, &above.content), free.version.level()),
        listing: permissions::made_again(&above.content),
    };
    Dir::master(free.id, content)
}
