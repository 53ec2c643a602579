//! Trash: removed files and directories are kept for some days, and can be put back where they
//! were.
//!
//! `ops::{unlink, rmdir, rename}` call this for whatever loses its last name. The file or directory
//! moves to `/.trash/YYYY-MM-DD-HH/` in the same transaction, under `PARENT-INO-NAME`, with a
//! record beside the entry that says where it was. An inode stays as it is, and a directory keeps
//! its id, so a tree that was removed name by name finds together again. What is removed within the
//! trash is gone; a background task does that when the days are over ([`expiry`]).
//!
//! With several servers each has its own trash ([`place`]). A directory is then removed, and a new
//! one like it goes to the trash. So no client finds the old one there under its id, no server is
//! told, and emptying the trash needs no other server.
//!
//! While no trash is set, none of this reads or writes anything.
//!
//! Invariant: an entry in an hour's directory has its origin beside it, and no other entry has one.

mod expiry;
mod hours;
pub(crate) mod latest;
mod place;

use base::{DirId, EntryName, FsError, Ino, Locality, Time, limits::NAME_BYTES_MAX};
use wire::{FileRef, Retry};

pub(crate) use expiry::run;

use crate::{
    error::{Fault, Result},
    lock,
    ops::mkdir,
    paths::{At, Steps, Up},
    record::{
        Content, EntryRecord, InTrash, Inode, Policy, Trash, TrashSetting, Usage, XattrSet,
        key::Part, system::Origin,
    },
    txn::{Caller, Dir, Located, Place, Txn, birthplace, removal},
};

/// Name of the trash in the root directory, which does not list it.
pub(crate) const NAME: &[u8] = b".trash";
/// An empty directory is kept only while at most this many directories that were born under one
/// name live elsewhere: `mkdir` tries all of their ids.
const ELSEWHERE_MAX: usize = 16;

/// Place in the trash for something that is removed: the hour's directory, and the name there.
struct Thrown {
    hour: Dir,
    name: EntryName,
}

/// Moves a file, of which `entry` is the last name, to the trash. Its entry in `dir` is removed;
/// the rest is left to the caller. `false` when no trash is set, or the file is in it already.
pub(crate) fn file(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    located: &mut Located,
) -> Result<bool> {
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, located.inode.ino)? else {
        return Ok(false);
    };
    txn.change_freely(&mut located.inode, |inode| {
        inode.quota = hour.content.quota;
        inode.in_trash = InTrash(true);
    });
    located.inode.times.ctime = txn.now;
    let xattrs = if located.place == Place::Slot { None } else { txn.lift_xattrs(located)? };
    txn.delete_entry(dir, name);
    if located.place == Place::Slot {
        txn.put_inode(located);
        txn.put_entry(&hour, &called, &EntryRecord::Link(located.inode.ino));
    } else if txn.shared.cluster.is_none() || txn.shard_of_share(&hour) == located.inode.ino.shard()
    {
        txn.settle_inode(located, Place::under(txn, &hour, &called), xattrs);
    } else {
        // The contents and opens of the file stay where it was born, and so does the inode.
        txn.settle_inode(located, Place::Slot, xattrs);
        txn.put_entry(&hour, &called, &EntryRecord::Link(located.inode.ino));
    }
    hour.content.entries += 1;
    txn.touch(&mut hour);
    txn.put_dir(&hour);
    Ok(true)
}

/// Moves an empty directory to the trash, like [`file`]. Also `false` when [`ELSEWHERE_MAX`]
/// directories of its name are elsewhere. `others` are its other shares.
pub(crate) fn directory(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    child: &mut Dir,
    others: &[Dir],
) -> Result<bool> {
    if txn.shared.cluster.is_some() {
        return trashed_copy(txn, dir, name, child, others);
    }
    let keeps = txn.settings().trash.0.is_some_and(|trash| trash.days > 0);
    if !keeps || birthplace::others_elsewhere(txn, child)? >= ELSEWHERE_MAX {
        return Ok(false);
    }
    txn.alone()?;
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, child.content.ino)? else {
        return Ok(false);
    };
    let was = child.content.accounts();
    txn.end_root(&child.content);
    child.content.quota = hour.content.quota;
    txn.recharge_freely(was, child.content.accounts(), Usage::of(1, 0));
    child.content.times.ctime = txn.now;
    txn.delete_entry(dir, name);
    birthplace::note_move(txn, child, &hour, &called)?;
    txn.put_everywhere(child)?;
    txn.facts.moved.push(child.id);
    txn.put_subdir(&mut hour, &called, child);
    Ok(true)
}

/// Like [`directory`], with several servers: removes the directory, and puts a new one like it into
/// the trash.
fn trashed_copy(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    child: &Dir,
    others: &[Dir],
) -> Result<bool> {
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, child.content.ino)? else {
        return Ok(false);
    };
    let spilled: Option<XattrSet> = match child.content.xattrs.is_spilled() {
        true => txn.get(&txn.dir_xattrs_key(child))?,
        false => None,
    };
    let here = |txn: &Txn<'_>, home| txn.has_shard(txn.shard(home));
    let anywhere = txn.shared.config.locality == Locality::Subtree;
    let free = place::free_id(txn, &hour, &called, |txn, home| anywhere || here(txn, home))?;
    let free = free.ok_or(FsError::NoSpace)?;
    let ino = txn.new_ino_near(&[txn.shard(free.home)], free.id)?;
    let was = &child.content;
    let mut like = Content { ino, ..was.clone() };
    like.times.ctime = txn.now;
    // The copy has one partition.
    like.policy = Policy { large_dir: 0, ..was.policy };
    let kept = place::born(&txn.shared.config, &hour, &called, free, &like);
    txn.put_dir(&kept);
    if let Some(spilled) = spilled {
        let key = txn.dir_xattrs_key(&kept);
        txn.put(key, &spilled);
    }
    txn.charge_freely(kept.content.accounts(), Usage::of(1, 0));
    removal::remove(txn, child, others)?;
    txn.delete_entry(dir, name);
    txn.put_subdir(&mut hour, &called, &kept);
    Ok(true)
}

/// Deletes the origin of an entry that leaves `dir`, if that is an hour's directory.
pub(crate) fn leave(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName) {
    if txn.settings().trash.0.is_none() {
        return;
    }
    // A directory may be called like an hour without being one. Then there is no origin to delete.
    let is_hour = dir.content.name.as_ref().is_some_and(|name| hours::begin_of(name).is_some());
    if is_hour {
        let key = txn.entry_key(dir, name, Part::Origin);
        txn.delete(key);
    }
}

/// Like [`leave`], for the name of a file. The caller stores its inode, or removes it.
pub(crate) fn file_leaves(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    located: &mut Located,
) -> Result<()> {
    let Inode { nlink, in_trash, .. } = located.inode;
    // The name in the trash may be another one of several.
    if in_trash.0 && (nlink == 1 || is_origin(txn, (dir.id, dir.content.home), name)?) {
        txn.change_freely(&mut located.inode, |inode| inode.in_trash = InTrash(false));
    }
    leave(txn, dir, name);
    Ok(())
}

/// Whether a file is in the trash and has no name elsewhere, and was not asked for by its name in
/// the trash. Only a client that looks in the trash has this file, and only a move out of it gives
/// the file a name.
pub(crate) fn has_all(txn: &Txn<'_>, inode: &Inode, asked: &FileRef) -> Result<bool> {
    if !inode.in_trash.0 || inode.nlink != 1 {
        return Ok(false);
    }
    Ok(!is_origin(txn, (asked.dir.id, asked.dir.home), &asked.name)?)
}

/// Whether the entry of this name was moved to the trash.
fn is_origin(txn: &Txn<'_>, (dir, home): (DirId, DirId), name: &EntryName) -> Result<bool> {
    let key = txn.name_key(home, dir, name, Part::Origin);
    Ok(txn.get::<Origin>(&key)?.is_some())
}

/// Whether a directory is `/.trash` itself.
pub(crate) fn is_trash(txn: &Txn<'_>, dir: DirId) -> bool {
    txn.settings().trash.0.is_some_and(|trash| trash.dir == dir)
}

/// Whether an entry of `above` must stay where it is: `/.trash` itself, and each server's directory
/// in it.
pub(crate) fn stays(txn: &Txn<'_>, above: &Dir, dir: DirId) -> bool {
    is_trash(txn, dir) || (txn.shared.cluster.is_some() && is_trash(txn, above.id))
}

/// Whether the name in `/.trash` is of an hour, of when the file system had one server: such a
/// directory may be removed.
pub(crate) fn is_hour(name: &EntryName) -> bool {
    hours::begin_of(name).is_some()
}

/// Sets for how many days things are kept. With 0, removed things are gone at once, and the
/// background task empties the trash.
pub(crate) fn set(txn: &mut Txn<'_>, root: &Dir, days: u32) -> Result<()> {
    let mut settings = txn.settings();
    let trash = match settings.trash.0 {
        Some(trash) => Trash { days, ..trash },
        None if days == 0 => return Ok(()),
        None => {
            let name = EntryName::new(NAME).expect("it is a name");
            let made = match txn.shared.cluster {
                None => make(txn, root, &name)?,
                Some(_) => place::make_trash(txn, root, &name)?,
            };
            Trash { days, dir: made.id, home: made.content.home, ino: made.content.ino }
        }
    };
    settings.trash = TrashSetting(Some(trash));
    txn.set_settings(settings)
}

/// Makes a directory that only root may use.
fn make(txn: &mut Txn<'_>, above: &Dir, name: &EntryName) -> Result<Dir> {
    let caller = std::mem::replace(&mut txn.caller, Caller::SERVER);
    let dir = txn.dir_ref(above.id, above.content.ino, above.content.home);
    let request = wire::Mkdir { dir, name: name.clone(), mode: 0o700 };
    let made =
        mkdir::run(txn, &request).and_then(|made| txn.master_locked(&made.dir.ok_or(FsError::Io)?));
    txn.caller = caller;
    made
}

/// Chooses the place in the trash, and stores where the entry was.
fn throw(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName, ino: Ino) -> Result<Option<Thrown>> {
    let Some(trash) = txn.settings().trash.0.filter(|trash| trash.days > 0) else {
        return Ok(None);
    };
    let Some(mut path) = path_outside(txn, &trash, dir)? else { return Ok(None) };
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    let hour = hour(txn, &trash)?;
    let called = free_name(txn, &hour, (dir.content.ino, ino, name))?;
    let origin = Origin {
        dir: dir.id,
        home: dir.content.home,
        ino: dir.content.ino,
        name: name.clone(),
        path: path.into(),
        removed: txn.now,
    };
    let key = txn.entry_key(&hour, &called, Part::Origin);
    txn.put(key, &origin);
    Ok(Some(Thrown { hour, name: called }))
}

/// The path of a directory without a `/` at its end; `None` within the trash.
fn path_outside(txn: &Txn<'_>, trash: &Trash, dir: &Dir) -> Result<Option<Vec<u8>>> {
    let names = match txn.shared.cluster {
        None => names_above(txn, trash, dir)?,
        Some(_) => names_as_known(txn, trash, dir)?,
    };
    let Some(names) = names else { return Ok(None) };
    let mut path = Vec::new();
    for name in names.iter().rev().flatten() {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    Ok(Some(path))
}

/// Names of a directory and of all above it, deepest first.
type Names = Vec<Option<EntryName>>;

fn names_above(txn: &Txn<'_>, trash: &Trash, dir: &Dir) -> Result<Option<Names>> {
    let mut names = Names::new();
    let (mut at, mut steps) = (dir.clone(), Steps::from(dir.id));
    while at.id != DirId::ROOT {
        if at.id == trash.dir {
            return Ok(None);
        }
        names.push(at.content.name.clone());
        at = txn.settled(|txn| txn.parent(&at))?;
        steps.step(at.id)?;
    }
    Ok(Some(names))
}

/// Like [`names_above`], with several servers: the names as they were a moment ago. In a damaged
/// tree the climb ends where it cannot go on.
fn names_as_known(txn: &Txn<'_>, trash: &Trash, dir: &Dir) -> Result<Option<Names>> {
    let (known, moved) = (&txn.shared.paths, &txn.shared.invalidations);
    let mut names = Names::new();
    let (mut at, mut steps) = (dir.id, Steps::from(dir.id));
    let mut up = Up::of(&dir.content);
    while at != DirId::ROOT {
        if at == trash.dir {
            return Ok(None);
        }
        names.push(up.name.take());
        at = up.parent;
        steps.step(at)?;
        if at == DirId::ROOT || at == trash.dir {
            continue;
        }
        let ino = up.parent_ino;
        up = match known.get(at, ino, moved) {
            Some(up) => up,
            None => {
                let (content, version) = txn.glance(&txn.content_key(up.parent_home, at))?;
                let Some(content) = content.filter(|content| content.ino == ino) else {
                    // Records read from several servers need not be of one moment.
                    if txn.mark_torn() {
                        return Err(Fault::Retry(Retry::Busy));
                    }
                    break;
                };
                let at = At { id: at, ino, home: up.parent_home };
                txn.learn_way(at, &content, version);
                Up::of(&content)
            }
        };
    }
    Ok(Some(names))
}

/// The directory of the current hour.
fn hour(txn: &mut Txn<'_>, trash: &Trash) -> Result<Dir> {
    if txn.shared.cluster.is_some() {
        return place::hour(txn, trash);
    }
    txn.lock(lock::dir_lock(trash.dir))?;
    let content = txn.get_content(&txn.content_key(trash.home, trash.dir))?.ok_or(FsError::Io)?;
    let above = Dir::master(trash.dir, content);
    let name = hours::name_of(txn.now);
    match txn.entry(&above, &name)? {
        Some(EntryRecord::Dir(access)) => txn.child_locked(&access),
        // Root has put something else here.
        Some(EntryRecord::Node(_) | EntryRecord::Link(_)) => Err(FsError::Io.into()),
        None => make(txn, &above, &name),
    }
}

/// A free name in the hour's directory. When something was put back and is removed again, its old
/// name there may be taken: it gets the next number.
fn free_name(txn: &Txn<'_>, hour: &Dir, of: (Ino, Ino, &EntryName)) -> Result<EntryName> {
    let mut count = 1;
    loop {
        let name = called(of, count);
        // Root may have divided the directory: other partitions may be on other servers.
        if txn.owner_by(hour, &name) == hour.partition && txn.entry(hour, &name)?.is_none() {
            return Ok(name);
        }
        count += 1;
    }
}

/// `PARENT-INO-NAME`, or `PARENT-INO-NAME~COUNT` for all but the first; a long name is cut off.
fn called((parent, ino, name): (Ino, Ino, &EntryName), count: u64) -> EntryName {
    let mut called = format!("{}-{}-", parent.0, ino.0).into_bytes();
    called.extend_from_slice(name.as_bytes());
    let suffix = if count > 1 { format!("~{count}") } else { String::new() };
    called.truncate(NAME_BYTES_MAX - suffix.len());
    called.extend_from_slice(suffix.as_bytes());
    EntryName::new(&called).expect("numbers before a part of a name are a name")
}

/// Where something in the trash goes when it is put back, and when it was removed.
pub(crate) fn origin(
    txn: &Txn<'_>,
    (dir, home): (DirId, DirId),
    name: &EntryName,
) -> Result<Option<(Vec<u8>, Time)>> {
    let Some(trash) = txn.settings().trash.0 else { return Ok(None) };
    let key = txn.name_key(home, dir, name, Part::Origin);
    let Some(origin) = txn.get::<Origin>(&key)? else { return Ok(None) };
    let removed = origin.removed;
    let content = txn.get_content(&txn.content_key(origin.home, origin.dir))?;
    let content = content.filter(|content| content.ino == origin.ino);
    let Some(content) = content else { return Ok(Some((origin.path.to_vec(), removed))) };
    let above = Dir::master(origin.dir, content);
    // The parent may have been moved since. If it is in the trash itself, the stored path is used.
    let path = match path_outside(txn, &trash, &above)? {
        None => origin.path.to_vec(),
        Some(path) => [&path[..], b"/", origin.name.as_bytes()].concat(),
    };
    Ok(Some((path, removed)))
}
