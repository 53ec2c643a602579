//! The pages of records that servers pull from one that has stopped.

use std::ops::ControlFlow;

use base::ShardId;
use bytes::Bytes;
use wire::{ShardBlock, ShardPage, ShardPull};

use crate::{
    dump,
    error::{Fault, Result},
    problem::Problem,
    record::key::{self, Key, Zone},
    server::Shared,
};

/// Bytes of records after which a page ends.
const PAGE_BYTES: usize = 512 << 10;
/// Number of named blocks after which a page ends.
const PAGE_BLOCKS: usize = 64;

/// The next page of records of shards that leave this server, which has stopped.
pub(crate) fn pull(shared: &Shared, req: &ShardPull) -> Result<ShardPage> {
    for_plan(shared, req.plan)?;
    let mut page = ShardPage { records: Vec::new(), blocks: Vec::new(), next: None };
    let (mut bytes, with_blocks) = (0, shared.config.has_local_blocks());
    for (from, to) in ranges(&req.shards) {
        let from = if req.from[..] > from[..] { Key::from_slice(&req.from) } else { from };
        if from >= to || page.next.is_some() {
            continue;
        }
        let mut each = |key: &[u8], value: &[u8]| {
            if bytes >= PAGE_BYTES || page.blocks.len() >= PAGE_BLOCKS {
                page.next = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            // Blocks that are to be deleted are here.
            let stays = with_blocks && key::block_noted(key).is_some();
            if !stays && moves_along(key, &req.shards) {
                bytes += key.len() + value.len() + 32;
                if with_blocks && key::parse_chunk(key).is_some() {
                    page.blocks.extend(dump::blocks(value));
                }
                page.records.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
            ControlFlow::Continue(())
        };
        let scanned = shared.engine.scan(&from, &to, &mut each);
        scanned.map_err(|error| Fault::Halt(Problem::of(&error)))?;
    }
    Ok(page)
}

/// A block that a page has named.
pub(crate) async fn block(shared: &Shared, req: &ShardBlock) -> Result<Bytes> {
    for_plan(shared, req.plan)?;
    let read = shared.blocks.get(req.block, req.bytes, 0..req.bytes).await;
    read.map_err(|error| {
        tracing::error!(block = %req.block, %error, "a block that moves cannot be read");
        base::FsError::Io.into()
    })
}

fn for_plan(shared: &Shared, plan: u64) -> Result<()> {
    if shared.moves.is_stopped_for(plan) {
        return Ok(());
    }
    Err(Fault::Refused("the server has not stopped for this move".into()))
}

/// The key ranges that are looked through, ascending.
fn ranges(shards: &[ShardId]) -> Vec<(Key, Key)> {
    let of_users = shards.iter().map(|shard| key::shard(*shard));
    let others = [key::all_work(), key::own(b'S')];
    of_users.chain(others).map(|prefix| (prefix.clone(), key::end_of(&prefix))).collect()
}

/// Whether a record goes along with these shards.
fn moves_along(key: &[u8], shards: &[ShardId]) -> bool {
    match key::zone(key) {
        Some((Zone::Users | Zone::Work, shard)) => shards.binary_search(&shard).is_ok(),
        Some((Zone::Server, _)) => key::parse_session(key).is_some(),
        None => false,
    }
}
