//! One open file, shared by all its handles of this client.
//!
//! A program reads, from the top: what was written and not sent (`dirty`), what is being
//! sent (`flushing`), and what the server said (`map`). One flush of a file is under way at a time,
//! so its writes reach the server in order.
//!
//! Invariant: `map` is a state of the file at the server, plus all flushes that ended since.
//! Answers that were asked for before the last such change (`changes`) are not taken in.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base::{
    Attr, Cred, DirId, EntryName, Ino, SetAttr, Time, attr::without_set_id, limits::CHUNK_BYTES,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use wire::{BlockMapped, ChunkSlices, DirRef, FileRef, OpenState, Slice, SliceSource};

use super::{
    dirty::{Dirty, Piece},
    slices::SliceMap,
};
use crate::{Error, Result};

/// An open file.
pub(crate) struct FileState {
    pub(crate) ino: Ino,
    inner: Mutex<Inner>,
    /// Woken whenever a flush has ended.
    pub(crate) flushed: Notify,
}

/// Pieces that one flush sends.
#[derive(Debug)]
pub(crate) struct FlushSet {
    /// Chunks in order, each with the pieces that were written.
    pub(crate) chunks: Vec<(u32, Vec<Piece>)>,
    /// Offset in the file at which the last piece ends.
    pub(crate) end: u64,
    /// Length of the file with everything that was written to it until now.
    pub(crate) size: u64,
    pub(crate) bytes: u64,
    pub(crate) clear_set_id: bool,
    /// When the last of it was written.
    pub(crate) at: Time,
    /// The user that has written.
    pub(crate) writer: Arc<Cred>,
    /// A change of attributes that goes with the last request.
    pub(crate) set: Option<SetAttr>,
    /// Whether the change was sent, and not refused: it may have been made.
    pub(crate) set_sent: AtomicBool,
    /// Count of writes up to which everything is sent with this flush.
    upto: Option<u64>,
}

/// Result of a flush that has succeeded.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Attributes of the file, from the last answer.
    pub(crate) attr: Attr,
    /// Slices that the server has now, by chunk.
    pub(crate) written: Vec<ChunkSlices>,
    /// Whether the change of attributes was made, if one was to go with it.
    pub(crate) set: bool,
}

/// A change of attributes that is to go with what was written before it.
struct Rider {
    set: SetAttr,
    cred: Cred,
    done: oneshot::Sender<Result<Attr>>,
}

/// Proof that a user has opened a file, from the answer to an open of this number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proof {
    pub(crate) uid: u32,
    pub(crate) number: u64,
    pub(crate) proof: u64,
}

/// The inside of an open file.
pub(crate) struct Inner {
    pub(crate) file: FileRef,
    /// Another name that this client has given the file. It is the file's when the one in `file` is
    /// removed.
    also: Option<(DirRef, EntryName)>,
    /// This client has removed the name in `file`, and knows no other.
    nameless: bool,
    /// The number of the latest open.
    pub(crate) number: u64,
    /// Proofs by which the opens are claimed from a server that has restarted.
    proofs: Vec<Proof>,
    /// Handles that are open.
    pub(crate) opens: u32,
    /// The session in which it was opened is gone.
    pub(crate) lost: bool,
    /// The server does not have the file yet: nothing is sent of it, and it is not released.
    pub(crate) is_unmade: bool,
    /// The server does not know that the file is open, or that it is known here.
    pub(crate) is_unopened: bool,
    /// When the file was read, if the directory's holder is to tell the server.
    pub(crate) read_at: Option<Time>,
    /// The directory that this client holds and the file is in: what is sent stands on that.
    pub(crate) held: Option<DirId>,
    /// When this client has last changed its attributes there.
    pub(crate) held_at: Time,
    /// Attributes as the server last said.
    pub(crate) attr: Attr,
    /// When the access time was last brought up to date.
    pub(crate) touched: Option<Time>,
    /// Whether attributes may differ from the server's by more than the changes of others: ask
    /// before reading.
    pub(crate) doubtful: bool,
    pub(crate) map: SliceMap,
    /// Counts changes of the map by this client.
    pub(crate) changes: u64,
    /// When the last change was, in counts of [`super::Files::stamp`].
    pub(crate) changed_at: u64,
    pub(crate) dirty: Dirty,
    pub(crate) flushing: Option<Arc<FlushSet>>,
    /// Credentials of the last writer, for the requests of a flush.
    pub(crate) writer: Arc<Cred>,
    clear_set_id: bool,
    last_write: Time,
    /// A change of attributes for the next flush, and who waits for that of the present one.
    rider: Option<Rider>,
    riding: Option<oneshot::Sender<Result<Attr>>>,
    /// Counts of writes: all, those that are sent, those that a caller wants sent.
    written: u64,
    sent: u64,
    wanted: u64,
    /// A task is flushing.
    pub(crate) running: bool,
    /// Whether the file is on the list of files to be flushed by age.
    pub(crate) aging: bool,
    /// The last failed flush, and how many failed.
    error: Option<Error>,
    errors: u64,
}

impl FileState {
    /// A file that was just opened.
    pub(crate) fn new(
        file: FileRef,
        proof: Proof,
        attr: Attr,
        contents: OpenState,
        cred: Arc<Cred>,
    ) -> FileState {
        let ino = file.ino;
        let inner = Inner {
            file,
            also: None,
            nameless: false,
            number: proof.number,
            proofs: vec![proof],
            opens: 0,
            lost: false,
            is_unmade: false,
            is_unopened: false,
            read_at: None,
            held: None,
            held_at: Time::default(),
            map: map_of(&attr, contents),
            attr,
            touched: None,
            doubtful: false,
            changes: 0,
            changed_at: 0,
            dirty: Dirty::default(),
            flushing: None,
            writer: cred,
            clear_set_id: false,
            last_write: Time::default(),
            rider: None,
            riding: None,
            written: 0,
            sent: 0,
            wanted: 0,
            running: false,
            aging: false,
            error: None,
            errors: 0,
        };
        FileState { ino, inner: Mutex::new(inner), flushed: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

/// Returns the slices that an open has told.
fn map_of(attr: &Attr, contents: OpenState) -> SliceMap {
    let mut map = SliceMap::unknown();
    match contents {
        OpenState::Inline(bytes) => {
            map.complete();
            map.learn(0..1, vec![inline_chunk(bytes)]);
        }
        OpenState::Blocks(first) => {
            if attr.size <= u64::from(CHUNK_BYTES) {
                map.complete();
            }
            if first.chunk == 0 {
                map.learn(0..1, vec![first]);
            }
        }
        OpenState::Withheld => {
            if attr.size == 0 {
                map.complete();
            }
        }
    }
    map
}

fn inline_chunk(bytes: bytes::Bytes) -> ChunkSlices {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if len == 0 {
        return ChunkSlices::default();
    }
    let slice = Slice { start: 0, len, source: SliceSource::Embedded(bytes) };
    ChunkSlices { chunk: 0, slices: vec![slice] }
}

impl Inner {
    /// Makes the file one that the server does not have yet, in a directory that this client holds.
    pub(crate) fn be_unmade(&mut self, held: DirId) {
        (self.is_unmade, self.held) = (true, Some(held));
        self.proofs.clear();
    }

    /// The server is told that the file is closed, and not that it is known here still.
    pub(super) fn be_unopened(&mut self) {
        self.is_unopened = true;
        self.proofs.clear();
    }

    /// The server has made the file, and says so with `attr`.
    pub(crate) fn is_made(&mut self, proof: Proof, attr: Attr, one_user: bool) {
        self.is_unmade = false;
        self.attr = attr;
        self.prove(proof, one_user);
    }

    /// Notes that something of the file is lost that was not sent.
    pub(crate) fn fails(&mut self, error: Error) {
        self.error = Some(error);
        self.errors += 1;
    }

    /// Takes in the proof of another open. A user's latest proof holds for all opens of that user;
    /// with `one_user` all callers count as one user, because a kernel checks.
    pub(crate) fn prove(&mut self, proof: Proof, one_user: bool) {
        self.is_unopened = false;
        self.number = self.number.max(proof.number);
        match self.proofs.iter_mut().find(|known| one_user || known.uid == proof.uid) {
            Some(known) if known.number < proof.number => *known = proof,
            Some(_) => {}
            None => self.proofs.push(proof),
        }
    }

    pub(crate) fn proofs(&self) -> &[Proof] {
        &self.proofs
    }

    /// Whether something is not sent, or not surely.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.flushing.is_some()
    }

    /// The attributes with what was written and not sent.
    pub(crate) fn visible(&self, mut attr: Attr) -> Attr {
        if self.is_dirty() {
            attr.size = attr.size.max(self.dirty.end());
            attr.size = attr.size.max(self.flushing.as_ref().map_or(0, |set| set.end));
            attr.mtime = attr.mtime.max(self.last_write);
            attr.ctime = attr.ctime.max(self.last_write);
            if self.clear_set_id || self.flushing.as_ref().is_some_and(|set| set.clear_set_id) {
                attr.mode = without_set_id(attr.mode);
            }
        }
        attr
    }

    /// Returns the size of the file, at which reads end.
    pub(crate) fn size(&self) -> u64 {
        self.visible(self.attr).size
    }

    /// Fails when the file's session is gone.
    pub(crate) fn check(&self) -> Result<()> {
        if self.lost { Err(Error::SessionLost) } else { Ok(()) }
    }

    /// Whether the file is known by this name.
    fn is_at(&self, at: (&DirRef, &EntryName)) -> bool {
        self.file.dir.same(at.0) && self.file.name == *at.1
    }

    /// Whether this is the other name that this client has given the file.
    fn is_also(&self, at: (&DirRef, &EntryName)) -> bool {
        self.also.as_ref().is_some_and(|(dir, name)| dir.same(at.0) && name == at.1)
    }

    fn stands_at(&mut self, (dir, name): (DirRef, EntryName)) {
        (self.file.dir, self.file.name, self.nameless) = (dir, name, false);
    }

    /// The file was opened under this name. The one before may be its name still.
    pub(super) fn is_opened_as(&mut self, file: FileRef) {
        if self.is_also((&file.dir, &file.name)) {
            self.also = Some((self.file.dir, self.file.name.clone()));
        }
        self.stands_at((file.dir, file.name));
    }

    /// This client has moved the file, if it had that name. A name of a file that is moved over
    /// another one of it stays, so both are kept.
    pub(super) fn is_renamed(&mut self, from: (&DirRef, &EntryName), to: FileRef) {
        if self.is_at(from) {
            if self.is_also((&to.dir, &to.name)) {
                self.also = Some((*from.0, from.1.clone()));
            }
            self.stands_at((to.dir, to.name));
        } else if self.is_also(from) && !self.is_at((&to.dir, &to.name)) {
            self.also = Some((to.dir, to.name));
        }
    }

    /// This client has given the file one more name.
    pub(super) fn is_linked(&mut self, name: (DirRef, EntryName)) {
        if self.nameless {
            self.stands_at(name);
        } else {
            self.also = Some(name);
        }
    }

    /// This client has taken a name from the file, if it had that.
    pub(super) fn has_lost(&mut self, at: (&DirRef, &EntryName)) {
        if self.is_also(at) {
            self.also = None;
        }
        if self.is_at(at) {
            match self.also.take() {
                Some(other) => self.stands_at(other),
                None => self.nameless = true,
            }
        }
    }

    /// Two entries have changed places.
    pub(super) fn is_exchanged(
        &mut self,
        one: (&DirRef, &EntryName),
        other: (&DirRef, &EntryName),
    ) {
        let swapped = |dir: &DirRef, name: &EntryName| {
            let is = |at: (&DirRef, &EntryName)| dir.same(at.0) && name == at.1;
            let to = if is(one) { Some(other) } else { is(other).then_some(one) };
            to.map(|(dir, name)| (*dir, name.clone()))
        };
        // Another file may have the name that this one has lost.
        if !self.nameless
            && let Some(to) = swapped(&self.file.dir, &self.file.name)
        {
            self.stands_at(to);
        }
        if let Some((dir, name)) = &self.also
            && let Some(to) = swapped(dir, name)
        {
            self.also = Some(to);
        }
    }

    /// Takes in attributes from the server. If the contents are others than those that are known,
    /// forgets them.
    pub(crate) fn learn_attr(&mut self, attr: Attr) {
        if attr.mtime != self.attr.mtime || attr.size != self.attr.size {
            self.map = SliceMap::unknown();
        }
        self.attr = attr;
    }

    /// Takes in what another open of the file was told, asked for when `changes` was what it says.
    /// Earlier knowledge is not trusted: others may have written since.
    pub(crate) fn learn_open(&mut self, attr: Attr, contents: OpenState, changes: Option<u64>) {
        if changes == Some(self.changes) {
            self.map = map_of(&attr, contents);
            self.attr = attr;
            self.doubtful = false;
        } else {
            self.map = SliceMap::unknown();
            self.doubtful = true;
        }
    }

    /// Takes in a piece of the block map, asked for when `changes` was what it says; `false` when
    /// something changed meanwhile.
    pub(crate) fn learn_map(&mut self, first: u32, mapped: BlockMapped, changes: u64) -> bool {
        if changes != self.changes {
            return false;
        }
        self.learn_attr(mapped.attr);
        self.doubtful = false;
        if let Some(bytes) = mapped.inline {
            self.map = map_of(&mapped.attr, OpenState::Inline(bytes));
            return true;
        }
        self.map.learn(first..mapped.end, mapped.chunks);
        true
    }

    /// The size or the contents are about to change at the server: what is known of them will not
    /// be true.
    pub(crate) fn forget_contents(&mut self) {
        self.map = SliceMap::unknown();
        self.doubtful = true;
        self.changes += 1;
    }

    /// The size was set, and these are the attributes.
    pub(crate) fn resized(&mut self, attr: Attr, stamp: u64) {
        self.map = if attr.size == 0 { SliceMap::zeros() } else { SliceMap::unknown() };
        self.attr = attr;
        self.doubtful = false;
        self.changes += 1;
        self.changed_at = stamp;
    }

    /// Takes in a write; `true` when it has filled a chunk.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        clear_set_id: bool,
        writer: &Arc<Cred>,
        now: Time,
    ) -> bool {
        if !Arc::ptr_eq(&self.writer, writer) {
            self.writer = Arc::clone(writer);
        }
        self.clear_set_id |= clear_set_id;
        self.last_write = now;
        self.written += 1;
        self.dirty.write(offset, data)
    }

    /// Wants everything sent that was written up to now; the count to wait for, if there is
    /// anything.
    pub(crate) fn want_all(&mut self) -> Option<u64> {
        if !self.is_dirty() {
            return None;
        }
        self.wanted = self.written;
        Some(self.written)
    }

    /// Lets a change of attributes by `cred` go with the next flush, if the same user has written
    /// that, and no other change waits for it. Returns where the new attributes are told, or the
    /// error after which the change may have been made; no word comes if it surely was not.
    pub(crate) fn ride(
        &mut self,
        cred: &Cred,
        set: SetAttr,
    ) -> Option<oneshot::Receiver<Result<Attr>>> {
        if *cred != *self.writer || self.rider.is_some() || self.dirty.is_empty() {
            return None;
        }
        let (done, told) = oneshot::channel();
        self.rider = Some(Rider { set, cred: cred.clone(), done });
        Some(told)
    }

    /// No flush follows: a change that waits for one has to go alone.
    pub(crate) fn leave_rider(&mut self) {
        self.rider = None;
    }

    /// Whether everything up to `count` was sent, or has failed.
    pub(crate) fn has_sent(&self, count: u64) -> bool {
        self.sent >= count
    }

    /// Begins to send all that was written, if the file has no more than `bytes_max` and nothing of
    /// it is being sent. Returns the pieces.
    pub(super) fn begin_small_flush(&mut self, bytes_max: u64) -> Option<Arc<FlushSet>> {
        let is_idle = !self.running && self.flushing.is_none() && self.rider.is_none();
        if !is_idle || self.dirty.is_empty() || self.size() > bytes_max {
            return None;
        }
        self.wanted = self.written;
        let set = self.take_flush();
        self.running = set.is_some();
        set
    }

    /// Takes the pieces to send now.
    pub(crate) fn take_flush(&mut self) -> Option<Arc<FlushSet>> {
        let (all, size) = (self.wanted > self.sent, self.size());
        let bytes_before = self.dirty.bytes();
        let end = self.dirty.end();
        let chunks = if all { self.dirty.take() } else { self.dirty.take_full() };
        if chunks.is_empty() {
            return None;
        }
        let last_end = chunks.last().map_or(0, |(chunk, pieces)| {
            let last =
                pieces.last().map_or(0, |piece| u64::from(piece.start) + piece.data.len() as u64);
            u64::from(*chunk) * u64::from(CHUNK_BYTES) + last
        });
        let rider = if all { self.rider.take() } else { None };
        // Another user may have written since.
        let rider = rider.filter(|rider| rider.cred == *self.writer);
        let (set, riding) = rider.map(|rider| (rider.set, rider.done)).unzip();
        self.riding = riding;
        let set = Arc::new(FlushSet {
            writer: Arc::clone(&self.writer),
            set,
            set_sent: AtomicBool::new(false),
            chunks,
            end: if all { end } else { last_end },
            size,
            bytes: bytes_before - self.dirty.bytes(),
            clear_set_id: mem::take(&mut self.clear_set_id),
            at: self.last_write,
            upto: all.then_some(self.written),
        });
        self.flushing = Some(Arc::clone(&set));
        Some(set)
    }

    /// A flush has ended: its slices are at the server, or will never be.
    pub(crate) fn end_flush(&mut self, set: &FlushSet, result: Result<Sent>, stamp: u64) {
        self.flushing = None;
        let riding = self.riding.take();
        self.sent = match set.upto {
            Some(upto) => self.sent.max(upto),
            None => self.sent,
        };
        if self.dirty.is_empty() {
            self.sent = self.written;
        }
        self.changes += 1;
        self.changed_at = stamp;
        match result {
            Ok(Sent { attr, written, set: sets }) => {
                if let Some(riding) = riding.filter(|_| sets) {
                    // The caller may have gone.
                    let _ = riding.send(Ok(attr));
                }
                // Another client has made the file longer: it has contents that this client does
                // not know.
                if attr.size > self.attr.size.max(set.end) {
                    self.map = SliceMap::unknown();
                } else {
                    written.into_iter().for_each(|chunk| self.map.put(chunk));
                }
                self.attr = attr;
            }
            Err(error) => {
                if let Some(riding) = riding
                    && set.set_sent.load(Ordering::Relaxed)
                {
                    // The caller may have gone.
                    let _ = riding.send(Err(error.clone()));
                }
                // A part of it may have been written.
                self.map = SliceMap::unknown();
                self.doubtful = true;
                self.error = Some(error);
                self.errors += 1;
            }
        }
    }

    /// How many flushes have failed.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// The last failure, if there was one after the first `seen`.
    pub(crate) fn error_since(&self, seen: u64) -> Option<Error> {
        if self.errors > seen { self.error.clone() } else { None }
    }

    /// The session is gone, and with it what was not sent; how many bytes that were.
    pub(crate) fn lose(&mut self) -> u64 {
        (self.lost, self.is_unmade) = (true, false);
        self.lose_unsent()
    }

    /// Forgets what was not sent, as nobody wants it any more; how many bytes that were.
    pub(crate) fn discard(&mut self) -> u64 {
        let bytes = self.dirty.bytes();
        self.dirty.take();
        if self.flushing.is_none() {
            self.sent = self.written;
        }
        bytes
    }

    /// Forgets what was not sent, and returns how many bytes that were.
    pub(crate) fn lose_unsent(&mut self) -> u64 {
        let bytes = self.dirty.bytes();
        if !self.dirty.is_empty() {
            self.dirty.take();
            self.error = Some(Error::SessionLost);
            self.errors += 1;
        }
        if self.flushing.is_none() {
            self.sent = self.written;
        }
        bytes
    }
}
