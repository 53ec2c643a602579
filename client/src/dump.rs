//! A dump of a whole file system, from all of its servers, as of one moment.
//!
//! `pando dump` starts it and asks for one page after the other. One server takes the moment by
//! itself. Several are led to it through [`DumpStage`]s, each of which all have taken before the
//! next begins: until every server has its snapshot none of them begins a change
//! (`meta::dump::pause` says why that is one moment). Each then hands out its shards, and they are
//! put together in the order of keys. What goes wrong at one of them ends the dump, and no server
//! waits for it any more.
//!
//! It holds a page.

use std::time::Duration;

use base::BlockId;
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use tokio::time::{Instant, timeout};
use wire::{
    BlockGet, BlockPart, DumpNext, DumpPage, DumpStage, DumpStarted, DumpStep, Reply, Request,
};

use crate::{Client, Error, error::unexpected};

/// Silence after which a server among several is taken as down.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the gather step: servers wait this long for names that are moving, and a moment more
/// for the answer.
const GATHERED_WITHIN: Duration = Duration::from_secs(17);
/// Maximum wait for a page or a block, where there are several servers.
const PAGE_PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a server that was asked for no page is told that the dump goes on.
const KEPT: Duration = Duration::from_secs(60);
/// Behind all keys.
const END: [u8; 8] = [u8::MAX; 8];

/// Why there is no dump.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// One of several servers is not there; all others go on.
    #[error("server {0} does not answer: try again")]
    Silent(u16),
    /// `Busy` when another one is being made, `NotFound` when it was forgotten, `NotPermitted` when
    /// the token does not administer; `Refused` by a server that was not asked to go on in time.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// A dump that is being made.
pub struct Dump {
    /// First bytes of the dump, as written.
    pub header: Bytes,
    /// About how many records there are.
    pub records_estimated: u64,
    /// For how long changes had to wait; nothing where there is one server.
    pub paused: Duration,
    parts: Vec<Part>,
}

/// One server's part of a dump.
struct Part {
    server: u16,
    number: u64,
    /// Where its next page begins; `None` after the last.
    next: Option<Bytes>,
    asked: Instant,
}

/// Records of one server, all behind those of the page before.
pub struct Page {
    /// Number of the server that has the records.
    pub server: u16,
    /// Keys and values, ascending.
    pub records: Vec<(Bytes, Bytes)>,
    /// Blocks that these name, and how long each is.
    pub blocks: Vec<(BlockId, u32)>,
}

impl Client {
    /// Starts a copy of all records that make up the tree, as of now. For administrators.
    ///
    /// # Errors
    /// See [`DumpError`]. Nobody waits for it then.
    pub async fn dump_start(&self) -> Result<Dump, DumpError> {
        if self.servers() == 1 {
            let started = match self.ask_server(0, Request::DumpStart).await? {
                Reply::DumpStarted(started) => started,
                _ => return Err(unexpected().into()),
            };
            return Ok(self.begun(vec![started], Duration::ZERO));
        }
        let dump = self.core.config.random.next();
        let taken = self.take_moment(dump).await;
        if taken.is_err() {
            self.give_up(dump).await;
        }
        taken
    }

    fn begun(&self, started: Vec<DumpStarted>, paused: Duration) -> Dump {
        let records_estimated = started.iter().map(|one| one.records_estimated).sum();
        // All say the same but for the time, and the time of the first will do.
        let header = started.first().map(|one| one.header.clone()).unwrap_or_default();
        let asked = Instant::now();
        let part = |(server, one): (u16, DumpStarted)| {
            let first = self.core.channels.first_shard(server);
            let next = Some(Bytes::copy_from_slice(&first.0.to_be_bytes()));
            Part { server, number: one.dump, next, asked }
        };
        let parts = self.members().into_iter().zip(started).map(part).collect();
        Dump { header, records_estimated, paused, parts }
    }

    /// Leads all servers to one moment, and on.
    async fn take_moment(&self, dump: u64) -> Result<Dump, DumpError> {
        self.take_step(dump, DumpStage::Gather).await?;
        let began = Instant::now();
        self.take_step(dump, DumpStage::Pause).await?;
        self.take_step(dump, DumpStage::Settle).await?;
        let started = self.take_step(dump, DumpStage::Take).await?;
        // A server whose changes have not waited until now refuses.
        self.take_step(dump, DumpStage::Resume).await?;
        let paused = began.elapsed();
        let started = started.into_iter().map(|reply| match reply {
            Reply::DumpStarted(started) => Ok(started),
            _ => Err(unexpected()),
        });
        Ok(self.begun(started.collect::<Result<Vec<_>, _>>()?, paused))
    }

    /// Has all servers take a step.
    async fn take_step(&self, dump: u64, stage: DumpStage) -> Result<Vec<Reply>, DumpError> {
        let patience = match stage {
            DumpStage::Gather => GATHERED_WITHIN,
            DumpStage::Pause | DumpStage::Settle | DumpStage::Take | DumpStage::Resume => PATIENCE,
        };
        let members = self.members();
        let steps = members.into_iter().map(|server| async move {
            let step = Request::DumpStep(DumpStep { dump, stage });
            in_time(patience, server, false, self.ask_server(server, step)).await
        });
        try_join_all(steps).await
    }

    /// Tells all servers that there will be no dump, as far as they hear it. The others forget it
    /// by themselves.
    async fn give_up(&self, dump: u64) {
        let told = self.members().into_iter().map(|server| async move {
            let stage = DumpStage::Resume;
            let step = Request::DumpStep(DumpStep { dump, stage });
            let end = Request::DumpNext(DumpNext { dump, from: Bytes::new(), end: true });
            for request in [step, end] {
                let _ = timeout(Duration::from_secs(1), self.ask_server(server, request)).await;
            }
        });
        join_all(told).await;
    }

    /// A whole block of file contents. For administrators, who know of it from a page of this
    /// server.
    ///
    /// # Errors
    /// When it is not there, or the session may not read it; see [`DumpError`].
    pub async fn read_block(
        &self,
        server: u16,
        block: BlockId,
        bytes: u32,
    ) -> Result<Bytes, DumpError> {
        let part = BlockPart { block, block_bytes: bytes, offset: 0, ticket: 0 };
        let asked = self.ask_server(server, Request::BlockGet(BlockGet { part, len: bytes }));
        match in_time(PAGE_PATIENCE, server, self.servers() == 1, asked).await? {
            Reply::Data(data) => Ok(data),
            _ => Err(unexpected().into()),
        }
    }
}

/// Returns an answer of a server within `patience`; an only server is waited for without limit.
async fn in_time<T>(
    patience: Duration,
    server: u16,
    alone: bool,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, DumpError> {
    if alone {
        return Ok(asked.await?);
    }
    Ok(timeout(patience, asked).await.map_err(|_| DumpError::Silent(server))??)
}

impl Dump {
    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// `NotFound` when a server has forgotten it; see [`DumpError`].
    pub async fn next(&mut self, client: &Client) -> Result<Option<Page>, DumpError> {
        let alone = self.parts.len() == 1;
        let next = |part: &&mut Part| part.next.clone();
        let left = self.parts.iter_mut().filter(|part| part.next.is_some());
        let Some(part) = left.min_by_key(next) else { return Ok(None) };
        let (server, from) = (part.server, part.next.take().unwrap_or_default());
        let page = in_time(PAGE_PATIENCE, server, alone, part.ask(client, from, false)).await?;
        let DumpPage { records, blocks, next } = page;
        part.next = next;
        if !alone {
            self.keep(client).await?;
        }
        Ok(Some(Page { server, records, blocks }))
    }

    /// Tells servers that have no page to give for long that they are not forgotten; also those
    /// that have given all, as each says in the end that nothing was lost.
    async fn keep(&mut self, client: &Client) -> Result<(), DumpError> {
        let late = |part: &&mut Part| part.asked.elapsed() >= KEPT;
        for part in self.parts.iter_mut().filter(late) {
            let server = part.server;
            let told = part.ask(client, Bytes::from_static(&END), false);
            in_time(PATIENCE, server, false, told).await?;
        }
        Ok(())
    }

    /// Ends it: whole or not, no server need keep it. One that is not told forgets it by itself.
    ///
    /// # Errors
    /// `NotFound` when a server has forgotten it already.
    pub async fn end(mut self, client: &Client) -> Result<(), DumpError> {
        let ended = self.parts.iter_mut().map(|part| async move {
            let server = part.server;
            let asked = part.ask(client, Bytes::new(), true);
            in_time(PATIENCE, server, false, asked).await.map(drop)
        });
        join_all(ended).await.into_iter().collect()
    }
}

impl Part {
    async fn ask(&mut self, client: &Client, from: Bytes, end: bool) -> Result<DumpPage, Error> {
        let request = Request::DumpNext(DumpNext { dump: self.number, from, end });
        let page = match client.ask_server(self.server, request).await? {
            Reply::DumpPage(page) => page,
            _ => return Err(unexpected()),
        };
        self.asked = Instant::now();
        Ok(page)
    }
}
