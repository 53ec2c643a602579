//! `setattr`: chmod, chown, utimensat and truncate.
//!
//! A directory's permissions stand in its content record and, for walks through it, in its access
//! record. Both change in one batch, and clients that cached the directory are told (an
//! invalidation event).
//!
//! An access ACL follows the mode.
//!
//! Cost: one locked read and one batch; one read more for a directory whose permissions change; a
//! scan of the chunks that are cut off, 256 at most, and a read of the one that is cut. The chunks
//! beyond go in the background.
//! POSIX: chmod(2), chown(2), utimensat(2), truncate(2). EPERM, EACCES, EISDIR, EFBIG.

use base::{
    Access, Attr, Cred, EntryName, FileKind, FsError, SetAttr, SetTime, Time,
    attr::{MODE_BITS, MODE_SETGID, without_set_id},
};
use wire::{DirRef, NodeRef, Retry, Setattr};

use super::write;
use crate::{
    error::{Fault, Result},
    lock, permissions,
    record::{Accounts, Content, EntryRecord, Key, Times, Usage, key::Part},
    txn::{Dir, Located, Node, Txn, unshown},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Setattr) -> Result<Attr> {
    let set = &req.set;
    match txn.node_locked(&req.node)? {
        Node::Dir(dir) if is_nothing(set) => txn.whole_attr(&dir),
        Node::File(file) if is_nothing(set) => Ok(file.inode.attr()),
        Node::Dir(dir) => {
            let NodeRef::Dir(named) = &req.node else {
                return Err(FsError::Invalid.into());
            };
            directory(txn, dir, named, set)
        }
        Node::File(file) => other(txn, file, set),
    }
}

/// Whether nothing changes, not even `ctime`: as utimensat(2) with two times to leave.
fn is_nothing(set: &SetAttr) -> bool {
    *set == SetAttr { access_only: set.access_only, ..SetAttr::default() }
}

fn directory(txn: &mut Txn<'_>, mut dir: Dir, named: &DirRef, set: &SetAttr) -> Result<Attr> {
    if set.size.is_some() {
        return Err(FsError::IsDirectory.into());
    }
    let old = dir.attr();
    if set.access_only {
        txn.dir_permits(&dir, Access::READ)?;
        dir.content.times.atime = later(set.atime, txn.now, dir.content.times.atime);
        txn.put_dir(&dir);
        return txn.whole_attr(&dir);
    }
    permit(txn, &old, set, |cred| dir.content.permits(cred, Access::WRITE))?;
    let sets_access = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let granted = sets_access.then(|| dir.content.search_class());
    let content = &mut dir.content;
    let accounts = content.accounts();
    content.mode = new_mode(txn, &old, set);
    if set.mode.is_some() {
        content.xattrs.follow_mode(content.mode)?;
    }
    content.uid = set.uid.unwrap_or(content.uid);
    content.gid = set.gid.unwrap_or(content.gid);
    change_owner(txn, accounts, content.accounts(), Usage::of(1, 0))?;
    let ctime = content.times.ctime;
    set_times(&mut content.times, set, txn.now);
    if txn.is_held() {
        // The session may have asked for later changes before.
        content.times.ctime = content.times.ctime.max(ctime);
    }
    let seen_by_walkers =
        (old.mode & MODE_BITS, old.uid, old.gid) != (content.mode, content.uid, content.gid);
    if let Some(granted) = granted {
        permissions::changed(txn, &mut dir, &granted);
    }
    if seen_by_walkers {
        txn.coordinate(dir.id)?;
        change_access(txn, &dir)?;
        txn.facts.moved.push(named.id);
    }
    if seen_by_walkers {
        txn.put_everywhere(&dir)?;
    } else {
        txn.put_dir(&dir);
    }
    if set.mtime.is_some() {
        // The latest time of all shares is shown, so a time is set in all.
        for mut share in txn.all_shares(&dir)? {
            (share.content.times.mtime, share.content.times.ctime) =
                (dir.content.times.mtime, dir.content.times.ctime);
            txn.put_dir_as_it_is(&share);
        }
    }
    txn.whole_attr(&dir)
}

/// Repeats a directory's permissions in its access record.
pub(super) fn change_access(txn: &mut Txn<'_>, dir: &Dir) -> Result<()> {
    let Some(name) = &dir.content.name else { return Ok(()) };
    // Race: a rename could move the entry between our look and our write.
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.lock(lock::dir_lock(dir.content.parent))?;
    let key = entry_key(txn, dir, name)?;
    match txn.get::<EntryRecord>(&key)? {
        Some(EntryRecord::Dir(access)) if access.ino == dir.content.ino => {
            txn.put(key, &EntryRecord::Dir(Txn::access_of(dir)));
            Ok(())
        }
        Some(_) | None => Err(txn.unfit(|| {
            tracing::error!(id = %dir.id, "a directory's back pointer leads nowhere; run `pando fsck`");
        })),
    }
}

/// The key of a directory's entry.
fn entry_key(txn: &Txn<'_>, dir: &Dir, name: &EntryName) -> Result<Key> {
    let Content { parent, parent_ino, parent_home, .. } = dir.content;
    if txn.shared.cluster.is_none() {
        // Names stay where they are on one server, so try the usual place first, without asking for
        // the owner.
        let key = txn.name_key(parent_home, parent, name, Part::Main);
        if matches!(txn.get(&key)?, Some(EntryRecord::Dir(access)) if access.ino == dir.content.ino)
        {
            return Ok(key);
        }
    }
    match txn.owner(&unshown(parent, parent_ino, parent_home), name) {
        Ok(above) => Ok(txn.entry_key(&above, name, Part::Main)),
        Err(Fault::Retry(Retry::StaleDir)) => Err(txn.unfit(|| {
            tracing::error!(id = %dir.id, "a directory's back pointer leads nowhere; run `pando fsck`");
        })),
        Err(fault) => Err(fault),
    }
}

fn other(txn: &mut Txn<'_>, mut file: Located, set: &SetAttr) -> Result<Attr> {
    let old = file.inode.attr();
    if set.access_only {
        if !txn.opened_for(old.ino, Access::READ) {
            txn.inode_permits(&file.inode, Access::READ)?;
        }
        file.inode.times.atime = later(set.atime, txn.now, file.inode.times.atime);
        txn.put_inode(&file);
        return Ok(file.inode.attr());
    }
    if set.size.is_some() && old.kind != FileKind::File {
        return Err(FsError::Invalid.into());
    }
    if set.mode.is_some() && old.kind == FileKind::Symlink {
        return Err(FsError::NotSupported.into());
    }
    change_file(txn, &mut file, set)?;
    txn.put_inode(&file);
    Ok(file.inode.attr())
}

/// Changes attributes of a file. The caller stores the inode.
pub(super) fn change_file(txn: &mut Txn<'_>, file: &mut Located, set: &SetAttr) -> Result<()> {
    if is_nothing(set) {
        return Ok(());
    }
    let old = file.inode.attr();
    permit(txn, &old, set, |cred| file.inode.permits(cred, Access::WRITE))?;
    if let Some(size) = set.size {
        if !txn.opened_for(old.ino, Access::WRITE) {
            txn.inode_permits(&file.inode, Access::WRITE)?;
        }
        write::truncate(txn, file, size)?;
        file.inode.times.mtime = txn.now;
    }
    if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
        txn.drop_capability(file)?;
    }
    let inode = &mut file.inode;
    let accounts = inode.accounts();
    inode.mode = new_mode(txn, &old, set);
    if set.mode.is_some() {
        inode.xattrs.follow_mode(inode.mode)?;
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    change_owner(txn, accounts, inode.accounts(), inode.usage())?;
    set_times(&mut inode.times, set, txn.now);
    Ok(())
}

/// Charges what changes its owner or its group to the new one: whatever the limits are if the
/// superuser gives it away, as in Linux.
fn change_owner(txn: &mut Txn<'_>, from: Accounts, to: Accounts, usage: Usage) -> Result<()> {
    if txn.caller.cred.is_root() {
        txn.recharge_freely(from, to, usage);
        return Ok(());
    }
    txn.recharge(from, to, usage)
}

/// Whether the caller may make this change, where the server checks permissions.
fn permit(
    txn: &Txn<'_>,
    old: &Attr,
    set: &SetAttr,
    may_write: impl Fn(&Cred) -> std::result::Result<(), FsError>,
) -> Result<()> {
    let cred = txn.caller.cred;
    if !txn.checks() || cred.is_root() {
        return Ok(());
    }
    let owns = cred.uid == old.uid;
    let keeps_uid = set.uid.is_none_or(|uid| uid == old.uid);
    let may_gid = set.gid.is_none_or(|gid| owns && (gid == old.gid || cred.in_group(gid)));
    if !keeps_uid || !may_gid || (set.uid.is_some() && !owns) {
        return Err(FsError::NotPermitted.into());
    }
    if set.mode.is_some() && !owns {
        return Err(FsError::NotPermitted.into());
    }
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        _ if owns => Ok(()),
        // utimensat(2): a caller that may write may set both times to the present, and nothing
        // else.
        (Some(SetTime::Now), Some(SetTime::Now)) => Ok(may_write(cred)?),
        _ => Err(FsError::NotPermitted.into()),
    }
}

fn new_mode(txn: &Txn<'_>, old: &Attr, set: &SetAttr) -> u32 {
    let mut mode = old.mode & MODE_BITS;
    if let Some(new) = set.mode {
        mode = new & MODE_BITS;
        let gid = set.gid.unwrap_or(old.gid);
        // POSIX chmod: a caller outside the file's group does not give the group's rights away.
        if txn.checks() && !txn.caller.cred.is_root() && !txn.caller.cred.in_group(gid) {
            mode &= !MODE_SETGID;
        }
    }
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    let is_directory = old.kind == FileKind::Directory;
    let cuts = set.size.is_some() && txn.loses_set_id();
    if !is_directory && (set.clear_set_id || cuts || (changes_owner && set.mode.is_none())) {
        mode = without_set_id(mode);
    }
    mode
}

fn set_times(times: &mut Times, set: &SetAttr, now: Time) {
    let resolve = |time: Option<SetTime>, old: Time| match time {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(time)) => time,
    };
    times.atime = resolve(set.atime, times.atime);
    times.mtime = resolve(set.mtime, times.mtime);
    times.ctime = now;
}

fn later(time: Option<SetTime>, now: Time, old: Time) -> Time {
    match time {
        None => old,
        Some(SetTime::Now) => now.max(old),
        Some(SetTime::At(time)) => time.max(old),
    }
}
