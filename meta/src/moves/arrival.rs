//! Records of shards that are other servers', and how they become this one's, or go.
//!
//! While shards move, and after that, their records are on two servers. Those of users lie where
//! their owner has them, as nobody looks at them under keys of a shard that is another's. Notes of
//! work, counters and sessions are read when a server starts, so a server that gets shards keeps
//! those aside until it starts as the owner.

use std::ops::ControlFlow;

use base::{BlockId, ShardId};
use store::{Batch, Engine};

use crate::{
    OpenError,
    cluster::member::Member,
    dump,
    error::{Fault, Result},
    problem::Problem,
    record::{
        Config, Record as _,
        key::{self, Key, Zone},
    },
    server::Shared,
};

/// Number of records that are removed in one batch.
const BATCH_RECORDS: usize = 1000;

/// Brings what is stored in line with the map that this server knows, before anything is read:
/// notes of work of its new shards are its own now, and those of shards that have left are gone.
pub(crate) fn settle(engine: &dyn Engine) -> std::result::Result<(), OpenError> {
    if engine.get(&key::elsewhere())?.is_none() {
        return Ok(());
    }
    let Some(member) = engine.get(&key::member())? else { return Ok(()) };
    let member = Member::from_record(&member)?;
    let config = engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
    let has_blocks = Config::from_record(&config)?.has_local_blocks();
    let owns = |shard| member.map.server_of(shard) == Some(member.server);
    let mut batch = Batch::default();
    let work = key::all_work();
    engine.scan(&work, &key::end_of(&work), &mut |at, _| {
        // Blocks that are to be deleted are where they were.
        let stays = has_blocks && key::block_noted(at).is_some();
        if !stays && !owns(key::shard_of(at)) {
            batch.delete(at);
        }
        ControlFlow::Continue(())
    })?;
    let (mut has_come, mut sessions) = (false, Vec::new());
    let aside = key::all_aside();
    engine.scan(&aside, &key::end_of(&aside), &mut |at, value| {
        let original = key::of_aside(at);
        match key::zone(original) {
            Some((Zone::Work, shard)) if owns(shard) => {
                batch.put(original, value);
                batch.delete(at);
                has_come = true;
            }
            Some((Zone::Server, _)) => {
                sessions.push((Key::from_slice(original), value.to_vec()));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    // A counter comes with every shard.
    for (session, value) in sessions.into_iter().filter(|_| has_come) {
        if engine.get(&session)?.is_none() {
            batch.put(&session, &value);
        }
        batch.delete(&key::aside(&session));
    }
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// Removes all records of shards that are not this server's.
pub(crate) async fn sweep(shared: &Shared) -> Result<()> {
    let failed = |error: store::Error| Fault::Halt(Problem::of(&error));
    if shared.engine.get(&key::elsewhere()).map_err(failed)?.is_none() {
        return Ok(());
    }
    clear(shared, &|shard| shard == ShardId::SERVER || !shared.owns(shard)).await?;
    let mut batch = Batch::default();
    batch.delete(&key::elsewhere());
    shared.put(batch).map_err(failed)
}

/// Removes what is here of shards that are another server's, with blocks that only they name.
pub(crate) async fn clear(shared: &Shared, is_gone: &dyn Fn(ShardId) -> bool) -> Result<()> {
    let shards = (0..shared.config.shards).map(ShardId).filter(|shard| is_gone(*shard));
    let of_users = shards.map(key::shard);
    for prefix in of_users.chain([key::all_aside()]) {
        let mut from = prefix.clone();
        while let Some(next) = clear_some(shared, (&from, &key::end_of(&prefix)), is_gone).await? {
            from = next;
        }
    }
    Ok(())
}

/// Removes some records of a range. Returns where the next are, if there may be any.
async fn clear_some(
    shared: &Shared,
    (from, to): (&[u8], &[u8]),
    is_gone: &dyn Fn(ShardId) -> bool,
) -> Result<Option<Key>> {
    let failed = |error: store::Error| Fault::Halt(Problem::of(&error));
    let (mut batch, mut count, mut next) = (Batch::default(), 0, None);
    let mut blocks: Vec<BlockId> = Vec::new();
    let mut each = |at: &[u8], value: &[u8]| {
        if count == BATCH_RECORDS {
            next = Some(Key::from_slice(at));
            return ControlFlow::Break(());
        }
        count += 1;
        let is_aside = at.starts_with(&key::all_aside());
        // Sessions that are aside came with some shard.
        if is_aside && !is_gone(key::shard_of(key::of_aside(at))) {
            return ControlFlow::Continue(());
        }
        batch.delete(at);
        if shared.config.has_local_blocks() && key::parse_chunk(at).is_some() {
            blocks.extend(dump::blocks(value).into_iter().map(|(block, _)| block));
        }
        ControlFlow::Continue(())
    };
    shared.engine.scan(from, to, &mut each).map_err(failed)?;
    for block in blocks {
        if let Err(error) = shared.blocks.delete(block).await {
            tracing::debug!(%block, %error, "a block of a shard that has moved is left");
        }
    }
    if count > 0 {
        shared.put(batch).map_err(failed)?;
        tokio::task::yield_now().await;
    }
    Ok(next)
}
