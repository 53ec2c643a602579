//! Second names of files in their own directory: given and taken here, and noted when the server
//! knows them.

use std::sync::Arc;

use base::{Attr, Cred, EntryName, FileKind, Ino};
use wire::{Entry, NodeRef};

use super::{
    Delegating,
    dir::{HeldDir, Item, Phase, Twins, What},
    file::Local,
};

impl Delegating {
    /// Gives a file of a held directory a second name there; `None` when the server must do it.
    pub(super) fn link_here(
        &self,
        held: &Arc<HeldDir>,
        (first, ino): (&EntryName, Ino),
        name: &EntryName,
        cred: &Cred,
    ) -> Option<Entry> {
        let at = self.now_in(held);
        let (pos, first_pos) = (self.pos(name), self.pos(first));
        let attr = {
            let mut state = held.state.lock();
            // Race: the directory may be about to be given back, or a name to change.
            let is_free = !state.is_claimed(first) && !state.is_claimed(name);
            if state.phase != Phase::Held || !is_free || state.get(pos, name).is_some() {
                return None;
            }
            let file = state.file(first_pos, first, ino)?;
            let may_wait = self.knows(file) && file.twin.is_none() && file.attr.nlink == 1;
            if !may_wait || file.attr.kind != FileKind::File {
                return None;
            }
            file.twin = Some((name.clone(), at));
            let attr = self.shown(file);
            state.put(pos, name.clone(), Item::Twin(ino, first.clone()));
            state.touch(1, 0, at);
            let what = What::Link { ino, first: first.clone(), cred: cred.clone(), at };
            self.queue(held, &mut state, name, what, true);
            attr
        };
        self.pump_later(held);
        Some(Entry { attr, dir: None, target: None, whole: true })
    }

    /// Removes the first name of a closed file that waits to be made, so that it is made under its
    /// second one; `None` when the server must remove the name.
    pub(super) fn remove_twin(&self, held: &Arc<HeldDir>, name: &EntryName) -> Option<Attr> {
        let [first, second] = held.state.lock().twins_of(self.pos(name), name)?;
        if *name != first {
            return None;
        }
        let (pos, at) = (self.pos(&first), self.now_in(held));
        let (attr, withdrawn) = {
            let mut table = self.shared.table.lock();
            let mut state = held.state.lock();
            let is_free = !state.is_claimed(&first) && !state.is_claimed(&second);
            // Race: the directory may be about to be given back, or the names to change.
            if state.phase != Phase::Held
                || !is_free
                || state.twins_of(pos, &first)? != [first.clone(), second.clone()]
            {
                return None;
            }
            let Some(Item::File(file)) = state.get(pos, &first) else { return None };
            let (ino, shown) = (file.attr.ino, self.shown(file));
            if !state.has_link(&second) {
                return None;
            }
            let withdrawn = self.remake(held, &mut state, (&first, &second), at)?;
            state.withdraw_link(&second);
            table.files.insert(ino, (held.dir.id, second.clone()));
            state.touch(-1, 0, at);
            let ctime = at.max(shown.ctime);
            (Attr { nlink: shown.nlink - 1, ctime, ..shown }, withdrawn + 1)
        };
        self.counted(withdrawn);
        self.pump_later(held);
        Some(attr)
    }

    /// Notes that the server has given a file one more name, and how it is known here from now on.
    pub(super) fn note_link(
        &self,
        to: Option<&Arc<HeldDir>>,
        name: &EntryName,
        from: Option<&(Arc<HeldDir>, EntryName)>,
        ino: Ino,
    ) {
        match (from, to) {
            (Some((source, first)), Some(held)) if Arc::ptr_eq(source, held) => {
                self.has_two_names(held, [first, name], ino);
            }
            (from, to) => {
                if let Some((held, first)) = from {
                    self.take(held, first);
                    self.put(held, first, Item::Other(ino));
                }
                if let Some(held) = to {
                    self.put(held, name, Item::Other(ino));
                }
            }
        }
    }

    /// The server knows two names of a file in one directory. Both change at once, also while the
    /// directory is given back: programs wait for them.
    fn has_two_names(&self, held: &HeldDir, [first, second]: [&EntryName; 2], ino: Ino) {
        let mut table = self.shared.table.lock();
        let mut state = held.state.lock();
        let taken = state.take(self.pos(first), first);
        let is_plain = matches!(taken, Some(Item::File(file)) if file.is_plain);
        for name in [first, second] {
            state.put(self.pos(name), name.clone(), Item::Other(ino));
        }
        let twins = Twins { names: [first.clone(), second.clone()], is_plain };
        state.twins.insert(ino, twins);
        drop(state);
        if table.files.get(&ino).is_some_and(|(dir, _)| *dir == held.dir.id) {
            table.files.remove(&ino);
        }
        drop(table);
        self.core.files.is_held(ino, None);
    }

    /// A file that has two names in its directory was changed other than by removing one of them: it
    /// is the server's that it has two, for good.
    pub(super) fn forget_twins(&self, node: &NodeRef) {
        let NodeRef::File(file) = node else { return };
        let held = self.shared.table.lock().dirs.get(&file.dir.id).cloned();
        if let Some(held) = held {
            held.state.lock().twins.remove(&file.ino);
        }
    }

    /// A name of a file was removed: if the file has one left, here, it is one as before it had two.
    pub(super) fn is_single(&self, held: &Arc<HeldDir>, removed: &EntryName, attr: Attr) {
        let Some(Twins { names, is_plain }) = held.state.lock().twins.remove(&attr.ino) else {
            return;
        };
        let Some(left) = names.iter().find(|name| *name != removed) else { return };
        let is_left = matches!(self.item(held, left), Some(Item::Other(ino)) if ino == attr.ino);
        let is_single = attr.nlink == 1 && attr.kind == FileKind::File;
        if is_single && names.contains(removed) && is_left {
            let local = Local { is_plain, ..Local::of_server(attr, None) };
            self.put(held, left, Item::File(Box::new(local)));
        }
    }

    /// Like [`Delegating::forget_twins`], of what had a name in a held directory.
    pub(super) fn forget_twin(&self, held: Option<&Arc<HeldDir>>, item: Option<&Item>) {
        if let (Some(held), Some(Item::Other(ino))) = (held, item) {
            held.state.lock().twins.remove(ino);
        }
    }
}
