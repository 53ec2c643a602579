//! Dumps of a world, and servers that have what is in them.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use base::{Decode as _, HashSet};
use client::{Client, Dump};
use meta::dump::{Header, Loader};
use store::{Blocks, Engine, MemoryEngine};

use super::{
    server::{Host, SIGNING_KEY},
    world::World,
};

/// What a dump was loaded into.
pub struct Dumped {
    /// Of each server.
    stores: Vec<(Arc<MemoryEngine>, Blocks)>,
    /// How many records there were.
    pub records: u64,
    /// For how long changes had to wait for it.
    pub paused: Duration,
}

impl World {
    /// Reads a dump that was started to its end, with contents, and loads it into so many servers.
    ///
    /// # Errors
    /// When a server does not go on with it, or it cannot be loaded.
    pub async fn read_dump(
        &self,
        client: &Client,
        mut dump: Dump,
        servers: u16,
    ) -> anyhow::Result<Dumped> {
        let store = |_| (Arc::new(MemoryEngine::new()), Blocks::memory());
        let stores: Vec<_> = (0..servers).map(store).collect();
        let engines: Vec<&dyn Engine> =
            stores.iter().map(|(engine, _)| engine.as_ref() as &dyn Engine).collect();
        let header = Header::from_bytes(&dump.header).context("the header")?;
        let mut loader = Loader::begin(&engines, &header)?;
        let mut records = 0;
        let mut pages = async || {
            while let Some(page) = dump.next(client).await? {
                records += page.records.len() as u64;
                loader.records(page.records)?;
                let mut copied = HashSet::default();
                for (block, bytes) in page.blocks {
                    if copied.insert(block) {
                        let (_, blocks) = &stores[usize::from(loader.server_of_block(block)?)];
                        let contents = client.read_block(page.server, block, bytes).await?;
                        blocks.put(block, contents).await?;
                    }
                }
            }
            anyhow::Ok(())
        };
        let copied = pages().await;
        let paused = dump.paused;
        // Whole or not, no server need keep it.
        let ended = dump.end(client).await;
        copied?;
        ended?;
        let random = self.random("loaded");
        loader.finish(&header, "memory:", SIGNING_KEY, &random)?;
        Ok(Dumped { stores, records, paused })
    }

    /// Starts servers that have what a dump had, in the place of those that there were, none of
    /// which runs. Clients find them.
    ///
    /// # Errors
    /// When they cannot start.
    pub fn serve(&self, dumped: Dumped) -> anyhow::Result<Vec<Host>> {
        let servers = u16::try_from(dumped.stores.len()).context("servers")?;
        let hosts = (0..servers).zip(dumped.stores);
        let hosts: Vec<Host> =
            hosts.map(|(server, store)| self.hosts()[0].with(server, servers, store)).collect();
        hosts.iter().try_for_each(Host::start)?;
        Ok(hosts)
    }
}
