//! Sending what waits: what is due together in one request (`apply`), and what does not fit into
//! that as the request that it would be otherwise, which stands on the delegation.
//!
//! Alone, a file that was made, written and changed in the meantime takes two requests at most: it
//! is made, and then written with all changes of its attributes. What cannot be sent any more,
//! because the server has taken the directory back or has lost the session, is lost: open files
//! report it as they report other lost writes, and the next `sync` does.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use base::{Attr, Cred, EntryName, FsError, Ino, SetAttr, SetTime, Time};
use tokio::time::{Instant, sleep_until};
use wire::{
    Create, FileRef, Held, InoRange, Link, NodeRef, Reply, Request, ReserveInos, Setattr, Stand,
    Unlink,
};

use super::{
    Delegating, QUEUED_MAX,
    dir::{HeldDir, Op, Phase, State, What},
    file::{Change, Make, Read},
};
use crate::{
    Error, Result,
    done::{Done, Failure},
    error::unexpected,
    route::Route,
};

/// Time for which a change waits for more of the same file.
const GATHER: Duration = Duration::from_millis(20);
/// Number of inode numbers that are asked for at a time.
const INOS_ASKED: u16 = 256;

/// Changes of a file that the server does not know, but for contents.
pub(super) struct News {
    /// How to make it.
    pub(super) make: Option<Make>,
    /// A change of attributes.
    pub(super) change: Option<Change>,
    /// When it was read after that, and by whom.
    pub(super) read: Option<Read>,
}

impl Delegating {
    /// Adds a change to the queue of a directory, which is sent soon: with the next ones that are
    /// due, if it is whole.
    pub(super) fn push(&self, held: &Arc<HeldDir>, name: &EntryName, what: What, is_whole: bool) {
        self.queue(held, &mut held.state.lock(), name, what, is_whole);
        self.pump_later(held);
    }

    /// Like [`Delegating::push`], for a caller that has locked the directory and then has it sent.
    pub(super) fn queue(
        &self,
        held: &Arc<HeldDir>,
        state: &mut State,
        name: &EntryName,
        what: What,
        is_whole: bool,
    ) {
        let added = state.push(name, what, Instant::now() + GATHER, is_whole);
        self.waits(held, state, added);
    }

    /// Adds a change of a directory's own times to what waits. `None` when it cannot wait.
    pub(super) fn queue_times(
        &self,
        held: &Arc<HeldDir>,
        state: &mut State,
        (set, cred): (SetAttr, &Cred),
        at: Time,
    ) -> Option<()> {
        let added = state.set_times((set, cred), at, Instant::now() + GATHER)?;
        self.waits(held, state, added);
        Some(())
    }

    /// Changes of a directory wait, `added` more than before.
    fn waits(&self, held: &Arc<HeldDir>, state: &mut State, added: usize) {
        self.shared.queued.fetch_add(added, Ordering::AcqRel);
        if state.phase != Phase::Over && !std::mem::replace(&mut state.is_unsent, true) {
            self.shared.unsent.lock().insert(held.dir.id, Arc::clone(held));
        }
    }

    /// The directories of which anything waits, or is on its way.
    fn unsent(&self) -> Vec<Arc<HeldDir>> {
        let mut dirs: Vec<_> = self.shared.unsent.lock().values().cloned().collect();
        dirs.retain(|held| {
            let mut state = held.state.lock();
            state.is_unsent = !state.is_idle();
            if !state.is_unsent {
                self.is_sent(held);
            }
            state.is_unsent
        });
        dirs
    }

    /// Notes that nothing of a directory waits. The caller has locked it.
    pub(super) fn is_sent(&self, held: &HeldDir) {
        let mut unsent = self.shared.unsent.lock();
        // Another one of this id may be held by now.
        if unsent.get(&held.dir.id).is_some_and(|known| std::ptr::eq(&raw const **known, held)) {
            unsent.remove(&held.dir.id);
        }
    }

    /// Waits while too many changes are not sent.
    pub(super) async fn wait_for_queue(&self) {
        while self.shared.queued.load(Ordering::Acquire) >= QUEUED_MAX {
            let sent = self.shared.sent.notified();
            tokio::pin!(sent);
            sent.as_mut().enable();
            for held in self.unsent() {
                held.state.lock().hurry(None, u64::MAX, Instant::now());
                self.pump(&held);
            }
            if self.shared.queued.load(Ordering::Acquire) >= QUEUED_MAX {
                sent.await;
            }
        }
    }

    /// Begins to send what is due.
    pub(super) fn pump(&self, held: &Arc<HeldDir>) {
        let due = held.state.lock().take_due(Instant::now());
        if !due.is_empty() {
            let (this, held, sending) = (self.clone(), Arc::clone(held), self.sends(held));
            self.core.spawn(async move {
                let _sending = sending;
                let alone = this.apply(&held, due).await;
                alone.into_iter().for_each(|op| this.send_alone(&held, op));
                this.pump(&held);
            });
        }
        self.pump_times(held);
        self.pump_later(held);
    }

    /// Sends the directory's own times, if they are due and nothing else waits.
    fn pump_times(&self, held: &Arc<HeldDir>) {
        let Some(times) = held.state.lock().take_times(Instant::now()) else { return };
        let (this, held, sending) = (self.clone(), Arc::clone(held), self.sends(held));
        self.core.spawn(async move {
            let _sending = sending;
            let Change { set, cred, at } = times.change;
            let request = Request::Setattr(Setattr { node: NodeRef::Dir(held.dir), set });
            let sent = this.ask_held(&held, &cred, request, Some(at), None).await;
            if let Err(error) = sent {
                tracing::warn!(dir = held.dir.ino.0, %error, "times of a directory are lost");
                this.is_lost(&held, &error);
            }
            held.state.lock().times_are_sent();
            this.ended(&held, 1);
            this.pump(&held);
        });
    }

    fn send_alone(&self, held: &Arc<HeldDir>, op: Op) {
        let (this, held, sending) = (self.clone(), Arc::clone(held), self.sends(held));
        self.core.spawn(async move {
            let _sending = sending;
            this.send(&held, &op).await;
            held.state.lock().done(&op.name);
            this.ended(&held, 1);
            this.pump(&held);
        });
    }

    /// Changes of a directory, `count` of them, are not on their way any more.
    pub(super) fn ended(&self, held: &HeldDir, count: usize) {
        self.counted(count);
        held.changed.notify_waiters();
    }

    /// Notes how many changes do not wait any more.
    pub(super) fn counted(&self, sent: usize) {
        self.shared.queued.fetch_sub(sent, Ordering::AcqRel);
        self.shared.sent.notify_waiters();
    }

    /// Looks at the queue again when its first change is due.
    pub(super) fn pump_later(&self, held: &Arc<HeldDir>) {
        let mut state = held.state.lock();
        if state.is_timed {
            return;
        }
        let Some(due) = state.next_due(Instant::now()) else { return };
        state.is_timed = true;
        drop(state);
        let (this, held) = (self.clone(), Arc::clone(held));
        self.core.spawn(async move {
            sleep_until(due).await;
            held.state.lock().gather(Instant::now());
            this.pump(&held);
        });
    }

    /// Returns when nothing waits of what was done until now with these names, or with any.
    pub(super) async fn settle(&self, held: &Arc<HeldDir>, names: Option<&[&EntryName]>) {
        let upto = held.state.lock().last();
        self.settle_upto(held, names, upto).await;
    }

    /// Like [`Delegating::settle`], for changes up to a number.
    pub(super) async fn settle_upto(
        &self,
        held: &Arc<HeldDir>,
        names: Option<&[&EntryName]>,
        upto: u64,
    ) {
        loop {
            let changed = held.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if held.state.lock().hurry(names, upto, Instant::now()) {
                return;
            }
            self.pump(held);
            changed.await;
        }
    }

    /// Returns when nothing waits of a file, a second name included.
    pub(super) async fn settle_file(&self, ino: Ino) {
        while let Some((held, name)) = self.place_of(ino) {
            let twins = held.state.lock().twins_of(self.pos(&name), &name);
            match &twins {
                Some([first, second]) => self.settle(&held, Some(&[first, second])).await,
                None => self.settle(&held, Some(&[&name])).await,
            }
            // Race: it may be sent under another name.
            if self.place_of(ino).is_none_or(|(_, now)| now == name) {
                break;
            }
        }
        self.settle_removal(ino).await;
    }

    /// Returns when the server knows that a file or a directory was removed, if it was.
    pub(super) async fn settle_removal(&self, ino: Ino) {
        let leaving = {
            let table = self.shared.table.lock();
            let at = table.leaving.get(&ino);
            at.and_then(|(dir, name)| Some((table.dirs.get(dir).cloned()?, name.clone())))
        };
        if let Some((held, name)) = leaving {
            self.settle(&held, Some(&[&name])).await;
        }
    }

    /// Returns when nothing waits of anything.
    pub async fn settle_all(&self) {
        let dirs = self.unsent();
        let mut upto = Vec::with_capacity(dirs.len());
        for held in &dirs {
            let last = {
                let mut state = held.state.lock();
                let last = state.last();
                state.hurry(None, last, Instant::now());
                last
            };
            upto.push(last);
            self.pump(held);
        }
        for (held, upto) in dirs.iter().zip(upto) {
            self.settle_upto(held, None, upto).await;
        }
    }

    /// Asks a server for something that takes room. What was removed here and not sent yet has its
    /// room still: if there is none, that is sent first, and it is asked once more.
    pub(super) async fn ask_for_room<T>(&self, ask: impl AsyncFn() -> Result<T>) -> Result<T> {
        match ask().await {
            Err(Error::Fs(FsError::QuotaExceeded)) if !self.unsent().is_empty() => {
                self.settle_all().await;
                ask().await
            }
            asked => asked,
        }
    }

    async fn send(&self, held: &Arc<HeldDir>, op: &Op) {
        let sent = match &op.what {
            What::Update(ino) => self.update(held, &op.name, *ino).await,
            What::Unlink { ino, cred, at } => {
                let sent = self.unlink_now(held, &op.name, cred, *at).await;
                self.shared.table.lock().leaving.remove(ino);
                sent
            }
            What::Link { ino, first, cred, at } => {
                let sent = self.link_now(held, (first, *ino), &op.name, (cred, *at)).await;
                if sent.is_err() {
                    self.has_no_twin(held, (first, *ino), &op.name);
                }
                sent
            }
            What::Rmdir { ino, cred, at } => {
                self.rmdir_now(held, &op.name, *ino, (cred, *at)).await
            }
        };
        if let Err(error) = sent {
            let ino = match op.what {
                What::Update(ino) => Some(ino),
                What::Unlink { .. } | What::Link { .. } | What::Rmdir { .. } => None,
            };
            self.failed(held, &op.name, ino, &error);
        }
    }

    async fn unlink_now(
        &self,
        held: &HeldDir,
        name: &EntryName,
        cred: &Cred,
        at: Time,
    ) -> Result<()> {
        let request = Request::Unlink(Unlink { dir: held.dir, name: name.clone() });
        let done = self.ask_held(held, cred, request, Some(at), None).await?;
        match done.reply {
            Reply::Attr(attr) => {
                self.core.files.unlinked(attr.ino, (&held.dir, name));
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    async fn link_now(
        &self,
        held: &Arc<HeldDir>,
        (first, ino): (&EntryName, Ino),
        name: &EntryName,
        (cred, at): (&Cred, Time),
    ) -> Result<()> {
        if let Some(state) = self.core.files.unopened(ino) {
            // The file is not among those of the directory from now on.
            self.open_there_or_lose(&state).await;
        }
        let target = NodeRef::File(FileRef { dir: held.dir, name: first.clone(), ino });
        let read = {
            let mut state = held.state.lock();
            state.file(self.pos(first), first, ino).and_then(|file| file.read.take())
        };
        if let Some((at, reader)) = read {
            self.client.touch_now(&reader, target.clone(), SetTime::At(at)).await;
        }
        let request = Link { target: target.clone(), dir: held.dir, name: name.clone() };
        let done = self.ask_held(held, cred, Request::Link(request), Some(at), None).await?;
        match done.reply {
            Reply::Entry(entry) if entry.attr.ino == ino => {
                self.client.note_link(&target, &held.dir, name);
                self.note_link(Some(held), name, Some(&(Arc::clone(held), first.clone())), ino);
                // From now on nothing of the file waits in the directory's queue.
                if let Some(state) = self.core.files.state_of(ino) {
                    self.client.flush_state(&state).await;
                }
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    /// The second name of a file could not be sent.
    fn has_no_twin(&self, held: &HeldDir, (first, ino): (&EntryName, Ino), name: &EntryName) {
        let pos = self.pos(first);
        if let Some(file) = held.state.lock().file(pos, first, ino) {
            file.twin = None;
        }
        self.take(held, name);
    }

    /// Tells the server what it does not know of a file.
    async fn update(&self, held: &Arc<HeldDir>, name: &EntryName, ino: Ino) -> Result<()> {
        let Some(News { make, change, read }) = self.begin_update(held, name, ino) else {
            return Ok(());
        };
        let pos = self.pos(name);
        let file_ref = FileRef { dir: held.dir, name: name.clone(), ino };
        // Of a file that is made, all is known that follows.
        let knows = make.is_some() || self.is_known(held, name, ino);
        let mut learnt = None;
        if let Some(make) = make {
            learnt = Some(self.make(held, &file_ref, &make).await?);
            if let Some(file) = held.state.lock().file(pos, name, ino) {
                file.make = None;
            }
        }
        if let Some(told) = self.tell(held, &file_ref, change, knows).await? {
            learnt = Some(told);
        }
        if let Some((at, cred)) = &read {
            self.client.touch_now(cred, NodeRef::File(file_ref), SetTime::At(*at)).await;
        }
        self.end_update(held, name, ino, (learnt, read));
        Ok(())
    }

    /// Takes a file's news for the server. `None`: there is nothing to tell.
    pub(super) fn begin_update(&self, held: &HeldDir, name: &EntryName, ino: Ino) -> Option<News> {
        let pos = self.pos(name);
        let mut state = held.state.lock();
        let Some(file) = state.file(pos, name, ino) else {
            drop(state);
            // The name may be another file's by now, which has a change of its own.
            let unmade = self.core.files.state_of(ino);
            let is_unmade = unmade.is_some_and(|state| state.lock().is_unmade);
            // Under another name the file is still to be made.
            if is_unmade && self.place_of(ino).is_none() {
                self.was_never_made(held, name, ino, None);
            }
            self.closes(ino);
            return None;
        };
        file.sending = file.pending.take();
        file.is_begun = true;
        let (make, change) = (file.make.clone(), file.sending.clone());
        Some(News { make, change, read: file.read.clone() })
    }

    /// The server knows what was told of a file, and may have said how it is now.
    pub(super) fn end_update(
        &self,
        held: &Arc<HeldDir>,
        name: &EntryName,
        ino: Ino,
        (learnt, read): (Option<Attr>, Option<Read>),
    ) {
        let pos = self.pos(name);
        let is_over = {
            let mut state = held.state.lock();
            state.changes += 1;
            let Some(file) = state.file(pos, name, ino) else { return };
            file.sending = None;
            // Changes of one name are sent one after the other: this is the newest answer.
            if let Some(attr) = learnt {
                (file.attr, file.is_known) = (attr, true);
            }
            if read.is_some() && file.read == read {
                file.read = None;
            }
            file.pending.is_none() && file.read.is_none()
        };
        if !is_over {
            // Changes have come since.
            self.push(held, name, What::Update(ino), false);
        }
    }

    /// Makes a file.
    async fn make(&self, held: &HeldDir, file: &FileRef, make: &Make) -> Result<Attr> {
        let number = self.core.files.number_of(file.ino);
        let request = Request::Create(Create {
            dir: held.dir,
            name: file.name.clone(),
            kind: base::FileKind::File,
            mode: make.mode,
            rdev: 0,
            exclusive: true,
            open: number,
        });
        let done = self.ask_held(held, &make.cred, request, Some(make.at), Some(file.ino)).await?;
        let Reply::Created(created) = done.reply else { return Err(unexpected()) };
        if created.existed || created.entry.attr.ino != file.ino {
            return Err(FsError::Exists.into());
        }
        if let (Some(number), Some(opened)) = (number, created.opened) {
            let proof = (make.cred.uid, number, opened.proof);
            self.core.files.is_made(file.ino, proof, opened.attr);
        }
        Ok(created.entry.attr)
    }

    /// Sends what was written to a file, with a change of attributes. Returns the attributes, if
    /// the server has told any, or if those from before are known (`knows`).
    async fn tell(
        &self,
        held: &HeldDir,
        file: &FileRef,
        change: Option<Change>,
        knows: bool,
    ) -> Result<Option<Attr>> {
        let state = self.core.files.state_of(file.ino);
        if let Some(state) = &state {
            if let Some(Change { set, cred, at }) = &change {
                state.lock().held_at = *at;
                let rode = self.client.flush_with(cred, state, *set).await?;
                if rode.is_some() {
                    return Ok(rode);
                }
            } else {
                self.client.flush_state(state).await;
            }
        }
        let attr = match change {
            Some(Change { set, cred, at }) => {
                let node = NodeRef::File(file.clone());
                let request = Request::Setattr(Setattr { node, set });
                let stamp = self.core.files.stamp();
                let done = self.ask_held(held, &cred, request, Some(at), None).await?;
                let Reply::Attr(attr) = done.reply else { return Err(unexpected()) };
                Some(self.core.files.seen(attr, stamp))
            }
            None => None,
        };
        let Some(state) = state else { return Ok(attr) };
        let known = {
            let inner = state.lock();
            (knows && !inner.doubtful && !inner.is_dirty()).then_some(inner.attr)
        };
        self.closes(file.ino);
        // The answer to the change is newer than what was written before it.
        Ok(attr.or(known))
    }

    /// Releases a file that nobody has open.
    pub(super) fn closes(&self, ino: Ino) {
        let state = self.core.files.state_of(ino);
        if let Some(state) = state.filter(|state| state.lock().opens == 0) {
            self.client.release_later(&state);
        }
    }

    /// Asks what stands on a delegation.
    pub(super) async fn ask_held(
        &self,
        held: &HeldDir,
        cred: &Cred,
        request: Request,
        at: Option<Time>,
        ino: Option<Ino>,
    ) -> Result<Done> {
        let stand = Stand::on(Held { dir: Some(held.dir.id), at, ino, wants: false });
        let done = self.core.call(cred, held.dir.home, request, stand).await;
        done.map_err(Failure::by_handle)
    }

    /// A change could not be sent. Without its directory or its session nothing can be sent any
    /// more; otherwise only this is lost, and the directory is given back, so that programs hear
    /// themselves of what comes next.
    fn failed(&self, held: &Arc<HeldDir>, name: &EntryName, ino: Option<Ino>, error: &Error) {
        tracing::warn!(%name, dir = held.dir.ino.0, %error, "a change that was made here is lost");
        if let Some(ino) = ino {
            self.core.files.has_lost(Some(ino));
            let pos = self.pos(name);
            let is_gone = {
                let mut state = held.state.lock();
                let file = state.file(pos, name, ino);
                file.is_some_and(|file| {
                    (file.sending, file.is_known) = (None, false);
                    file.make.is_some()
                })
            };
            if is_gone {
                self.take(held, name);
                held.state.lock().is_known = false;
            }
        }
        self.is_lost(held, error);
    }

    fn is_lost(&self, held: &Arc<HeldDir>, error: &Error) {
        self.core.files.has_lost(None);
        self.shared.counters.lost.fetch_add(1, Ordering::Relaxed);
        let is_over = matches!(error, Error::SessionLost | Error::Closed);
        if is_over {
            self.lose(held);
        } else {
            self.give_back_soon(held);
        }
    }

    /// The directory is lost, with everything that was not sent.
    pub(super) fn lose(&self, held: &Arc<HeldDir>) {
        let (lost, has_times) = held.state.lock().give_up();
        for op in &lost {
            match op.what {
                What::Update(ino) => self.core.files.has_lost(Some(ino)),
                What::Rmdir { ino, .. } => self.is_not_gone(ino),
                What::Unlink { .. } | What::Link { .. } => {}
            }
        }
        let count = lost.len() + usize::from(has_times);
        if count > 0 {
            tracing::warn!(
                changes = count,
                "changes are lost with a directory that this mount held"
            );
            self.core.files.has_lost(None);
        }
        self.shared.counters.lost.fetch_add(count, Ordering::Relaxed);
        self.counted(count);
        // Should the server think otherwise, it is told.
        self.gives_up(held);
    }

    /// Asks for more inode numbers for a directory, of the shard on which its names are. The
    /// directory's own number is of the shard that has its name, often another server's.
    pub(super) fn ask_for_inos(&self, held: &Arc<HeldDir>) {
        let (this, held) = (self.clone(), Arc::clone(held));
        self.core.spawn(async move {
            let dir = held.dir.id;
            let shard = this.core.channels.shard(Route::Home(held.dir.home));
            let request = Request::ReserveInos(ReserveInos { dir, shard, count: INOS_ASKED });
            let route = Route::Server(held.run.server);
            let asked = this.core.ask(&this.cred, route, request).await;
            let inos = match asked.map(|done| done.reply) {
                Ok(Reply::Inos(InoRange { first, count })) => Some((first, count)),
                Ok(_) | Err(_) => None,
            };
            held.state.lock().give_inos(inos);
        });
    }
}
