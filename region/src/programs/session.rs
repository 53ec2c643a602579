//! A process that uses the library, and its operations.

use std::{mem, sync::Arc};

use base::{
    Cred, FileKind, FsError, HashMap, Ino, SetAttr, SetTime,
    attr::{MODE_BITS, MODE_SETGID, MODE_SETUID, MODE_STICKY},
    preload::{Answer, Ask, BODY_MAX, Kind, Stat, flag},
};
use bytes::Bytes;
use client::{FileSystem as _, Handle, New};
use parking_lot::Mutex;

use super::{
    Ending, MOUNT, Peer, Tell,
    walk::{EXECUTE, Quick, READ, WRITE, Walked, has_more, walk},
};
use crate::{
    Region,
    contents::Either,
    names::{self, Made},
    table::{Body, Table},
};

/// Set-id bits.
const SET_ID: u32 = MODE_SETUID | MODE_SETGID;

/// A process that uses the library.
pub(super) struct Session {
    region: Region,
    pub(super) peer: Peer,
    cred: Cred,
    /// Files that it has open beside the mount: it may use no others.
    handles: Mutex<HashMap<u64, Opened>>,
    tell: Tell,
    _ending: Ending,
}

/// A file that a process has open.
struct Opened {
    ino: Ino,
    /// Whether it has written to it.
    is_written: bool,
}

/// An answer, and the bytes that follow it.
type Answered = (Answer, Bytes);

impl Session {
    pub(super) fn new(region: Region, peer: Peer, tell: Tell, ending: Ending) -> Session {
        let cred = Cred { uid: peer.uid, gid: peer.gid, groups: Vec::new() };
        Session { region, peer, cred, handles: Mutex::default(), tell, _ending: ending }
    }

    /// How many files it has open that it has written to. Others may be closed already, which it
    /// tells with its next operation.
    pub(super) fn written_files(&self) -> usize {
        self.handles.lock().values().filter(|opened| opened.is_written).count()
    }

    /// Runs an operation, and appends its answer.
    pub(super) async fn run(&self, ask: &Ask, body: &[u8], out: &mut Vec<u8>) {
        let answered = match ask.kind {
            // The first one alone is of use.
            Kind::Hello | Kind::Watch => return,
            Kind::Close => return self.close(ask.at),
            Kind::Open => self.open(ask, body).await,
            Kind::Read => self.read(ask).await,
            Kind::Write => self.write(ask, body).await,
            Kind::Stat => self.stat(ask, body).await,
            Kind::Access => self.access(ask, body).await,
            Kind::Mkdir => self.make(ask, body, Bytes::new(), FileKind::Directory).await,
            Kind::Symlink => match body.split_at_checked(ask.len as usize) {
                Some((path, target)) => {
                    let target = Bytes::copy_from_slice(target);
                    self.make(ask, path, target, FileKind::Symlink).await
                }
                None => Ok(None),
            },
            Kind::Unlink => self.unlink(ask, body).await,
            Kind::Readlink => self.readlink(ask, body).await,
            Kind::Set => self.set(ask, body).await,
            Kind::Sync => self.sync(ask).await,
        };
        let (answer, body) = match answered {
            Ok(Some(answered)) => answered,
            Ok(None) => (MOUNT, Bytes::new()),
            Err(error) => {
                let status = error.as_fs().errno();
                (Answer { status, ..Answer::default() }, Bytes::new())
            }
        };
        out.extend_from_slice(&answer.header(body.len()));
        out.extend_from_slice(&body);
    }

    fn walk(&self, table: &Table, ask: &Ask, path: &[u8]) -> Quick<Walked> {
        walk(table, self.peer, Ino(ask.at), path)
    }

    /// Whether names may be made and removed in a directory. In a sticky one other users' names
    /// need a closer look.
    fn may_change(&self, table: &Table, dir: Ino) -> bool {
        let attr = &table.node(dir).attr;
        self.peer.may(attr, WRITE | EXECUTE) && attr.mode & MODE_STICKY == 0
    }

    /// Whether something with this mode may be made in a directory that was walked to, and the table
    /// can make it right.
    fn may_make(&self, table: &Table, dir: Ino, mode: u32) -> bool {
        let above = table.node(dir).directory().expect("walked to one");
        !above.default_acl && self.may_change(table, dir) && mode & SET_ID == 0
    }

    /// Has kernels ask for a directory's times anew, if they may know the old ones.
    fn names_changed(&self, dir: Ino) {
        let told = {
            let mut table = self.region.lock();
            table.nodes.get_mut(&dir).is_some_and(|node| mem::take(&mut node.attr_shown))
        };
        if told {
            (self.tell)(dir);
        }
    }

    fn handle(&self, handle: u64) -> client::Result<Handle> {
        let known = self.handles.lock().contains_key(&handle);
        if known { Ok(Handle(handle)) } else { Err(FsError::BadHandle.into()) }
    }

    async fn open(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let has = |bit: u16| ask.flags & bit != 0;
        let want =
            if has(flag::READ) { READ } else { 0 } | if has(flag::WRITE) { WRITE } else { 0 };
        let opened = self.region.run(|table| {
            let Some(Walked { dir, name, found }) = self.walk(table, ask, path)? else {
                return Ok(None);
            };
            let Some(ino) = found else {
                if !has(flag::CREATE) {
                    return Err(FsError::NotFound.into());
                }
                let made = self.made(table, (&dir, &name), ask.mode, want)?;
                return Ok(made.map(|(ino, handle)| (ino, handle, Some(dir.ino))));
            };
            if has(flag::CREATE) && has(flag::EXCLUSIVE) {
                return Err(FsError::Exists.into());
            }
            let node = table.node(ino);
            let is_plain = node.attr.kind == FileKind::File && node.attr.nlink <= 1;
            let is_sticky = table.node(dir.ino).attr.mode & MODE_STICKY != 0;
            let may = self.peer.may(&node.attr, want) && !(has(flag::CREATE) && is_sticky);
            let is_simple = is_plain && !node.is_passed() && node.failed.is_none();
            if node.shown || !is_simple || !may || has(flag::WRITE) && has_more(&node.attr) {
                return Ok(None);
            }
            let Either::Here(_) = table.contents(ino)? else { return Ok(None) };
            if has(flag::TRUNCATE) {
                let clear_set_id = self.peer.uid != 0;
                let set = SetAttr { size: Some(0), clear_set_id, ..SetAttr::default() };
                let Either::Here(_) = table.setattr(ino, &set)? else { return Ok(None) };
            }
            let handle = table.open(ino)?;
            table.node_mut(ino).apart += 1;
            Ok(Some((ino, handle, None)))
        });
        let Some((ino, handle, made_in)) = opened.await? else { return Ok(None) };
        self.handles.lock().insert(handle.0, Opened { ino, is_written: false });
        if let Some(dir) = made_in {
            self.names_changed(dir);
        }
        let stat = Stat { ino: ino.0, ..Stat::NOTHING };
        Ok(Some((Answer { value: handle.0, stat, ..Answer::default() }, Bytes::new())))
    }

    /// Makes a file that is open, unless the kernel or the file system below must.
    fn made(
        &self,
        table: &mut Table,
        (dir, name): (&wire::DirRef, &base::EntryName),
        mode: u32,
        want: u32,
    ) -> Quick<(Ino, Handle)> {
        // The kernel may have to open it later.
        let can_be_opened = self.peer.uid == 0 || (mode >> 6) & want == want;
        if !can_be_opened || !self.may_make(table, dir.ino, mode) {
            return Ok(None);
        }
        let body = Body::Inline(Arc::default());
        let new = New { kind: FileKind::File, mode: mode & MODE_BITS, rdev: 0 };
        match table.make(&self.cred, dir, name, body, new, true)? {
            Made::New(entry, Some(handle)) => {
                table.node_mut(entry.attr.ino).apart += 1;
                Ok(Some((entry.attr.ino, handle)))
            }
            Made::New(_, None) | Made::There(_) | Made::Below(..) => {
                unreachable!("a file of memory, of which there was none, is open")
            }
        }
    }

    fn close(&self, handle: u64) {
        let Some(opened) = self.handles.lock().remove(&handle) else { return };
        close(&self.region, handle, opened.ino);
    }

    async fn read(&self, ask: &Ask) -> client::Result<Option<Answered>> {
        let handle = self.handle(ask.at)?;
        let len = ask.len.min(u32::try_from(BODY_MAX).expect("some KiB"));
        let read = self.region.run(|table| {
            // The kernel may have newer pages, of a mapping.
            if table.node(table.opened(handle)?).shown {
                return Ok(None);
            }
            match table.read(handle, ask.offset, len)? {
                Either::Here(data) => Ok(Some(data)),
                Either::Passed(..) => Ok(None),
            }
        });
        Ok(read.await?.map(|data| (Answer::default(), data)))
    }

    async fn write(&self, ask: &Ask, data: &[u8]) -> client::Result<Option<Answered>> {
        let handle = self.handle(ask.at)?;
        if let Some(opened) = self.handles.lock().get_mut(&ask.at) {
            opened.is_written = true;
        }
        let end = self.region.run(|table| {
            let ino = table.opened(handle)?;
            if table.node(ino).shown {
                return Ok(None);
            }
            let Either::Here(contents) = table.contents(ino)? else { return Ok(None) };
            let is_at_end = ask.flags & flag::APPEND != 0;
            let offset = if is_at_end { contents.len() as u64 } else { ask.offset };
            let end = offset.saturating_add(data.len() as u64);
            // Or a copy would be written to.
            drop(contents);
            if end > table.bounds.inline_max as u64 {
                return Ok(None);
            }
            match table.write(handle, offset, data, self.peer.uid != 0)? {
                Either::Here(()) => Ok(Some(end)),
                Either::Passed(..) => Ok(None),
            }
        });
        Ok(end.await?.map(|end| (Answer { value: end, ..Answer::default() }, Bytes::new())))
    }

    async fn stat(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let handle = self.of_handle(ask)?;
        let found = self.region.run(|table| {
            let Some(ino) = self.target(table, ask, handle, path)? else { return Ok(None) };
            let node = table.node_mut(ino);
            // A second question is answered by the kernel's cache, which has it then.
            let is_first = !node.is_dir() && !mem::replace(&mut node.is_asked, true);
            Ok((is_first || handle.is_some()).then_some(node.attr))
        });
        let told = |attr| (Answer { stat: Stat::of(&attr), ..Answer::default() }, Bytes::new());
        Ok(found.await?.map(told))
    }

    /// The handle of an operation on one.
    fn of_handle(&self, ask: &Ask) -> client::Result<Option<Handle>> {
        let is_of_one = ask.flags & flag::HANDLE != 0;
        is_of_one.then(|| self.handle(ask.at)).transpose()
    }

    /// The node of an operation on a handle or a path.
    fn target(&self, table: &Table, ask: &Ask, handle: Option<Handle>, path: &[u8]) -> Quick<Ino> {
        if let Some(handle) = handle {
            return Ok(Some(table.opened(handle)?));
        }
        let Some(walked) = self.walk(table, ask, path)? else { return Ok(None) };
        let ino = walked.found.ok_or(FsError::NotFound)?;
        let node = table.node(ino);
        let follows = ask.flags & flag::NO_FOLLOW == 0;
        let is_elsewhere = node.attr.kind == FileKind::Symlink && follows;
        Ok(Some(ino).filter(|_| !is_elsewhere))
    }

    async fn access(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let may = self.region.run(|table| {
            let Some(ino) = self.target(table, ask, None, path)? else { return Ok(None) };
            let may = ask.mode & !7 == 0 && self.peer.may(&table.node(ino).attr, ask.mode);
            Ok(may.then_some(()))
        });
        Ok(may.await?.map(|()| (Answer::default(), Bytes::new())))
    }

    async fn make(
        &self,
        ask: &Ask,
        path: &[u8],
        target: Bytes,
        kind: FileKind,
    ) -> client::Result<Option<Answered>> {
        if kind == FileKind::Symlink {
            names::target(&target)?;
        }
        let made = self.region.run(|table| {
            let Some(Walked { dir, name, found }) = self.walk(table, ask, path)? else {
                return Ok(None);
            };
            if found.is_some() {
                return Err(FsError::Exists.into());
            }
            if !self.may_make(table, dir.ino, ask.mode) {
                return Ok(None);
            }
            let new = New { kind, mode: ask.mode & MODE_BITS, rdev: 0 };
            let body = names::body(kind, &target);
            match table.make(&self.cred, &dir, &name, body, new, false)? {
                Made::New(..) => Ok(Some(dir.ino)),
                Made::There(_) | Made::Below(..) => unreachable!("nothing was there"),
            }
        });
        let Some(dir) = made.await? else { return Ok(None) };
        self.names_changed(dir);
        Ok(Some((Answer::default(), Bytes::new())))
    }

    async fn unlink(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let removed = self.region.run(|table| {
            let Some(Walked { dir, name, found }) = self.walk(table, ask, path)? else {
                return Ok(None);
            };
            let ino = found.ok_or(FsError::NotFound)?;
            let node = table.node(ino);
            if node.is_dir() || node.shown || !self.may_change(table, dir.ino) {
                return Ok(None);
            }
            Ok(table.unlink(&dir, &name)?.map(|_| dir.ino))
        });
        let Some(dir) = removed.await? else { return Ok(None) };
        self.names_changed(dir);
        Ok(Some((Answer::default(), Bytes::new())))
    }

    async fn readlink(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let target = self.region.run(|table| {
            let Some(walked) = self.walk(table, ask, path)? else { return Ok(None) };
            let ino = walked.found.ok_or(FsError::NotFound)?;
            Ok(Some(table.readlink(ino)?))
        });
        Ok(target.await?.map(|target| (Answer::default(), target)))
    }

    async fn set(&self, ask: &Ask, path: &[u8]) -> client::Result<Option<Answered>> {
        let handle = self.of_handle(ask)?;
        let set = changes(ask, self.peer.uid != 0);
        let attr = self.region.run(|table| {
            let Some(ino) = self.target(table, ask, handle, path)? else { return Ok(None) };
            if !self.may_set(table, ino, &set, handle.is_some()) {
                return Ok(None);
            }
            match table.setattr(ino, &set)? {
                Either::Here(attr) => Ok(Some(attr)),
                Either::Passed(..) => Ok(None),
            }
        });
        let told = |attr| (Answer { stat: Stat::of(&attr), ..Answer::default() }, Bytes::new());
        Ok(attr.await?.map(told))
    }

    /// Whether the user may set attributes for certain, and the table can.
    fn may_set(&self, table: &Table, ino: Ino, set: &SetAttr, is_open: bool) -> bool {
        let node = table.node(ino);
        let attr = &node.attr;
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let is_plain = match attr.kind {
            FileKind::File => !node.is_passed() && attr.nlink <= 1,
            FileKind::Directory => !rights && set.size.is_none() && node.path.is_some(),
            FileKind::Symlink => set.mode.is_none() && set.size.is_none(),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                false
            }
        };
        // Groups, set-id bits and ACLs are the kernel's to see to.
        let is_root = self.peer.uid == 0;
        let gives = (set.uid.is_some() || set.gid.is_some()) && !is_root;
        let marks = set.mode.is_some_and(|mode| mode & SET_ID != 0) && !is_root;
        let is_whole = !rights || !has_more(attr);
        let may_cut = set.size.is_none_or(|size| {
            let is_let = is_open || self.peer.may(attr, WRITE);
            is_let && size <= table.bounds.inline_max as u64 && !has_more(attr)
        });
        // A cut needs no owner.
        let by_owner = rights || set.atime.is_some() || set.mtime.is_some();
        let is_simple = is_plain && !node.shown;
        is_simple && !gives && !marks && is_whole && may_cut && (!by_owner || self.peer.owns(attr))
    }

    async fn sync(&self, ask: &Ask) -> client::Result<Option<Answered>> {
        self.region.fsync(self.handle(ask.at)?).await?;
        Ok(Some((Answer::default(), Bytes::new())))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (handle, opened) in mem::take(&mut *self.handles.lock()) {
            close(&self.region, handle, opened.ino);
        }
    }
}

fn close(region: &Region, handle: u64, ino: Ino) {
    let mut table = region.lock();
    // Before the node may be gone.
    table.node_mut(ino).apart -= 1;
    // A held path keeps no handle open: nothing of the path is asked for.
    let released = table.release(Handle(handle));
    debug_assert!(released.is_ok(), "a session's handles are open");
}

/// The changes that a program asks for.
fn changes(ask: &Ask, clear_set_id: bool) -> SetAttr {
    let has = |bit: u16| ask.flags & bit != 0;
    let time = |set, now, at| match (has(set), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(at)),
        (false, false) => None,
    };
    let size = has(flag::SIZE).then_some(ask.offset);
    SetAttr {
        mode: has(flag::MODE).then_some(ask.mode & MODE_BITS),
        uid: has(flag::UID).then_some(ask.uid),
        gid: has(flag::GID).then_some(ask.gid),
        size,
        atime: time(flag::ATIME, flag::ATIME_NOW, ask.atime),
        mtime: time(flag::MTIME, flag::MTIME_NOW, ask.mtime),
        clear_set_id: size.is_some() && clear_set_id,
        access_only: false,
    }
}
