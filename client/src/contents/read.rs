//! Reading: what was written here over what the server has, and reading ahead.
//!
//! Where the bytes come from is decided at one moment, under the file's lock; blocks are fetched
//! after that. They do not change; one that is gone was replaced by another client, and then the
//! map is asked for anew.

use std::{ops::Range, sync::Arc};

use base::{
    Access, Attr, BlockId, Cred, FsError, Ino, SetAttr, SetTime, Time,
    limits::{CHUNK_BYTES, FILE_BYTES_MAX},
};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use wire::{BlockMap, NodeRef, Reply, Request, SliceSource, data::BlockPart};

use super::{OpenFile, ahead::AHEAD_BYTES_MAX, dirty::by_chunk, slices::are_sound, state::Inner};
use crate::{AccessTimes, Client, Config, Result, error::unexpected};

/// How many chunks are asked for at once; the server answers no more.
const MAP_CHUNKS: u32 = 64;
/// Not every read of a file whose other times are in the future brings its access time up to date.
const TOUCH_PAUSE_MS: u64 = 1000;
/// How often a read starts anew because blocks were replaced under it.
const ATTEMPTS_MAX: u32 = 8;

/// Bytes of a block to be fetched: where they go, from which part, and how many.
struct Fetch {
    at: usize,
    part: BlockPart,
    len: u32,
}

/// Where the bytes of a read come from.
#[derive(Default)]
struct Plan {
    /// How many bytes there are.
    len: usize,
    /// Bytes that are here, each with its place in the result.
    here: Vec<(usize, Bytes)>,
    fetch: Vec<Fetch>,
}

enum Next {
    Read(Plan),
    /// Chunks from this one on must be asked for first.
    Map(u32),
}

impl Inner {
    /// Plans a read, or says what must be known first.
    fn plan(&self, offset: u64, len: u32) -> Next {
        if self.doubtful {
            return Next::Map(u32::try_from(offset / u64::from(CHUNK_BYTES)).unwrap_or(0));
        }
        let end = self.size().min(offset.saturating_add(u64::from(len)));
        let mut plan = Plan::default();
        let Some(len) = end.checked_sub(offset).filter(|len| *len > 0) else {
            return Next::Read(plan);
        };
        plan.len = usize::try_from(len).expect("at most the 32 bits that were asked for");
        for (chunk, range, at) in by_chunk(offset, len) {
            let start = range.start;
            let place = |found: u32| at + (found - start) as usize;
            let mut gaps: SmallVec<[Range<u32>; 4]> = smallvec![range.clone()];
            for (found, bytes) in self.dirty.within(chunk, range) {
                plan.here.push((place(found), Bytes::copy_from_slice(bytes)));
                subtract(&mut gaps, found, bytes.len());
            }
            if gaps.is_empty() {
                continue;
            }
            let flushing = self.flushing.iter().flat_map(|set| &set.chunks);
            for piece in
                flushing.filter(|(number, _)| *number == chunk).flat_map(|(_, pieces)| pieces)
            {
                for gap in gaps.clone() {
                    let from = gap.start.max(piece.start);
                    let piece_end = piece.start as usize + piece.data.len();
                    let to = (gap.end as usize).min(piece_end);
                    if (from as usize) < to {
                        let first = (from - piece.start) as usize;
                        let bytes = piece.data.slice(first..to - piece.start as usize);
                        subtract(&mut gaps, from, bytes.len());
                        plan.here.push((place(from), bytes));
                    }
                }
            }
            if gaps.is_empty() {
                continue;
            }
            if !self.map.knows(chunk) {
                return Next::Map(chunk);
            }
            let Some(view) = self.map.get(chunk) else { continue };
            for slice in gaps.into_iter().flat_map(|gap| view.within(gap)) {
                let at = place(slice.start);
                match slice.source {
                    SliceSource::Embedded(bytes) => plan.here.push((at, bytes)),
                    SliceSource::Block(part) => plan.fetch.push(Fetch { at, part, len: slice.len }),
                    SliceSource::Zeros => {}
                }
            }
        }
        Next::Read(plan)
    }

    /// Up to where the map is known from `from` on: the end of the file, or of `len` bytes, at
    /// most.
    fn known_until(&self, from: u64, len: u64) -> u64 {
        let end = self.size().min(from.saturating_add(len)).max(from);
        let mut chunks = by_chunk(from, end - from);
        let unknown = chunks.find(|(chunk, _, _)| !self.map.knows(*chunk));
        unknown.map_or(end, |(_, _, done)| from + done as u64)
    }

    /// The blocks in a range, as far as they are known.
    fn blocks_in(&self, range: &Range<u64>) -> Vec<(BlockPart, u32)> {
        let mut blocks = Vec::new();
        for (chunk, part, _) in by_chunk(range.start, range.end - range.start) {
            let Some(view) = self.map.get(chunk) else { continue };
            for slice in view.within(part) {
                match slice.source {
                    SliceSource::Block(part) => blocks.push((part, slice.len)),
                    SliceSource::Embedded(_) | SliceSource::Zeros => {}
                }
            }
        }
        blocks
    }
}

/// Takes `len` bytes from `start` out of ranges.
fn subtract(gaps: &mut SmallVec<[Range<u32>; 4]>, start: u32, len: usize) {
    let end = start + u32::try_from(len).expect("it lies within a chunk");
    let mut left = SmallVec::new();
    for gap in gaps.drain(..) {
        let before = gap.start..gap.end.min(start);
        let after = gap.start.max(end)..gap.end;
        left.extend([before, after].into_iter().filter(|rest| rest.start < rest.end));
    }
    *gaps = left;
}

/// Whether `relatime` brings the access time up to date.
fn is_due(when: AccessTimes, attr: &Attr, now: Time) -> bool {
    match when {
        AccessTimes::Relative => {}
        AccessTimes::Always => return true,
        AccessTimes::Never => return false,
    }
    let day_ms = 24 * 60 * 60 * 1000;
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || attr.atime.plus_ms(day_ms) <= now
}

impl Client {
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    pub(crate) async fn read_file(
        &self,
        open: &Arc<OpenFile>,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        if !open.may.includes(Access::READ) {
            return Err(FsError::BadHandle.into());
        }
        if len == 0 || offset >= FILE_BYTES_MAX {
            return Ok(Bytes::new());
        }
        self.note_access(open);
        let mut gone = None;
        let mut times = 0;
        for _ in 0..ATTEMPTS_MAX {
            let (next, ahead) = {
                let inner = open.state.lock();
                inner.check()?;
                let next = inner.plan(offset, len);
                let ahead = match &next {
                    Next::Read(plan) if self.core.files.read_cache.enabled() => {
                        let end = offset + plan.len as u64;
                        let known = inner.known_until(end, 2 * AHEAD_BYTES_MAX);
                        let ahead = open.ahead.lock().note(offset, end, known);
                        inner.blocks_in(&ahead)
                    }
                    Next::Read(_) | Next::Map(_) => Vec::new(),
                };
                (next, ahead)
            };
            match next {
                Next::Map(first) => self.fetch_map(open, first).await?,
                Next::Read(plan) => {
                    match self.fetch((&open.cred, open.state.ino), &plan, ahead).await? {
                        Ok(bytes) => return Ok(bytes),
                        Err(block) => {
                            times = if gone == Some(block) { times + 1 } else { 1 };
                            gone = Some(block);
                        }
                    }
                    open.state.lock().forget_contents();
                }
            }
        }
        let ino = open.state.ino;
        match gone {
            // The server's answer named the block again, after the store did not find it.
            Some(block) if times > 2 => tracing::error!(
                %ino,
                offset,
                %block,
                "a block of a file is missing in the block store, and what it held is lost; `pando fsck` \
                 says what else is"
            ),
            Some(_) | None => {
                tracing::error!(%ino, offset, "contents change faster than they can be read");
            }
        }
        Err(FsError::Io.into())
    }

    /// Fetches what a plan lacks, and starts to read ahead; a block that is gone, if one is.
    async fn fetch(
        &self,
        of: (&Arc<Cred>, Ino),
        plan: &Plan,
        ahead: Vec<(BlockPart, u32)>,
    ) -> Result<std::result::Result<Bytes, BlockId>> {
        if let ([(0, bytes)], []) = (&plan.here[..], &plan.fetch[..])
            && bytes.len() == plan.len
        {
            return Ok(Ok(bytes.clone()));
        }
        if !ahead.is_empty() {
            // The parts that are wanted now go first.
            let now = plan.fetch.iter().map(|fetch| (fetch.part, fetch.len));
            now.chain(ahead).for_each(|(part, len)| self.prefetch_block(of, part, len));
        }
        let fetches = plan.fetch.iter().map(|fetch| self.get_block(of, fetch.part, fetch.len));
        let fetched = futures::future::try_join_all(fetches).await?;
        if let ([fetch], [Some(parts)], []) = (&plan.fetch[..], &fetched[..], &plan.here[..])
            && let [(start, bytes)] = &parts[..]
            && fetch.len as usize == plan.len
        {
            let at = (fetch.part.offset - start) as usize;
            return Ok(Ok(bytes.slice(at..at + plan.len)));
        }
        let mut out = vec![0; plan.len];
        for (fetch, parts) in plan.fetch.iter().zip(fetched) {
            let Some(parts) = parts else { return Ok(Err(fetch.part.block)) };
            let range = fetch.part.offset as usize..(fetch.part.offset + fetch.len) as usize;
            for (start, bytes) in parts {
                let start = start as usize;
                let from = range.start.max(start);
                let to = range.end.min(start + bytes.len());
                if from < to {
                    let at = fetch.at + from - range.start;
                    out[at..at + to - from].copy_from_slice(&bytes[from - start..to - start]);
                }
            }
        }
        for (at, bytes) in &plan.here {
            out[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(Ok(out.into()))
    }

    /// Asks where contents are, from chunk `first` on.
    pub(crate) async fn fetch_map(&self, open: &Arc<OpenFile>, first: u32) -> Result<()> {
        loop {
            let (file, changes) = {
                let inner = open.state.lock();
                inner.check()?;
                (inner.file.clone(), inner.changes)
            };
            let home = file.dir.home;
            let count = MAP_CHUNKS.min(u32::MAX - first).max(1);
            let request = Request::BlockMap(BlockMap { file, first, count });
            let done = self.core.ask(&open.cred, home, request).await?;
            let Reply::BlockMapped(mapped) = done.reply else { return Err(unexpected()) };
            let within = mapped.end > first && mapped.end <= first + count;
            if !within || !are_sound(&mapped.chunks) {
                return Err(unexpected());
            }
            if open.state.lock().learn_map(first, mapped, changes) {
                return Ok(());
            }
        }
    }

    /// The file is read: its access time is kept as `relatime` does, as far as we know its other
    /// times.
    fn note_access(&self, open: &OpenFile) {
        let now = self.core.config.clock.now();
        let mut inner = open.state.lock();
        let attr = inner.attr;
        let just_done =
            inner.touched.is_some_and(|at| at <= now && now < at.plus_ms(TOUCH_PAUSE_MS));
        if just_done || !is_due(self.core.config.access_times, &attr, now) {
            return;
        }
        inner.touched = Some(now);
        inner.attr.atime = now;
        if inner.held.is_some() {
            inner.read_at = Some(now);
            return;
        }
        let node = NodeRef::File(inner.file.clone());
        drop(inner);
        self.touch_later(&open.cred, node, &attr);
    }

    /// The access time that a read brings, if it does.
    pub(crate) fn access_time(&self, attr: &Attr) -> Option<Time> {
        let Config { access_times, clock, .. } = &self.core.config;
        let now = clock.now();
        (is_due(*access_times, attr, now) && !self.read_only()).then_some(now)
    }

    /// Sets a node's access time in the background, if `relatime` would.
    pub(crate) fn touch_later(&self, cred: &Cred, node: NodeRef, attr: &Attr) {
        let Config { access_times, clock, .. } = &self.core.config;
        if is_due(*access_times, attr, clock.now()) && !self.read_only() {
            self.touch(cred, node, SetTime::Now);
        }
    }

    /// Sets a node's access time in the background.
    pub(crate) fn touch(&self, cred: &Cred, node: NodeRef, at: SetTime) {
        let (client, cred) = (self.clone(), cred.clone());
        self.core.spawn(async move { client.touch_now(&cred, node, at).await });
    }

    /// Sets a node's access time.
    pub(crate) async fn touch_now(&self, cred: &Cred, node: NodeRef, at: SetTime) {
        let set = SetAttr { atime: Some(at), access_only: true, ..SetAttr::default() };
        let home = node.home();
        let request = Request::Setattr(wire::Setattr { node, set });
        if let Err(error) = self.core.ask(cred, home, request).await {
            tracing::debug!(%error, "an access time was not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_time_is_brought_up_to_date_after_a_day() {
        let at = |ms| Time { sec: 1_000_000, nsec: 0 }.plus_ms(ms);
        let attr = |atime, changed| {
            let (atime, mtime, ctime) = (at(atime), at(changed), at(changed));
            Attr { atime, mtime, ctime, ..Attr::blank(Ino(1), base::FileKind::File) }
        };
        let relative = |attr, now| is_due(AccessTimes::Relative, &attr, at(now));
        assert!(!relative(attr(1, 0), 86_400_000));
        assert!(relative(attr(1, 0), 86_400_001));
        assert!(relative(attr(1, 1), 2), "not newer than the last change");
        assert!(is_due(AccessTimes::Always, &attr(2, 1), at(3)));
        assert!(!is_due(AccessTimes::Never, &attr(1, 1), at(86_400_001)));
    }
}
