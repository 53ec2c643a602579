//! `mkdir`: make a directory, its access record with the parent and its content record in its own
//! group.
//!
//! The id is the birth triple with the lowest free version of the directory's level: not one in the
//! name's rename list (a directory born here that lives elsewhere), and not one whose content record
//! exists (a collision of hashes). Where the child's group is on another server, its id is assumed to
//! be free, and that server says if it is not.
//!
//! Cost: four locked reads and one batch of three puts and the stored answer.
//! POSIX: mkdir(2). EEXIST when the name is taken.

use base::{
    Access, FileKind, FsError, Layout, NameVersion,
    attr::{MODE_SETGID, MODE_STICKY},
};
use wire::{Entry, Mkdir};

use super::{create::inherited, divide};
use crate::{
    delegations::grant,
    error::Result,
    lock, permissions, placing,
    record::{Content, ContentState, Policy, RenameList, StoredListing, Times, Usage, key::Part},
    txn::{Dir, Txn},
};

/// The bits that mkdir(2) uses of the mode it is given, as Linux does.
const MODE_OF_MKDIR: u32 = MODE_STICKY | 0o777;

pub(crate) fn run(txn: &mut Txn<'_>, req: &Mkdir) -> Result<Entry> {
    let mut parent = txn.dir_for_locked(&req.dir, &req.name)?;
    if txn.entry(&parent, &req.name)?.is_some() {
        txn.dir_permits(&parent, Access::EXECUTE)?;
        return Err(FsError::Exists.into());
    }
    txn.dir_permits(&parent, Access::CHANGE)?;
    if parent.content.subdirs >= u32::MAX - 2 {
        return Err(FsError::TooManyLinks.into());
    }
    let mut child = birth(txn, &parent, req)?;
    divide::inherit(txn, &parent.content, &mut child)?;

    txn.put_dir(&child);
    txn.put_subdir(&mut parent, &req.name, &child);
    txn.note_dir(&parent);
    grant::may_be_granted(txn, &child)?;
    let dir = txn.dir_ref(child.id, child.content.ino, child.content.home);
    Ok(Entry { attr: child.attr(), dir: Some(dir), target: None, whole: true })
}

fn birth(txn: &mut Txn<'_>, parent: &Dir, req: &Mkdir) -> Result<Dir> {
    let taken = born_before(txn, parent, req)?;
    let config = &txn.shared.config;
    let (hash_key, placement) = (config.hash_key, config.placement());
    let level = placing::level_of_new(txn, &parent.content);
    let mut version = NameVersion::first(level);
    let (id, home) = loop {
        let id = hash_key.dir_id(parent.id, &req.name, version);
        let home = placement.home_of(id, version, parent.content.home);
        txn.lock(lock::dir_lock(id))?;
        txn.assume_absent(&txn.content_key(home, id));
        let free = !taken.versions.contains(&version)
            && txn.get_content(&txn.content_key(home, id))?.is_none();
        if free {
            break (id, home);
        }
        version = version.next().ok_or(FsError::NoSpace)?;
    };
    // Where another server has the child's shard, the number comes from the parent's shard: nobody
    // has to be asked for it. A repair may have neither shard.
    let ino = txn.new_ino_near(&[txn.shard(home), txn.shard_of_share(parent)], id)?;
    let inherits = parent.content.mode & MODE_SETGID != 0;
    let (mode, xattrs) = inherited(parent, FileKind::Directory, req.mode)?;
    let (uid, gid) = parent.content.owner_of_new(txn.caller.cred);
    let content = Content {
        state: ContentState::Live,
        confirmed: true,
        ino,
        birth_parent: parent.id,
        birth_name: Some(req.name.clone()),
        birth_version: version,
        home,
        layout: Layout::Whole,
        parent: parent.id,
        parent_ino: parent.content.ino,
        parent_home: parent.content.home,
        name: Some(req.name.clone()),
        mode: (mode & MODE_OF_MKDIR) | if inherits { MODE_SETGID } else { 0 },
        uid,
        gid,
        times: Times::born(txn.now),
        entries: 0,
        subdirs: 0,
        xattrs,
        quota: parent.content.quota,
        policy: Policy::NONE,
        placing: placing::of_new(&txn.shared.config, (parent.id, &parent.content), level),
        listing: StoredListing::default(),
    };
    txn.charge(content.accounts(), Usage::of(1, 0))?;
    let mut child = Dir::master(id, content);
    permissions::born(txn, parent, &mut child);
    Ok(child)
}

/// The versions that were born under the name before, and live elsewhere. Where another server has
/// the rename list, the list is empty here: the server of such a version's content record refuses
/// that id.
fn born_before(txn: &Txn<'_>, parent: &Dir, req: &Mkdir) -> Result<RenameList> {
    let Dir { id, partition, content } = parent;
    if *partition > 0 && !txn.has_shard(txn.shard(content.home)) {
        return Ok(RenameList::default());
    }
    let list_key = txn.name_key(content.home, *id, &req.name, Part::RenameList);
    Ok(txn.get(&list_key)?.unwrap_or_default())
}
