//! The operations: what is answered from here, and what goes to the server.
//!
//! An operation that goes to the server claims the names that it is about first, or waits until
//! nothing of its file is unsent; afterwards what it has changed is noted. The parts are in `here`.

use std::sync::Arc;

use base::{
    Access, AclKind, Attr, ByteRange, Cred, EntryName, FsError, Ino, LockKind, SetAttr,
    limits::SYMLINK_BYTES_MAX,
};
use bytes::Bytes;
use wire::{
    AllocateMode, DirRef, Entry, FileRef, Grant, Held, LockFound, Mkdir, NodeRef, ReaddirPage,
    RenameMode, Renamed, Reply, Request, SeekTo, Stand, Statfs, XattrMode,
};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, What},
    file::Local,
    recalls::Lease,
};
use crate::{
    FileLock, FileSystem, Handle, Made, New, Result, Unnamed, done::Failure, error::unexpected,
};

impl FileSystem for Delegating {
    fn root(&self) -> (DirRef, Attr) {
        self.server().root()
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        let mut since = 0;
        if let Some(held) = self.held(dir).await {
            if let Some(found) = self.look(&held, name) {
                return found;
            }
            if let Some(Item::Dir(child)) = self.item(&held, name)
                && let Some(entry) = self.entry_of_dir(&child).await
            {
                return Ok(entry);
            }
            self.settle(&held, Some(&[name])).await;
            since = held.state.lock().changes;
        }
        let mut entry = self.server().lookup(cred, dir, name).await?;
        if entry.dir.is_some() {
            self.show_held(&mut entry).await;
        } else {
            self.learn(entry.attr.ino, Some(entry.attr), since);
        }
        Ok(entry)
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        match node {
            NodeRef::Dir(dir) => {
                if let Some(attr) = self.attr_of_dir(dir).await {
                    return Ok(attr);
                }
                let Some(held) = self.held(dir).await else {
                    return self.server().getattr(cred, node).await;
                };
                self.settle(&held, None).await;
                let since = held.state.lock().changes;
                let attr = self.server().getattr(cred, node).await?;
                let mut state = held.state.lock();
                if state.is_idle() && state.changes == since {
                    (state.attr, state.is_known, state.is_group_known) = (attr, true, true);
                }
                Ok(attr)
            }
            NodeRef::File(file) => {
                if let Some((held, name)) = self.held_file(file.ino).await
                    && let Some(Ok(entry)) = self.look(&held, &name)
                    && entry.attr.ino == file.ino
                {
                    return Ok(entry.attr);
                }
                self.settle_file(file.ino).await;
                let since = self.changes_of(file.ino);
                let attr = self.server().getattr(cred, &self.as_sent(node)).await?;
                self.learn(file.ino, Some(attr), since);
                Ok(attr)
            }
        }
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        let mut presence = self.enter_node(node).await;
        match node {
            NodeRef::File(file) => {
                if let Some(attr) = self.set_here(cred, file.ino, set).await {
                    return Ok(attr);
                }
                self.settle_node(node).await;
                self.forget_twins(node);
                self.changes_now(file.ino);
                let since = self.changes_of(file.ino);
                let node = self.as_sent(node);
                let attr = presence.ask(self.server().setattr(cred, &node, set)).await?;
                self.learn(file.ino, Some(attr), since);
                Ok(attr)
            }
            NodeRef::Dir(dir) => {
                let held = self.held(dir).await;
                if let Some(held) = &held {
                    if let Some(attr) = self.set_times_here(held, cred, set).await {
                        return Ok(attr);
                    }
                    if let Some(changed) = self.set_access((held, node), cred, set).await {
                        return match changed? {
                            Some(attr) => Ok(attr),
                            None => self.getattr(cred, node).await,
                        };
                    }
                    self.settle(held, None).await;
                }
                let since = held.as_ref().map(|held| {
                    let mut state = held.state.lock();
                    // An answer to an earlier change of mode or owner is old from now on.
                    state.begin_access();
                    state.changes
                });
                let attr = presence.ask(self.server().setattr(cred, node, set)).await?;
                if let Some(held) = held {
                    let mut state = held.state.lock();
                    let is_known = state.is_idle() && Some(state.changes) == since;
                    (state.attr, state.is_known, state.is_group_known) = (attr, is_known, true);
                }
                Ok(attr)
            }
        }
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        self.settle_file(file.ino).await;
        let target = self.server().readlink(cred, &self.file_as_sent(file)).await;
        self.learn(file.ino, None, 0);
        target
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
        let (held, mut presence) = self.enter(dir, true).await;
        let Some(held) = held else {
            let create = async || self.server().create(cred, dir, name, new, exclusive, open).await;
            let mut made = presence.ask(self.ask_for_room(create)).await?;
            self.show_held(&mut made.entry).await;
            return Ok(made);
        };
        self.wait_for_queue().await;
        self.until_unclaimed(&held, name).await;
        if self.item(&held, name).is_some() {
            if exclusive {
                return Err(FsError::Exists.into());
            }
            let entry = self.lookup(cred, dir, name).await?;
            return Ok(Made { entry, existed: true, handle: None });
        }
        if let Some(made) = self.make_here(&held, name, (cred, new), open) {
            return Ok(made);
        }
        let _claim = self.claim(&[(Some(&held), name)]).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        let create = async || self.server().create(cred, dir, name, new, exclusive, open).await;
        let made = presence.ask(self.ask_for_room(create)).await?;
        if !made.existed {
            let attr = made.entry.attr;
            let local = Local { is_plain: true, ..Local::of_server(attr, None) };
            self.put(&held, name, Item::File(Box::new(local)));
            self.changed(Some(&held), 1, 0, Some(attr.btime));
        }
        Ok(made)
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        self.server().tmpfile(cred, dir, mode, linkable).await
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        let (held, presence) = self.enter(dir, true).await;
        if let Some(held) = &held
            && self.item(held, name).is_some()
        {
            return Err(FsError::Exists.into());
        }
        let claim = self.claim(&[(held.as_ref(), name)]).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        let wish = self.wishes();
        let stand = if wish.is_some() { Stand::on(Held::WISH) } else { Stand::NONE };
        let lease = Lease::begins(self.now());
        let request = Request::Mkdir(Mkdir { dir: *dir, name: name.clone(), mode });
        let mkdir = async || {
            let done = self.core.call(cred, dir.home, request.clone(), stand.clone()).await;
            done.map_err(Failure::by_handle)
        };
        let done = presence.ask(self.ask_for_room(mkdir)).await?;
        let Reply::Entry(mut entry) = done.reply else { return Err(unexpected()) };
        if let (Some(made), Some(grant)) = (entry.dir, done.grant) {
            let Grant { lease_ms, .. } = grant;
            let lease = lease.of(std::time::Duration::from_millis(lease_ms.into()));
            self.take_grant(made, entry.attr, dir.ino, &grant, (done.run, lease));
        } else if let Some(made) = entry.dir
            && wish.is_some()
            && !done.is_noted
        {
            // A repeated answer lacks the grant that the first one may have brought.
            self.give_back_later(done.run.server, made.id);
        }
        drop(wish);
        if let (Some(held), Some(made)) = (&held, entry.dir) {
            self.put(held, name, Item::Dir(made));
            self.changed(Some(held), 1, 1, Some(entry.attr.btime));
        }
        drop(claim);
        if !entry.whole
            && let Some(made) = entry.dir
        {
            entry.attr = self.server().getattr(cred, &NodeRef::Dir(made)).await?;
            entry.whole = true;
        }
        Ok(entry)
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        let (held, presence) = self.enter(dir, true).await;
        // The server refuses a target that is none before it looks at the name.
        if let Some(held) = &held
            && is_target(&target)
            && self.item(held, name).is_some()
        {
            return Err(FsError::Exists.into());
        }
        let _claim = self.claim(&[(held.as_ref(), name)]).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        let symlink = async || self.server().symlink(cred, dir, name, target.clone()).await;
        let entry = presence.ask(self.ask_for_room(symlink)).await?;
        if let Some(held) = &held {
            let local = Local { is_plain: true, ..Local::of_server(entry.attr, Some(target)) };
            self.put(held, name, Item::File(Box::new(local)));
            self.changed(Some(held), 1, 0, Some(entry.attr.btime));
        }
        Ok(entry)
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        let (to, presence) = self.enter(dir, true).await;
        let mut at_target = self.enter_node(target).await;
        let from = match target {
            NodeRef::File(file) => self.held_file(file.ino).await,
            NodeRef::Dir(_) => None,
        };
        if let (Some(held), Some((source, first))) = (&to, &from)
            && Arc::ptr_eq(held, source)
        {
            self.wait_for_queue().await;
            self.until_unclaimed(held, first).await;
            self.until_unclaimed(held, name).await;
            if self.item(held, name).is_some() {
                return Err(FsError::Exists.into());
            }
            if let Some(entry) = self.link_here(held, (first, target.ino()), name, cred) {
                return Ok(entry);
            }
        }
        self.settle_node(target).await;
        let mut names = vec![(to.as_ref(), name)];
        names.extend(from.as_ref().map(|(held, name)| (Some(held), name)));
        let _claim = self.claim(&names).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        self.forget_twins(target);
        let linked = self.as_sent(target);
        let entry = presence.ask(at_target.ask(self.server().link(cred, &linked, dir, name)));
        let entry = entry.await?;
        let ino = entry.attr.ino;
        self.note_link(to.as_ref(), name, from.as_ref(), ino);
        if let Some(held) = &to {
            self.changed(Some(held), 1, 0, Some(entry.attr.ctime));
        }
        Ok(entry)
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        let (held, presence) = self.enter(dir, true).await;
        if let Some(held) = &held {
            self.wait_for_queue().await;
            self.until_unclaimed(held, name).await;
            if self.item(held, name).is_none() {
                return Err(FsError::NotFound.into());
            }
            if let Some(attr) = self.remove_here(held, name, cred) {
                return Ok(attr);
            }
            if let Some(attr) = self.remove_twin(held, name) {
                return Ok(attr);
            }
        }
        let _claim = self.claim(&[(held.as_ref(), name)]).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        let attr = presence.ask(self.server().unlink(cred, dir, name)).await?;
        if let Some(held) = &held {
            self.take(held, name);
            self.is_single(held, name, attr);
            self.changed(Some(held), -1, 0, Some(attr.ctime));
        }
        Ok(attr)
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        self.wait_for_queue().await;
        let (held, mut presence) = self.enter(dir, true).await;
        presence.moves();
        let child = match &held {
            Some(held) => match self.item(held, name) {
                None => return Err(FsError::NotFound.into()),
                Some(Item::Dir(child)) => self.held(&child).await,
                Some(_) => return Err(FsError::NotDirectory.into()),
            },
            None => None,
        };
        match &child {
            Some(child) if !child.state.lock().is_empty() => return Err(FsError::NotEmpty.into()),
            Some(child) => {
                if let Some(held) = &held
                    && let Some(ino) = self.rmdir_here((held, child), name, cred)
                {
                    return Ok(ino);
                }
                self.settle(child, None).await;
            }
            // Any directory may be meant.
            None if held.is_none() => self.settle_all().await,
            None => {}
        }
        let claim = self.claim(&[(held.as_ref(), name)]).await;
        // Given up, the operation leaves before others may have its names.
        let mut presence = presence;
        let ino = presence.ask(self.server().rmdir(cred, dir, name)).await?;
        self.shared.table.lock().visits.spoil_ino(ino);
        if let Some(held) = &held {
            self.take(held, name);
            self.changed(Some(held), -1, -1, None);
        }
        drop(claim);
        if let Some(gone) = self.held_by_ino(ino) {
            self.gives_up(&gone);
        }
        Ok(ino)
    }

    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (mut source, mut presence) = self.enter(from.0, true).await;
        presence.moves();
        let (mut target, at_target) = match from.0.same(to.0) {
            true => (source.clone(), None),
            false => {
                let (target, at_target) = self.enter(to.0, true).await;
                (target, Some(at_target))
            }
        };
        if mode == RenameMode::Exchange {
            // Either of the two may be a directory that is held. Hardly anybody exchanges any.
            self.give_back_everything().await;
            (source, target) = (None, None);
        }
        if let Some(held) = source.as_ref().filter(|_| from.0.same(to.0) && from.1 != to.1) {
            self.wait_for_queue().await;
            self.until_unclaimed(held, from.1).await;
            self.until_unclaimed(held, to.1).await;
            if let Some(renamed) = self.rename_here(held, (from.1, to.1), mode) {
                return Ok(renamed);
            }
        }
        let names = [(source.as_ref(), from.1), (target.as_ref(), to.1)];
        let claim = self.claim(&names).await;
        // Given up, the operation leaves before others may have its names.
        let (mut presence, mut at_target) = (presence, at_target);
        let replaced = target.as_ref().and_then(|held| self.item(held, to.1));
        if let Some(Item::Dir(dir)) = &replaced
            && let Some(held) = self.held(dir).await
        {
            self.settle(&held, None).await;
        } else if target.is_none() {
            // A directory that is replaced must be empty at the server, too.
            self.settle_all().await;
        }
        let renamed = presence.ask(self.server().rename(cred, from, to, mode));
        let renamed = match &mut at_target {
            Some(at_target) => at_target.ask(renamed).await?,
            None => renamed.await?,
        };
        self.spoil_moved(&renamed, mode);
        if mode == RenameMode::Exchange {
            // A directory may have been granted meanwhile.
            self.give_back_everything().await;
        }
        if mode != RenameMode::Exchange {
            let moved =
                self.note_move(cred, (source.as_ref(), from), (target.as_ref(), to), &renamed);
            let noted = presence.ask(moved);
            match &mut at_target {
                Some(at_target) => at_target.ask(noted).await,
                None => noted.await,
            }
        }
        drop(claim);
        if let Some(gone) = renamed.replaced_dir.and_then(|ino| self.held_by_ino(ino)) {
            self.gives_up(&gone);
        }
        Ok(renamed)
    }

    fn changed_dir(&self, dir: Ino) -> Option<Attr> {
        let attr = self.server().changed_dir(dir);
        if !self.holds_any() {
            return attr;
        }
        match self.held_by_ino(dir) {
            None => attr,
            Some(held) => {
                let state = held.state.lock();
                (state.phase == Phase::Held && state.is_known).then_some(state.attr)
            }
        }
    }

    async fn serves_handles(&self) {
        self.stop().await;
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        if let Some(held) = self.held(dir).await {
            if let Some(page) = self.list_here(&held, (after, entries_max, plus)).await {
                if after == 0
                    && let Some(now) = self.client.access_time(&page.attr)
                {
                    held.state.lock().was_listed(now);
                    self.client.touch_later(cred, NodeRef::Dir(*dir), &page.attr);
                }
                return Ok(page);
            }
            self.settle(&held, None).await;
        }
        let mut page = self.server().readdir(cred, dir, after, entries_max, plus).await?;
        if after == 0
            && let Some(held) = self.held_by_ino(dir.ino)
            && let Some(now) = self.client.access_time(&page.attr)
        {
            held.state.lock().was_listed(now);
        }
        if self.holds_any() {
            for listed in page.entries.iter_mut().filter_map(|listed| listed.entry.as_mut()) {
                self.show_held(listed).await;
            }
        }
        Ok(page)
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        let mut presence = self.enter_file(file).await;
        let Some((held, name)) = self.held_file(file.ino).await else {
            self.settle_removal(file.ino).await;
            return presence.ask(self.server().open(cred, file, access)).await;
        };
        self.until_unclaimed(&held, &name).await;
        if let Some(handle) = self.open_here(&held, &name, file.ino, cred) {
            return Ok(handle);
        }
        let unmade = |(held, name): (Arc<HeldDir>, EntryName)| {
            self.is_file(&held, &name, |local| local.make.is_some())
        };
        if self.place_of(file.ino).is_some_and(unmade) {
            self.settle_file(file.ino).await;
        }
        let sent = self.file_as_sent(file);
        let handle = presence.ask(self.server().open(cred, &sent, access)).await?;
        self.is_held(&held, &name, file.ino);
        Ok(handle)
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        let attr = self.server().opened_attr(handle)?;
        if let Some((held, name)) = self.place_of(attr.ino)
            && let Some(Ok(entry)) = self.look(&held, &name)
            && entry.attr.ino == attr.ino
        {
            return Some(entry.attr);
        }
        Some(attr)
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        // The server keeps its access time, so the server must have the file.
        self.settle_unmade(handle).await;
        let data = self.server().read(handle, offset, len).await;
        self.note_read(handle);
        data
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        if let Some((held, name, _)) = self.held_handle(handle).await {
            let is_changed = |file: &Local| file.pending.is_some() || file.sending.is_some();
            if self.is_file(&held, &name, is_changed) {
                // Contents that are written after a change of times must not be sent with it.
                self.settle(&held, Some(&[&name])).await;
            }
        }
        self.opens_there(handle).await?;
        self.server().write(handle, offset, data, clear_set_id).await
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        let Some((held, name, ino)) = self.held_handle(handle).await else {
            return self.server().flush(handle).await;
        };
        let is_unsent =
            self.core.files.is_dirty(ino) || self.is_file(&held, &name, Local::is_unsent);
        if is_unsent {
            self.push(&held, &name, What::Update(ino), true);
        }
        let open = self.core.files.handle(handle)?;
        self.client.show_failures(&open)
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        // All that was answered before is stable, too.
        self.settle_all().await;
        self.server().fsync(handle).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let Some((held, name, ino)) = self.held_handle(handle).await else {
            return self.server().release(handle).await;
        };
        let unlocked = self.client.give_back_all(handle).await;
        // A program that was killed while it read did not note it.
        self.note_read(handle);
        let is_told = self.core.files.is_unopened(ino)
            && !self.core.files.is_dirty(ino)
            && !self.is_file(&held, &name, Local::is_unsent);
        self.client.close_handle(handle)?;
        if is_told {
            self.closes(ino);
        } else {
            self.push(&held, &name, What::Update(ino), true);
        }
        unlocked
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.settle_handle(handle).await?;
        self.server().lock(handle, owner, lock).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.settle_handle(handle).await?;
        self.server().lock_wait(handle, owner, lock, interrupted).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.settle_handle(handle).await?;
        self.server().unlock(handle, owner, kind, range).await
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        self.server().unlock_closed(handle, owner).await
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        self.settle_handle(handle).await?;
        self.server().find_lock(handle, owner, lock).await
    }

    async fn sync(&self) -> Result<()> {
        self.settle_all().await;
        self.server().sync().await
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.settle_all().await;
        self.server().sync_dir(dir).await
    }

    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        let is_plain = match node {
            NodeRef::Dir(dir) => match self.held(dir).await {
                Some(held) => held.state.lock().is_plain,
                None => false,
            },
            NodeRef::File(file) => match self.held_file(file.ino).await {
                Some((held, name)) => {
                    let is_plain = |local: &Local| local.is_plain && local.attr.ino == file.ino;
                    self.is_file(&held, &name, is_plain)
                }
                None => false,
            },
        };
        if is_plain {
            return Ok(Vec::new());
        }
        self.settle_node(node).await;
        self.server().xattrs(cred, &self.as_sent(node)).await
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.may_be_setting(&name).await;
        let mut presence = self.enter_node(node).await;
        if mode == XattrMode::Set
            && let Some(attr) = self.plain_attr(node).await
            && let Some(mode) = Delegating::mode_of_acl(&name, &value, &attr)
        {
            // Such an ACL is none: the mode says all of it.
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            match node {
                NodeRef::File(file) => {
                    if self.set_here(cred, file.ino, set).await.is_some() {
                        return Ok(());
                    }
                }
                NodeRef::Dir(dir) => {
                    if let Some(held) = self.held(dir).await
                        && let Some(changed) = self.set_access((&held, node), cred, set).await
                    {
                        return changed.map(drop);
                    }
                }
            }
        }
        let is_default = AclKind::of(&name) == Some(AclKind::Default);
        self.settle_node(node).await;
        self.is_not_plain(node, is_default).await;
        self.forget_twins(node);
        let sent = self.as_sent(node);
        let set = presence.ask(self.server().setxattr(cred, &sent, name, value, mode)).await;
        presence.ask(self.ask_attributes(node)).await;
        set
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.may_be_setting(&name).await;
        let mut presence = self.enter_node(node).await;
        if let NodeRef::Dir(dir) = node
            && AclKind::of(&name).is_some()
            && let Some(held) = self.held(dir).await
            && self.removes_no_acl(&held, cred).await
        {
            return Ok(());
        }
        self.settle_node(node).await;
        self.forget_twins(node);
        let sent = self.as_sent(node);
        let removed = presence.ask(self.server().removexattr(cred, &sent, name)).await;
        presence.ask(self.ask_attributes(node)).await;
        removed
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        self.settle_handle(handle).await?;
        let allocated = self.server().allocate(handle, offset, len, mode, clear_set_id).await;
        if let Ok(open) = self.core.files.handle(handle) {
            self.learn(open.state.ino, None, 0);
        }
        allocated
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        if let Ok(open) = self.core.files.handle(handle) {
            self.settle_file(open.state.ino).await;
        }
        self.server().seek(handle, offset, to).await
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        if let Some((held, name)) = self.place_of(ino) {
            return Ok(NodeRef::File(FileRef { dir: held.dir, name, ino }));
        }
        self.server().search(ino).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.server().statfs().await
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.settle_node(node).await;
        self.server().info(&self.as_sent(node)).await
    }
}

fn is_target(target: &[u8]) -> bool {
    !target.is_empty() && target.len() <= SYMLINK_BYTES_MAX && !target.contains(&0)
}
