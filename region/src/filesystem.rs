//! The region as a mount calls it. Permissions are the kernel's.

use base::{
    Access, Acl, AclKind, Attr, ByteRange, Cred, EntryName, FileKind, FsError, Ino, LockKind,
    SetAttr,
};
use bytes::Bytes;
use client::{FileLock, FileSystem, Handle, Made as Answer, New, Result, Unnamed};
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

use crate::{
    Region, below,
    contents::{self, Either},
    hidden::{self, is_free, is_seen},
    names::{self, Made},
    region::Part,
    table::Need,
};

impl FileSystem for Region {
    fn root(&self) -> (DirRef, Attr) {
        (DirRef::ROOT, self.lock().show_attr(Ino::ROOT))
    }

    async fn lookup(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        if let Some(ino) = hidden::opened(self.0.token.get().map(String::as_bytes), dir, name) {
            return self.run(|table| table.look_opened(ino)).await;
        }
        is_seen(dir, name)?;
        self.run(|table| table.lookup(dir, name)).await
    }

    async fn getattr(&self, _: &Cred, node: &NodeRef) -> Result<Attr> {
        self.run(|table| {
            let ino = table.node_ino(node)?;
            Ok(table.show_attr(ino))
        })
        .await
    }

    async fn setattr(&self, _: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        // Reads leave access times alone here.
        let nothing = SetAttr { clear_set_id: set.clear_set_id, ..SetAttr::default() };
        if !set.access_only
            && set != nothing
            && let Some(attr) = Box::pin(self.set_below(node, &set)).await?
        {
            return Ok(attr);
        }
        let done = self
            .run(|table| {
                let ino = table.node_ino(node)?;
                let done = table.setattr(ino, &set)?;
                table.show_attr(ino);
                Ok(done)
            })
            .await?;
        match done {
            Either::Here(attr) => Ok(attr),
            Either::Passed(ino, file) => {
                // Attributes that are not set stay, whatever other machines set at this moment.
                let path = self.lock().nodes.get(&ino).and_then(|node| node.path.clone());
                let _held = match &path {
                    Some(path) => Some(self.hold(std::slice::from_ref(path)).await),
                    None => None,
                };
                let (before, now) = {
                    let table = self.lock();
                    (table.nodes.get(&ino).ok_or(FsError::Stale)?.attr, table.now)
                };
                let change = contents::change(&before, &set, now);
                let is_cut = set.size.is_some() && set.mtime.is_none();
                let part = if is_cut { Part::Contents } else { Part::Attributes };
                self.passed(ino, file, part, move |file| {
                    if let Some(size) = set.size {
                        file.truncate(size)?;
                    }
                    file.set(&change)
                })
                .await?;
                self.run(|table| {
                    table.nodes.get(&ino).map(|node| node.attr).ok_or(FsError::Stale.into())
                })
                .await
            }
        }
    }

    async fn readlink(&self, _: &Cred, file: &FileRef) -> Result<Bytes> {
        self.run(|table| {
            let ino = table.file_ino(file)?;
            table.readlink(ino)
        })
        .await
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Answer> {
        if matches!(new.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid.into());
        }
        let open = open && new.kind == FileKind::File;
        match self.make(cred, dir, name, Bytes::new(), new, open).await? {
            Made::There(_) if exclusive => Err(FsError::Exists.into()),
            Made::There(entry) => Ok(Answer { entry, existed: true, handle: None }),
            Made::New(entry, handle) => Ok(Answer { entry, existed: false, handle }),
            Made::Below(..) => unreachable!("made by now"),
        }
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        Box::pin(self.unnamed(cred, dir, mode, linkable)).await
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        let new = New { kind: FileKind::Directory, mode, rdev: 0 };
        new_entry(self.make(cred, dir, name, Bytes::new(), new, false).await?)
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        names::target(&target)?;
        let new = New { kind: FileKind::Symlink, mode: 0o777, rdev: 0 };
        new_entry(self.make(cred, dir, name, target, new, false).await?)
    }

    async fn link(
        &self,
        _: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        is_free(dir, name)?;
        Box::pin(self.link_below(target, dir, name)).await
    }

    async fn unlink(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        is_seen(dir, name)?;
        match self.run(|table| table.unlink(dir, name)).await? {
            Some(attr) => Ok(attr),
            None => Box::pin(self.unlink_below(dir, name)).await,
        }
    }

    async fn rmdir(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        is_seen(dir, name)?;
        Box::pin(self.rmdir_below(dir, name)).await
    }

    async fn rename(
        &self,
        _: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        is_seen(from.0, from.1)?;
        is_free(to.0, to.1)?;
        Box::pin(self.rename_below(from, to, mode)).await
    }

    async fn readdir(
        &self,
        _: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        Box::pin(self.list(dir, after, entries_max, plus)).await
    }

    async fn open(&self, _: &Cred, file: &FileRef, _: Option<Access>) -> Result<Handle> {
        self.run(|table| {
            let ino = table.file_ino(file)?;
            table.open(ino)
        })
        .await
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        let table = self.lock();
        Some(table.node(*table.handles.get(&handle)?).attr)
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        match self.run(|table| table.read(handle, offset, len)).await? {
            Either::Here(data) => Ok(data),
            Either::Passed(_, file) => Ok(self.call(move |_| file.read_at(offset, len)).await?),
        }
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        if data.is_empty() {
            self.run(|table| table.opened(handle)).await?;
            return Ok(());
        }
        match self.run(|table| table.write(handle, offset, &data, clear_set_id)).await? {
            Either::Here(()) => Ok(()),
            Either::Passed(ino, file) => {
                self.passed(ino, file, Part::Contents, move |file| {
                    file.write_at(offset, &data)?;
                    if clear_set_id { clear_set_id_bits(file) } else { Ok(()) }
                })
                .await
            }
        }
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        self.run(|table| {
            let ino = table.opened(handle)?;
            table.tell_failure(ino)
        })
        .await
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        Box::pin(self.fsync_below(handle)).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.run(|table| table.release(handle)).await
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.run(|table| table.lock(handle, self.owner(owner), lock, false).map(drop)).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.wait_for_lock(handle, owner, lock, interrupted).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.run(|table| table.unlock(handle, self.owner(owner), kind, range)).await
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        self.run(|table| table.unlock_closed(handle, self.owner(owner))).await
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        self.run(|table| table.find_lock(handle, self.owner(owner), lock)).await
    }

    async fn sync(&self) -> Result<()> {
        Box::pin(self.barrier()).await?;
        Ok(self.call(|below| below.sync_all()).await?)
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        Box::pin(self.sync_names(dir)).await
    }

    async fn xattrs(&self, _: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        let known = self
            .run(|table| {
                let ino = table.node_ino(node)?;
                Ok(Region::has_no_xattrs(table, ino))
            })
            .await?;
        if known { Ok(Vec::new()) } else { Box::pin(self.xattrs_below(node)).await }
    }

    async fn setxattr(
        &self,
        _: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        if AclKind::of(&name).is_some() {
            Acl::parse(&value)?;
        }
        Box::pin(
            self.set_xattr_below(node, move |below, path| {
                below.set_xattr(path, &name, &value, mode)
            }),
        )
        .await
    }

    async fn removexattr(&self, _: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        Box::pin(self.set_xattr_below(node, move |below, path| below.remove_xattr(path, &name)))
            .await
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        // Below knows what it can allocate.
        let (ino, file) = self
            .run(|table| {
                let ino = table.opened(handle)?;
                match table.contents(ino)? {
                    Either::Here(_) => Err(Need::Grow(ino)),
                    Either::Passed(ino, file) => Ok((ino, file)),
                }
            })
            .await?;
        self.passed(ino, file, Part::Contents, move |file| {
            file.allocate(offset, len, mode)?;
            if clear_set_id { clear_set_id_bits(file) } else { Ok(()) }
        })
        .await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        let found = self
            .run(|table| {
                let ino = table.opened(handle)?;
                table.contents(ino)
            })
            .await?;
        match found {
            Either::Passed(_, file) => Ok(self.call(move |_| file.seek(offset, to)).await?),
            // A small file is all data.
            Either::Here(contents) if offset >= contents.len() as u64 => {
                Err(FsError::NoSuchDevice.into())
            }
            Either::Here(contents) => Ok(match to {
                SeekTo::Data => offset,
                SeekTo::Hole => contents.len() as u64,
            }),
        }
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        self.run(|table| names::node_ref(table, ino).ok_or(FsError::Stale.into())).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        Ok(self.call(|below| below.statfs()).await?)
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.run(|table| {
            let ino = table.node_ino(node)?;
            let node = table.node(ino);
            let dirty = node.path.as_ref().is_some_and(|path| table.dirty.contains(path));
            let state = match node.failed {
                Some(error) => error.name(),
                None if dirty => "not below yet",
                None => "below",
            };
            Ok(vec![
                ("kind".to_owned(), format!("{:?}", node.attr.kind).to_lowercase()),
                ("ino".to_owned(), ino.to_string()),
                ("state".to_owned(), state.to_owned()),
            ])
        })
        .await
    }
}

/// The entry of what was made, where a taken name is an error.
fn new_entry(made: Made) -> Result<Entry> {
    match made {
        Made::New(entry, _) => Ok(entry),
        Made::There(_) => Err(FsError::Exists.into()),
        Made::Below(..) => unreachable!("made by now"),
    }
}

fn clear_set_id_bits(file: &dyn below::Contents) -> below::Result<()> {
    let mode = file.attr()?.mode & base::attr::MODE_BITS;
    let cleared = base::attr::without_set_id(mode);
    if cleared == mode {
        return Ok(());
    }
    file.set(&below::Change { mode: Some(cleared), ..below::Change::default() })
}
