//! Removing directories from here.
//!
//! An empty directory that is held, in one that is held, is gone at once. The server is told when
//! everything of it is sent; until then it *leaves*: what asks for it waits, and it is not given
//! back, so that nobody else sees it after a program has seen it go.

use std::sync::Arc;

use base::{Cred, EntryName, Ino, Time};
use wire::{Reply, Request, Rmdir};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, What},
};
use crate::{Result, error::unexpected};

impl Delegating {
    /// Removes an empty directory from here; `None` when the server must remove it.
    pub(super) fn rmdir_here(
        &self,
        (held, child): (&Arc<HeldDir>, &Arc<HeldDir>),
        name: &EntryName,
        cred: &Cred,
    ) -> Option<Ino> {
        // A removal on two servers asks for the directory first.
        if child.run != held.run {
            return None;
        }
        let (at, pos, ino) = (self.now_in(held), self.pos(name), child.dir.ino);
        {
            let mut table = self.shared.table.lock();
            // The state of a directory is locked before that of one in it.
            let mut state = held.state.lock();
            let item = state.get(pos, name);
            let is_it = matches!(item, Some(Item::Dir(dir)) if dir.id == child.dir.id);
            // Race: the directory above may be about to be given back.
            let is_free = state.phase == Phase::Held && !state.is_claimed(name);
            if !is_it || !is_free || !child.state.lock().leaves() {
                return None;
            }
            state.take(pos, name);
            state.touch(-1, -1, at);
            table.leaving.insert(ino, (held.dir.id, name.clone()));
            let what = What::Rmdir { ino, cred: cred.clone(), at };
            self.queue(held, &mut state, name, what, true);
        }
        self.pump_later(held);
        Some(ino)
    }

    /// Has the server remove a directory.
    pub(super) async fn rmdir_now(
        &self,
        held: &Arc<HeldDir>,
        name: &EntryName,
        ino: Ino,
        (cred, at): (&Cred, Time),
    ) -> Result<()> {
        if let Some(child) = self.held_by_ino(ino) {
            self.settle(&child, None).await;
        }
        let request = Request::Rmdir(Rmdir { dir: held.dir, name: name.clone() });
        let done = self.ask_held(held, cred, request, Some(at), None).await;
        let removed = done.and_then(|done| match done.reply {
            Reply::Ino(gone) if gone == ino => Ok(()),
            _ => Err(unexpected()),
        });
        self.shared.table.lock().leaving.remove(&ino);
        if removed.is_ok() {
            self.core.cache.lock().forget_name(&held.dir, name);
            if let Some(child) = self.held_by_ino(ino) {
                self.gives_up(&child);
            }
        } else {
            self.is_not_gone(ino);
        }
        removed
    }

    /// A directory that was removed from here is there still: it is given back, as it is not under
    /// its name here any more.
    pub(super) fn is_not_gone(&self, ino: Ino) {
        let Some(child) = self.held_by_ino(ino) else { return };
        {
            let mut state = child.state.lock();
            if state.phase == Phase::Leaving {
                state.phase = Phase::Held;
            }
        }
        self.give_back_soon(&child);
    }
}
