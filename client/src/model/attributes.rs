//! `setattr`: chmod, chown, utimensat and truncate.
//!
//! POSIX: chmod(2), chown(2), utimensat(2), truncate(2). Who may do what is Linux'
//! `setattr_prepare`.

use base::{
    Access, Attr, FileKind, FsError, Ino, SetAttr, SetTime, Time,
    attr::{MODE_BITS, MODE_SETGID, without_set_id},
    limits::FILE_BYTES_MAX,
};
use wire::NodeRef;

use super::{State, who::Who};

type Result<T> = std::result::Result<T, FsError>;

impl State {
    pub(super) fn setattr(&mut self, who: Who<'_>, node: &NodeRef, set: &SetAttr) -> Result<Attr> {
        let ino = self.node(who, node)?;
        let before = self.attr(ino);
        let now = self.now();
        if set.access_only {
            if !self.has_open_for(who, ino, Access::READ) {
                self.may(who, ino, Access::READ)?;
            }
            let atime = at(set.atime, now).unwrap_or(before.atime).max(before.atime);
            self.inode_mut(ino).attr.atime = atime;
            return Ok(self.attr(ino));
        }
        let may_write = self.may(who, ino, Access::WRITE);
        let open = self.has_open_for(who, ino, Access::WRITE);
        may_truncate(&before, set, if open { Ok(()) } else { may_write })?;
        may_change_owner(who, &before, set)?;
        may_change_mode(who, &before, set)?;
        may_set_times(who, &before, set, may_write)?;

        if let Some(size) = set.size {
            self.contents_mut(ino).truncate(size);
        }
        if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.drop_capability(ino);
        }
        let attr = &mut self.inode_mut(ino).attr;
        attr.mode = new_mode(who, &before, set);
        attr.uid = set.uid.unwrap_or(before.uid);
        attr.gid = set.gid.unwrap_or(before.gid);
        attr.atime = at(set.atime, now).unwrap_or(before.atime);
        let touched = set.size.map(|_| now).unwrap_or(before.mtime);
        attr.mtime = at(set.mtime, now).unwrap_or(touched);
        let nothing = SetAttr { clear_set_id: set.clear_set_id, ..SetAttr::default() };
        if *set != nothing || attr.mode != before.mode & MODE_BITS {
            attr.ctime = now;
        }
        if set.mode.is_some() {
            self.follow_mode(ino);
        }
        Ok(self.attr(ino))
    }
}

impl State {
    fn has_open_for(&self, who: Who<'_>, ino: Ino, want: Access) -> bool {
        self.granted(who, ino).is_some_and(|granted| granted.includes(want))
    }

    /// A node was read: its access time follows, as with Linux' `relatime`.
    pub(super) fn accessed(&mut self, ino: Ino) {
        let now = self.now();
        let attr = &mut self.inode_mut(ino).attr;
        let day_old = attr.atime.plus_ms(24 * 60 * 60 * 1000) <= now;
        if attr.atime <= attr.mtime || attr.atime <= attr.ctime || day_old {
            attr.atime = attr.atime.max(now);
        }
    }
}

fn at(set: Option<SetTime>, now: Time) -> Option<Time> {
    match set {
        None => None,
        Some(SetTime::Now) => Some(now),
        Some(SetTime::At(time)) => Some(time),
    }
}

fn may_truncate(attr: &Attr, set: &SetAttr, may_write: Result<()>) -> Result<()> {
    let Some(size) = set.size else { return Ok(()) };
    match attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::IsDirectory),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => return Err(FsError::Invalid),
    }
    may_write?;
    if size > FILE_BYTES_MAX { Err(FsError::FileTooBig) } else { Ok(()) }
}

/// Only the superuser gives files away; an owner may give them to another of the groups they are
/// in.
fn may_change_owner(who: Who<'_>, attr: &Attr, set: &SetAttr) -> Result<()> {
    let owned = who.owns(attr).is_ok();
    let uid_stays = set.uid.is_none_or(|uid| owned && uid == attr.uid);
    let gid_allowed =
        set.gid.is_none_or(|gid| owned && (gid == attr.gid || who.cred.in_group(gid)));
    if uid_stays && gid_allowed { Ok(()) } else { who.rules() }
}

fn may_change_mode(who: Who<'_>, attr: &Attr, set: &SetAttr) -> Result<()> {
    if set.mode.is_none() {
        return Ok(());
    }
    if attr.kind == FileKind::Symlink {
        return Err(FsError::NotSupported);
    }
    who.owns(attr)
}

/// Checks the times: a caller that may write may set both to now; any other change is the owner's.
fn may_set_times(who: Who<'_>, attr: &Attr, set: &SetAttr, may_write: Result<()>) -> Result<()> {
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if who.owns(attr).is_err() => may_write,
        (_, _) => who.owns(attr),
    }
}

fn new_mode(who: Who<'_>, before: &Attr, set: &SetAttr) -> u32 {
    if let Some(mode) = set.mode {
        let member = who.in_group(set.gid.unwrap_or(before.gid));
        return mode & MODE_BITS & !(if member { 0 } else { MODE_SETGID });
    }
    let cuts = set.size.is_some() && !who.privileged();
    let clear = set.clear_set_id || cuts || set.uid.is_some() || set.gid.is_some();
    if clear && before.kind != FileKind::Directory {
        without_set_id(before.mode & MODE_BITS)
    } else {
        before.mode & MODE_BITS
    }
}
