//! Opens, releases and claims.
//!
//! Every open goes to the server, with a number greater than all before: it checks permission and
//! shows what others have written. Releases wait a moment and go together; a file that is opened
//! again meanwhile is not released. The server ignores a release that is older than an open.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use base::{Access, Attr, Cred, DirId, FsError, Ino};
use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use wire::{FileRef, Open, OpenState, Opened, Release, Reply, Request, Stand};

use super::{
    Files, OpenFile, Table,
    ahead::Ahead,
    state::{FileState, Proof},
};
use crate::{
    Client, Error, Handle, Result,
    done::{Done, Failure},
    error::unexpected,
    route::Route,
    runs::Run,
};

const RELEASE_PAUSE: Duration = Duration::from_millis(10);
const RELEASED_FILES_MAX: usize = 1024;
/// Time-out of the last releases of a client that ends.
const LAST_RELEASES_TIMEOUT: Duration = Duration::from_secs(1);

/// State of the client when an open was sent.
pub(crate) struct Opening {
    pub(crate) number: u64,
    /// Access that the handle allows.
    may: Access,
    /// The file, if it was open already, and its count of changes.
    before: Option<(Ino, u64)>,
}

impl Files {
    /// To be called before an open, or a create that opens, is sent.
    pub(crate) fn opening(&self, ino: Option<Ino>, may: Access) -> Opening {
        let number = self.next_number();
        let state = ino.and_then(|ino| self.state(ino));
        let before = state.map(|state| (state.ino, state.lock().changes));
        Opening { number, may, before }
    }

    /// Takes in an open that the server has answered. `true` when the server has restarted since
    /// and was not told of it in a claim.
    pub(crate) fn opened(
        &self,
        opening: &Opening,
        file: FileRef,
        opened: Opened,
        cred: &Cred,
        run: Run,
    ) -> Result<(Handle, bool)> {
        let ino = file.ino;
        let cred = Arc::new(cred.clone());
        let number = opening.number;
        let mut table = self.table.lock();
        if !table.runs.lives(run) {
            return Err(Error::SessionLost);
        }
        let Opened { attr, contents, proof } = opened;
        let proof = Proof { uid: cred.uid, number, proof };
        let state = if let Some(state) = table.files.get(&ino) {
            let state = Arc::clone(state);
            let mut inner = state.lock();
            let changes =
                opening.before.filter(|(before, _)| *before == ino).map(|(_, count)| count);
            inner.learn_open(attr, contents, changes);
            if number > inner.number {
                inner.is_opened_as(file);
            }
            inner.prove(proof, self.one_user);
            drop(inner);
            table.kept.remove(ino);
            state
        } else {
            let state = FileState::new(file, proof, attr, contents, Arc::clone(&cred));
            let state = Arc::new(state);
            table.files.insert(ino, Arc::clone(&state));
            state
        };
        let handle = self.handle_of(&mut table, state, cred, opening.may);
        let told = table.runs.is_told(run);
        Ok((handle, !told))
    }

    /// Opens a file that the server does not have yet, in a directory that this client holds.
    pub(crate) fn open_unmade(
        &self,
        file: FileRef,
        attr: Attr,
        cred: &Cred,
        held: DirId,
    ) -> Handle {
        let cred = Arc::new(cred.clone());
        let proof = Proof { uid: cred.uid, number: self.next_number(), proof: 0 };
        let ino = file.ino;
        let contents = OpenState::Inline(Bytes::new());
        let state = Arc::new(FileState::new(file, proof, attr, contents, Arc::clone(&cred)));
        state.lock().be_unmade(held);
        let mut table = self.table.lock();
        table.files.insert(ino, Arc::clone(&state));
        self.handle_of(&mut table, state, cred, Access::READ.and(Access::WRITE))
    }

    /// Opens a file once more that this client has open, without asking. `None` when it has not, or
    /// when the server must be asked.
    pub(crate) fn open_again(&self, file: &FileRef, cred: &Cred, may: Access) -> Option<Handle> {
        let mut table = self.table.lock();
        let state = table.files.get(&file.ino).cloned()?;
        let mut inner = state.lock();
        let is_known = inner.opens > 0 || inner.is_unmade || inner.is_unopened;
        let is_good = is_known && !inner.lost && !inner.doubtful;
        if !is_good {
            return None;
        }
        if inner.opens == 0 {
            inner.is_opened_as(file.clone());
        }
        drop(inner);
        table.kept.remove(file.ino);
        Some(self.handle_of(&mut table, state, Arc::new(cred.clone()), may))
    }

    fn handle_of(
        &self,
        table: &mut Table,
        state: Arc<FileState>,
        cred: Arc<Cred>,
        may: Access,
    ) -> Handle {
        let errors = {
            let mut inner = state.lock();
            inner.opens += 1;
            inner.errors()
        };
        let open = OpenFile {
            state,
            cred,
            may,
            errors_seen: AtomicU64::new(errors),
            opened_at: self.next_stamp(),
            forgotten: AtomicBool::new(false),
            ahead: Mutex::new(Ahead::default()),
        };
        let handle = table.next_handle;
        table.next_handle += 1;
        table.handles.insert(handle, Arc::new(open));
        Handle(handle)
    }

    /// Whether any handle of this client has a file open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.state(ino).is_some_and(|state| state.lock().opens > 0)
    }

    /// Whether something was written to a file and not sent.
    pub(crate) fn is_dirty(&self, ino: Ino) -> bool {
        self.state(ino).is_some_and(|state| state.lock().is_dirty())
    }

    /// Requests about a file stand on the delegation of this directory from now on, or on none.
    /// Returns the file, if it is open or something of it is not sent.
    pub(crate) fn is_held(&self, ino: Ino, held: Option<DirId>) -> Option<Arc<FileState>> {
        let mut table = self.table.lock();
        let state = table.files.get(&ino).cloned()?;
        let is_kept = {
            let mut inner = state.lock();
            inner.held = held;
            inner.is_unopened && inner.opens == 0
        };
        if is_kept && held.is_none() {
            table.keep_or_forget(&state);
            return None;
        }
        Some(state)
    }

    /// Forgets what was written to a file that nobody has open, and that is removed. `never_made`:
    /// the server has never heard of it, and never will.
    pub(crate) fn discard(&self, ino: Ino, never_made: bool) {
        let Some(state) = self.state(ino) else { return };
        let mut inner = state.lock();
        let bytes = inner.discard();
        if never_made {
            // A flush that is on its way already has nowhere to go.
            (inner.is_unmade, inner.lost) = (false, true);
        }
        drop(inner);
        self.budget.give_back(bytes);
        if never_made {
            let mut table = self.table.lock();
            table.files.remove(&ino);
            table.kept.remove(ino);
        }
        state.flushed.notify_waiters();
    }

    /// The number under which a file is open that is about to be made; `None` when nobody has it
    /// open or has written to it.
    pub(crate) fn number_of(&self, ino: Ino) -> Option<u64> {
        self.state(ino).map(|state| state.lock().number)
    }

    /// The server has made a file that was open before.
    pub(crate) fn is_made(&self, ino: Ino, (uid, number, proof): (u32, u64, u64), attr: Attr) {
        let Some(state) = self.state(ino) else { return };
        state.lock().is_made(Proof { uid, number, proof }, attr, self.one_user);
        state.flushed.notify_waiters();
    }

    /// Something that was answered and not sent is lost: of a file, or of names. Handles of the file
    /// report it, and the next sync does.
    pub(crate) fn has_lost(&self, ino: Option<Ino>) {
        self.note_loss();
        let Some(state) = ino.and_then(|ino| self.state(ino)) else { return };
        let mut inner = state.lock();
        inner.fails(Error::Fs(FsError::Io));
        if inner.is_unmade {
            inner.is_unmade = false;
            self.budget.give_back(inner.lose());
        }
        drop(inner);
        state.flushed.notify_waiters();
    }

    /// An open by `uid` was answered whose caller has gone: what to release, unless the file is
    /// open otherwise.
    pub(crate) fn opened_for_nobody(
        &self,
        (number, uid): (u64, u32),
        reply: &Reply,
    ) -> Option<(Ino, u64)> {
        let (ino, proof) = match reply {
            Reply::Opened(opened) => (opened.attr.ino, opened.proof),
            Reply::Created(created) => {
                let opened = created.opened.as_ref()?;
                (opened.attr.ino, opened.proof)
            }
            _ => return None,
        };
        let table = self.table.lock();
        let Some(state) = table.files.get(&ino) else { return Some((ino, number)) };
        let mut inner = state.lock();
        if inner.is_unopened && inner.opens == 0 {
            return Some((ino, number));
        }
        // The release of the file, when its time comes, must be newer than this open.
        inner.prove(Proof { uid, number, proof }, self.one_user);
        None
    }
}

impl Table {
    /// A file without handles, and with nothing to send, is to be released.
    fn close(&mut self, state: &Arc<FileState>) {
        let inner = state.lock();
        let current = self.files.get(&state.ino).is_some_and(|known| Arc::ptr_eq(known, state));
        let is_idle = !inner.is_dirty() && !inner.running && !inner.is_unmade;
        if !current || inner.opens > 0 || !is_idle {
            return;
        }
        if inner.is_unopened {
            drop(inner);
            self.keep_or_forget(state);
        } else {
            self.closed.push((state.ino, inner.number));
        }
    }

    /// Takes out the releases that are still due, and forgets their files, or keeps them.
    fn take_closed(&mut self) -> Vec<(Ino, u64)> {
        let mut due = Vec::new();
        for (ino, number) in std::mem::take(&mut self.closed) {
            let Some(state) = self.files.get(&ino).cloned() else { continue };
            let inner = state.lock();
            let closed = inner.opens == 0 && inner.number == number && !inner.is_dirty();
            drop(inner);
            if closed {
                self.keep_or_forget(&state);
                due.push((ino, number));
            }
        }
        due
    }
}

impl Client {
    /// Opens a file for what `access` says.
    pub(crate) async fn open_file(
        &self,
        cred: &Cred,
        file: &FileRef,
        access: Option<Access>,
    ) -> Result<Handle, Failure> {
        let opening = self.core.files.opening(Some(file.ino), self.may(access));
        let access = access.map_or(0, |access| u8::try_from(access.bits()).expect("three bits"));
        let request = Request::Open(Open { file: file.clone(), number: opening.number, access });
        let done = self.core.call(cred, file.dir.home, request, Stand::NONE).await?;
        let Done { reply: Reply::Opened(opened), run, .. } = done else {
            return Err(unexpected().into());
        };
        Ok(self.opened(&opening, file.clone(), opened, cred, run).await?)
    }

    /// Sees to it that the server knows that a file is open.
    ///
    /// # Errors
    /// The errors of an open of the file by its name.
    pub(crate) async fn open_there(&self, state: &FileState) -> Result<()> {
        let (file, cred) = {
            let inner = state.lock();
            if !inner.is_unopened {
                return Ok(());
            }
            (inner.file.clone(), Arc::clone(&inner.writer))
        };
        let handle = self.open_file(&cred, &file, None).await.map_err(Failure::by_handle)?;
        self.release_handle(handle)
    }

    /// Returns the access that a handle opened for `access` allows. A kernel that checks decides
    /// itself: it reads for its own ends through any of its handles.
    fn may(&self, access: Option<Access>) -> Access {
        if self.core.config.kernel_checks {
            return Access::READ.and(Access::WRITE);
        }
        access.unwrap_or(Access::NONE)
    }

    /// Takes in an answered open; where the server restarted meanwhile, or the file is at another
    /// one, opens again under the same number.
    pub(crate) async fn opened(
        &self,
        opening: &Opening,
        file: FileRef,
        opened: Opened,
        cred: &Cred,
        run: Run,
    ) -> Result<Handle> {
        if opened.attr.ino != file.ino {
            return Err(FsError::Stale.into());
        }
        let (handle, unknown) = self.core.files.opened(opening, file.clone(), opened, cred, run)?;
        // Race: the file may have moved to another server, which was told before of what is open.
        if unknown || !self.core.has(run.server, file.ino) {
            let again = Open { file, number: opening.number, access: 0 };
            let home = again.file.dir.home;
            let answered = self.core.ask(cred, home, Request::Open(again)).await;
            if let Err(error) = answered {
                self.release_handle(handle)?;
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// Closes a handle, and sends nothing: the caller does. Returns the file.
    pub(crate) fn close_handle(&self, handle: Handle) -> Result<Ino> {
        let open = self.core.files.table.lock().handles.remove(&handle.0);
        let open = open.ok_or(Error::Fs(FsError::BadHandle))?;
        open.state.lock().opens -= 1;
        Ok(open.state.ino)
    }

    /// Closes a handle. What was written through it and not sent is sent first, in the background.
    pub(crate) fn release_handle(&self, handle: Handle) -> Result<()> {
        let files = &self.core.files;
        let open = files.table.lock().handles.remove(&handle.0);
        let open = open.ok_or(Error::Fs(FsError::BadHandle))?;
        let mut inner = open.state.lock();
        inner.opens -= 1;
        let last = inner.opens == 0;
        let dirty = inner.want_all().is_some();
        drop(inner);
        if dirty {
            self.flush_in_background(&open.state);
        } else if last {
            self.release_later(&open.state);
        }
        Ok(())
    }

    /// Releases a file soon, unless it is opened again.
    pub(crate) fn release_later(&self, state: &Arc<FileState>) {
        let mut table = self.core.files.table.lock();
        table.close(state);
        if table.closed.is_empty() || table.releasing {
            return;
        }
        table.releasing = true;
        drop(table);
        let client = self.clone();
        self.core.spawn(async move {
            loop {
                sleep(RELEASE_PAUSE).await;
                if client.send_releases().await == 0 {
                    let mut table = client.core.files.table.lock();
                    if table.closed.is_empty() {
                        table.releasing = false;
                        break;
                    }
                }
            }
        });
    }

    /// Sends the releases that are due now; how many.
    async fn send_releases(&self) -> usize {
        let due = self.core.files.table.lock().take_closed();
        let count = due.len();
        let mut by_server: BTreeMap<u16, Vec<(Ino, u64)>> = BTreeMap::new();
        for (ino, number) in due {
            by_server.entry(self.core.channels.server_of(ino)).or_default().push((ino, number));
        }
        let batches = by_server.iter().flat_map(|(server, files)| {
            files.chunks(RELEASED_FILES_MAX).map(|files| (Route::Server(*server), files.to_vec()))
        });
        let released = batches.map(|(route, files)| async move {
            let release = Request::Release(Release { files });
            if let Err(error) = self.core.ask(&self.cred, route, release).await {
                // The files were closed with the session, or will be.
                tracing::debug!(%error, "files were not released");
            }
        });
        join_all(released).await;
        count
    }

    /// Releases every file that has no handle, before the session ends. A server that is away is
    /// not waited for: it closes the files with the session.
    pub(crate) async fn release_all(&self) {
        let _ = timeout(LAST_RELEASES_TIMEOUT, self.send_releases()).await;
    }
}
