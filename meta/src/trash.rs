//! Trash: what is removed is kept for some days, and can be put back where it was.
//!
//! `ops::{unlink, rmdir, rename}` hand it what loses its last name; it moves that to `/.trash/YYYY-MM-DD-HH/` in
//! the same transaction, under `PARENT-INO-NAME`, with a record beside the entry that says where it was. An inode
//! stays what it is, and a directory keeps its id, so a tree that was removed name by name finds together again.
//! What is removed within the trash is removed; a background task does it when the days are over ([`expiry`]).
//!
//! On several servers each has its own trash ([`place`]), and a directory is removed: what goes to the trash is a new one
//! that is like it. So nobody who knows the old one finds it there, no server is told, and emptying it needs no other.
//!
//! Without a setting nothing of this reads or writes anything.
//!
//! Invariant: an entry in a directory of an hour has its origin beside it, and no other entry has one.

mod expiry;
mod hours;
mod place;

use base::{DirId, EntryName, FsError, Ino, Locality, Time, limits::NAME_BYTES_MAX};
use wire::{FileRef, Retry};

pub(crate) use expiry::{Expired, run, step};
pub(crate) use place::Latest;

use crate::{
    error::{Fault, Result},
    lock,
    ops::{mkdir, rename, rmdir},
    paths::Up,
    record::{
        Content, EntryRecord, InTrash, Inode, Policy, Trash, TrashSetting, Usage, XattrSet,
        key::Part, system::Origin,
    },
    txn::{Caller, Dir, Located, Place, Steps, Txn},
};

/// What the trash is called in the root directory, which does not list it.
pub(crate) const NAME: &[u8] = b".trash";
/// Of how many directories that were born under one name and are not there any more an empty one is still kept:
/// `mkdir` passes by all of them.
const ELSEWHERE_MAX: usize = 16;

/// What a server with several beside it knows of the trash; all of it is read again when it is not there.
#[derive(Default)]
pub(crate) struct Known {
    latest: Latest,
}

/// Where something is thrown: the directory of the hour, and where it was.
struct Thrown {
    hour: Dir,
    name: EntryName,
}

/// Moves a file, of which `entry` is the last name, to the trash; the entry in `dir` is then removed, and the rest is
/// the caller's. `false` when there is no trash, or it is where it is removed from.
pub(crate) fn file(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    located: &mut Located,
) -> Result<bool> {
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, located.inode.ino)? else {
        return Ok(false);
    };
    txn.count_freely_for(&mut located.inode, hour.content.quota);
    located.inode.times.ctime = txn.now;
    located.inode.in_trash = InTrash(true);
    let xattrs = if located.place == Place::Slot { None } else { txn.lift_xattrs(located)? };
    txn.delete_entry(dir, name);
    if located.place == Place::Slot {
        txn.put_inode(located);
        txn.put_entry(&hour, &called, &EntryRecord::Link(located.inode.ino));
    } else if txn.shared.cluster.is_none() || txn.shard_of_share(&hour) == located.inode.ino.shard()
    {
        txn.settle_inode(located, Place::under(txn, &hour, &called), xattrs);
    } else {
        // Its contents, and who has it open, stay where it was born: so does it.
        txn.settle_inode(located, Place::Slot, xattrs);
        txn.put_entry(&hour, &called, &EntryRecord::Link(located.inode.ino));
    }
    hour.content.entries += 1;
    txn.touch(&mut hour);
    txn.put_dir(&hour);
    Ok(true)
}

/// Moves an empty directory to the trash; as [`file`]. `false` too where [`ELSEWHERE_MAX`] of its name are elsewhere.
/// `others` are its other shares.
pub(crate) fn directory(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    child: &mut Dir,
    others: &[Dir],
) -> Result<bool> {
    if txn.shared.cluster.is_some() {
        return likeness(txn, dir, name, child, others);
    }
    let keeps = txn.settings().trash.0.is_some_and(|trash| trash.days > 0);
    if !keeps || rename::others_elsewhere(txn, child)? >= ELSEWHERE_MAX {
        return Ok(false);
    }
    txn.alone()?;
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, child.content.ino)? else {
        return Ok(false);
    };
    let was = child.content.quota;
    txn.end_root(&child.content);
    txn.recharge_freely(was, hour.content.quota, Usage::of(1, 0));
    child.content.quota = hour.content.quota;
    child.content.times.ctime = txn.now;
    txn.delete_entry(dir, name);
    rename::note_move(txn, child, &hour, &called)?;
    txn.put_everywhere(child)?;
    txn.events.push(child.id);
    txn.put_subdir(&mut hour, &called, child);
    Ok(true)
}

/// As [`directory`], on several servers: it is removed, and a new one that is like it is in the trash.
fn likeness(
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
    let ino = txn.new_ino_near(&[txn.shard(free.home)])?;
    let was = &child.content;
    let mut like = Content { ino, ..was.clone() };
    like.times.ctime = txn.now;
    // It has one partition now.
    like.policy = Policy { large_dir: 0, ..was.policy };
    let kept = place::born(&hour, &called, free, &like);
    txn.put_dir(&kept);
    if let Some(spilled) = spilled {
        let key = txn.dir_xattrs_key(&kept);
        txn.put(key, &spilled);
    }
    txn.charge_freely(kept.content.quota, Usage::of(1, 0));
    rmdir::remove(txn, child, others)?;
    txn.delete_entry(dir, name);
    txn.put_subdir(&mut hour, &called, &kept);
    Ok(true)
}

/// An entry leaves `dir`: if that is the directory of an hour, its origin goes.
pub(crate) fn leave(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName) {
    if txn.settings().trash.0.is_none() {
        return;
    }
    // Or another one that is called like one: then there is nothing to remove.
    let is_hour = dir.content.name.as_ref().is_some_and(|name| hours::begin_of(name).is_some());
    if is_hour {
        let key = txn.entry_key(dir, name, Part::Origin);
        txn.delete(key);
    }
}

/// As [`leave`], of the name of a file: the caller stores its inode, or removes it.
pub(crate) fn file_leaves(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    located: &mut Located,
) -> Result<()> {
    let Inode { nlink, in_trash, .. } = &mut located.inode;
    // Another of several names may be the one in the trash.
    if in_trash.0 && (*nlink == 1 || is_origin(txn, (dir.id, dir.content.home), name)?) {
        *in_trash = InTrash(false);
    }
    leave(txn, dir, name);
    Ok(())
}

/// Whether a file is in the trash and has no name elsewhere, of which the name that was asked for says nothing: then
/// nobody has the file who does not look there, and it gets no name but by being moved out.
pub(crate) fn has_all(txn: &Txn<'_>, inode: &Inode, asked: &FileRef) -> Result<bool> {
    if !inode.in_trash.0 || inode.nlink != 1 {
        return Ok(false);
    }
    Ok(!is_origin(txn, (asked.dir.id, asked.dir.home), &asked.name)?)
}

/// Whether what has a name was thrown there.
fn is_origin(txn: &Txn<'_>, (dir, home): (DirId, DirId), name: &EntryName) -> Result<bool> {
    let key = txn.name_key(home, dir, name, Part::Origin);
    Ok(txn.get::<Origin>(&key)?.is_some())
}

/// Whether it is the trash itself.
pub(crate) fn is_trash(txn: &Txn<'_>, dir: DirId) -> bool {
    txn.settings().trash.0.is_some_and(|trash| trash.dir == dir)
}

/// Whether what is in `above` stays where it is: the trash itself, and that of each server.
pub(crate) fn stays(txn: &Txn<'_>, above: &Dir, dir: DirId) -> bool {
    is_trash(txn, dir) || (txn.shared.cluster.is_some() && is_trash(txn, above.id))
}

/// Sets for how many days things are kept; 0: they are removed as ever, and so is what is there, in the background.
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

/// Makes a directory for root alone.
fn make(txn: &mut Txn<'_>, above: &Dir, name: &EntryName) -> Result<Dir> {
    let caller = std::mem::replace(&mut txn.caller, Caller::SERVER);
    let dir = txn.dir_ref(above.id, above.content.ino, above.content.home);
    let request = wire::Mkdir { dir, name: name.clone(), mode: 0o700 };
    let made =
        mkdir::run(txn, &request).and_then(|made| txn.master_locked(&made.dir.ok_or(FsError::Io)?));
    txn.caller = caller;
    made
}

/// Where to, and writes down where from.
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

/// The name of a directory, and those of all above it.
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

/// As [`names_above`], of directories of several servers, as they were a moment ago. In a damaged tree as far as one comes.
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
                    // What was read of several servers need not be of one moment.
                    if txn.tears() {
                        return Err(Fault::Retry(Retry::Busy));
                    }
                    break;
                };
                let up = Up::of(&content);
                known.learn((at, ino, up.clone()), version, moved);
                up
            }
        };
    }
    Ok(Some(names))
}

/// The directory of this hour.
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
        // Root has made something else of it.
        Some(EntryRecord::Node(_) | EntryRecord::Link(_)) => Err(FsError::Io.into()),
        None => make(txn, &above, &name),
    }
}

/// What it is called in the hour. What was put back and is removed again may find its name taken by what was put
/// there since: it gets a number more.
fn free_name(txn: &Txn<'_>, hour: &Dir, of: (Ino, Ino, &EntryName)) -> Result<EntryName> {
    let mut count = 1;
    loop {
        let name = called(of, count);
        // Root may have divided it: other partitions may be other servers'.
        if txn.owner_by(hour, &name) == hour.partition && txn.entry(hour, &name)?.is_none() {
            return Ok(name);
        }
        count += 1;
    }
}

/// `PARENT-INO-NAME`, or `PARENT-INO-NAME~COUNT` for all but the first; of a long name only the beginning.
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
    // It may have been moved since. If it is in the trash itself, it was where the path says.
    let path = match path_outside(txn, &trash, &above)? {
        None => origin.path.to_vec(),
        Some(path) => [&path[..], b"/", origin.name.as_bytes()].concat(),
    };
    Ok(Some((path, removed)))
}
