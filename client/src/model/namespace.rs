//! Names: looking them up, listing them, making and removing them. Moving them is in `rename`.

use std::collections::BTreeMap;

use base::{
    Access, Attr, DirId, EntryName, FileKind, FsError, Ino, NameVersion, Time,
    attr::{MODE_BITS, MODE_GROUP_EXECUTE, MODE_SETGID, MODE_STICKY},
    layout::POS_MAX,
    limits::{LINKS_MAX, SYMLINK_BYTES_MAX},
};
use bytes::Bytes;
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry, ReaddirPage};

use super::{Body, Contents, Directory, State, who::Who};
use crate::{Made, New, Unnamed};

type Result<T> = std::result::Result<T, FsError>;

/// Mode bits that `mkdir` keeps.
const MKDIR_BITS: u32 = MODE_STICKY | 0o777;

// Operations of an application.
impl State {
    pub(super) fn lookup(&self, who: Who<'_>, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        let dir = self.searched(who, dir)?;
        let ino = self.child(dir, name).ok_or(FsError::NotFound)?;
        Ok(self.entry(ino))
    }

    pub(super) fn readlink(&mut self, who: Who<'_>, file: &FileRef) -> Result<Bytes> {
        let ino = self.file(who, file)?;
        let target = self.entry(ino).target.ok_or(FsError::Invalid)?;
        self.accessed(ino);
        Ok(target)
    }

    /// A listing counts as read when its first page is.
    pub(super) fn readdir(
        &mut self,
        who: Who<'_>,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        let dir = self.dir(dir)?;
        let attr = self.attr(dir);
        self.may(who, dir, Access::READ)?;
        // Attributes are what a look-up says, and that needs permission to search.
        let plus = plus && self.may(who, dir, Access::EXECUTE).is_ok();

        let directory = self.directory(dir);
        let mut listed: BTreeMap<u64, Vec<ReaddirEntry>> = BTreeMap::new();
        for (name, ino) in &directory.entries {
            let (name, pos) = (name.clone(), self.key.pos(name));
            let kind = Some(self.inode(*ino).attr.kind);
            let entry = plus.then(|| self.entry(*ino));
            listed.entry(pos).or_default().push(ReaddirEntry { pos, name, ino: *ino, kind, entry });
        }
        let mut rest = listed.into_iter().filter(|(pos, _)| *pos > after).peekable();
        let mut entries = Vec::new();
        while let Some((_, run)) =
            rest.next_if(|_| (entries.len() as u64) < u64::from(entries_max.max(1)))
        {
            entries.extend(run);
        }
        let end = rest.peek().is_none();
        let parent_ino = directory.parent;
        if after == 0 {
            self.accessed(dir);
        }
        let last = entries.last().map_or(after, |entry| entry.pos);
        let reach = if end { POS_MAX } else { last };
        Ok(ReaddirPage { entries, end, attr, parent_ino, reach, layout: None })
    }

    pub(super) fn create(
        &mut self,
        who: Who<'_>,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made> {
        let device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let body = match new.kind {
            FileKind::File => Body::File(Contents::new(self.page_bytes)),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Body::Special
            }
            FileKind::Directory | FileKind::Symlink => return Err(FsError::Invalid),
        };
        let found = self.searched(who, dir)?;
        if let Some(ino) = self.child(found, name).filter(|_| !exclusive) {
            return Ok(Made { entry: self.entry(ino), existed: true, handle: None });
        }
        let dir = self.vacant(who, dir, name)?;
        if device {
            who.rules()?;
        }

        let ino = self.add(who, dir, name, body, new.kind, new.mode);
        if device {
            self.inode_mut(ino).attr.rdev = new.rdev;
        }
        let handle = (open && new.kind == FileKind::File).then(|| self.open_new(who, ino));
        Ok(Made { entry: self.entry(ino), existed: false, handle })
    }

    /// Linux: what `O_EXCL` was given for can never be linked.
    pub(super) fn tmpfile(
        &mut self,
        who: Who<'_>,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        let parent = self.searched(who, dir)?;
        self.may(who, parent, Access::CHANGE)?;
        let body = Body::File(Contents::new(self.page_bytes));
        let ino = self.make(who, parent, body, FileKind::File, mode);
        let inode = self.inode_mut(ino);
        (inode.attr.nlink, inode.linkable) = (0, linkable);
        let handle = self.open_new(who, ino);
        Ok(Unnamed { file: FileRef::unnamed(*dir, ino), attr: self.attr(ino), handle })
    }

    pub(super) fn mkdir(
        &mut self,
        who: Who<'_>,
        dir: &DirRef,
        name: &EntryName,
        mode: u32,
    ) -> Result<Entry> {
        let parent = self.vacant(who, dir, name)?;
        let id = self.birth_id(dir.id, name);
        let body = Directory { id, parent, entries: BTreeMap::new() };
        let kind = FileKind::Directory;
        let ino = self.add(
            who,
            parent,
            name,
            Body::Directory(body),
            kind,
            mode & !(MODE_BITS & !MKDIR_BITS),
        );
        Ok(self.entry(ino))
    }

    pub(super) fn symlink(
        &mut self,
        who: Who<'_>,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid);
        }
        let dir = self.vacant(who, dir, name)?;
        let ino = self.add(who, dir, name, Body::Symlink(target), FileKind::Symlink, 0o777);
        Ok(self.entry(ino))
    }

    /// Linux: the target is found, then the new name is; a directory is refused last.
    pub(super) fn link(
        &mut self,
        who: Who<'_>,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        let ino = self.node(who, target)?;
        let dir = self.vacant(who, dir, name)?;
        let attr = self.attr(ino);
        if attr.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        // An open file may have left the subtree.
        if who.limited
            && attr.nlink > 0
            && let NodeRef::File(file) = target
            && self.child(self.dir(&file.dir)?, &file.name) != Some(ino)
        {
            return Err(FsError::Stale);
        }
        if attr.nlink == 0 && !self.inode(ino).linkable {
            return Err(FsError::NotFound);
        }
        if attr.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }

        let now = self.now();
        let inode = self.inode_mut(ino);
        inode.attr.nlink += 1;
        inode.attr.ctime = now;
        inode.linkable = false;
        self.put_name(dir, name, ino, now);
        Ok(self.entry(ino))
    }

    pub(super) fn unlink(&mut self, who: Who<'_>, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        let dir = self.searched(who, dir)?;
        let ino = self.child(dir, name).ok_or(FsError::NotFound)?;
        self.may_delete(who, dir, ino, false)?;

        let now = self.now();
        self.take_name(dir, name, now);
        Ok(self.drop_link(ino, now))
    }

    pub(super) fn rmdir(&mut self, who: Who<'_>, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        let dir = self.searched(who, dir)?;
        let ino = self.child(dir, name).ok_or(FsError::NotFound)?;
        self.may_delete(who, dir, ino, true)?;
        if !self.directory(ino).entries.is_empty() {
            return Err(FsError::NotEmpty);
        }

        let now = self.now();
        self.take_name(dir, name, now);
        self.drop_link(ino, now);
        Ok(ino)
    }
}

// Helpers that the operations share.
impl State {
    /// The directory, if the caller may look for names in it.
    pub(super) fn searched(&self, who: Who<'_>, dir: &DirRef) -> Result<Ino> {
        let ino = self.dir(dir)?;
        self.may(who, ino, Access::EXECUTE)?;
        Ok(ino)
    }

    pub(super) fn child(&self, dir: Ino, name: &EntryName) -> Option<Ino> {
        self.directory(dir).entries.get(name).copied()
    }

    /// The directory, if `name` is free in it and the caller may take it.
    fn vacant(&self, who: Who<'_>, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        let dir = self.searched(who, dir)?;
        if self.child(dir, name).is_some() {
            return Err(FsError::Exists);
        }
        self.may(who, dir, Access::CHANGE)?;
        Ok(dir)
    }

    /// Whether `victim` may be taken out of `dir`, as a directory or as anything else. Linux:
    /// `may_delete`.
    pub(super) fn may_delete(
        &self,
        who: Who<'_>,
        dir: Ino,
        victim: Ino,
        as_directory: bool,
    ) -> Result<()> {
        self.may(who, dir, Access::CHANGE)?;
        let (dir, victim) = (self.attr(dir), self.attr(victim));
        who.may_remove(&dir, victim.uid)?;
        match (as_directory, victim.kind == FileKind::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// A new inode of the caller's, as `name`.
    fn add(
        &mut self,
        who: Who<'_>,
        dir: Ino,
        name: &EntryName,
        body: Body,
        kind: FileKind,
        mode: u32,
    ) -> Ino {
        let ino = self.make(who, dir, body, kind, mode);
        let now = self.now();
        self.put_name(dir, name, ino, now);
        ino
    }

    /// A new inode of the caller's, in no directory yet. Linux: `inode_init_owner` and
    /// `mode_strip_sgid`.
    fn make(&mut self, who: Who<'_>, dir: Ino, body: Body, kind: FileKind, mode: u32) -> Ino {
        let parent = self.attr(dir);
        let (mut gid, mut mode) = (who.cred.gid, mode);
        if parent.mode & MODE_SETGID != 0 {
            gid = parent.gid;
            if kind == FileKind::Directory {
                mode |= MODE_SETGID;
            } else if mode & MODE_GROUP_EXECUTE != 0 && !who.in_group(gid) {
                mode &= !MODE_SETGID;
            }
        }
        let ino = self.add_inode(body, kind, mode & MODE_BITS, who.cred.uid, gid);
        self.inherit(dir, ino, mode);
        ino
    }

    /// The id of a directory born as `name`: the first that no living directory has.
    fn birth_id(&self, parent: DirId, name: &EntryName) -> DirId {
        let taken = |id: &DirId| {
            self.inodes.values().any(|inode| match &inode.body {
                Body::Directory(directory) => directory.id == *id,
                Body::File(_) | Body::Symlink(_) | Body::Special => false,
            })
        };
        (0..=u32::MAX)
            .map(|version| self.key.dir_id(parent, name, NameVersion(version)))
            .find(|id| !taken(id))
            .expect("fewer directories than versions")
    }

    /// Writes an entry, and what the directories on both ends must know of it.
    pub(super) fn put_name(&mut self, dir: Ino, name: &EntryName, ino: Ino, now: Time) {
        let before = self.directory_mut(dir).entries.insert(name.clone(), ino);
        assert!(before.is_none(), "the name is free");
        if self.is_dir(ino) {
            self.directory_mut(ino).parent = dir;
            self.inode_mut(dir).attr.nlink += 1;
        }
        self.changed(dir, now);
    }

    /// Takes an entry out; what it named keeps its link count.
    pub(super) fn take_name(&mut self, dir: Ino, name: &EntryName, now: Time) {
        let ino = self.directory_mut(dir).entries.remove(name).expect("found before");
        if self.is_dir(ino) {
            self.inode_mut(dir).attr.nlink -= 1;
        }
        self.changed(dir, now);
    }

    /// Removes one name of an inode and returns its attributes: a directory is gone then.
    pub(super) fn drop_link(&mut self, ino: Ino, now: Time) -> Attr {
        let is_dir = self.is_dir(ino);
        let attr = &mut self.inode_mut(ino).attr;
        attr.nlink = if is_dir { 0 } else { attr.nlink - 1 };
        attr.ctime = now;
        let attr = self.attr(ino);
        self.forget_unused(ino);
        attr
    }

    fn changed(&mut self, dir: Ino, now: Time) {
        let attr = &mut self.inode_mut(dir).attr;
        (attr.mtime, attr.ctime) = (now, now);
    }
}
