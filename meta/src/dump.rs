//! `dump`: all records that make up the tree, as of one moment, for whoever keeps a copy.
//!
//! An administrator starts it, and then asks for one page after the other. The records come from a snapshot of
//! the engine, in key order, in the bytes that they are stored in. Left out is what belongs to this server and
//! its clients and not to the tree: sessions, answers, tokens' key, notes of work, files without a name. One
//! dump is made at a time; one that nobody asks about for five minutes is dropped.
//!
//! Always true: while a dump is made no block is deleted, so the contents that its records name can be read.

mod file;
mod load;

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use base::{BlockId, FsError, HashSet, Ino, ShardId};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Snapshot;
use tokio::time::Instant;
use wire::{DumpNext, DumpPage, DumpStarted};

pub use file::{DUMP_FRAME_BYTES_MAX, DUMP_OPENING, DumpError, Frame, Frames, Header, Trailer};
pub use load::{LoadError, Loader};

use crate::{
    error::Result,
    reclaim::chunk_of,
    record::{
        QuotaId, Reclaim, Record as _, Slot,
        inode::blocks_with_bytes,
        key::{self, Part, UsagePart},
    },
    server::Shared,
};

/// After all keys.
const END: [u8; 8] = [u8::MAX; 8];
/// A page ends when it has so many bytes.
const PAGE_BYTES: usize = 512 << 10;
/// Or when so many records were looked at.
const PAGE_RECORDS: usize = 16 << 10;
/// Or names so many blocks: whoever copies them asks for the next page before our patience ends.
const PAGE_BLOCKS: usize = 64;
/// A dump that nobody asks about for so long is dropped.
const PATIENCE: Duration = Duration::from_secs(300);

/// The dump that is being made.
#[derive(Default)]
pub(crate) struct Dumps {
    current: Mutex<Option<Dump>>,
}

struct Dump {
    number: u64,
    heard: Instant,
    source: Arc<Source>,
}

/// A moment of the file system.
struct Source {
    snapshot: Mutex<Box<dyn Snapshot>>,
    /// Inodes that are no part of the tree any more.
    left_out: HashSet<Ino>,
}

impl Dumps {
    /// Whether blocks must stay.
    pub(crate) fn is_making(&self) -> bool {
        self.current.lock().is_some()
    }

    /// Whether this dump is waited for no more; then it is dropped.
    fn is_over(&self, number: u64) -> bool {
        let mut current = self.current.lock();
        let Some(dump) = current.as_ref().filter(|dump| dump.number == number) else { return true };
        let over = dump.heard.elapsed() >= PATIENCE;
        if over {
            *current = None;
        }
        over
    }

    fn end(&self, number: u64) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|dump| dump.number == number) {
            *current = None;
        }
    }
}

/// Takes the moment. `Busy` when another dump is being made.
pub(crate) fn start(shared: &Shared) -> Result<DumpStarted> {
    let mut current = shared.dumps.current.lock();
    if current.is_some() {
        return Err(FsError::Busy.into());
    }
    let snapshot = shared.engine.snapshot();
    let left_out = left_out(snapshot.as_ref(), shared.config.shards)?;
    let source = Arc::new(Source { snapshot: Mutex::new(snapshot), left_out });
    let number = shared.random.next();
    *current = Some(Dump { number, heard: Instant::now(), source });
    let header = Header::of(&shared.config, shared.clock.now());
    let records_estimated = shared.engine.stats().keys_estimated;
    Ok(DumpStarted { dump: number, header: header.to_bytes(), records_estimated })
}

/// Waits until a dump is over or forgotten, so that blocks can be deleted again.
pub(crate) async fn watch(shared: &Shared, number: u64) {
    while !shared.dumps.is_over(number) {
        tokio::time::sleep(PATIENCE).await;
    }
    shared.backlog.sweep();
}

/// The next page.
pub(crate) async fn next(shared: &Shared, req: DumpNext) -> Result<DumpPage> {
    let source = {
        let mut current = shared.dumps.current.lock();
        let dump = current.as_mut().filter(|dump| dump.number == req.dump);
        let dump = dump.ok_or(FsError::NotFound)?;
        dump.heard = Instant::now();
        dump.source.clone()
    };
    if req.end {
        shared.dumps.end(req.dump);
        shared.backlog.sweep();
        return Ok(DumpPage { records: Vec::new(), blocks: Vec::new(), next: None });
    }
    Ok(shared.options.offload.run(move || source.page(&req.from)).await?)
}

/// Inodes without a name, and contents without an inode.
fn left_out(snapshot: &dyn Snapshot, shards: u16) -> store::Result<HashSet<Ino>> {
    let mut found = HashSet::default();
    for shard in (0..shards).map(ShardId) {
        let prefix = key::kind(shard, b'R');
        snapshot.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
            let reclaim = Reclaim::from_record(&Bytes::copy_from_slice(value));
            if let (Some(ino), Ok(reclaim)) = (key::parse_ino(key), reclaim) {
                let gone = reclaim.kind.chunks_from().is_some() || is_orphan(snapshot, ino);
                if gone {
                    found.insert(ino);
                }
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(found)
}

fn is_orphan(snapshot: &dyn Snapshot, ino: Ino) -> bool {
    let slot = snapshot.get(&key::inode(ino, Part::Main)).ok().flatten();
    let slot = slot.and_then(|slot| Slot::from_record(&slot).ok());
    matches!(slot, Some(Slot::Inode(inode)) if inode.nlink == 0)
}

impl Source {
    fn page(&self, from: &[u8]) -> store::Result<DumpPage> {
        let mut page = DumpPage { records: Vec::new(), blocks: Vec::new(), next: None };
        if from >= &END[..] {
            // Whoever asks may send anything.
            return Ok(page);
        }
        let (mut bytes, mut looked_at) = (0, 0);
        self.snapshot.lock().scan(from, &END, &mut |key, value| {
            let full = bytes >= PAGE_BYTES || page.blocks.len() >= PAGE_BLOCKS;
            if full || looked_at >= PAGE_RECORDS {
                page.next = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if self.is_part(key) {
                bytes += key.len() + value.len() + 32;
                if key.get(2) == Some(&b'B') {
                    page.blocks.extend(blocks(value));
                }
                page.records.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }

    /// Whether a record is a part of the tree.
    fn is_part(&self, key: &[u8]) -> bool {
        match key.get(2) {
            Some(b'N' | b'D' | b'C' | b'O') => true,
            // All three begin with the inode.
            Some(b'I' | b'B' | b'T') => {
                key::parse_ino(key).is_none_or(|ino| !self.left_out.contains(&ino))
            }
            // What is charged is added up anew when it is loaded.
            Some(b'A') => matches!(key::parse_usage(key), Some((QuotaId(_), UsagePart::Root))),
            _ => false,
        }
    }
}

/// Blocks that a chunk names, each once.
fn blocks(chunk: &[u8]) -> Vec<(BlockId, u32)> {
    let mut found: Vec<(BlockId, u32)> = match chunk_of(chunk) {
        Ok(record) => blocks_with_bytes(&record.slices).collect(),
        Err(_) => Vec::new(),
    };
    found.sort_unstable();
    found.dedup();
    found
}
