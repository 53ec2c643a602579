//! Renaming files from here, before the server has heard of them.
//!
//! Programs that must not leave half a file write one under another name, close it and rename it:
//! `rsync` does so with each file. The server then makes it under its last name and hears of no
//! other.

use std::sync::Arc;

use base::{EntryName, Ino, Time};
use wire::{FileRef, RenameMode, Renamed};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, State, What},
};

impl Delegating {
    /// Gives a closed file that is not begun to be made another name in its directory, which nothing
    /// has; `None` when the server must do it.
    pub(super) fn rename_here(
        &self,
        held: &Arc<HeldDir>,
        (from, to): (&EntryName, &EntryName),
        mode: RenameMode,
    ) -> Option<Renamed> {
        let at = self.now_in(held);
        let (moved, withdrawn) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            let is_free = !state.is_claimed(from) && !state.is_claimed(to);
            // Race: the directory may be about to be given back.
            if state.phase != Phase::Held
                || !is_free
                || mode == RenameMode::Exchange
                || state.get(self.pos(to), to).is_some()
            {
                return None;
            }
            let Some(Item::File(file)) = state.get(self.pos(from), from) else { return None };
            if file.twin.is_some() {
                return None;
            }
            let ino = file.attr.ino;
            let withdrawn = self.remake(held, &mut state, (from, to), at)?;
            table.files.insert(ino, (held.dir.id, to.clone()));
            state.touch(0, 0, at);
            (ino, withdrawn)
        };
        self.counted(withdrawn);
        self.pump_later(held);
        Some(Renamed { moved, replaced_dir: None })
    }

    /// Has a closed file that waits to be made be made under another name. How many changes of the
    /// old one do not wait any more; `None`, and nothing is done, if the file is open, or begun, or
    /// another change of the new name waits.
    pub(super) fn remake(
        &self,
        held: &Arc<HeldDir>,
        state: &mut State,
        (from, to): (&EntryName, &EntryName),
        at: Time,
    ) -> Option<usize> {
        let (pos, new_pos) = (self.pos(from), self.pos(to));
        let Some(Item::File(file)) = state.get(pos, from) else { return None };
        let (ino, mut moved): (Ino, _) = (file.attr.ino, file.clone());
        let shown = self.shown(&moved);
        // Programs that have the file open name it as the server would have to know it.
        if moved.is_begun || self.core.files.is_open(ino) || state.is_wanted(to) {
            return None;
        }
        let number = state.first_of(from);
        let withdrawn = state.withdraw(from, ino)?;
        moved.moves(at, &shown);
        state.take(pos, from);
        state.put(new_pos, to.clone(), Item::File(moved));
        let file = FileRef { dir: held.dir, name: to.clone(), ino };
        self.core.files.renamed((&held.dir, from), file);
        self.queue(held, state, to, What::Update(ino), true);
        if let Some(number) = number {
            // A sync that has begun waits for the file under either name.
            state.counts_as(to, number);
        }
        Some(withdrawn)
    }
}
