//! Blocks: the store's list compared with what chunks name, and blocks that can be removed.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base::{BlockId, HashMap, HashSet, Ino, SessionId, ShardId};
use futures::StreamExt as _;
use store::{Blocks, BlocksError, Snapshot};

use super::{fix::Fix, report::Report};
use crate::{
    error::describe,
    reclaim::notes::chunk_of,
    record::{inode::blocks_of, key},
    server::Shared,
};

/// Remains of unfinished puts are removed when they are this old.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);

/// The blocks of the store, listed before the snapshot was taken, and which of them chunks name.
#[derive(Default)]
pub(super) struct Listing {
    listed: HashMap<BlockId, Listed>,
    /// Blocks that chunks name and that were not listed: put since, or missing.
    unlisted: BTreeMap<BlockId, Unlisted>,
    /// Blocks that are noted to be deleted.
    garbage: HashSet<BlockId>,
}

struct Listed {
    /// Size of the block, where the store can tell.
    bytes: Option<u32>,
    named: bool,
}

struct Unlisted {
    bytes: u32,
    by: (Ino, u32),
}

/// A block that a chunk names, and that cannot be read.
pub(super) struct Missing {
    block: BlockId,
    ino: Ino,
    chunk: u32,
    /// Damage of the block, in words.
    wrong: String,
    /// Whether the block will never be readable.
    lost: bool,
}

/// Inodes that lost contents.
pub(super) fn inodes(missing: &[Missing]) -> HashSet<Ino> {
    missing.iter().map(|missing| missing.ino).collect()
}

/// Reports missing blocks, by the paths of the files where they are known.
pub(super) fn tell(missing: Vec<Missing>, names: &HashMap<Ino, String>, report: &Report) {
    for Missing { block, ino, chunk, wrong, lost } in missing {
        let path = names.get(&ino).map_or_else(String::new, |path| format!("{path}: "));
        let line = format!("{path}chunk {chunk} of inode {ino}: block {block} {wrong}");
        if lost {
            report.find_to_fix(line, Fix::Lost(ino, chunk, block));
        } else {
            report.find(line);
        }
    }
}

impl Listing {
    /// Lists all blocks of the store.
    pub(super) async fn of(blocks: &Blocks, report: &Report) -> Result<Listing, String> {
        let mut listing = Listing::default();
        let mut stream = blocks.list();
        while let Some(block) = stream.next().await {
            let block = block.map_err(|error| describe(&error))?;
            listing.listed.insert(block.id, Listed { bytes: block.bytes, named: false });
            if report.is_cancelled() {
                return Err("it was cancelled".into());
            }
        }
        Ok(listing)
    }

    /// Notes that a block is to be deleted.
    pub(super) fn note_garbage(&mut self, block: BlockId) {
        self.garbage.insert(block);
    }

    /// Notes that a chunk names a block. Returns what is wrong with that, and how to repair it.
    pub(super) fn name(
        &mut self,
        block: BlockId,
        bytes: u32,
        by: (Ino, u32),
    ) -> Option<(String, Option<Fix>)> {
        let (ino, chunk) = by;
        if self.garbage.contains(&block) {
            return Some(("is noted to be deleted".into(), Some(Fix::Named(ino, chunk, block))));
        }
        let Some(listed) = self.listed.get_mut(&block) else {
            let twice = self.unlisted.insert(block, Unlisted { bytes, by }).is_some();
            return twice.then(|| ("is named twice".into(), None));
        };
        if let Some(found) = listed.bytes.filter(|found| *found != bytes) {
            let wrong = format!("has {found} bytes, not {bytes}");
            return Some((wrong, Some(Fix::Lost(ino, chunk, block))));
        }
        std::mem::replace(&mut listed.named, true).then(|| ("is named twice".into(), None))
    }

    /// Asks the store for blocks that were not listed; returns those that are missing or damaged.
    pub(super) async fn missing(&self, shared: &Shared, report: &Report) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (block, Unlisted { bytes, by: (ino, chunk) }) in &self.unlisted {
            if report.is_cancelled() {
                break;
            }
            // A block that cannot be read now may still be there, so it is not given up.
            let (wrong, lost) = match shared.blocks.get(*block, *bytes, 0..1.min(*bytes)).await {
                Ok(_) => continue,
                Err(BlocksError::Missing { .. }) => ("is missing".to_owned(), true),
                Err(error @ BlocksError::Corrupt { .. }) => (describe(&error), true),
                Err(error) => (describe(&error), false),
            };
            // The block may have been replaced, and deleted, since the snapshot.
            if is_named(shared, *ino, *chunk, *block) {
                missing.push(Missing { block: *block, ino: *ino, chunk: *chunk, wrong, lost });
            }
        }
        missing
    }

    /// Counts blocks that nothing names. With `gc`, removes those that no session can name any
    /// more.
    pub(super) async fn collect(
        self,
        shared: &Shared,
        report: &Arc<Report>,
        alive: &HashSet<SessionId>,
        gc: bool,
    ) -> Result<(), String> {
        let left = self.left(alive);
        Report::count_all(&report.blocks_unreferenced, left.len());
        if !gc {
            return Ok(());
        }
        let left = unnamed(shared, report, left).await?;
        remove(shared, report, left).await
    }

    /// Like [`Listing::collect`], without a walk that has seen what chunks name: the chunks are
    /// searched here.
    pub(super) async fn collect_alone(
        self,
        shared: &Shared,
        report: &Arc<Report>,
        alive: &HashSet<SessionId>,
    ) -> Result<(), String> {
        let left = unnamed(shared, report, self.left(alive)).await?;
        Report::count_all(&report.blocks_unreferenced, left.len());
        remove(shared, report, left).await
    }

    /// Blocks that nothing is known to name, and that no session is left to name.
    fn left(self, alive: &HashSet<SessionId>) -> HashSet<BlockId> {
        let Listing { listed, garbage, .. } = self;
        let unnamed = listed.into_iter().filter(|(_, listed)| !listed.named);
        let goes = |block: &BlockId| !garbage.contains(block) && !alive.contains(&block.session());
        unnamed.map(|(block, _)| block).filter(goes).collect()
    }
}

/// Blocks among `blocks` that nothing names by now, and that are not noted to be deleted.
///
/// Race: a request of a session that was just ending may have been in progress when the snapshot of
/// the walk was taken. It has long been written when this snapshot is taken.
async fn unnamed(
    shared: &Shared,
    report: &Arc<Report>,
    mut blocks: HashSet<BlockId>,
) -> Result<HashSet<BlockId>, String> {
    let (snapshot, shards) = (shared.engine.snapshot(), shared.config.shards);
    let searching = Arc::clone(report);
    let searched = shared.options.offload.run(move || {
        let damaged = drop_named(snapshot.as_ref(), shards, &mut blocks, &searching)?;
        Ok(damaged.map_or(Ok(blocks), Err))
    });
    let unnamed = searched.await.map_err(|error: store::Error| describe(&error))?;
    if report.is_cancelled() {
        return Err("it was cancelled".into());
    }
    unnamed.map_err(|ino| {
        format!("what a chunk of inode {ino} names cannot be read: no block is removed")
    })
}

async fn remove(shared: &Shared, report: &Report, blocks: HashSet<BlockId>) -> Result<(), String> {
    let mut left: Vec<_> = blocks.into_iter().collect();
    left.sort_unstable();
    for block in left {
        if report.is_cancelled() {
            return Err("it was cancelled".into());
        }
        if shared.session(block.session()).is_some() {
            continue;
        }
        shared.blocks.delete(block).await.map_err(|error| describe(&error))?;
        Report::count(&report.blocks_removed);
    }
    sweep(shared).await
}

/// Whether a chunk names a block now.
fn is_named(shared: &Shared, ino: Ino, chunk: u32, block: BlockId) -> bool {
    let value = shared.engine.get(&key::chunk(ino, chunk)).ok().flatten();
    let record = value.and_then(|value| chunk_of(&value).ok());
    record.is_some_and(|record| blocks_of(&record.slices).any(|named| named == block))
}

/// Drops from `blocks` those that are named, or noted to be deleted. Returns the inode of a chunk
/// that cannot be read, which may name any of them.
fn drop_named(
    snapshot: &dyn Snapshot,
    shards: u16,
    blocks: &mut HashSet<BlockId>,
    report: &Report,
) -> store::Result<Option<Ino>> {
    let mut damaged = None;
    for shard in (0..shards).map(ShardId) {
        let chunks = key::kind(shard, b'B');
        snapshot.scan(&chunks, &key::end_of(&chunks), &mut |key, value| {
            match chunk_of(value) {
                Ok(record) => blocks_of(&record.slices).for_each(|block| {
                    blocks.remove(&block);
                }),
                Err(_) => damaged = Some(key::parse_ino(key).unwrap_or(Ino(0))),
            }
            let enough = blocks.is_empty() || damaged.is_some() || report.is_cancelled();
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    let garbage = key::works(b'G');
    snapshot.scan(&garbage, &key::end_of(&garbage), &mut |key, _| {
        if let Some(block) = key::parse_garbage(key) {
            blocks.remove(&block);
        }
        ControlFlow::Continue(())
    })?;
    Ok(damaged)
}

/// Removes remains of puts that never ended.
async fn sweep(shared: &Shared) -> Result<(), String> {
    let now = shared.clock.now();
    let since_epoch = Duration::new(u64::try_from(now.sec).unwrap_or_default(), now.nsec);
    let Some(before) = since_epoch.checked_sub(UNFINISHED_AGE) else { return Ok(()) };
    let before = SystemTime::UNIX_EPOCH + before;
    shared.blocks.sweep(before).await.map(drop).map_err(|error| describe(&error))
}
