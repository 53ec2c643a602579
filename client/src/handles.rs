//! The operations by handle: [`FileSystem`] over a server. A mount calls these.
//!
//! Each is one request, and what this client knows better than the server: what was written and not
//! sent.

use base::{Access, Attr, ByteRange, Cred, EntryName, FsError, Ino, LockKind, SetAttr};
use bytes::Bytes;
use wire::{
    AllocateMode, Create, DirRef, Entry, FileRef, Getattr, Info, Link, LockFound, Lookup, Mkdir,
    NodeRef, ReaddirPage, Removexattr, Rename, RenameMode, Renamed, Reply, Request, Rmdir, Search,
    Searched, SeekTo, SetXattr, Setattr, Stand, Statfs, Symlink, Tmpfile, Unlink, XattrMode,
};

use crate::{
    Client, FileLock, FileSystem, Handle, Made, New, Result, Unnamed,
    done::{Done, Failure},
    error::unexpected,
    everywhere::Scope,
    route::Route,
};

/// Number of tries for a name that means another directory each time.
const LOOKUPS_MAX: u32 = 100;

impl Client {
    /// Makes a file in `dir`, and opens it if `open` is set. `stand`: see [`wire::RequestHeader`].
    pub(crate) async fn create_in(
        &self,
        cred: &Cred,
        (dir, name): (&DirRef, &EntryName),
        new: New,
        exclusive: bool,
        open: bool,
        stand: Stand,
    ) -> Result<Made, Failure> {
        let opening = self.core.files.opening(None, Access::READ.and(Access::WRITE));
        let request = Request::Create(Create {
            dir: *dir,
            name: name.clone(),
            kind: new.kind,
            mode: new.mode,
            rdev: new.rdev,
            exclusive,
            open: open.then_some(opening.number),
        });
        let stamp = self.core.files.stamp();
        let done = self.core.call(cred, dir.home, request, stand).await?;
        let Done { reply: Reply::Created(created), run, .. } = done else {
            return Err(unexpected().into());
        };
        let mut entry = created.entry;
        let handle = match created.opened {
            Some(opened) => {
                let file = FileRef { dir: *dir, name: name.clone(), ino: entry.attr.ino };
                Some(self.opened(&opening, file, opened, cred, run).await?)
            }
            None => None,
        };
        if created.existed {
            entry.attr = self.core.files.seen(entry.attr, stamp);
        }
        Ok(Made { entry, existed: created.existed, handle })
    }

    /// Sends what was written to a file before its attributes change otherwise, so that they change
    /// in the order that the program saw.
    pub(crate) async fn flush_node(&self, node: &NodeRef) {
        if let Some(state) = self.core.files.open_state(node) {
            self.flush_state(&state).await;
        }
    }

    /// Flushes the file that has a name, as [`Client::flush_node`] does.
    pub(crate) async fn flush_name(&self, dir: &DirRef, name: &EntryName) {
        if let Some(state) = self.core.files.dirty_state(dir, name) {
            self.flush_state(&state).await;
        }
    }

    /// A request whose answer is an entry.
    async fn ask_entry(&self, cred: &Cred, dir: &DirRef, request: Request) -> Result<Entry> {
        let stamp = self.core.files.stamp();
        match self.core.ask(cred, dir.home, request).await?.reply {
            Reply::Entry(mut entry) => {
                entry.attr = self.core.files.seen(entry.attr, stamp);
                Ok(entry)
            }
            _ => Err(unexpected()),
        }
    }

    /// Asks for attributes that did not come whole, because another server has them.
    pub(crate) async fn complete(
        &self,
        cred: &Cred,
        entry: &mut Entry,
        node: &NodeRef,
    ) -> Result<(), Failure> {
        if entry.whole {
            return Ok(());
        }
        let stamp = self.core.files.stamp();
        let (attr, _) = self.core.attributes_of(cred, node, &Stand::NONE).await?;
        entry.attr = self.core.files.seen(attr, stamp);
        entry.whole = true;
        Ok(())
    }

    /// Sends written data before it changes attributes, because a write changes them too, or with
    /// them.
    pub(crate) async fn set_attributes(
        &self,
        cred: &Cred,
        node: &NodeRef,
        set: SetAttr,
    ) -> Result<Attr, Failure> {
        let file = self.core.files.open_state(node);
        if let Some(state) = &file
            && !set.access_only
        {
            if set.size.is_some() {
                self.flush_state(state).await;
                state.lock().forget_contents();
            } else if let Some(attr) = self.flush_with(cred, state, set).await? {
                return Ok(attr);
            }
        }
        if set.size.is_some() {
            self.core.may_write(cred.uid, node.ino(), u64::MAX)?;
        }
        let request = Request::Setattr(Setattr { node: node.clone(), set });
        let stamp = self.core.files.stamp();
        let done = self.core.call(cred, node.home(), request, Stand::NONE).await?;
        let Reply::Attr(attr) = done.reply else { return Err(unexpected().into()) };
        match &file {
            Some(state) if set.size.is_some() => Ok(self.core.files.resized(state, attr)),
            Some(_) | None => Ok(self.core.files.seen(attr, stamp)),
        }
    }

    /// Notes the moves of a rename that the server has answered.
    pub(crate) fn note_rename(
        &self,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
        ino: Ino,
    ) {
        {
            let mut cache = self.core.cache.lock();
            cache.forget_name(from.0, from.1);
            cache.forget_name(to.0, to.1);
        }
        match mode {
            RenameMode::Replace | RenameMode::NoReplace => {
                self.core.files.replaced(ino, to);
                let to = FileRef { dir: *to.0, name: to.1.clone(), ino };
                self.core.files.renamed(from, to);
            }
            RenameMode::Exchange => self.core.files.exchanged(from, to),
        }
    }
}

impl Client {
    /// Notes that a file has this name now, its first one or one more.
    pub(crate) fn note_link(&self, target: &NodeRef, dir: &DirRef, name: &EntryName) {
        let NodeRef::File(file) = target else { return };
        if *file == FileRef::unnamed(file.dir, file.ino) {
            let named = FileRef { dir: *dir, name: name.clone(), ino: file.ino };
            self.core.files.renamed((&file.dir, &file.name), named);
        } else {
            self.core.files.linked(file.ino, (dir, name));
        }
    }
}

impl FileSystem for Client {
    fn root(&self) -> (DirRef, Attr) {
        let welcome = self.welcome();
        (welcome.root, welcome.root_attr)
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        for _ in 0..LOOKUPS_MAX {
            let request = Request::Lookup(Lookup { dir: *dir, name: name.clone() });
            let mut entry = self.ask_entry(cred, dir, request).await?;
            let node = entry.node(dir, name);
            match self.complete(cred, &mut entry, &node).await {
                Ok(()) => return Ok(entry),
                Err(Failure::Error(error)) => return Err(error),
                // The node was removed, or replaced, since it was found.
                Err(
                    Failure::StaleDir
                    | Failure::StaleCache
                    | Failure::StaleLayout(_)
                    | Failure::NotHeld,
                ) => {}
            }
        }
        Err(FsError::Stale.into())
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        let stamp = self.core.files.stamp();
        let asked = self.core.attributes_of(cred, node, &Stand::NONE).await;
        let (attr, _) = asked.map_err(Failure::by_handle)?;
        Ok(self.core.files.seen(attr, stamp))
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.set_attributes(cred, node, set).await.map_err(Failure::by_handle)
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        let node = NodeRef::File(file.clone());
        let request = Request::Readlink(Getattr { node: node.clone() });
        let entry = self.ask_entry(cred, &file.dir, request).await?;
        let target = entry.target.ok_or(FsError::Invalid)?;
        self.touch_later(cred, node, &entry.attr);
        Ok(target)
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made> {
        let made = self.create_in(cred, (dir, name), new, exclusive, open, Stand::NONE).await;
        made.map_err(Failure::by_handle)
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        let opening = self.core.files.opening(None, Access::READ.and(Access::WRITE));
        let number = opening.number;
        let request = Request::Tmpfile(Tmpfile { dir: *dir, mode, linkable, number });
        let done = self.core.ask(cred, dir.home, request).await?;
        let Done { reply: Reply::Created(created), run, .. } = done else {
            return Err(unexpected());
        };
        let opened = created.opened.ok_or_else(unexpected)?;
        let attr = created.entry.attr;
        let file = FileRef::unnamed(*dir, attr.ino);
        let handle = self.opened(&opening, file.clone(), opened, cred, run).await?;
        Ok(Unnamed { file, attr, handle })
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        let request = Request::Mkdir(Mkdir { dir: *dir, name: name.clone(), mode });
        self.ask_entry(cred, dir, request).await
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        let request = Request::Symlink(Symlink { dir: *dir, name: name.clone(), target });
        self.ask_entry(cred, dir, request).await
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        self.flush_node(target).await;
        let request = Request::Link(Link { target: target.clone(), dir: *dir, name: name.clone() });
        let entry = self.ask_entry(cred, dir, request).await?;
        self.note_link(target, dir, name);
        Ok(entry)
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.flush_name(dir, name).await;
        let stamp = self.core.files.stamp();
        let request = Request::Unlink(Unlink { dir: *dir, name: name.clone() });
        match self.core.ask(cred, dir.home, request).await?.reply {
            Reply::Attr(attr) => {
                self.core.files.unlinked(attr.ino, (dir, name));
                Ok(self.core.files.seen(attr, stamp))
            }
            _ => Err(unexpected()),
        }
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        let request = Request::Rmdir(Rmdir { dir: *dir, name: name.clone() });
        let done = self.core.ask(cred, dir.home, request).await?;
        let Reply::Ino(ino) = done.reply else { return Err(unexpected()) };
        self.core.cache.lock().forget_name(dir, name);
        Ok(ino)
    }

    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.flush_name(from.0, from.1).await;
        self.flush_name(to.0, to.1).await;
        let request = Request::Rename(Rename {
            from_dir: *from.0,
            from_name: from.1.clone(),
            to_dir: *to.0,
            to_name: to.1.clone(),
            mode,
        });
        let done = self.core.ask(cred, from.0.home, request).await?;
        let Reply::Renamed(renamed) = done.reply else { return Err(unexpected()) };
        self.note_rename(from, to, mode, renamed.moved);
        Ok(renamed)
    }

    fn changed_dir(&self, dir: Ino) -> Option<Attr> {
        self.core.changed_dirs.take(dir)
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        let page = self.page(cred, dir, (after, entries_max, plus), Stand::NONE).await;
        let mut page = page.map_err(Failure::by_handle)?;
        if plus {
            self.complete_all(cred, dir, &mut page).await?;
        }
        Ok(page)
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        self.open_file(cred, file, access).await.map_err(Failure::by_handle)
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        let open = self.core.files.handle(handle).ok()?;
        let inner = open.state.lock();
        (!inner.doubtful && !inner.lost).then(|| inner.visible(inner.attr))
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        let open = self.core.files.handle(handle)?;
        self.read_file(&open, offset, len).await
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        self.write_file(&open, Some(offset), &data, clear_set_id).await?;
        Ok(())
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        self.flush_copy(&open).await
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        self.flush_file(&open).await?;
        let file = open.state.lock().file.clone();
        self.make_stable(Scope::File(&file)).await?;
        open.report_forgotten()
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let unlocked = self.give_back_all(handle).await;
        self.release_handle(handle)?;
        unlocked
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.take_lock(handle, owner, lock, None::<std::future::Pending<()>>).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.take_lock(handle, owner, lock, Some(interrupted)).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.give_back_lock(handle, kind, owner, range).await
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        self.give_back_ranges(handle, owner).await
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        Client::find_lock(self, handle, owner, lock).await
    }

    async fn sync(&self) -> Result<()> {
        self.make_stable(Scope::Everything).await?;
        self.core.files.report_forgotten()
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.make_stable(Scope::Dir(dir)).await?;
        self.core.files.report_forgotten()
    }

    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        let request = Request::Xattrs(Getattr { node: node.clone() });
        match self.core.ask(cred, node.home(), request).await?.reply {
            Reply::Xattrs(xattrs) => Ok(xattrs),
            _ => Err(unexpected()),
        }
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.flush_node(node).await;
        let request = Request::Setxattr(SetXattr { node: node.clone(), name, value, mode });
        self.core.ask(cred, node.home(), request).await?;
        Ok(())
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.flush_node(node).await;
        let request = Request::Removexattr(Removexattr { node: node.clone(), name });
        self.core.ask(cred, node.home(), request).await?;
        Ok(())
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        self.allocate_file(&open, offset, len, mode, clear_set_id).await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        let open = self.core.files.handle(handle)?;
        self.seek_file(&open, offset, to).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.statfs_of_all().await
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        let dir = self.root().0;
        // A number that was made up may name a shard that no server has.
        let shards = self.core.welcome().map.shards.len();
        if shards > 0 && usize::from(ino.shard().0) >= shards {
            return Err(FsError::Stale.into());
        }
        let mut from = Bytes::new();
        loop {
            let request = Request::Search(Search { dir, ino, from });
            let route = Route::Shard(ino.shard());
            match self.core.ask(&Cred::ROOT, route, request).await?.reply {
                Reply::Searched(Searched { node: Some(node), .. }) => return Ok(node),
                Reply::Searched(Searched { node: None, next: Some(next) }) => from = next,
                Reply::Searched(Searched { node: None, next: None }) => {
                    return Err(FsError::Stale.into());
                }
                _ => return Err(unexpected()),
            }
        }
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        let request = Request::Info(Info { node: node.clone() });
        match self.core.ask(&self.cred, node.home(), request).await?.reply {
            Reply::Lines(lines) => Ok(lines),
            _ => Err(unexpected()),
        }
    }
}
