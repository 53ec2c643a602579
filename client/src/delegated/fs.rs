//! The operations: what is answered from here, and what goes to the server.
//!
//! An operation that goes to the server claims the names that it is about first, or waits until
//! nothing of its file is unsent; afterwards what it has changed is noted.

use std::sync::{Arc, atomic::Ordering};

use base::{
    Access, Acl, AclKind, Attr, ByteRange, Cred, EntryName, FileKind, FsError, Ino, LockKind,
    SetAttr, Time, acl::without_umask, attr::MODE_SETGID, layout::POS_MAX,
};
use bytes::Bytes;
use tokio::time::Instant;
use wire::{
    AllocateMode, DirRef, Entry, FileRef, Grant, Held, LockFound, Mkdir, NodeRef, ReaddirEntry,
    ReaddirPage, RenameMode, Renamed, Reply, Request, SeekTo, Stand, Statfs, XattrMode,
};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, What},
    file::{Local, Make},
    recalls::Lease,
    send::GATHER,
};
use crate::{
    FileLock, FileSystem, Handle, Made, New, Result, Unnamed, done::Failure, error::unexpected,
};

/// Number of directories that are given back at a time when there are too many.
const GIVEN_BACK_AT_ONCE: usize = 64;

/// Names of held directories that one operation has claimed. Nothing of them waits to be sent.
struct Claim {
    names: Vec<(Arc<HeldDir>, Vec<EntryName>)>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        for (held, names) in &self.names {
            held.state.lock().unclaim(names);
            held.changed.notify_waiters();
        }
    }
}

/// A request for a delegation is under way.
struct Wish<'a>(&'a Delegating);

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        let mut table = self.0.shared.table.lock();
        table.wishes -= 1;
        if table.wishes == 0 {
            table.touched.clear();
        }
    }
}

impl Delegating {
    /// The file system without delegations.
    fn server(&self) -> &impl FileSystem {
        &self.client
    }

    fn wishes(&self) -> Option<Wish<'_>> {
        let mut table = self.shared.table.lock();
        if !self.shared.on {
            return None;
        }
        if table.is_full() {
            // Some that nobody works in make room.
            let idle = table.dirs.values().filter(|held| held.state.lock().is_idle());
            let idle: Vec<_> = idle.take(GIVEN_BACK_AT_ONCE).cloned().collect();
            drop(table);
            idle.iter().for_each(|held| self.give_back_soon(held));
            return None;
        }
        table.wishes += 1;
        Some(Wish(self))
    }

    /// Claims a name of each of these directories, those that are held.
    async fn claim(&self, of: &[(Option<&Arc<HeldDir>>, &EntryName)]) -> Claim {
        let mut by_dir: Vec<(Arc<HeldDir>, Vec<EntryName>)> = Vec::new();
        for (held, name) in of {
            let Some(held) = held else { continue };
            match by_dir.iter_mut().find(|(known, _)| Arc::ptr_eq(known, held)) {
                Some((_, names)) if names.contains(name) => {}
                Some((_, names)) => names.push((*name).clone()),
                None => by_dir.push((Arc::clone(held), vec![(*name).clone()])),
            }
        }
        // All take them in one order, so nobody waits for a claim of somebody who waits for theirs.
        by_dir.sort_by_key(|(held, _)| held.dir.id);
        let mut claim = Claim { names: Vec::new() };
        for (held, names) in by_dir {
            self.claim_in(&held, &names).await;
            claim.names.push((held, names));
        }
        claim
    }

    async fn claim_in(&self, held: &Arc<HeldDir>, names: &[EntryName]) {
        let wanted: Vec<&EntryName> = names.iter().collect();
        loop {
            let changed = held.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let is_free = held.state.lock().claim(&wanted);
            if is_free {
                break;
            }
            changed.await;
        }
        self.settle(held, Some(&wanted)).await;
    }

    /// Waits while somebody sends a change of a name.
    async fn until_unclaimed(&self, held: &Arc<HeldDir>, name: &EntryName) {
        loop {
            let changed = held.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !held.state.lock().is_claimed(name) {
                return;
            }
            changed.await;
        }
    }

    /// The attributes of a file with all that is not sent.
    fn shown(&self, file: &Local) -> Attr {
        let mut attr = file.attr;
        if let Some(state) = self.core.files.state_of(attr.ino) {
            let inner = state.lock();
            if !inner.doubtful && !inner.lost {
                if !inner.is_unmade {
                    attr = inner.attr;
                }
                attr = inner.visible(attr);
            }
        }
        file.shown(attr)
    }

    /// A look at what is under a name; `None` when the server must be asked.
    fn look(&self, held: &HeldDir, name: &EntryName) -> Option<Result<Entry>> {
        let state = held.state.lock();
        match state.get(self.pos(name), name) {
            None => Some(Err(FsError::NotFound.into())),
            Some(Item::File(file)) if file.is_known => {
                let (attr, target) = (self.shown(file), file.target.clone());
                Some(Ok(Entry { attr, dir: None, target, whole: true }))
            }
            Some(Item::File(_) | Item::Dir(_) | Item::Other(_)) => None,
        }
    }

    /// The entry of a directory that is held.
    async fn entry_of_dir(&self, dir: &DirRef) -> Option<Entry> {
        let attr = self.attr_of_dir(dir).await?;
        Some(Entry { attr, dir: Some(*dir), target: None, whole: true })
    }

    /// The attributes of a directory that is held, if they are known.
    async fn attr_of_dir(&self, dir: &DirRef) -> Option<Attr> {
        let held = self.held(dir).await?;
        let state = held.state.lock();
        state.is_known.then_some(state.attr)
    }

    /// What is under a name that the client need not ask for.
    fn item(&self, held: &HeldDir, name: &EntryName) -> Option<Item> {
        held.state.lock().get(self.pos(name), name).cloned()
    }

    /// The count of changes in the directory of a file, before a request is sent.
    fn changes_of(&self, ino: Ino) -> u64 {
        self.place_of(ino).map_or(0, |(held, _)| held.state.lock().changes)
    }

    /// Notes attributes that a request has told of a file, which was sent when the directory's count
    /// of changes was `since`; `None`: they have changed, and are to be asked for.
    fn learn(&self, ino: Ino, attr: Option<Attr>, since: u64) {
        let Some((held, name)) = self.place_of(ino) else { return };
        let pos = self.pos(&name);
        let mut state = held.state.lock();
        let attr = attr.filter(|_| state.changes == since);
        let Some(file) = state.file(pos, &name, ino) else { return };
        match attr {
            Some(attr) if !file.is_unsent() => (file.attr, file.is_known) = (attr, true),
            Some(_) | None if file.is_unsent() => {}
            Some(_) | None => file.is_known = false,
        }
    }

    /// Notes that a request has changed names of a held directory, by how much, and when, if that
    /// is known.
    fn changed(&self, held: Option<&Arc<HeldDir>>, names: i64, subdirs: i32, at: Option<Time>) {
        let Some(held) = held else { return };
        let noted = self.server().changed_dir(held.dir.ino).map(|attr| attr.mtime);
        let mut state = held.state.lock();
        match at.or(noted) {
            Some(at) => state.touch(names, subdirs, at),
            None => state.is_known = false,
        }
    }

    /// The new file that is answered from here; `None` when the server must make it.
    fn make_here(
        &self,
        held: &Arc<HeldDir>,
        name: &EntryName,
        (cred, new): (&Cred, New),
        open: bool,
    ) -> Option<Made> {
        if new.kind != FileKind::File {
            return None;
        }
        let (at, pos) = (self.now_at(held.run.server), self.pos(name));
        let (file, asks) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back.
            if state.phase != Phase::Held || state.get(pos, name).is_some() {
                return None;
            }
            let (ino, asks) = state.take_ino();
            let inherits = state.attr.mode & MODE_SETGID != 0;
            let attr = ino.map(|ino| Attr {
                mode: without_umask(new.mode),
                uid: cred.uid,
                gid: if inherits { state.attr.gid } else { cred.gid },
                atime: at,
                mtime: at,
                ctime: at,
                btime: at,
                ..Attr::blank(ino, FileKind::File)
            });
            let file = attr.map(|attr| {
                let make = Make { mode: new.mode, cred: cred.clone(), at };
                let local = Local::new(attr, make);
                state.put(pos, name.clone(), Item::File(Box::new(local)));
                state.touch(1, 0, at);
                table.files.insert(attr.ino, (held.dir.id, name.clone()));
                let handle = open.then(|| {
                    let file = FileRef { dir: held.dir, name: name.clone(), ino: attr.ino };
                    self.core.files.open_unmade(file, attr, cred, held.dir.id)
                });
                let due = Instant::now() + GATHER;
                let added = state.push(name, What::Update(attr.ino), due);
                self.shared.queued.fetch_add(added, Ordering::AcqRel);
                (attr, handle)
            });
            (file, asks)
        };
        if asks {
            self.ask_for_inos(held, held.dir.ino);
        }
        let (attr, handle) = file?;
        self.pump_later(held);
        let entry = Entry { attr, dir: None, target: None, whole: true };
        Some(Made { entry, existed: false, handle })
    }

    /// Removes a file from here; `None` when the server must remove it.
    fn remove_here(&self, held: &Arc<HeldDir>, name: &EntryName, cred: &Cred) -> Option<Attr> {
        let (at, pos) = (self.now_at(held.run.server), self.pos(name));
        let Some(Item::File(file)) = self.item(held, name) else { return None };
        let ino = file.attr.ino;
        if self.core.files.is_open(ino) {
            return None;
        }
        let attr = Attr { nlink: 0, ctime: at.max(file.attr.ctime), ..self.shown(&file) };
        let (withdrawn, is_sent) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back.
            if state.phase != Phase::Held || state.file(pos, name, ino).is_none() {
                return None;
            }
            let withdrawn = state.withdraw(name, ino);
            // A change on its way may make it.
            let is_sent = file.make.is_none() || withdrawn.is_none();
            state.take(pos, name);
            state.touch(-1, 0, at);
            table.files.remove(&ino);
            if is_sent {
                table.leaving.insert(ino, (held.dir.id, name.clone()));
                let what = What::Unlink { ino, cred: cred.clone(), at };
                let added = state.push(name, what, Instant::now() + GATHER);
                self.shared.queued.fetch_add(added, Ordering::AcqRel);
            }
            (withdrawn, is_sent)
        };
        if let Some(count) = withdrawn {
            self.withdrawn(count);
        }
        self.core.files.is_held(ino, None);
        self.core.files.discard(ino, !is_sent);
        self.closes(ino);
        self.pump_later(held);
        Some(attr)
    }

    /// The page of a listing that can be answered from here.
    async fn list_here(
        &self,
        held: &Arc<HeldDir>,
        (after, max, plus): (u64, u32, bool),
    ) -> Option<ReaddirPage> {
        let mut found: Vec<(u64, EntryName, Item)> = Vec::new();
        let (attr, parent_ino, end) = {
            let state = held.state.lock();
            if !state.is_known {
                return None;
            }
            let max = usize::try_from(max.max(1)).unwrap_or(usize::MAX);
            let mut end = true;
            for (pos, name, item) in state.names_after(after) {
                if found.len() >= max && found.last().is_some_and(|(last, _, _)| *last != pos) {
                    end = false;
                    break;
                }
                found.push((pos, name.clone(), item.clone()));
            }
            (state.attr, state.parent, end)
        };
        let mut entries = Vec::with_capacity(found.len());
        for (pos, name, item) in found {
            let (kind, entry) = match &item {
                Item::File(file) if file.is_known => {
                    let attr = self.shown(file);
                    let target = file.target.clone();
                    (attr.kind, Some(Entry { attr, dir: None, target, whole: true }))
                }
                Item::Dir(dir) if plus => {
                    (FileKind::Directory, Some(self.entry_of_dir(dir).await?))
                }
                Item::Dir(_) => (FileKind::Directory, None),
                Item::File(_) | Item::Other(_) => return None,
            };
            let (ino, entry) = (item.ino(), entry.filter(|_| plus));
            entries.push(ReaddirEntry { pos, name, ino, kind: Some(kind), entry });
        }
        let reach = if end { POS_MAX } else { entries.last().map_or(after, |entry| entry.pos) };
        Some(ReaddirPage { entries, end, attr, parent_ino, reach, layout: None })
    }

    /// The held file that a handle has open, and its name.
    async fn held_handle(&self, handle: Handle) -> Option<(Arc<HeldDir>, EntryName, Ino)> {
        if !self.holds_any() {
            return None;
        }
        let ino = self.core.files.handle(handle).ok()?.state.ino;
        let (held, name) = self.held_file(ino).await?;
        Some((held, name, ino))
    }

    /// Sees to it that the server knows everything of the file of a handle.
    async fn settle_handle(&self, handle: Handle) {
        if self.holds_any()
            && let Ok(open) = self.core.files.handle(handle)
        {
            self.settle_file(open.state.ino).await;
        }
    }

    /// Sees to it that the server has the file of a handle.
    async fn settle_unmade(&self, handle: Handle) {
        if self.holds_any()
            && let Ok(open) = self.core.files.handle(handle)
            && open.state.lock().is_unmade
        {
            self.settle_file(open.state.ino).await;
        }
    }

    async fn settle_node(&self, node: &NodeRef) {
        if !self.holds_any() {
            return;
        }
        match node {
            NodeRef::File(file) => self.settle_file(file.ino).await,
            NodeRef::Dir(dir) => {
                if let Some(held) = self.held(dir).await {
                    self.settle(&held, None).await;
                }
            }
        }
    }

    /// The mode that an access ACL says, if it says no more than a mode.
    fn mode_of_acl(name: &[u8], value: &[u8], shown: &Attr) -> Option<u32> {
        if AclKind::of(name) != Some(AclKind::Access) {
            return None;
        }
        let acl = Acl::parse(value).ok()??;
        (!acl.says_more_than_a_mode()).then(|| acl.in_mode(shown.mode))
    }

    /// Changes attributes here; `None` when the server must.
    async fn set_here(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Option<Attr> {
        let (held, name) = self.held_file(ino).await?;
        self.until_unclaimed(&held, &name).await;
        let (pos, at) = (self.pos(&name), self.now_at(held.run.server));
        let shown = match self.item(&held, &name) {
            Some(Item::File(file)) if file.attr.ino == ino => self.shown(&file),
            Some(_) | None => return None,
        };
        let after = {
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back.
            if state.phase != Phase::Held {
                return None;
            }
            let file = state.file(pos, &name, ino)?;
            if !file.may_wait(&set, cred) {
                return None;
            }
            if set == SetAttr::default() {
                return Some(shown);
            }
            file.change(set, cred, at.max(shown.ctime), &shown);
            let after = file.clone();
            let added = state.push(&name, What::Update(ino), Instant::now() + GATHER);
            self.shared.queued.fetch_add(added, Ordering::AcqRel);
            after
        };
        self.pump_later(&held);
        Some(self.shown(&after))
    }
}

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
        let entry = self.server().lookup(cred, dir, name).await?;
        match &entry.dir {
            Some(found) => Ok(self.entry_of_dir(found).await.unwrap_or(entry)),
            None => {
                self.learn(entry.attr.ino, Some(entry.attr), since);
                Ok(entry)
            }
        }
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
                    (state.attr, state.is_known) = (attr, true);
                }
                Ok(attr)
            }
            NodeRef::File(file) => {
                if let Some((held, name)) = self.held_file(file.ino).await {
                    if let Some(Ok(entry)) = self.look(&held, &name)
                        && entry.attr.ino == file.ino
                    {
                        return Ok(entry.attr);
                    }
                    self.settle(&held, Some(&[&name])).await;
                }
                self.settle_removal(file.ino).await;
                let since = self.changes_of(file.ino);
                let attr = self.server().getattr(cred, node).await?;
                self.learn(file.ino, Some(attr), since);
                Ok(attr)
            }
        }
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        match node {
            NodeRef::File(file) => {
                if let Some(attr) = self.set_here(cred, file.ino, set).await {
                    return Ok(attr);
                }
                self.settle_node(node).await;
                let since = self.changes_of(file.ino);
                let attr = self.server().setattr(cred, node, set).await?;
                self.learn(file.ino, Some(attr), since);
                Ok(attr)
            }
            NodeRef::Dir(dir) => {
                let held = self.held(dir).await;
                if let Some(held) = &held {
                    self.settle(held, None).await;
                }
                let since = held.as_ref().map(|held| held.state.lock().changes);
                let attr = self.server().setattr(cred, node, set).await?;
                if let Some(held) = held {
                    let mut state = held.state.lock();
                    let is_known = state.is_idle() && Some(state.changes) == since;
                    (state.attr, state.is_known) = (attr, is_known);
                }
                Ok(attr)
            }
        }
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        self.settle_file(file.ino).await;
        let target = self.server().readlink(cred, file).await;
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
        let Some(held) = self.held(dir).await else {
            self.touches(dir);
            return self.server().create(cred, dir, name, new, exclusive, open).await;
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
        let made = self.server().create(cred, dir, name, new, exclusive, open).await?;
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
        let held = self.held(dir).await;
        match &held {
            Some(held) if self.item(held, name).is_some() => return Err(FsError::Exists.into()),
            Some(_) => {}
            None => self.touches(dir),
        }
        let claim = self.claim(&[(held.as_ref(), name)]).await;
        let wish = self.wishes();
        let stand = if wish.is_some() { Stand::on(Held::WISH) } else { Stand::NONE };
        let lease = Lease::begins(self.now());
        let request = Request::Mkdir(Mkdir { dir: *dir, name: name.clone(), mode });
        let done = self.core.call(cred, dir.home, request, stand).await;
        let done = done.map_err(Failure::by_handle)?;
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
        let held = self.held(dir).await;
        match &held {
            Some(held) if self.item(held, name).is_some() => return Err(FsError::Exists.into()),
            Some(_) => {}
            None => self.touches(dir),
        }
        let _claim = self.claim(&[(held.as_ref(), name)]).await;
        let entry = self.server().symlink(cred, dir, name, target.clone()).await?;
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
        let to = self.held(dir).await;
        if to.is_none() {
            self.touches(dir);
        }
        let from = match target {
            NodeRef::File(file) => self.held_file(file.ino).await,
            NodeRef::Dir(_) => None,
        };
        self.settle_node(target).await;
        let mut names = vec![(to.as_ref(), name)];
        names.extend(from.as_ref().map(|(held, name)| (Some(held), name)));
        let _claim = self.claim(&names).await;
        let entry = self.server().link(cred, target, dir, name).await?;
        let ino = entry.attr.ino;
        if let Some((held, name)) = &from {
            self.take(held, name);
            self.put(held, name, Item::Other(ino));
        }
        if let Some(held) = &to {
            self.put(held, name, Item::Other(ino));
            self.changed(Some(held), 1, 0, Some(entry.attr.ctime));
        }
        Ok(entry)
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        let held = self.held(dir).await;
        if let Some(held) = &held {
            self.wait_for_queue().await;
            self.until_unclaimed(held, name).await;
            if self.item(held, name).is_none() {
                return Err(FsError::NotFound.into());
            }
            if let Some(attr) = self.remove_here(held, name, cred) {
                return Ok(attr);
            }
        }
        let _claim = self.claim(&[(held.as_ref(), name)]).await;
        let attr = self.server().unlink(cred, dir, name).await?;
        if let Some(held) = &held {
            self.take(held, name);
            self.changed(Some(held), -1, 0, Some(attr.ctime));
        }
        Ok(attr)
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        let held = self.held(dir).await;
        let child = match &held {
            Some(held) => match self.item(held, name) {
                None => return Err(FsError::NotFound.into()),
                Some(Item::Dir(child)) => self.held(&child).await,
                Some(Item::File(_) | Item::Other(_)) => return Err(FsError::NotDirectory.into()),
            },
            None => None,
        };
        match &child {
            Some(child) if !child.state.lock().is_empty() => return Err(FsError::NotEmpty.into()),
            Some(child) => self.settle(child, None).await,
            // Any directory may be meant.
            None if held.is_none() => self.settle_all().await,
            None => {}
        }
        let claim = self.claim(&[(held.as_ref(), name)]).await;
        let ino = self.server().rmdir(cred, dir, name).await?;
        if let Some(held) = &held {
            self.take(held, name);
            self.changed(Some(held), -1, -1, None);
        }
        drop(claim);
        if let Some(gone) = self.held_by_ino(ino) {
            self.forget(&gone);
            self.give_back_later(gone.run.server, gone.dir.id);
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
        let (mut source, mut target) = (self.held(from.0).await, self.held(to.0).await);
        if mode == RenameMode::Exchange {
            // Either of the two may be a directory that is held. Hardly anybody exchanges any.
            self.give_back_everything().await;
            (source, target) = (None, None);
        }
        if target.is_none() {
            self.touches(to.0);
        }
        let names = [(source.as_ref(), from.1), (target.as_ref(), to.1)];
        let claim = self.claim(&names).await;
        let replaced = target.as_ref().and_then(|held| self.item(held, to.1));
        if let Some(Item::Dir(dir)) = &replaced
            && let Some(held) = self.held(dir).await
        {
            self.settle(&held, None).await;
        } else if target.is_none() {
            // A directory that is replaced must be empty at the server, too.
            self.settle_all().await;
        }
        let renamed = self.server().rename(cred, from, to, mode).await?;
        if mode != RenameMode::Exchange {
            self.note_move(cred, (source.as_ref(), from), (target.as_ref(), to), &renamed).await;
        }
        drop(claim);
        if let Some(gone) = renamed.replaced_dir.and_then(|ino| self.held_by_ino(ino)) {
            self.forget(&gone);
            self.give_back_later(gone.run.server, gone.dir.id);
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
                    held.state.lock().attr.atime = now;
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
            held.state.lock().attr.atime = now;
        }
        if self.holds_any() {
            for listed in page.entries.iter_mut().filter_map(|listed| listed.entry.as_mut()) {
                if let Some(dir) = listed.dir
                    && let Some(attr) = self.attr_of_dir(&dir).await
                {
                    listed.attr = attr;
                }
            }
        }
        Ok(page)
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        let Some((held, name)) = self.held_file(file.ino).await else {
            self.settle_removal(file.ino).await;
            return self.server().open(cred, file, access).await;
        };
        let may = Access::READ.and(Access::WRITE);
        if let Some(handle) = self.core.files.open_again(file.ino, cred, may) {
            return Ok(handle);
        }
        let is_unmade = match self.item(&held, &name) {
            Some(Item::File(local)) => local.make.is_some(),
            Some(Item::Dir(_) | Item::Other(_)) | None => false,
        };
        if is_unmade {
            self.settle(&held, Some(&[&name])).await;
        }
        let handle = self.server().open(cred, file, access).await?;
        self.is_held(&held, file.ino);
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
        // Its access time is the server's to keep.
        self.settle_unmade(handle).await;
        self.server().read(handle, offset, len).await
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        if let Some((held, name, _)) = self.held_handle(handle).await {
            let is_changed = match self.item(&held, &name) {
                Some(Item::File(file)) => file.pending.is_some() || file.sending.is_some(),
                Some(Item::Dir(_) | Item::Other(_)) | None => false,
            };
            if is_changed {
                // What is written after a change of times must not be sent with it.
                self.settle(&held, Some(&[&name])).await;
            }
        }
        self.server().write(handle, offset, data, clear_set_id).await
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        let Some((held, name, ino)) = self.held_handle(handle).await else {
            return self.server().flush(handle).await;
        };
        let is_unsent = self.core.files.is_dirty(ino)
            || matches!(self.item(&held, &name), Some(Item::File(file)) if file.is_unsent());
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
        self.client.close_handle(handle)?;
        self.push(&held, &name, What::Update(ino), true);
        unlocked
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.settle_handle(handle).await;
        self.server().lock(handle, owner, lock).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.settle_handle(handle).await;
        self.server().lock_wait(handle, owner, lock, interrupted).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.settle_handle(handle).await;
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
        self.settle_handle(handle).await;
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
                Some((held, name)) => match self.item(&held, &name) {
                    Some(Item::File(local)) => local.is_plain && local.attr.ino == file.ino,
                    Some(Item::Dir(_) | Item::Other(_)) | None => false,
                },
                None => false,
            },
        };
        if is_plain {
            return Ok(Vec::new());
        }
        self.settle_node(node).await;
        self.server().xattrs(cred, node).await
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        if let NodeRef::File(file) = node
            && mode == XattrMode::Set
            && let Some((held, at)) = self.held_file(file.ino).await
            && let Some(Ok(entry)) = self.look(&held, &at)
            && let Some(mode) = Delegating::mode_of_acl(&name, &value, &entry.attr)
        {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            if self.set_here(cred, file.ino, set).await.is_some() {
                return Ok(());
            }
        }
        let is_default = AclKind::of(&name) == Some(AclKind::Default);
        self.settle_node(node).await;
        self.is_not_plain(node, is_default).await;
        let set = self.server().setxattr(cred, node, name, value, mode).await;
        self.ask_attributes(node).await;
        set
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.settle_node(node).await;
        let removed = self.server().removexattr(cred, node, name).await;
        self.ask_attributes(node).await;
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
        self.settle_handle(handle).await;
        let allocated = self.server().allocate(handle, offset, len, mode, clear_set_id).await;
        if let Ok(open) = self.core.files.handle(handle) {
            self.learn(open.state.ino, None, 0);
        }
        allocated
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        self.settle_handle(handle).await;
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
        self.server().info(node).await
    }
}

impl Delegating {
    /// Notes a rename that the server has made.
    async fn note_move(
        &self,
        cred: &Cred,
        (source, from): (Option<&Arc<HeldDir>>, (&DirRef, &EntryName)),
        (target, to): (Option<&Arc<HeldDir>>, (&DirRef, &EntryName)),
        renamed: &Renamed,
    ) {
        let is_within = from.0.same(to.0);
        if let Some(held) = self.held_by_ino(renamed.moved) {
            let mut state = held.state.lock();
            (state.parent, state.is_known) = (to.0.ino, false);
        }
        let moved = source.and_then(|held| self.take(held, from.1));
        let moved = match moved {
            Some(Item::File(mut file)) if is_within => {
                file.is_known = false;
                Some(Item::File(file))
            }
            Some(Item::File(file)) => Some(Item::Other(file.attr.ino)),
            Some(item) => Some(item),
            None if target.is_none() => None,
            None => match self.server().lookup(cred, to.0, to.1).await {
                Ok(Entry { dir: Some(dir), .. }) => Some(Item::Dir(dir)),
                Ok(_) | Err(_) => Some(Item::Other(renamed.moved)),
            },
        };
        let subdirs = i32::from(matches!(moved, Some(Item::Dir(_))));
        self.changed(source, -1, -subdirs, None);
        let Some(held) = target else { return };
        let replaced = self.take(held, to.1);
        if let Some(moved) = moved {
            self.put(held, to.1, moved);
        }
        let (names, dirs) = match &replaced {
            Some(Item::Dir(_)) => (0, 0),
            Some(_) => (0, subdirs),
            None => (1, subdirs),
        };
        self.changed(Some(held), names, dirs, None);
    }

    /// A node may have extended attributes from now on. A directory with a default ACL is given
    /// back: what is made there inherits it.
    async fn is_not_plain(&self, node: &NodeRef, is_default_acl: bool) {
        match node {
            NodeRef::Dir(dir) => {
                let Some(held) = self.held(dir).await else { return };
                held.state.lock().is_plain = false;
                if is_default_acl {
                    self.give_back(&held).await;
                }
            }
            NodeRef::File(file) => {
                let Some((held, name)) = self.place_of(file.ino) else { return };
                let pos = self.pos(&name);
                if let Some(local) = held.state.lock().file(pos, &name, file.ino) {
                    local.is_plain = false;
                }
            }
        }
    }

    /// The attributes of a node are to be asked for: a request has changed them.
    async fn ask_attributes(&self, node: &NodeRef) {
        match node {
            NodeRef::File(file) => self.learn(file.ino, None, 0),
            NodeRef::Dir(dir) => {
                if let Some(held) = self.held(dir).await {
                    held.state.lock().is_known = false;
                }
            }
        }
    }

    fn withdrawn(&self, count: usize) {
        self.shared.queued.fetch_sub(count, Ordering::AcqRel);
        self.shared.sent.notify_waiters();
    }

    /// Sends everything, and ends the session.
    ///
    /// # Errors
    /// When something that was written could not be stored.
    pub async fn close(&self) -> Result<()> {
        self.settle_all().await;
        let lost = self.core.files.report_forgotten();
        self.client.close().await.and(lost)
    }
}
