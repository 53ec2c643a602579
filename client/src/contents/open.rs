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

use base::{Access, Cred, FsError, Ino};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use wire::{FileRef, Open, Opened, Release, Reply, Request, Stand};

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
            state
        } else {
            let state = FileState::new(file, proof, attr, contents, Arc::clone(&cred));
            let state = Arc::new(state);
            table.files.insert(ino, Arc::clone(&state));
            state
        };
        let mut inner = state.lock();
        inner.opens += 1;
        let errors = inner.errors();
        drop(inner);
        let open = OpenFile {
            state,
            cred,
            may: opening.may,
            errors_seen: AtomicU64::new(errors),
            opened_at: self.next_stamp(),
            forgotten: AtomicBool::new(false),
            ahead: Mutex::new(Ahead::default()),
        };
        let handle = table.next_handle;
        table.next_handle += 1;
        table.handles.insert(handle, Arc::new(open));
        let told = table.runs.is_told(run);
        Ok((Handle(handle), !told))
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
        // The release of the file, when its time comes, must be newer than this open.
        state.lock().prove(Proof { uid, number, proof }, self.one_user);
        None
    }
}

impl Table {
    /// A file without handles, and with nothing to send, is to be released.
    fn close(&mut self, state: &Arc<FileState>) {
        let inner = state.lock();
        let current = self.files.get(&state.ino).is_some_and(|known| Arc::ptr_eq(known, state));
        if current && inner.opens == 0 && !inner.is_dirty() && !inner.running {
            self.closed.push((state.ino, inner.number));
        }
    }

    /// Takes out the releases that are still due, and forgets their files.
    fn take_closed(&mut self) -> Vec<(Ino, u64)> {
        let mut due = Vec::new();
        for (ino, number) in std::mem::take(&mut self.closed) {
            let Some(state) = self.files.get(&ino) else { continue };
            let inner = state.lock();
            let closed = inner.opens == 0 && inner.number == number && !inner.is_dirty();
            drop(inner);
            if closed {
                self.files.remove(&ino);
                self.linked.remove(&ino);
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

    /// Returns the access that a handle opened for `access` allows. A kernel that checks decides
    /// itself: it reads for its own ends through any of its handles.
    fn may(&self, access: Option<Access>) -> Access {
        if self.core.config.kernel_checks {
            return Access::READ.and(Access::WRITE);
        }
        access.unwrap_or(Access::NONE)
    }

    /// Takes in an answered open; where the server restarted meanwhile, opens again under the same
    /// number.
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
        if unknown {
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
