//! `dump`: all records that make up the tree, as of one moment, for a backup.
//!
//! An administrator starts a dump, and then asks for one page after the other. The records come
//! from a snapshot of the engine, in key order, in the bytes that they are stored in. Records of
//! this server and its clients are left out: sessions, answers, the tokens' key, notes of work and
//! files without a name. Records of transactions and handoffs are left out too, as these are over
//! in the snapshot. One dump is made at a time. A dump that nobody asks about for five minutes is
//! dropped.
//!
//! Each server of a cluster dumps its shards, in pages that end with a shard, so that the client
//! can put them together in key order. The coordinator also gives the accounting roots and the
//! settings, which come last. [`pause`] is how all servers take the same moment.
//!
//! Always true: while a dump is made no block is deleted, so the contents that its records name can
//! be read.

mod file;
mod load;
pub(crate) mod made;
pub(crate) mod pause;
pub(crate) mod pauses;

use std::{
    ops::{ControlFlow, Range},
    sync::{Arc, OnceLock},
};

use base::{BlockId, FsError, HashSet, Ino, ShardId};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Snapshot;
use tokio::time::Instant;
use wire::{DumpNext, DumpPage, DumpStarted};

pub use file::{
    DUMP_FRAME_BYTES_MAX, DUMP_OPENING, DumpError, FirstHeader, Frame, Frames, Header, KeyLayout,
    Trailer,
};
pub use load::{LoadError, Loader};

use crate::{
    error::Result,
    reclaim::notes::chunk_of,
    record::{
        Key, QuotaId, Reclaim, Record as _, Slot,
        inode::blocks_with_bytes,
        key::{self, Part, UsagePart},
    },
    server::Shared,
};
use made::{Dump, PATIENCE, Source};

/// A key after all others.
const END: [u8; 8] = [u8::MAX; 8];
/// A page ends when it has this many bytes.
const PAGE_BYTES: usize = 512 << 10;
/// A page also ends when this many records were looked at.
const PAGE_RECORDS: usize = 16 << 10;
/// A page also ends when it names this many blocks, so that a client that copies them asks for the
/// next page within [`PATIENCE`].
const PAGE_BLOCKS: usize = 64;

/// Takes a snapshot. `Busy` when another dump is being made.
pub(crate) fn start(shared: &Shared, number: u64) -> Result<DumpStarted> {
    let mut current = shared.dumps.current.lock();
    match &*current {
        Some(dump) if dump.started.dump == number => return Ok(dump.started.clone()),
        Some(_) => return Err(FsError::Busy.into()),
        None => {}
    }
    let own = shared.cluster.as_ref().map(|cluster| {
        own(shared.config.shards, |shard| cluster.owns(shard), cluster.coordinates())
    });
    let snapshot = Mutex::new(shared.engine.snapshot());
    let source = Arc::new(Source { snapshot, own, left_out: OnceLock::new() });
    let header = Header::of(&shared.config, shared.clock.now()).to_bytes();
    let records_estimated = shared.engine.stats().keys_estimated;
    let started = DumpStarted { dump: number, header, records_estimated };
    let dump = Dump { started: started.clone(), heard: Instant::now(), stable: false, source };
    *current = Some(dump);
    Ok(started)
}

/// Waits until a dump is over or dropped, so that blocks can be deleted again.
pub(crate) async fn watch(shared: &Shared, number: u64) {
    while !shared.dumps.is_over(number) {
        tokio::time::sleep(PATIENCE).await;
    }
    shared.backlog.sweep();
}

/// Returns the next page.
pub(crate) async fn next(shared: &Shared, req: DumpNext) -> Result<DumpPage> {
    let heard = || -> Result<(Arc<Source>, bool)> {
        let mut current = shared.dumps.current.lock();
        let dump = current.as_mut().filter(|dump| dump.started.dump == req.dump);
        let dump = dump.ok_or(FsError::NotFound)?;
        dump.heard = Instant::now();
        Ok((dump.source.clone(), dump.stable))
    };
    if req.end {
        heard()?;
        shared.dumps.end(req.dump);
        shared.backlog.sweep();
        return Ok(DumpPage { records: Vec::new(), blocks: Vec::new(), next: None });
    }
    let (source, stable) = heard()?;
    if !stable {
        // Blocks must be stable before a backup relies on them.
        shared.sync.wait().await;
        let mut current = shared.dumps.current.lock();
        if let Some(dump) = current.as_mut().filter(|dump| dump.started.dump == req.dump) {
            dump.stable = true;
        }
    }
    Ok(shared.options.offload.run(move || source.page(&req.from)).await?)
}

/// Key ranges of a server of several: shards that it owns, each by itself, as those of other
/// servers lie in between. Settings and accounting roots are the coordinator's.
fn own(shards: u16, has: impl Fn(ShardId) -> bool, coordinates: bool) -> Vec<Range<Key>> {
    let had = || (0..shards).map(ShardId).filter(|shard| has(*shard));
    let of_users = had().map(key::shard);
    let counters = had().map(key::counter);
    let tails = had().map(key::tails);
    let own = [b'A', b'O'].into_iter().filter(|_| coordinates).map(key::own);
    let all = of_users.chain(counters).chain(tails).chain(own);
    all.map(|prefix| prefix.clone()..key::end_of(&prefix)).collect()
}

/// Inodes without a name, and contents without an inode.
fn left_out(snapshot: &dyn Snapshot) -> store::Result<HashSet<Ino>> {
    let mut found = HashSet::default();
    let prefix = key::works(b'R');
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
        // The client may send any bytes.
        let Some((from, end, then)) = self.part(from).filter(|_| from < &END[..]) else {
            return Ok(page);
        };
        page.next = then;
        let snapshot = self.snapshot.lock();
        let left_out = match self.left_out.get() {
            Some(found) => found,
            None => {
                let found = left_out(snapshot.as_ref())?;
                self.left_out.get_or_init(|| found)
            }
        };
        let (mut bytes, mut looked_at) = (0, 0);
        snapshot.scan(&from, &end, &mut |key, value| {
            let full = bytes >= PAGE_BYTES || page.blocks.len() >= PAGE_BLOCKS;
            if full || looked_at >= PAGE_RECORDS {
                page.next = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if is_part(key, left_out) {
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

    /// The range that a page beginning at `from` belongs to: its start, its end, and the start of
    /// the page after it. The range of a single server is everything, that of a server of several a
    /// shard.
    fn part(&self, from: &[u8]) -> Option<(Bytes, Bytes, Option<Bytes>)> {
        let Some(own) = &self.own else {
            return Some((Bytes::copy_from_slice(from), Bytes::from_static(&END), None));
        };
        let at = own.partition_point(|part| part.end[..] <= *from);
        let part = own.get(at)?;
        let bytes = Bytes::copy_from_slice;
        let next = own.get(at + 1).map(|part| bytes(&part.start));
        Some((bytes(from).max(bytes(&part.start)), bytes(&part.end), next))
    }
}

/// Whether a record is part of the dump.
fn is_part(key: &[u8], left_out: &HashSet<Ino>) -> bool {
    match key.get(2) {
        Some(b'N' | b'D' | b'C' | b'O') => true,
        // Keys of all three kinds begin with the inode.
        Some(b'I' | b'B' | b'T') => key::parse_ino(key).is_none_or(|ino| !left_out.contains(&ino)),
        // Charges are added up anew when the dump is loaded.
        Some(b'A') => matches!(key::parse_usage(key), Some((QuotaId(_), UsagePart::Root))),
        _ => false,
    }
}

/// Blocks that a chunk names, each once.
pub(crate) fn blocks(chunk: &[u8]) -> Vec<(BlockId, u32)> {
    let mut found: Vec<(BlockId, u32)> = match chunk_of(chunk) {
        Ok(record) => blocks_with_bytes(&record.slices).collect(),
        Err(_) => Vec::new(),
    };
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use store::{Batch, Engine as _, MemoryEngine};

    use super::*;

    fn pages(own: Option<Vec<Range<Key>>>) -> Vec<String> {
        let engine = MemoryEngine::new();
        let mut batch = Batch::default();
        for shard in (0..4).map(ShardId) {
            batch.put(&key::content(shard, base::DirId(300), 0, Part::Main), b"");
            batch.put(&key::counter(shard), b"");
            batch.put(&key::usage(QuotaId(Ino::new(shard, 9)), UsagePart::Root), b"");
        }
        batch.put(&key::session(base::SessionId(9)), b"");
        engine.write(batch).unwrap();
        let snapshot = Mutex::new(engine.snapshot());
        let source = Source { snapshot, own, left_out: OnceLock::new() };
        let (mut from, mut pages) = (Some(Bytes::new()), Vec::new());
        let named = |(key, _): &(Bytes, Bytes)| match key::shard_of(key) {
            ShardId::SERVER => char::from(key[2]).to_string(),
            shard => format!("{}{}", char::from(key[2]), shard.0),
        };
        while let Some(at) = from {
            let page = source.page(&at).unwrap();
            pages.push(page.records.iter().map(named).collect::<Vec<_>>().join(" "));
            from = page.next;
        }
        for beyond in [&END[..], &[u8::MAX; 20]] {
            let page = source.page(beyond).unwrap();
            assert!(page.records.is_empty() && page.next.is_none());
        }
        pages.retain(|page| !page.is_empty());
        pages
    }

    #[test]
    fn one_of_several_servers_gives_its_shards_each_by_itself() {
        assert_eq!(pages(None), ["D0 D1 D2 D3 C0 C1 C2 C3 A A A A"]);
        let has = |shard: ShardId| [1, 3].contains(&shard.0);
        assert_eq!(pages(Some(own(4, has, false))), ["D1", "D3", "C1", "C3"]);
        // The coordinator has the roots of all.
        assert_eq!(pages(Some(own(4, has, true))), ["D1", "D3", "C1", "C3", "A A A A"]);
        assert!(pages(Some(Vec::new())).is_empty());
    }
}
