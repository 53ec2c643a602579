//! Answers from here, and notes of what the server has done: the parts of the operations.
//!
//! An operation that goes to the server claims the names that it is about first ([`Claim`]), and
//! notes afterwards what it has changed. Nothing is changed here in a directory that is about to be
//! given back.

use std::sync::{Arc, atomic::Ordering};

use base::{
    Attr, Cred, EntryName, FileKind, FsError, Ino, SetAttr, Time, acl::without_umask,
    attr::MODE_SETGID, layout::POS_MAX,
};
use tokio::time::Instant;
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry, ReaddirPage, Renamed};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, What},
    file::{Local, Make},
};
use crate::{Error, FileSystem, Handle, Made, New, Result};

/// Number of directories that are given back at a time when there are too many.
const GIVEN_BACK_AT_ONCE: usize = 64;

/// Names of held directories that one operation has claimed. Nothing of them waits to be sent.
pub(super) struct Claim {
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

/// Somebody waits for a claim in a directory, or has just got it.
struct Waits<'a>(&'a HeldDir);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.state.lock().claims -= 1;
    }
}

/// A request for a delegation is under way.
pub(super) struct Wish<'a>(&'a Delegating);

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
    pub(super) fn server(&self) -> &impl FileSystem {
        &self.client
    }

    pub(super) fn wishes(&self) -> Option<Wish<'_>> {
        if !self.shared.on || self.shared.eager || self.shared.stopped.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.shared.table.lock();
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
    pub(super) async fn claim(&self, of: &[(Option<&Arc<HeldDir>>, &EntryName)]) -> Claim {
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
        let hurries = {
            let mut state = held.state.lock();
            state.claims += 1;
            state.hurry_times(Instant::now())
        };
        let _waits = Waits(held);
        if hurries {
            self.pump(held);
        }
        loop {
            held.until(|state| state.claim(&wanted)).await;
            self.settle(held, Some(&wanted)).await;
            // The server knows of a second name before anything is done to either of the two.
            let twins = {
                let state = held.state.lock();
                let mut twins =
                    wanted.iter().filter_map(|name| state.twins_of(self.pos(name), name));
                // A directory that was lost sends none.
                twins.find(|[_, second]| state.sends_link(second))
            };
            let Some([first, second]) = twins else { break };
            held.state.lock().unclaim(names);
            held.changed.notify_waiters();
            self.settle(held, Some(&[&first, &second])).await;
        }
        for name in wanted {
            if let Some(Item::File(file)) = self.item(held, name)
                && let Some(state) = self.core.files.unopened(file.attr.ino)
            {
                self.open_there_or_lose(&state).await;
            }
        }
    }

    /// A node under the name by which the server knows it, if it is a file that is held.
    pub(super) fn as_sent(&self, node: &NodeRef) -> NodeRef {
        match node {
            NodeRef::File(file) => NodeRef::File(self.file_as_sent(file)),
            NodeRef::Dir(dir) => NodeRef::Dir(*dir),
        }
    }

    /// Like [`Delegating::as_sent`], of a file.
    pub(super) fn file_as_sent(&self, file: &FileRef) -> FileRef {
        match self.place_of(file.ino) {
            Some((held, name)) => FileRef { dir: held.dir, name, ino: file.ino },
            None => file.clone(),
        }
    }

    /// Waits while somebody sends a change of a name.
    pub(super) async fn until_unclaimed(&self, held: &Arc<HeldDir>, name: &EntryName) {
        held.until(|state| !state.is_claimed(name)).await;
    }

    /// The attributes of a file with all that is not sent.
    pub(super) fn shown(&self, file: &Local) -> Attr {
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

    /// Whether the attributes of a file are known, with what was written to it.
    pub(super) fn knows(&self, file: &Local) -> bool {
        file.is_known && !self.core.files.is_doubtful(file.attr.ino)
    }

    /// A look at what is under a name; `None` when the server must be asked.
    pub(super) fn look(&self, held: &HeldDir, name: &EntryName) -> Option<Result<Entry>> {
        let state = held.state.lock();
        let Some(found) = state.get(self.pos(name), name) else {
            return Some(Err(FsError::NotFound.into()));
        };
        let found = match found {
            Item::Twin(_, first) => state.get(self.pos(first), first)?,
            found => found,
        };
        match found {
            Item::File(file) if self.knows(file) => {
                let (attr, target) = (self.shown(file), file.target.clone());
                Some(Ok(Entry { attr, dir: None, target, whole: true }))
            }
            Item::File(_) | Item::Dir(_) | Item::Twin(..) | Item::Other(_) => None,
        }
    }

    /// The entry of a directory that is held.
    pub(super) async fn entry_of_dir(&self, dir: &DirRef) -> Option<Entry> {
        let attr = self.attr_of_dir(dir).await?;
        Some(Entry { attr, dir: Some(*dir), target: None, whole: true })
    }

    /// The attributes of a directory that is held, if they are known.
    pub(super) async fn attr_of_dir(&self, dir: &DirRef) -> Option<Attr> {
        let held = self.held(dir).await?;
        let state = held.state.lock();
        state.is_known.then_some(state.attr)
    }

    /// Brings an entry that the server told up to date, if it is a directory's that is held.
    pub(super) async fn show_held(&self, entry: &mut Entry) {
        if let Some(dir) = entry.dir
            && self.held(&dir).await.is_some()
            && let Ok(attr) = self.getattr(&self.cred, &NodeRef::Dir(dir)).await
        {
            entry.attr = attr;
        }
    }

    /// Whether a name is a file's here, of which `is_so` holds.
    pub(super) fn is_file(
        &self,
        held: &HeldDir,
        name: &EntryName,
        is_so: impl FnOnce(&Local) -> bool,
    ) -> bool {
        match held.state.lock().get(self.pos(name), name) {
            Some(Item::File(file)) => is_so(file),
            Some(Item::Dir(_) | Item::Twin(..) | Item::Other(_)) | None => false,
        }
    }

    /// Whether a name is this file's here, and its attributes are known.
    pub(super) fn is_known(&self, held: &HeldDir, name: &EntryName, ino: Ino) -> bool {
        self.is_file(held, name, |file| file.is_known && file.attr.ino == ino)
    }

    /// The entry of a name, as far as it is known here.
    pub(super) fn item(&self, held: &HeldDir, name: &EntryName) -> Option<Item> {
        held.state.lock().get(self.pos(name), name).cloned()
    }

    /// A change of a file that is held is sent now, perhaps with what was written before: it is one of
    /// this moment, and not of when that was written.
    pub(super) fn changes_now(&self, ino: Ino) {
        if let Some((held, _)) = self.place_of(ino)
            && let Some(state) = self.core.files.state_of(ino)
        {
            let now = self.now_at(held.run.server);
            let mut inner = state.lock();
            inner.held_at = inner.held_at.max(now);
        }
    }

    /// The count of changes in the directory of a file, before a request is sent.
    pub(super) fn changes_of(&self, ino: Ino) -> u64 {
        self.place_of(ino).map_or(0, |(held, _)| held.state.lock().changes)
    }

    /// Notes attributes that a request has told of a file, which was sent when the directory's count
    /// of changes was `since`; `None`: they have changed, and are to be asked for.
    pub(super) fn learn(&self, ino: Ino, attr: Option<Attr>, since: u64) {
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
    pub(super) fn changed(
        &self,
        held: Option<&Arc<HeldDir>>,
        names: i64,
        subdirs: i32,
        at: Option<Time>,
    ) {
        let Some(held) = held else { return };
        let noted = self.server().changed_dir(held.dir.ino).map(|attr| attr.mtime);
        let mut state = held.state.lock();
        match at.or(noted) {
            Some(at) => state.touch(names, subdirs, at),
            None => state.is_known = false,
        }
    }

    /// The new file that is answered from here; `None` when the server must make it.
    pub(super) fn make_here(
        &self,
        held: &Arc<HeldDir>,
        name: &EntryName,
        (cred, new): (&Cred, New),
        open: bool,
    ) -> Option<Made> {
        if new.kind != FileKind::File {
            return None;
        }
        let (at, pos) = (self.now_in(held), self.pos(name));
        let (file, asks) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back.
            let may_make = state.phase == Phase::Held && state.get(pos, name).is_none();
            // An ACL that was set may have taken the set-group-id bit.
            if !may_make || !state.is_group_known {
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
                self.queue(held, &mut state, name, What::Update(attr.ino), false);
                (attr, handle)
            });
            (file, asks)
        };
        if asks {
            self.ask_for_inos(held);
        }
        let (attr, handle) = file?;
        self.pump_later(held);
        let entry = Entry { attr, dir: None, target: None, whole: true };
        Some(Made { entry, existed: false, handle })
    }

    /// Removes a file from here; `None` when the server must remove it.
    pub(super) fn remove_here(
        &self,
        held: &Arc<HeldDir>,
        name: &EntryName,
        cred: &Cred,
    ) -> Option<Attr> {
        let (at, pos) = (self.now_in(held), self.pos(name));
        let Some(Item::File(file)) = self.item(held, name) else { return None };
        let ino = file.attr.ino;
        if self.core.files.is_open(ino) || file.twin.is_some() || !file.is_known {
            return None;
        }
        let attr = Attr { nlink: 0, ctime: at.max(file.attr.ctime), ..self.shown(&file) };
        let (withdrawn, is_sent) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back.
            if state.phase != Phase::Held || self.core.files.is_open(ino) {
                return None;
            }
            // A change on its way finds no file any more, unless it has begun to make it.
            let is_sent = state.file(pos, name, ino).filter(|file| file.twin.is_none())?.is_begun;
            let withdrawn = state.withdraw(name, ino);
            state.take(pos, name);
            state.touch(-1, 0, at);
            table.files.remove(&ino);
            if is_sent {
                table.leaving.insert(ino, (held.dir.id, name.clone()));
                let what = What::Unlink { ino, cred: cred.clone(), at };
                self.queue(held, &mut state, name, what, true);
            }
            (withdrawn, is_sent)
        };
        if let Some(count) = withdrawn {
            self.counted(count);
        }
        self.core.files.is_held(ino, None);
        self.core.files.discard(ino, !is_sent);
        self.closes(ino);
        self.pump_later(held);
        Some(attr)
    }

    /// The page of a listing that can be answered from here.
    pub(super) async fn list_here(
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
                Item::File(file) if self.knows(file) => {
                    let attr = self.shown(file);
                    let target = file.target.clone();
                    (attr.kind, Some(Entry { attr, dir: None, target, whole: true }))
                }
                Item::Dir(dir) if plus => {
                    (FileKind::Directory, Some(self.entry_of_dir(dir).await?))
                }
                Item::Dir(_) => (FileKind::Directory, None),
                Item::Twin(..) => match self.look(held, &name)?.ok()? {
                    entry if entry.attr.ino == item.ino() => (entry.attr.kind, Some(entry)),
                    _ => return None,
                },
                Item::File(_) | Item::Other(_) => return None,
            };
            let (ino, entry) = (item.ino(), entry.filter(|_| plus));
            entries.push(ReaddirEntry { pos, name, ino, kind: Some(kind), entry });
        }
        let reach = if end { POS_MAX } else { entries.last().map_or(after, |entry| entry.pos) };
        Some(ReaddirPage { entries, end, attr, parent_ino, reach, layout: None })
    }

    /// The held file that a handle has open, and its name.
    pub(super) async fn held_handle(
        &self,
        handle: Handle,
    ) -> Option<(Arc<HeldDir>, EntryName, Ino)> {
        if !self.holds_any() {
            return None;
        }
        let ino = self.core.files.handle(handle).ok()?.state.ino;
        let (held, name) = self.held_file(ino).await?;
        Some((held, name, ino))
    }

    /// Sees to it that the server knows everything of the file of a handle, and that it is open.
    pub(super) async fn settle_handle(&self, handle: Handle) -> Result<()> {
        if self.holds_any() {
            self.settle_file(self.core.files.handle(handle)?.state.ino).await;
        }
        self.opens_there(handle).await
    }

    /// Sees to it that the server has the file of a handle.
    pub(super) async fn settle_unmade(&self, handle: Handle) {
        if self.holds_any()
            && let Ok(open) = self.core.files.handle(handle)
            && open.state.lock().is_unmade
        {
            self.settle_file(open.state.ino).await;
        }
    }

    pub(super) async fn settle_node(&self, node: &NodeRef) {
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

    /// Changes attributes here; `None` when the server must.
    pub(super) async fn set_here(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Option<Attr> {
        let (held, name) = self.held_file(ino).await?;
        self.until_unclaimed(&held, &name).await;
        let (pos, at) = (self.pos(&name), self.now_at(held.run.server));
        let shown = match self.item(&held, &name) {
            Some(Item::File(file)) if file.attr.ino == ino => self.shown(&file),
            Some(_) | None => return None,
        };
        let after = {
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back, or the file to be given a name.
            if state.phase != Phase::Held || state.is_claimed(&name) {
                return None;
            }
            let file = state.file(pos, &name, ino)?;
            // After a second name that waits come contents alone.
            let may_wait = file.may_wait(&set, cred) && file.twin.is_none();
            if !may_wait || self.core.files.is_doubtful(ino) {
                return None;
            }
            if set == SetAttr::default() {
                return Some(shown);
            }
            file.change(set, cred, at.max(shown.ctime), &shown);
            let after = file.clone();
            self.queue(&held, &mut state, &name, What::Update(ino), false);
            after
        };
        self.pump_later(&held);
        Some(self.shown(&after))
    }
}

impl Delegating {
    /// Notes a rename that the server has made.
    pub(super) async fn note_move(
        &self,
        cred: &Cred,
        (source, from): (Option<&Arc<HeldDir>>, (&DirRef, &EntryName)),
        (target, to): (Option<&Arc<HeldDir>>, (&DirRef, &EntryName)),
        renamed: &Renamed,
    ) {
        let is_within = from.0.same(to.0);
        if let Some(held) = self.held_by_ino(renamed.moved) {
            let mut state = held.state.lock();
            (state.parent, state.is_known, state.is_moved) = (to.0.ino, false, true);
        }
        if let Some(held) = source
            && let Some(Item::Other(ino)) = self.item(held, from.1)
        {
            match self.server().lookup(cred, from.0, from.1).await {
                // Both were names of one file: nothing was done.
                Ok(entry) if entry.attr.ino == ino => return,
                Ok(_) | Err(Error::Fs(FsError::NotFound)) => {}
                Err(_) => return self.give_back_soon(held),
            }
        }
        let moved = source.and_then(|held| self.take(held, from.1));
        self.forget_twin(source, moved.as_ref());
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
        self.forget_twin(target, replaced.as_ref());
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

    /// The attributes of a node are to be asked for: a request has changed them.
    pub(super) async fn ask_attributes(&self, node: &NodeRef) {
        match node {
            NodeRef::File(file) => self.learn(file.ino, None, 0),
            NodeRef::Dir(dir) => {
                if let Some(held) = self.held(dir).await {
                    let mut state = held.state.lock();
                    (state.is_known, state.is_group_known) = (false, false);
                }
            }
        }
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
