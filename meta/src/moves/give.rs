//! The pages of records that servers pull from one that shards leave.

use std::ops::ControlFlow;

use base::ShardId;
use bytes::Bytes;
use wire::{ShardBlock, ShardPage, ShardPull};

use super::leave::may_be_taken_over;
use crate::{
    cluster::Cluster,
    dump,
    error::{Fault, Result},
    problem::Problem,
    record::key::{self, Key, UsagePart, Zone},
    server::Shared,
};

/// Bytes of records after which a page ends.
const PAGE_BYTES: usize = 512 << 10;
/// Bytes of records after which a page ends that is pulled ahead: others wait for it.
const AHEAD_PAGE_BYTES: usize = 64 << 10;
/// Number of named blocks after which a page ends.
const PAGE_BLOCKS: usize = 64;
/// Number of keys after which a page of changes ends.
const PAGE_KEYS: usize = 2048;

/// The next page of records of shards that leave this server, which has stopped unless they are
/// pulled ahead.
pub(crate) fn pull(shared: &Shared, req: &ShardPull) -> Result<ShardPage> {
    if !req.shards.is_sorted() {
        return Err(Fault::Refused("the shards do not ascend".into()));
    }
    let has_stopped = shared.moves.is_stopped_for(req.plan);
    let ahead = &shared.moves.ahead;
    match req.since {
        None if req.shards.is_empty() => {
            for_plan(shared, req.plan)?;
            may_be_taken_over(shared)?;
            scan(shared, req, [range(key::own(b'A'))].into_iter())
        }
        None => {
            for_plan(shared, req.plan)?;
            scan(shared, req, of_users(&req.shards).chain(others()))
        }
        Some(0) => {
            may_copy_ahead(shared, &req.shards)?;
            if req.from.is_empty() {
                ahead.begin(req.plan, &req.shards);
            }
            // The page is of the copy that has this round, or of a later one, which is void then.
            let round = ahead.round(req.plan, &req.shards).ok_or_else(is_void)?;
            Ok(ShardPage { round, ..scan(shared, req, of_users(&req.shards))? })
        }
        Some(since) => {
            if !has_stopped {
                may_copy_ahead(shared, &req.shards)?;
            }
            let page = changed(shared, req, since)?;
            let (begin, _) = others().next().expect("there are others");
            if page.next.is_some() || !has_stopped {
                return Ok(page);
            }
            // The last records of users are in the page; the others are in pages of their own.
            if req.from[..] < begin[..] {
                return Ok(ShardPage { next: Some(Bytes::copy_from_slice(&begin)), ..page });
            }
            Ok(ShardPage { round: page.round, ..scan(shared, req, others())? })
        }
    }
}

/// Some records that have changed while they were copied ahead, as they are now.
fn changed(shared: &Shared, req: &ShardPull, since: u64) -> Result<ShardPage> {
    let (ahead, of) = (&shared.moves.ahead, (req.plan, &req.shards[..]));
    if req.from.is_empty() {
        ahead.next_round(of.0, of.1, since).ok_or_else(is_void)?;
    }
    let (keys, round) = ahead.changed(of, since, (&req.from, PAGE_KEYS)).ok_or_else(is_void)?;
    let mut page = ShardPage { round, ..ShardPage::default() };
    let mut bytes = 0;
    for key in &keys {
        if bytes >= PAGE_BYTES || page.blocks.len() >= PAGE_BLOCKS {
            page.next = Some(key.clone());
            return Ok(page);
        }
        let value = shared.engine.get(key).map_err(|error| Fault::Halt(Problem::of(&error)))?;
        bytes += key.len() + value.as_ref().map_or(0, Bytes::len) + 32;
        match value {
            Some(value) => {
                if shared.config.has_local_blocks() && key::parse_chunk(key).is_some() {
                    page.blocks.extend(dump::blocks(&value));
                }
                page.records.push((key.clone(), value));
            }
            None => page.gone.push(key.clone()),
        }
    }
    if keys.len() == PAGE_KEYS {
        let last = keys.last().expect("there are some");
        page.next = Some([&last[..], &[0]].concat().into());
    }
    Ok(page)
}

/// The next page of the records in these ranges, which ascend.
fn scan(
    shared: &Shared,
    req: &ShardPull,
    ranges: impl Iterator<Item = (Key, Key)>,
) -> Result<ShardPage> {
    let mut page = ShardPage::default();
    let (mut bytes, with_blocks) = (0, shared.config.has_local_blocks());
    let bytes_max = if req.since == Some(0) { AHEAD_PAGE_BYTES } else { PAGE_BYTES };
    for (from, to) in ranges {
        let from = if req.from[..] > from[..] { Key::from_slice(&req.from) } else { from };
        if from >= to || page.next.is_some() {
            continue;
        }
        let mut each = |key: &[u8], value: &[u8]| {
            if bytes >= bytes_max || page.blocks.len() >= PAGE_BLOCKS {
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
    // One that serves may have removed it since.
    let copies_ahead = shared.moves.ahead.has_plan(req.plan) && !shared.is_halted();
    if !copies_ahead {
        for_plan(shared, req.plan)?;
    }
    let read = shared.blocks.get(req.block, req.bytes, 0..req.bytes).await;
    read.map_err(|error| {
        if !copies_ahead {
            tracing::error!(block = %req.block, %error, "a block that moves cannot be read");
        }
        base::FsError::Io.into()
    })
}

fn for_plan(shared: &Shared, plan: u64) -> Result<()> {
    if shared.moves.is_stopped_for(plan) {
        return Ok(());
    }
    Err(Fault::Refused("the server has not stopped for this move".into()))
}

/// Shards are copied ahead from the server that has them, while it serves.
fn may_copy_ahead(shared: &Shared, shards: &[ShardId]) -> Result<()> {
    let cluster = shared.cluster.as_ref().filter(|_| !shared.is_halted());
    let has_them = |it: &&Cluster| it.has_lease() && shards.iter().all(|shard| it.owns(*shard));
    cluster.filter(has_them).map(drop).ok_or_else(|| {
        Fault::Refused("the server does not serve these shards at the moment".into())
    })
}

fn is_void() -> Fault {
    Fault::Refused("nothing is known any more of the copy that was made ahead".into())
}

/// The ranges of keys of users' records in these shards, ascending.
fn of_users(shards: &[ShardId]) -> impl Iterator<Item = (Key, Key)> {
    shards.iter().map(|shard| key::shard(*shard)).map(range)
}

/// The ranges of keys in which other records of the shards are, after those of users.
fn others() -> impl Iterator<Item = (Key, Key)> {
    [key::all_work(), key::own(b'S')].into_iter().map(range)
}

fn range(prefix: Key) -> (Key, Key) {
    let end = key::end_of(&prefix);
    (prefix, end)
}

/// Whether a record goes along with these shards.
fn moves_along(key: &[u8], shards: &[ShardId]) -> bool {
    match key::zone(key) {
        Some((Zone::Users | Zone::Work, shard)) => shards.binary_search(&shard).is_ok(),
        // Without any shards the server leaves.
        Some((Zone::Server, _)) if shards.is_empty() => {
            matches!(key::parse_usage(key), Some((_, UsagePart::Core(_))))
        }
        Some((Zone::Server, _)) => key::parse_session(key).is_some(),
        None => false,
    }
}
