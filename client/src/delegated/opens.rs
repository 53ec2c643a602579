//! Opens that the server is not asked for, and when it is told of them; reads that it is told of.

use std::sync::Arc;

use base::{Access, Cred, EntryName, Ino, SetTime};
use wire::{FileRef, NodeRef};

use super::{
    Delegating,
    dir::{HeldDir, Phase, What},
    file::Local,
};
use crate::{
    Handle, Result,
    bugs::{self, Bug},
    contents::FileState,
};

impl Delegating {
    /// Opens a file once more that this client has open, or closed a while ago, without asking.
    /// `None` when the server must be asked.
    pub(super) fn open_here(
        &self,
        held: &HeldDir,
        name: &EntryName,
        ino: Ino,
        cred: &Cred,
    ) -> Option<Handle> {
        let mut state = held.state.lock();
        // Race: the directory may be about to be given back, or the name to change.
        if state.phase != Phase::Held || state.is_claimed(name) {
            return None;
        }
        state.file(self.pos(name), name, ino)?;
        let file = FileRef { dir: held.dir, name: name.clone(), ino };
        self.core.files.open_again(&file, cred, Access::READ.and(Access::WRITE))
    }

    /// Sees to it that the server knows that the file of a handle is open.
    pub(super) async fn opens_there(&self, handle: Handle) -> Result<()> {
        if !self.shared.on {
            return Ok(());
        }
        let state = Arc::clone(&self.core.files.handle(handle)?.state);
        self.client.open_there(&state).await
    }

    /// Opens a file at the server that is open here. Without that, its handles are lost.
    pub(super) async fn open_there_or_lose(&self, state: &Arc<FileState>) {
        if bugs::has(Bug::OpenNotTold) {
            return;
        }
        if let Err(error) = self.client.open_there(state).await {
            tracing::warn!(ino = state.ino.0, %error, "an open file is lost");
            self.core.files.lose_one(state);
        }
    }

    /// Notes that the file of a handle was read, if the server is to know.
    pub(super) fn note_read(&self, handle: Handle) {
        let Ok(open) = self.core.files.handle(handle) else { return };
        let (ino, read_at) = (open.state.ino, open.state.lock().read_at.take());
        let Some(at) = read_at else { return };
        let file = open.state.lock().file.clone();
        if let Some((held, name)) = self.place_of(ino) {
            let (pos, now) = (self.pos(&name), self.now_at(held.run.server));
            let mut state = held.state.lock();
            let is_held = state.phase == Phase::Held && !state.is_claimed(&name);
            let may_wait = |local: &&mut Local| is_held && local.twin.is_none();
            if let Some(local) = state.file(pos, &name, ino).filter(may_wait) {
                local.was_read(now, &open.cred);
                self.queue(&held, &mut state, &name, What::Update(ino), true);
                drop(state);
                return self.pump_later(&held);
            }
        }
        self.client.touch(&open.cred, NodeRef::File(file), SetTime::At(at));
    }
}
