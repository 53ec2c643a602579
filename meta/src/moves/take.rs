//! How a server gets shards: it pulls their records, most of them ahead, and keeps those of
//! background work aside until it begins anew as their owner.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use base::{BlockId, ShardId};
use bytes::Bytes;
use store::Batch;
use tokio::time::Instant;
use wire::{Reply, Request, Retry, ShardBlock, ShardPage, ShardPull, ShardsFrom};

use super::{
    arrival,
    state::{Contents, Copied},
};
use crate::{
    bugs::{Bug, Planted},
    coordinator::link::Link,
    dump,
    error::{Fault, Result},
    problem::Problem,
    record::key::{self, Zone},
    server::Shared,
    space_guard::Level,
};

/// Pause after each page that is pulled ahead, as a multiple of the time that the page took: most of
/// both servers' time is for those who work there.
const AHEAD_PAUSES: u32 = 7;
/// Longest such pause.
const AHEAD_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Number of times that another server is asked for something ahead, and the pause between.
const AHEAD_TRIES: usize = 5;
const AGAIN_PAUSE: Duration = Duration::from_millis(50);
/// Number of rounds in which changes are pulled ahead, at most.
const ROUNDS_MAX: usize = 6;
/// A round with fewer records is the last one ahead.
const ROUND_RECORDS: u64 = 1000;
/// Number of blocks that may be gone when a page ahead asks for them.
const BLOCKS_GONE_MAX: usize = 64;

/// Copies shards from a server that serves them, or what has changed since it did, and returns the
/// number of records so far, which are on stable storage.
pub(crate) async fn ahead(shared: &Shared, plan: u64, from: &ShardsFrom) -> Result<u64> {
    // A pull for another plan that goes on ends by this.
    if !shared.moves.gets_by(plan) {
        return Err(superseded());
    }
    let Some(_taking) = shared.moves.takes() else { return Err(Fault::Retry(Retry::Busy)) };
    if shared.moves.has_pulled(plan) {
        return Err(Fault::Refused("shards of this plan were pulled already".into()));
    }
    let mut pull = Pull::begin(shared, plan, from)?;
    pull.is_served = true;
    let round = match run_ahead(&mut pull).await {
        Ok(round) => round,
        Err(fault @ Fault::Halt(_)) => return Err(fault),
        Err(fault) => {
            // No other plan counts on it, and the shards are another server's.
            pull.drop_unnamed().await;
            if pull.has_begun {
                clear(shared, from).await?;
            }
            return Err(fault);
        }
    };
    shared.make_stable().map_err(Fault::Halt)?;
    let (records, server) = (pull.records, from.server);
    tracing::info!(server, shards = from.shards.len(), records, "shards were copied ahead");
    let contents = pull.contents;
    shared.moves.has_copied(Copied { plan, from: server, round, records, contents });
    Ok(records)
}

/// Returns the round from which on changes are missing.
async fn run_ahead(pull: &mut Pull<'_>) -> Result<u64> {
    let copied = pull.shared.moves.copied(pull.plan, pull.from.server);
    let round = copied.map(|copied| pull.go_on(copied));
    let changed = match round {
        Some(round) => pull.pages(Some(round)).await.ok(),
        None => None,
    };
    let mut changed = match changed {
        Some(changed) => changed,
        // No copy is here yet, or nothing is known there any more of the one that is.
        None => {
            pull.drop_unnamed().await;
            pull.records = 0;
            pull.pages(Some(0)).await?
        }
    };
    for _ in 0..ROUNDS_MAX {
        changed = pull.pages(Some(changed.round)).await?;
        if changed.records < ROUND_RECORDS {
            break;
        }
    }
    pull.ask_again().await?;
    Ok(changed.round)
}

/// Removes what is here of shards that are to come.
async fn clear(shared: &Shared, from: &ShardsFrom) -> Result<()> {
    arrival::clear(shared, &|shard| from.shards.binary_search(&shard).is_ok()).await
}

/// Pulls shards from a server that has stopped, and returns the number of records, which are on
/// stable storage. One pull goes on at a time. An echo is answered as the first time: after the
/// commit the shards are this server's. After one that has failed, none of the plan succeeds.
pub(crate) async fn once(shared: &Shared, plan: u64, from: &ShardsFrom) -> Result<u64> {
    if !shared.moves.gets_by(plan) {
        return Err(superseded());
    }
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
    let rest = match shared.moves.copied(plan, from.server) {
        Some(copied) => rest(shared, plan, from, copied).await,
        None => Ok(None),
    };
    let records = match rest {
        Ok(Some(records)) => records,
        Err(fault @ Fault::Halt(_)) => return Err(fault),
        // No copy was made ahead, or it is good for nothing.
        Ok(None) | Err(_) => {
            let mut pull = Pull::begin(shared, plan, from)?;
            pull.pages(None).await?;
            pull.records
        }
    };
    shared.make_stable().map_err(Fault::Halt)?;
    let server = from.server;
    tracing::info!(server, shards = from.shards.len(), records, "shards have come");
    Ok(records)
}

/// Pulls what has changed since a copy was made ahead. `None`: it cannot be completed.
async fn rest(
    shared: &Shared,
    plan: u64,
    from: &ShardsFrom,
    copied: Copied,
) -> Result<Option<u64>> {
    let mut pull = Pull::begin(shared, plan, from)?;
    let round = pull.go_on(copied);
    pull.pages(Some(round)).await?;
    let left = pull.contents.left.len();
    pull.drop_unnamed().await;
    if left > 0 {
        tracing::warn!(records = left, "contents were not copied: all are copied once more");
        return Ok(None);
    }
    Ok(Some(pull.records))
}

/// A pull of shards.
struct Pull<'a> {
    shared: &'a Shared,
    link: Link<'a>,
    plan: u64,
    from: &'a ShardsFrom,
    /// Whether the other server serves.
    is_served: bool,
    /// Whether something has come.
    has_begun: bool,
    /// Number of records so far.
    records: u64,
    contents: Contents,
}

/// Pages that were pulled.
struct Pulled {
    round: u64,
    records: u64,
}

impl<'a> Pull<'a> {
    fn begin(shared: &'a Shared, plan: u64, from: &'a ShardsFrom) -> Result<Pull<'a>> {
        let Some(cluster) = &shared.cluster else { return Err(unexpected()) };
        if !cluster.has_lease() {
            return Err(Fault::Refused("the server has no lease".into()));
        }
        if !from.shards.is_sorted() {
            return Err(unexpected());
        }
        if from.server == cluster.me || from.shards.iter().any(|shard| cluster.owns(*shard)) {
            return Err(Fault::Refused("the server has that shard".into()));
        }
        let mut note = Batch::default();
        note.put(&key::elsewhere(), &[]);
        shared.put(note).map_err(|error| Fault::Halt(Problem::of(&error)))?;
        let link = Link::new(shared, cluster, from.server);
        let contents = Contents::default();
        let (is_served, has_begun) = (false, false);
        Ok(Pull { shared, link, plan, from, is_served, has_begun, records: 0, contents })
    }

    /// Goes on with a copy that was made ahead. Returns the round from which on changes are missing.
    fn go_on(&mut self, copied: Copied) -> u64 {
        self.records = copied.records;
        self.contents = copied.contents;
        self.has_begun = true;
        copied.round
    }

    /// Deletes blocks that are named no more.
    async fn drop_unnamed(&mut self) {
        let Contents { unnamed, named, .. } = std::mem::take(&mut self.contents);
        for block in unnamed.iter().filter(|block| !named.contains_key(block)) {
            if let Err(error) = self.shared.blocks.delete(*block).await {
                tracing::debug!(%block, %error, "a block that was copied ahead is left");
            }
        }
    }

    /// Pulls all pages.
    async fn pages(&mut self, since: Option<u64>) -> Result<Pulled> {
        let is_whole = since.is_none_or(|since| since == 0);
        let (mut next, mut is_first) = (Some(Bytes::new()), true);
        let mut pulled = Pulled { round: 0, records: 0 };
        while let Some(from) = next {
            let began = Instant::now();
            if self.is_served && !self.shared.moves.is_wanted(self.plan) {
                return Err(Fault::Refused("nobody leads the move any more".into()));
            }
            let (plan, shards) = (self.plan, self.from.shards.clone());
            let pull = Request::ShardPull(ShardPull { plan, shards, from, since });
            let Reply::ShardPage(page) = self.ask(pull).await? else { return Err(unexpected()) };
            if std::mem::take(&mut is_first) {
                pulled.round = page.round;
                self.has_begun = true;
                if is_whole {
                    // Another attempt may have left some. The other server has them, or has stopped
                    // for this plan, so nothing is committed yet.
                    clear(self.shared, self.from).await?;
                }
            }
            if is_whole && page.round != pulled.round {
                // A request that was late has begun the copy once more.
                return Err(lost(self.from.server));
            }
            pulled.records += (page.records.len() + page.gone.len()) as u64;
            self.store(&page, !is_whole).await?;
            next = page.next;
            if self.is_served {
                tokio::time::sleep((began.elapsed() * AHEAD_PAUSES).min(AHEAD_PAUSE_MAX)).await;
            }
        }
        Ok(pulled)
    }

    /// Asks the other server, a few times if there is no answer.
    async fn ask(&mut self, request: Request) -> Result<Reply> {
        let tries = if self.is_served { AHEAD_TRIES } else { 2 };
        for _ in 1..tries {
            if let Ok(reply) = self.link.ask(request.clone()).await {
                return Ok(reply);
            }
            tokio::time::sleep(AGAIN_PAUSE).await;
        }
        self.link.ask(request).await.map_err(|_| lost(self.from.server))
    }

    /// Asks once more for blocks that could not be had. A block that is still there was not removed.
    async fn ask_again(&mut self) -> Result<()> {
        for at in self.contents.left.clone() {
            let value = self.shared.engine.get(&at);
            let value = value.map_err(|error| Fault::Halt(Problem::of(&error)))?;
            let mut has_all = true;
            for (block, bytes) in value.map(|value| dump::blocks(&value)).unwrap_or_default() {
                has_all &= self.fetch(block, bytes).await?;
            }
            if has_all {
                self.contents.left.remove(&at);
            }
        }
        Ok(())
    }

    /// Copies a block. Returns whether it was there.
    async fn fetch(&mut self, block: BlockId, bytes: u32) -> Result<bool> {
        let ask = Request::ShardBlock(ShardBlock { plan: self.plan, block, bytes });
        let asked = if self.is_served {
            self.link.ask(ask).await.map_err(|_| lost(self.from.server))
        } else {
            self.ask(ask).await
        };
        let data = match asked {
            Ok(Reply::Data(data)) => data,
            Err(_) if self.is_served => return Ok(false),
            Err(fault) => return Err(fault),
            Ok(_) => return Err(unexpected()),
        };
        self.shared.blocks.restore(block, data).await.map_err(|error| {
            tracing::error!(%block, %error, "a block that moves cannot be stored");
            Fault::from(base::FsError::Io)
        })?;
        Ok(true)
    }

    async fn store(&mut self, page: &ShardPage, is_changed: bool) -> Result<()> {
        let shared = self.shared;
        shared.space_guard.has(Level::Low)?;
        self.records += page.records.len() as u64;
        shared.moves.records.store(self.records, Ordering::Relaxed);
        let here = if is_changed { self.replaces(page)? } else { BTreeSet::new() };
        // The names first: a block that nothing names may be taken for garbage.
        let batch = arrived(page, &self.from.shards, shared.bugs)?;
        shared.put(batch).map_err(|error| Fault::Halt(Problem::of(&error)))?;
        let mut gone: BTreeSet<BlockId> = BTreeSet::new();
        for (block, bytes) in page.blocks.iter().filter(|(block, _)| !here.contains(block)) {
            if !self.fetch(*block, *bytes).await? {
                gone.insert(*block);
            }
            if gone.len() > BLOCKS_GONE_MAX {
                return Err(lost(self.from.server));
            }
        }
        for (at, value) in page.records.iter().filter(|_| !gone.is_empty()) {
            if blocks_of(at, value).iter().any(|block| gone.contains(block)) {
                self.contents.left.insert(at.clone());
            }
        }
        Ok(())
    }

    /// Notes the contents that a page of changes replaces. Returns the blocks that are here.
    fn replaces(&mut self, page: &ShardPage) -> Result<BTreeSet<BlockId>> {
        let mut here = BTreeSet::new();
        if !self.shared.config.has_local_blocks() {
            return Ok(here);
        }
        let Contents { left, unnamed, named } = &mut self.contents;
        let changed = page.records.iter().map(|(at, _)| at).chain(&page.gone);
        for at in changed.filter(|at| key::parse_chunk(at).is_some()) {
            let before = self.shared.engine.get(at);
            let before = before.map_err(|error| Fault::Halt(Problem::of(&error)))?;
            let blocks = before.map(|value| blocks_of(at, &value)).unwrap_or_default();
            if !left.remove(at) {
                here.extend(&blocks);
            }
            for block in blocks {
                if named.get(&block) == Some(at) {
                    named.remove(&block);
                }
                unnamed.insert(block);
            }
        }
        for (at, value) in &page.records {
            named.extend(blocks_of(at, value).into_iter().map(|block| (block, at.clone())));
        }
        Ok(here)
    }
}

/// The blocks that a record names.
fn blocks_of(at: &[u8], value: &[u8]) -> Vec<BlockId> {
    let is_chunk = key::parse_chunk(at).is_some();
    let blocks = if is_chunk { dump::blocks(value) } else { Vec::new() };
    blocks.into_iter().map(|(block, _)| block).collect()
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
    for at in &page.gone {
        match key::zone(at) {
            Some((Zone::Users, shard)) if shards.binary_search(&shard).is_ok() => batch.delete(at),
            _ => return Err(unexpected()),
        }
    }
    Ok(batch)
}

fn superseded() -> Fault {
    Fault::Refused("another plan has followed on this one".into())
}

fn lost(server: u16) -> Fault {
    Fault::Refused(format!("server {server}, which shards move from, does not answer"))
}

fn unexpected() -> Fault {
    Fault::Refused("not what a move expects".into())
}
