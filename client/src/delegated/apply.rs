//! Sending several changes of a directory in one request.
//!
//! A file waits for up to four changes: it is made, written, given attributes, read. They go with
//! those of other files as far as they are little, and nothing of the file is on its way already.
//! The server does them in their order, until one is in its way. What it has not done is sent
//! alone, as if it had not been asked for: then there is an answer to each.

use std::sync::Arc;

use base::{Attr, EntryName, FileKind, Ino, SetAttr, SetTime, limits::HELD_CHANGES_MAX};
use wire::{
    Apply, Create, FileRef, Held, HeldChange, HeldReply, HeldRequest, NodeRef, Reply, Request,
    Setattr, Stand, Unlink,
};

use super::{
    Delegating,
    dir::{HeldDir, Op, What},
    file::{Change, Make, Read},
    send::News,
};
use crate::contents::Taken;

/// Contents in one request, roughly.
const BYTES_MAX: u64 = 1 << 20;
/// Most changes that one file needs.
const CHANGES_A_FILE: usize = 4;

/// All that waits of one name, as it goes with a request.
enum Part {
    /// The server knows all already.
    Nothing,
    Unlink(Ino),
    Update(Box<Update>),
}

/// All that waits of a file.
struct Update {
    file: FileRef,
    make: Option<Make>,
    /// The number under which the file is open.
    number: Option<u64>,
    written: Option<Taken>,
    change: Option<Change>,
    /// When the file was read after that, and by whom.
    read: Option<Read>,
    /// Whether the change goes with what was written, in place of a request of its own.
    rides: bool,
    /// Whether something is left that does not go along.
    is_part: bool,
}

impl Delegating {
    /// Sends changes in one request each time, as many as fit. Returns those that are to be sent
    /// alone; of the others nothing waits any more.
    pub(super) async fn apply(&self, held: &Arc<HeldDir>, due: Vec<Op>) -> Vec<Op> {
        let (mut alone, due): (Vec<_>, Vec<_>) = due.into_iter().partition(Op::is_alone);
        let mut due = due.into_iter().peekable();
        while due.peek().is_some() {
            let (mut parts, mut changes, mut bytes) = (Vec::new(), Vec::new(), 0);
            while bytes < BYTES_MAX
                && changes.len() + CHANGES_A_FILE <= HELD_CHANGES_MAX
                && let Some(op) = due.next()
            {
                let part = self.prepare(held, &op, &mut changes);
                if let Part::Update(update) = &part {
                    bytes += update.written.as_ref().map_or(0, Taken::bytes);
                }
                parts.push((op, part));
            }
            let stamp = self.core.files.stamp();
            let mut done = self.ask_several(held, changes).await.into_iter();
            let mut ended = 0;
            for (op, part) in parts {
                if self.finish(held, &op, part, &mut done, stamp) {
                    held.state.lock().done(&op.name);
                    ended += 1;
                } else {
                    alone.push(op);
                }
            }
            self.ended(held, ended);
        }
        alone
    }

    /// The answers to the changes that the server has done, from the first on.
    async fn ask_several(&self, held: &HeldDir, changes: Vec<HeldChange>) -> Vec<HeldReply> {
        let Some(cred) = changes.first().map(|change| change.cred.clone()) else {
            return Vec::new();
        };
        let request = Request::Apply(Apply { dir: held.dir, changes });
        let stand = Stand::on(Held { dir: Some(held.dir.id), at: None, ino: None, wants: false });
        match self.core.call(&cred, held.dir.home, request, stand).await.map(|done| done.reply) {
            Ok(Reply::Applied(applied)) => applied.done,
            Ok(_) => Vec::new(),
            // Each change alone will hear it, too.
            Err(error) => {
                tracing::debug!(dir = held.dir.ino.0, ?error, "changes were not made together");
                Vec::new()
            }
        }
    }

    /// Takes what waits of a name, and adds it to the changes of a request.
    fn prepare(&self, held: &HeldDir, op: &Op, changes: &mut Vec<HeldChange>) -> Part {
        let ino = match &op.what {
            What::Update(ino) => *ino,
            What::Unlink { ino, cred, at } => {
                let request = Unlink { dir: held.dir, name: op.name.clone() };
                let request = HeldRequest::Unlink(request);
                changes.push(HeldChange { cred: cred.clone(), at: *at, ino: None, request });
                return Part::Unlink(*ino);
            }
            // Sent alone.
            What::Link { .. } | What::Rmdir { .. } => return Part::Nothing,
        };
        let Some(News { make, change, read }) = self.begin_update(held, &op.name, ino) else {
            return Part::Nothing;
        };
        let file = FileRef { dir: held.dir, name: op.name.clone(), ino };
        let number = self.core.files.number_of(ino);
        if let Some(Make { mode, cred, at }) = make.clone() {
            let request = HeldRequest::Create(Create {
                dir: held.dir,
                name: op.name.clone(),
                kind: FileKind::File,
                mode,
                rdev: 0,
                exclusive: true,
                open: number,
            });
            changes.push(HeldChange { cred, at, ino: Some(ino), request });
        }
        let state = self.core.files.state_of(ino).filter(|state| state.lock().is_dirty());
        let written = state
            .as_ref()
            .and_then(|state| self.client.take_written(state, held.dir.id, make.is_some()));
        // A change comes after what was written before it.
        let is_part = state.is_some() && written.is_none();
        let rides = match (&written, &change) {
            (Some(taken), Some(change)) => change.cred == *taken.writer(),
            _ => false,
        };
        if let Some(taken) = &written {
            let riding: Option<&Change> = change.as_ref().filter(|_| rides);
            let set: Option<SetAttr> = riding.map(|change| change.set);
            let at = riding.map_or(taken.at(), |change| change.at.max(taken.at()));
            let request = HeldRequest::Write(self.client.write_of(taken, set));
            changes.push(HeldChange { cred: taken.writer().clone(), at, ino: None, request });
        }
        if let Some(Change { set, cred, at }) = change.clone().filter(|_| !rides && !is_part) {
            let request = Setattr { node: NodeRef::File(file.clone()), set };
            let request = HeldRequest::Setattr(request);
            changes.push(HeldChange { cred, at, ino: None, request });
        }
        if let Some((at, cred)) = &read {
            let atime = Some(SetTime::At(*at));
            let set = SetAttr { atime, access_only: true, ..SetAttr::default() };
            let request = Setattr { node: NodeRef::File(file.clone()), set };
            let request = HeldRequest::Setattr(request);
            changes.push(HeldChange { cred: cred.clone(), at: *at, ino: None, request });
        }
        let update = Update { file, make, number, written, change, read, rides, is_part };
        Part::Update(Box::new(update))
    }

    /// Takes in the answers to what went along of a name. Whether nothing of it is left to be sent.
    fn finish(
        &self,
        held: &Arc<HeldDir>,
        op: &Op,
        part: Part,
        done: &mut impl Iterator<Item = HeldReply>,
        stamp: u64,
    ) -> bool {
        match part {
            Part::Nothing => true,
            Part::Unlink(ino) => {
                let Some(HeldReply::Attr(attr)) = done.next() else { return false };
                self.core.files.unlinked(attr.ino, (&held.dir, &op.name));
                self.shared.table.lock().leaving.remove(&ino);
                true
            }
            Part::Update(update) => {
                let ino = update.file.ino;
                let Some(learnt) = self.finish_update(held, op, *update, done, stamp) else {
                    let pos = self.pos(&op.name);
                    if let Some(file) = held.state.lock().file(pos, &op.name, ino) {
                        file.take_back();
                    }
                    return false;
                };
                self.closes(ino);
                self.end_update(held, &op.name, ino, learnt);
                true
            }
        }
    }

    /// The attributes that the answers tell, if any, and the time of a read that is told; `None` if
    /// something is left to be sent.
    fn finish_update(
        &self,
        held: &HeldDir,
        op: &Op,
        update: Update,
        done: &mut impl Iterator<Item = HeldReply>,
        stamp: u64,
    ) -> Option<(Option<Attr>, Option<Read>)> {
        let Update { file, make, number, written, change, read, rides, is_part } = update;
        let (pos, ino) = (self.pos(&op.name), file.ino);
        let mut learnt = None;
        let mut is_left = is_part;
        let is_only = make.is_none() && written.is_none() && change.is_none();
        if let Some(make) = make {
            match done.next() {
                Some(HeldReply::Made(made)) if made.attr.ino == ino => {
                    if let Some(local) = held.state.lock().file(pos, &op.name, ino) {
                        local.make = None;
                    }
                    if let (Some(number), Some(proof)) = (number, made.proof) {
                        let proof = (make.cred.uid, number, proof);
                        self.core.files.is_made(ino, proof, made.attr);
                    }
                    learnt = Some(made.attr);
                }
                // Removed meanwhile, and never made: the removal has nothing to remove.
                _ if held.state.lock().file(pos, &op.name, ino).is_none() => {
                    self.was_never_made(held, &op.name, ino, written);
                    return Some((None, None));
                }
                _ => is_left = true,
            }
        }
        if let Some(taken) = written {
            match done.next().filter(|_| !is_left) {
                Some(HeldReply::Written(written)) => {
                    learnt = Some(self.client.has_written(taken, written.attr));
                }
                _ => {
                    self.client.is_unwritten(taken);
                    is_left = true;
                }
            }
        }
        if change.is_some() && !rides && !is_left {
            // Contents that were written before the change are older than its answer.
            let stamp = if learnt.is_some() { self.core.files.stamp() } else { stamp };
            match done.next() {
                Some(HeldReply::Attr(attr)) => learnt = Some(self.core.files.seen(attr, stamp)),
                _ => is_left = true,
            }
        }
        let mut told = None;
        if read.is_some() {
            let stamp = if learnt.is_some() { self.core.files.stamp() } else { stamp };
            match done.next().filter(|_| !is_left) {
                Some(HeldReply::Attr(attr)) => {
                    learnt = Some(self.core.files.seen(attr, stamp));
                    told = read;
                }
                // The time of a read goes once more, and alone if it was so already.
                _ => is_left |= is_only,
            }
        }
        if learnt.is_none() && !is_left {
            // Only the close was to be told: what was sent before is known.
            let state =
                self.core.files.state_of(ino).filter(|_| self.is_known(held, &op.name, ino));
            learnt = state.and_then(|state| {
                let inner = state.lock();
                (!inner.doubtful && !inner.is_unmade && !inner.is_dirty()).then_some(inner.attr)
            });
        }
        (!is_left).then_some((learnt, told))
    }

    /// A file was removed before the server has made it, and after it was asked to.
    pub(super) fn was_never_made(
        &self,
        held: &HeldDir,
        name: &EntryName,
        ino: Ino,
        written: Option<Taken>,
    ) {
        if let Some(taken) = written {
            self.client.is_unwanted(taken);
        }
        self.core.files.discard(ino, true);
        self.shared.table.lock().leaving.remove(&ino);
        let withdrawn = held.state.lock().withdraw_removal(name, ino);
        self.counted(withdrawn);
    }
}
