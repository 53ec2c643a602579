//! Contents of small files in the table, and attributes of all nodes.
//!
//! A small file is whole in memory. A large one, and one with several names, is *passed*: its
//! contents and attributes are below, and the table has a copy of the attributes as the last
//! operation found them.

use std::sync::Arc;

use base::{
    Attr, FileKind, FsError, Ino, SetAttr, SetTime, Time,
    attr::{MODE_BITS, without_set_id},
    limits::FILE_BYTES_MAX,
};
use bytes::Bytes;
use client::Handle;

use crate::{
    below::{Change, Contents},
    table::{Body, Need, Result, Table},
};

/// How far the time of a file may be ahead of the present, in milliseconds: clocks differ.
const AHEAD_MS_MAX: u64 = 60_000;

/// The largest file without a name that is kept in memory, in bytes.
const UNNAMED_MAX: usize = 16 << 20;

/// A file whose contents are below, or what the table itself has answered.
pub(crate) enum Either<T> {
    Here(T),
    Passed(Ino, Arc<dyn Contents>),
}

impl Table {
    /// Opens a file; its contents are here or the file below is open when it returns.
    pub(crate) fn open(&mut self, ino: Ino) -> Result<Handle> {
        self.tell_failure(ino)?;
        match &self.node(ino).body {
            Body::Directory(_) => return Err(FsError::IsDirectory.into()),
            Body::Symlink(_) => return Err(FsError::Loop.into()),
            Body::Special => return Err(FsError::NoSuchDevice.into()),
            Body::Inline(_) => {}
            Body::Unread => return Err(self.unread(ino)),
            Body::Passed(Some(_)) => {}
            Body::Passed(None) => return Err(self.unopened(ino)),
        }
        Ok(self.add_handle(ino))
    }

    fn unread(&self, ino: Ino) -> Need {
        match &self.node(ino).path {
            Some(path) => Need::Read(ino, path.clone()),
            None => Need::Answer(FsError::Stale),
        }
    }

    fn unopened(&self, ino: Ino) -> Need {
        match &self.node(ino).path {
            Some(path) => Need::File(ino, path.clone()),
            None => Need::Answer(FsError::Stale),
        }
    }

    /// Says once that a node cannot be committed.
    pub(crate) fn tell_failure(&mut self, ino: Ino) -> Result<()> {
        let node = self.node_mut(ino);
        match node.failed {
            Some(error) if !node.told => {
                node.told = true;
                Err(error.into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The contents of a small file, or the file below.
    pub(crate) fn contents(&self, ino: Ino) -> Result<Either<Arc<Vec<u8>>>> {
        match &self.node(ino).body {
            Body::Inline(contents) => Ok(Either::Here(Arc::clone(contents))),
            Body::Passed(Some(file)) => Ok(Either::Passed(ino, Arc::clone(file))),
            Body::Passed(None) => Err(self.unopened(ino)),
            Body::Unread => Err(self.unread(ino)),
            Body::Directory(_) => Err(FsError::IsDirectory.into()),
            Body::Symlink(_) | Body::Special => Err(FsError::Invalid.into()),
        }
    }

    pub(crate) fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Either<Bytes>> {
        let contents = match self.contents(self.opened(handle)?)? {
            Either::Here(contents) => contents,
            Either::Passed(ino, file) => return Ok(Either::Passed(ino, file)),
        };
        let size = contents.len();
        let from = usize::try_from(offset).unwrap_or(size).min(size);
        let to = from.saturating_add(usize::try_from(len).unwrap_or(size)).min(size);
        Ok(Either::Here(Bytes::copy_from_slice(&contents[from..to])))
    }

    /// Writes to a small file, or says that it is one of below's.
    pub(crate) fn write(
        &mut self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        clear_set_id: bool,
    ) -> Result<Either<()>> {
        let ino = self.opened(handle)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooBig)?;
        let mut contents = match self.contents(ino)? {
            Either::Here(contents) => contents,
            Either::Passed(ino, file) => return Ok(Either::Passed(ino, file)),
        };
        self.tell_failure(ino)?;
        self.room()?;
        let end = self.inline(ino, end)?;
        let from = usize::try_from(offset).expect("less than the end");
        // The table's own copy would have the bytes copied; a commit's copy stays as it is.
        self.set_inline(ino, Arc::default());
        let bytes = Arc::make_mut(&mut contents);
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[from..end].copy_from_slice(data);
        self.put_contents(ino, contents, clear_set_id);
        Ok(Either::Here(()))
    }

    /// The size as one that a small file may have, or the need of a large one.
    fn inline(&self, ino: Ino, size: u64) -> Result<usize> {
        // A file without a name needs no place below as long as memory will do.
        let named = self.node(ino).path.is_some();
        let max = if named { self.bounds.inline_max } else { UNNAMED_MAX };
        let size = usize::try_from(size).ok().filter(|size| *size <= max);
        size.ok_or(Need::Grow(ino))
    }

    fn put_contents(&mut self, ino: Ino, contents: Arc<Vec<u8>>, clear_set_id: bool) {
        let now = self.now;
        self.set_inline(ino, contents);
        let node = self.node_mut(ino);
        (node.attr.mtime, node.attr.ctime) = (now, now);
        if clear_set_id {
            node.attr.mode = without_set_id(node.attr.mode);
        }
        node.changed.contents = true;
        self.node_changed(ino);
    }

    /// A change of a node was answered; one without a path is nobody's to commit.
    pub(crate) fn node_changed(&mut self, ino: Ino) {
        if let Some(path) = self.node(ino).path.clone() {
            self.changed(&path);
        } else {
            self.node_mut(ino).changed = crate::table::Changed::default();
        }
    }

    /// chmod, chown, utimensat and truncate, of whatever the table has itself.
    pub(crate) fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Either<Attr>> {
        let now = self.now;
        if set.access_only {
            // Reads leave access times alone here.
            return Ok(Either::Here(self.node(ino).attr));
        }
        let node = self.node(ino);
        let nothing = SetAttr { clear_set_id: set.clear_set_id, ..SetAttr::default() };
        if *set == nothing && new_mode(&node.attr, set) == node.attr.mode & MODE_BITS {
            return Ok(Either::Here(node.attr));
        }
        if set.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(FsError::FileTooBig.into());
        }
        if set.mode.is_some() && node.attr.kind == FileKind::Symlink {
            return Err(FsError::NotSupported.into());
        }
        if node.is_passed() {
            return match self.contents(ino)? {
                Either::Passed(ino, file) => Ok(Either::Passed(ino, file)),
                Either::Here(_) => unreachable!("it is passed"),
            };
        }
        if let Some(size) = set.size {
            self.room()?;
            let Either::Here(contents) = self.contents(ino)? else {
                unreachable!("passed files are told apart above")
            };
            let size = self.inline(ino, size)?;
            let mut contents = Arc::unwrap_or_clone(contents);
            contents.resize(size, 0);
            self.set_inline(ino, Arc::new(contents));
            self.node_mut(ino).changed.contents = true;
        }
        let node = self.node_mut(ino);
        let before = node.attr;
        let attr = &mut node.attr;
        attr.mode = (before.mode & !MODE_BITS) | new_mode(&before, set);
        attr.uid = set.uid.unwrap_or(before.uid);
        attr.gid = set.gid.unwrap_or(before.gid);
        attr.atime = at(set.atime, now).unwrap_or(before.atime);
        let touched = set.size.map_or(before.mtime, |_| now);
        attr.mtime = at(set.mtime, now).unwrap_or(touched);
        attr.ctime = now;
        let is_dir = node.is_dir();
        let attr = node.attr;
        let owner = (attr.uid, attr.gid) != (before.uid, before.gid);
        node.changed.owner |= owner;
        let mode = attr.mode != before.mode;
        if let Some(directory) = node.directory_mut() {
            directory.mode_late |= mode;
        } else {
            node.changed.mode |= mode;
            node.changed.times |= set.atime.is_some() || set.mtime.is_some();
        }
        if is_dir {
            self.set_late(ino);
        }
        if !is_dir || owner {
            self.node_changed(ino);
        }
        Ok(Either::Here(attr))
    }

    /// Times that a passed file must get, because another machine's kernel may have it with these
    /// ones, and its contents are others. Not for a file that is dated in the future.
    pub(crate) fn told_before(&self, ino: Ino, found: &Attr) -> Option<(Time, Time)> {
        let before = self.nodes.get(&ino).filter(|_| self.shared)?.attr.mtime;
        let is_told = found.mtime <= before && before <= self.now.plus_ms(AHEAD_MS_MAX);
        is_told.then(|| (found.atime, self.now.max(before.next())))
    }

    /// Takes in the attributes of a passed file as an operation below has left them, unless a newer
    /// measurement was taken in.
    pub(crate) fn measured(&mut self, ino: Ino, number: u64, attr: &Attr) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if node.is_passed() && number > node.measured {
            node.measured = number;
            let nlink = if node.path.is_none() { 0 } else { attr.nlink };
            node.attr = Attr { ino, nlink, ..*attr };
            if node.opens == 0 {
                node.body = Body::Passed(None);
            }
        }
    }

    /// A handle is closed for good.
    pub(crate) fn release(&mut self, handle: Handle) -> Result<()> {
        let ino = self.handles.remove(&handle).ok_or(FsError::BadHandle)?;
        self.unlock_released(handle, ino)?;
        let node = self.node_mut(ino);
        node.opens -= 1;
        if node.opens == 0 && node.is_passed() {
            node.body = Body::Passed(None);
        }
        self.forget_unused(ino);
        Ok(())
    }
}

fn at(time: Option<SetTime>, now: Time) -> Option<Time> {
    time.map(|time| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    })
}

fn new_mode(before: &Attr, set: &SetAttr) -> u32 {
    if let Some(mode) = set.mode {
        return mode & MODE_BITS;
    }
    let is_dir = before.kind == FileKind::Directory;
    let clear = set.clear_set_id || set.uid.is_some() || set.gid.is_some();
    let mode = before.mode & MODE_BITS;
    if clear && !is_dir { without_set_id(mode) } else { mode }
}

/// A change of a passed file's attributes as below makes it, contents excepted.
pub(crate) fn change(before: &Attr, set: &SetAttr, now: Time) -> Change {
    let mode = new_mode(before, set);
    let owner = set.uid.is_some() || set.gid.is_some();
    let sets_mode = set.mode.is_some() || set.clear_set_id || owner;
    let times = set.atime.is_some() || set.mtime.is_some();
    let atime = at(set.atime, now).unwrap_or(before.atime);
    let mtime = at(set.mtime, now).unwrap_or(if set.size.is_some() { now } else { before.mtime });
    Change {
        contents: None,
        mode: sets_mode.then_some(mode),
        owner: owner.then(|| (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid))),
        times: times.then_some((atime, mtime)),
    }
}
