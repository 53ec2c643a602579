//! How a server gets shards: it pulls their records, and keeps those of background work aside until
//! it begins anew as their owner.

use base::ShardId;
use bytes::Bytes;
use store::Batch;
use wire::{Reply, Request, Retry, ShardBlock, ShardPage, ShardPull, ShardsFrom};

use super::arrival;
use crate::{
    bugs::{Bug, Planted},
    coordinator::link::Link,
    error::{Fault, Result},
    problem::Problem,
    record::key::{self, Zone},
    server::Shared,
    space_guard::Level,
};

/// Pulls shards from a server that has stopped, and returns the number of records, which are on
/// stable storage. One pull goes on at a time. An echo is answered as the first time: after the
/// commit the shards are this server's. After one that has failed, none of the plan succeeds.
pub(crate) async fn once(shared: &Shared, plan: u64, from: &ShardsFrom) -> Result<u64> {
    let Some(_taking) = shared.moves.takes() else { return Err(Fault::Retry(Retry::Busy)) };
    match shared.moves.ended(plan, from.server) {
        Some(Ok(records)) => return Ok(records),
        Some(Err(())) => return Err(Fault::Refused("a copy of this move has failed".into())),
        None => {}
    }
    let taken = run(shared, plan, from).await;
    shared.moves.ends(plan, from.server, taken.as_ref().ok().copied());
    taken
}

async fn run(shared: &Shared, plan: u64, from: &ShardsFrom) -> Result<u64> {
    let Some(cluster) = &shared.cluster else { return Err(unexpected()) };
    if !cluster.has_lease() {
        return Err(Fault::Refused("the server has no lease".into()));
    }
    if from.server == cluster.me || from.shards.iter().any(|shard| cluster.owns(*shard)) {
        return Err(Fault::Refused("the server has that shard".into()));
    }
    let failed = |error: store::Error| Fault::Halt(Problem::of(&error));
    let mut note = Batch::default();
    note.put(&key::elsewhere(), &[]);
    shared.put(note).map_err(failed)?;
    let mut link = Link::new(shared, cluster, from.server);
    let (mut next, mut records, mut is_clear) = (Some(Bytes::new()), 0, false);
    while let Some(from_key) = next {
        let pull = ShardPull { plan, shards: from.shards.clone(), from: from_key };
        let Ok(Reply::ShardPage(page)) = link.ask(Request::ShardPull(pull)).await else {
            return Err(lost(from.server));
        };
        if !std::mem::replace(&mut is_clear, true) {
            // Another attempt may have left some. The other server has stopped for this plan, so
            // nothing is committed yet.
            arrival::clear(shared, &|shard| from.shards.binary_search(&shard).is_ok()).await?;
        }
        shared.space_guard.has(Level::Low)?;
        records += page.records.len() as u64;
        // The names first: a block that nothing names may be taken for garbage.
        shared.put(arrived(&page, &from.shards, shared.bugs)?).map_err(failed)?;
        for (block, bytes) in &page.blocks {
            let ask = Request::ShardBlock(ShardBlock { plan, block: *block, bytes: *bytes });
            let Ok(Reply::Data(data)) = link.ask(ask).await else {
                return Err(lost(from.server));
            };
            shared.blocks.restore(*block, data).await.map_err(|error| {
                tracing::error!(%block, %error, "a block that moves cannot be stored");
                Fault::from(base::FsError::Io)
            })?;
        }
        next = page.next;
    }
    shared.make_stable().map_err(Fault::Halt)?;
    tracing::info!(server = from.server, shards = from.shards.len(), records, "shards have come");
    Ok(records)
}

/// A page as it is stored here.
fn arrived(page: &ShardPage, shards: &[ShardId], bugs: Planted) -> Result<Batch> {
    let mut batch = Batch::default();
    for (at, value) in &page.records {
        match key::zone(at) {
            Some((Zone::Users, shard)) if shards.binary_search(&shard).is_ok() => {
                batch.put(at, value);
            }
            Some((Zone::Work, shard)) if shards.binary_search(&shard).is_ok() => {
                batch.put(&key::aside(at), value);
            }
            // A session that may have something open there comes here from now on.
            Some((Zone::Server, _)) => {
                key::parse_session(at).ok_or_else(unexpected)?;
                if !bugs.has(Bug::SessionsStayBehind) {
                    batch.put(&key::aside(at), value);
                }
            }
            _ => return Err(unexpected()),
        }
    }
    Ok(batch)
}

fn lost(server: u16) -> Fault {
    Fault::Refused(format!("server {server}, which shards move from, does not answer"))
}

fn unexpected() -> Fault {
    Fault::Refused("not what a move expects".into())
}
