//! Writing, and sending what was written.
//!
//! A write lands in memory. It is sent in the background when it has filled a chunk, when it is a
//! second old, or when too much has gathered; and before `flush`, `fsync`, a change of attributes
//! or the release of the file. Each flush is a task of its own, so that it ends even when whoever
//! asked for it goes away.
//!
//! Small pieces travel in the request, larger ones as blocks, which are in the store before the
//! request names them; a few small blocks go with it, and the server stores them first. A failed
//! flush is reported once to each handle that was open then, by `flush` or `fsync`; what it held is
//! gone, as with a disk.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{
    Access, Attr, BlockId, Cred, FsError, SetAttr,
    limits::{
        EMBEDDED_BYTES_A_WRITE_MAX, FILE_BYTES_MAX, INLINE_BYTES_MAX, SLICES_A_WRITE_MAX,
        WRITE_BLOCKS_BYTES_MAX, WRITE_BLOCKS_MAX,
    },
};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::sleep;
use wire::{ChunkSlices, Held, Reply, Request, Slice, SliceSource, Stand, Write, data::BlockPart};

use super::{
    OpenFile,
    dirty::Piece,
    state::{FileState, FlushSet, Sent},
};
use crate::{
    Client, Error, Result,
    done::{Done, Failure},
    error::unexpected,
};

/// Age at which written data is sent.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Blocks of one flush that are on their way at the same time.
const PUTS_IN_FLIGHT: usize = 4;
/// Small pieces of one chunk that are more than this together become one block.
const PACKED_BYTES_MIN: usize = 64 << 10;
/// Maximum bytes that one request carries itself, and maximum number of chunks it names.
const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUEST_CHUNKS_MAX: usize = 64;

impl Client {
    /// Writes all of `data` at `offset`, or at the end when there is no offset; where it was
    /// written.
    pub(crate) async fn write_file(
        &self,
        open: &Arc<OpenFile>,
        offset: Option<u64>,
        data: &[u8],
        clear_set_id: bool,
    ) -> Result<u64> {
        if !open.may.includes(Access::WRITE) {
            return Err(FsError::BadHandle.into());
        }
        self.core.may_write(open.cred.uid, open.state.ino, open.opened_at)?;
        if offset.is_none() {
            self.learn_size(open).await?;
        }
        self.wait_for_room().await;
        let now = self.core.config.clock.now();
        let mut inner = open.state.lock();
        inner.check()?;
        let offset = offset.unwrap_or_else(|| inner.size());
        if data.is_empty() {
            return Ok(offset);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        if end.is_none() {
            return Err(FsError::FileTooBig.into());
        }
        let before = inner.dirty.bytes();
        // Where no kernel has checked, the server would clear set-id bits for the last writer.
        let clear_set_id =
            clear_set_id || (!self.core.config.kernel_checks && !open.cred.is_root());
        let filled = inner.write(offset, data, clear_set_id, &open.cred, now);
        self.core.files.budget.take(inner.dirty.bytes() - before);
        let ages = !std::mem::replace(&mut inner.aging, true);
        drop(inner);
        if filled {
            self.flush_in_background(&open.state);
        }
        if ages {
            self.flush_by_age(&open.state);
        }
        Ok(offset)
    }

    /// Waits while too much is written and not sent.
    async fn wait_for_room(&self) {
        let budget = &self.core.files.budget;
        while budget.is_spent() {
            let freed = budget.freed.notified();
            self.want_everything();
            if budget.is_spent() {
                freed.await;
            }
        }
    }

    /// Starts to send everything. For each file the count to wait for, and that of the failures
    /// before.
    fn want_everything(&self) -> Vec<(Arc<FileState>, u64, u64)> {
        let states: Vec<_> = self.core.files.table.lock().files.values().cloned().collect();
        let mut wanted = Vec::new();
        for state in states {
            let mut inner = state.lock();
            let (count, errors) = (inner.want_all(), inner.errors());
            drop(inner);
            if let Some(count) = count {
                self.flush_in_background(&state);
                wanted.push((state, count, errors));
            }
        }
        wanted
    }

    /// Sends everything that was written to any file.
    pub(crate) async fn flush_all(&self) -> Result<()> {
        let mut result = Ok(());
        for (state, count, errors) in self.want_everything() {
            wait_sent(&state, count).await;
            if let Some(error) = state.lock().error_since(errors)
                && result != Err(Error::SessionLost)
            {
                result = Err(error);
            }
        }
        result
    }

    /// Sends everything that was written to the file; a failure is kept for its handles.
    pub(crate) async fn flush_state(&self, state: &Arc<FileState>) {
        let wanted = state.lock().want_all();
        if let Some(count) = wanted {
            self.flush_in_background(state);
            wait_sent(state, count).await;
        }
    }

    /// Sends everything that was written to the file, as [`Client::flush_state`] does, and a change
    /// of attributes with the last of it. Returns the new attributes; `None` where the change did
    /// not go along and was surely not made.
    ///
    /// The two are one transaction. Where it is refused, what was written is sent without the
    /// change: an error of either is told where it is told of one that goes alone.
    ///
    /// # Errors
    /// When the change may have been made, as the session was lost meanwhile. It is not made again:
    /// others may have changed the file since.
    pub(crate) async fn flush_with(
        &self,
        cred: &Cred,
        state: &Arc<FileState>,
        set: SetAttr,
    ) -> Result<Option<Attr>> {
        let (count, told) = {
            let mut inner = state.lock();
            let Some(count) = inner.want_all() else { return Ok(None) };
            (count, inner.ride(cred, set))
        };
        self.flush_in_background(state);
        wait_sent(state, count).await;
        let Some(told) = told else { return Ok(None) };
        let Ok(changed) = told.await else { return Ok(None) };
        let attr = changed?;
        let inner = state.lock();
        let newer = inner.attr.ctime >= attr.ctime;
        Ok(Some(inner.visible(if newer { inner.attr } else { attr })))
    }

    /// Flushes as [`Client::flush_state`] does, and reports failures that this handle has not
    /// reported yet.
    pub(crate) async fn flush_file(&self, open: &OpenFile) -> Result<()> {
        self.flush_state(&open.state).await;
        let inner = open.state.lock();
        let seen = open.errors_seen.swap(inner.errors(), Ordering::AcqRel);
        let unsent = inner.error_since(seen);
        drop(inner);
        worst(unsent, || open.report_forgotten_to_writer())
    }

    /// Reports failures of earlier flushes as [`Client::flush_copy`] does, and sends nothing.
    pub(crate) fn show_failures(&self, open: &OpenFile) -> Result<()> {
        let seen = open.errors_seen.load(Ordering::Acquire);
        let unsent = open.state.lock().error_since(seen);
        worst(unsent, || open.show_forgotten_to_writer())
    }

    /// Flushes as [`Client::flush_file`] does for a descriptor that is closed while others may
    /// share the handle: a copy in a program that was started, say. What it reports is left for
    /// them to report, too.
    pub(crate) async fn flush_copy(&self, open: &OpenFile) -> Result<()> {
        self.flush_state(&open.state).await;
        let seen = open.errors_seen.load(Ordering::Acquire);
        let unsent = open.state.lock().error_since(seen);
        worst(unsent, || open.show_forgotten_to_writer())
    }

    /// Sends what is wanted, and what is full, unless a task does that already.
    pub(crate) fn flush_in_background(&self, state: &Arc<FileState>) {
        if !std::mem::replace(&mut state.lock().running, true) {
            self.flush_from(state, None);
        }
    }

    /// Sends pieces that were taken, and then what is wanted, and what is full.
    pub(super) fn flush_from(&self, state: &Arc<FileState>, taken: Option<Arc<FlushSet>>) {
        let (client, state) = (self.clone(), Arc::clone(state));
        self.core.spawn(async move {
            let mut next = taken.or_else(|| client.next_flush(&state));
            while let Some(set) = next {
                let result = client.send_for_good(&state, &set).await.map_err(|error| match error {
                    // A file stays while it is open, unless its server has lost it.
                    Error::Fs(FsError::Stale) => Error::Fs(FsError::Io),
                    error => error,
                });
                if let Err(error) = &result {
                    tracing::warn!(ino = %state.ino, %error, "what was written could not be stored");
                }
                client.end_flush(&state, &set, result);
                next = client.next_flush(&state);
            }
        });
    }

    pub(super) fn end_flush(&self, state: &FileState, set: &FlushSet, result: Result<Sent>) {
        let files = &self.core.files;
        let has_failed = matches!(result, Err(Error::Fs(_)));
        let is_closed = {
            let mut inner = state.lock();
            inner.end_flush(set, result, files.next_stamp());
            inner.opens == 0
        };
        if is_closed && has_failed {
            // No handle can report it.
            files.note_loss();
        }
        files.budget.give_back(set.bytes);
        state.flushed.notify_waiters();
    }

    /// Returns the pieces to send next; `None` ends the task.
    pub(super) fn next_flush(&self, state: &Arc<FileState>) -> Option<Arc<FlushSet>> {
        let mut inner = state.lock();
        let set = inner.take_flush();
        if set.is_none() {
            inner.leave_rider();
            inner.running = false;
            let closed = inner.opens == 0;
            drop(inner);
            if closed {
                self.release_later(state);
            }
        }
        set
    }

    /// Flushes a file when it has aged.
    fn flush_by_age(&self, state: &Arc<FileState>) {
        let mut table = self.core.files.table.lock();
        table.aging.push(Arc::clone(state));
        if std::mem::replace(&mut table.ageing, true) {
            return;
        }
        drop(table);
        let client = self.clone();
        self.core.spawn(async move {
            loop {
                sleep(AGE_MAX).await;
                let mut table = client.core.files.table.lock();
                let aged = std::mem::take(&mut table.aging);
                if aged.is_empty() {
                    table.ageing = false;
                    break;
                }
                drop(table);
                for state in aged {
                    let mut inner = state.lock();
                    inner.aging = false;
                    let wanted = inner.want_all().is_some();
                    drop(inner);
                    if wanted {
                        client.flush_in_background(&state);
                    }
                }
            }
        });
    }

    /// Sends one flush. A server names only what it has stored itself, since it was started: of
    /// what was stored before it says that it exists. Then all is stored once more, under other
    /// numbers; and again only if it was restarted once more.
    async fn send_for_good(&self, state: &FileState, set: &FlushSet) -> Result<Sent> {
        let channel = self.core.channels.at(self.core.channels.server_of(state.ino));
        let mut refused_by = None;
        loop {
            let sent = self.send(state, set).await;
            if !matches!(sent, Err(Error::Fs(FsError::Exists))) {
                return sent;
            }
            let run = Some(channel.incarnation());
            if std::mem::replace(&mut refused_by, run) == run {
                return Err(Error::Fs(FsError::Io));
            }
        }
    }

    /// Sends one flush: blocks first, then the requests that name them.
    async fn send(&self, state: &FileState, set: &FlushSet) -> Result<Sent> {
        until_made(state).await;
        if state.lock().lost {
            return Err(Error::SessionLost);
        }
        let cred = Arc::clone(&set.writer);
        let plan = self.plan(set);
        let blocks: Vec<BlockId> = plan.puts.iter().map(|(block, _)| *block).collect();
        let sent = self.send_plan(state, set, plan, &cred).await;
        if sent.is_err() {
            self.give_up_blocks(&cred, state.ino, blocks);
        }
        sent
    }

    async fn send_plan(
        &self,
        state: &FileState,
        set: &FlushSet,
        plan: Plan,
        cred: &Arc<Cred>,
    ) -> Result<Sent> {
        let began = self.core.files.stamp();
        let brings = self.may_bring(&plan);
        let Plan { puts, requests: planned, .. } = plan;
        let blocks = if brings {
            self.bring(puts)
        } else {
            let puts = puts.into_iter();
            let puts = puts.map(|(block, data)| self.put_block(cred, state.ino, block, data));
            stream::iter(puts).buffer_unordered(PUTS_IN_FLIGHT).try_collect::<()>().await?;
            Vec::new()
        };

        let mut attr = None;
        let mut sets = false;
        let mut requests = planned.iter().peekable();
        while let Some((chunks, end)) = requests.next() {
            let last = requests.peek().is_none();
            let end = if last { set.end } else { *end };
            let file = state.lock().file.clone();
            let (chunks, at, clear_set_id) = (chunks.clone(), Some(set.at), set.clear_set_id);
            // There is one request if it brings blocks.
            let blocks = blocks.clone();
            let write = Write { file, chunks, end, at, clear_set_id, set: None, blocks };
            self.core.may_write(cred.uid, state.ino, began)?;
            if set.set.is_some() && last {
                set.set_sent.store(true, Ordering::Relaxed);
                let changed = Write { set: set.set, ..write.clone() };
                match self.send_write(state, cred, changed).await {
                    // The change may be what was refused.
                    Err(Error::Fs(_)) => set.set_sent.store(false, Ordering::Relaxed),
                    written => {
                        (attr, sets) = (Some(written?), true);
                        continue;
                    }
                }
                self.core.may_write(cred.uid, state.ino, began)?;
            }
            attr = Some(self.send_write(state, cred, write).await?);
        }
        let written = planned.into_iter().flat_map(|(chunks, _)| chunks).collect();
        let attr = attr.expect("a flush has at least one chunk, so it made a request");
        Ok(Sent { attr, written, set: sets })
    }

    /// Whether the only request of a flush brings its blocks, in place of a request for each.
    fn may_bring(&self, plan: &Plan) -> bool {
        let bytes: usize = plan.puts.iter().map(|(_, data)| data.len()).sum();
        let chunks = plan.requests.iter().flat_map(|(chunks, _)| chunks);
        let slices: usize = chunks.map(|chunk| chunk.slices.len()).sum();
        let few = plan.puts.len() <= WRITE_BLOCKS_MAX
            && slices <= SLICES_A_WRITE_MAX
            && bytes <= WRITE_BLOCKS_BYTES_MAX
            && plan.bytes <= EMBEDDED_BYTES_A_WRITE_MAX;
        few && plan.requests.len() == 1 && self.core.files.io.is_by_server()
    }

    async fn send_write(&self, state: &FileState, cred: &Cred, write: Write) -> Result<Attr> {
        let home = write.file.dir.home;
        let held = {
            let inner = state.lock();
            let sets = write.set.is_some();
            let at = if sets { write.at.max(Some(inner.held_at)) } else { write.at };
            inner.held.map(|dir| Held { dir: Some(dir), at, ino: None, wants: false })
        };
        if let Some(held) = held {
            let request = Request::Write(write.clone());
            match self.core.call(cred, home, request, Stand::on(held)).await {
                // The file is there: what was written is not lost with the directory.
                Err(Failure::NotHeld) => state.lock().held = None,
                written => return written_attr(written),
            }
        }
        written_attr(self.core.call(cred, home, Request::Write(write), Stand::NONE).await)
    }

    /// Decides what becomes a block and what travels in which request.
    pub(super) fn plan(&self, set: &FlushSet) -> Plan {
        let welcome = self.welcome();
        // A small file is kept with its metadata. Of others only short pieces are, which would be
        // rewritten as blocks otherwise.
        let small_max = welcome.fs.inline_bytes_max;
        let is_small = set.size <= u64::from(small_max);
        let embedded_max = if is_small { small_max } else { small_max.min(INLINE_BYTES_MAX) };
        let embedded_max = embedded_max as usize;
        let mut plan = Plan { puts: Vec::new(), requests: Vec::new(), bytes: 0 };
        let block = |plan: &mut Plan, data: Bytes| {
            let id = BlockId::new(welcome.session, self.core.files.next_block());
            let block_bytes = u32::try_from(data.len()).expect("a block lies within a chunk");
            plan.puts.push((id, data));
            BlockPart { block: id, block_bytes, offset: 0, ticket: 0 }
        };
        for (chunk, pieces) in &set.chunks {
            let several = pieces.len() > SLICES_A_WRITE_MAX;
            // A block is named by one request.
            for pieces in pieces.chunks(SLICES_A_WRITE_MAX) {
                if several {
                    plan.end_request();
                }
                let small = |piece: &&Piece| piece.data.len() <= embedded_max;
                let small_bytes: usize =
                    pieces.iter().filter(small).map(|piece| piece.data.len()).sum();
                let mut packed = (small_bytes > PACKED_BYTES_MIN).then(|| {
                    let mut all = BytesMut::with_capacity(small_bytes);
                    let small = pieces.iter().filter(small);
                    small.for_each(|piece| all.extend_from_slice(&piece.data));
                    block(&mut plan, all.freeze())
                });
                let mut slices = Vec::with_capacity(pieces.len());
                let mut embedded = 0;
                for piece in pieces {
                    let len = u32::try_from(piece.data.len()).expect("a piece lies within a chunk");
                    let source = if !small(&piece) {
                        SliceSource::Block(block(&mut plan, piece.data.clone()))
                    } else if let Some(part) = &mut packed {
                        let here = *part;
                        part.offset += len;
                        SliceSource::Block(here)
                    } else {
                        embedded += piece.data.len();
                        SliceSource::Embedded(piece.data.clone())
                    };
                    slices.push(Slice { start: piece.start, len, source });
                }
                plan.add(ChunkSlices { chunk: *chunk, slices }, embedded);
            }
        }
        plan
    }

    /// Keeps the size of an open file current: of attributes that are doubtful, asks.
    async fn learn_size(&self, open: &Arc<OpenFile>) -> Result<()> {
        if open.state.lock().doubtful {
            self.fetch_map(open, 0).await?;
        }
        Ok(())
    }
}

/// The failure of a flush that is reported: a lost session, else a loss of what was answered, also
/// where that is why something could not be sent, else the error of sending.
fn worst(unsent: Option<Error>, forgotten: impl FnOnce() -> Result<()>) -> Result<()> {
    if unsent == Some(Error::SessionLost) {
        return Err(Error::SessionLost);
    }
    forgotten()?;
    unsent.map_or(Ok(()), Err)
}

fn written_attr(written: Result<Done, Failure>) -> Result<Attr> {
    match written.map_err(Failure::by_handle)?.reply {
        Reply::Written(written) => Ok(written.attr),
        _ => Err(unexpected()),
    }
}

/// Returns when the server has the file, or never will.
async fn until_made(state: &FileState) {
    loop {
        let made = state.flushed.notified();
        if !state.lock().is_unmade {
            return;
        }
        made.await;
    }
}

/// Waits until everything up to `count` was sent, or has failed.
async fn wait_sent(state: &FileState, count: u64) {
    loop {
        let flushed = state.flushed.notified();
        if state.lock().has_sent(count) {
            return;
        }
        flushed.await;
    }
}

/// Chunks of a request, and where the last of them ends in the file.
type Planned = (Vec<ChunkSlices>, u64);

/// How a flush is sent.
pub(super) struct Plan {
    pub(super) puts: Vec<(BlockId, Bytes)>,
    pub(super) requests: Vec<Planned>,
    /// Number of bytes that the last request carries itself.
    bytes: usize,
}

impl Plan {
    /// Ends the last request: the next chunk goes into a new one.
    fn end_request(&mut self) {
        self.bytes = usize::MAX / 2;
    }

    fn add(&mut self, chunk: ChunkSlices, embedded: usize) {
        let last = chunk.slices.last().map_or(0, |slice| u64::from(slice.start + slice.len));
        let end = u64::from(chunk.chunk) * u64::from(base::limits::CHUNK_BYTES) + last;
        match self.requests.last_mut() {
            Some((chunks, chunks_end))
                if chunks.len() < REQUEST_CHUNKS_MAX
                    && self.bytes + embedded <= REQUEST_BYTES_MAX =>
            {
                chunks.push(chunk);
                *chunks_end = end;
                self.bytes += embedded;
            }
            Some(_) | None => {
                self.requests.push((vec![chunk], end));
                self.bytes = embedded;
            }
        }
    }
}
