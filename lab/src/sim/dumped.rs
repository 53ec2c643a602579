//! Dumps of a world, and servers that are loaded from them.

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

/// Stores that a dump was loaded into.
pub struct Dumped {
    /// The engine and the blocks of each server.
    stores: Vec<(Arc<MemoryEngine>, Blocks)>,
    /// Number of records in the dump.
    pub records: u64,
    /// Time for which changes were paused for the dump.
    pub paused: Duration,
}

impl World {
    /// Reads a dump that was started to its end, with contents, and loads it into `servers` new
    /// stores.
    ///
    /// # Errors
    /// When a server does not continue the dump, or the dump cannot be loaded.
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
        // The servers can forget the dump, whether it was read to its end or not.
        let ended = dump.end(client).await;
        copied?;
        ended?;
        let random = self.random("loaded");
        loader.finish(&header, "memory:", SIGNING_KEY, &random)?;
        Ok(Dumped { stores, records, paused })
    }

    /// Starts servers on the stores of a dump. They replace the servers of the world, none of which
    /// may run. Clients find them at the same addresses.
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
