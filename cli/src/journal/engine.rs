//! The engine of a server with a journal: each call goes to the engine below, and `sync` waits for
//! the journal as well.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use store::{
    Batch, Engine, EngineStats, Result, RocksEngine, Snapshot,
    kv::{KeyRange, Visit},
};

use super::{Ship, failed};

/// An engine whose log is shipped.
pub(crate) struct Journaled {
    engine: Arc<RocksEngine>,
    ship: Arc<Ship>,
}

impl Journaled {
    pub(crate) fn new(engine: Arc<RocksEngine>, ship: Arc<Ship>) -> Journaled {
        Journaled { engine, ship }
    }
}

impl Engine for Journaled {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.engine.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.engine.multi_get(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        self.engine.scan(from, to, visit)
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.ship.written.fetch_add(batch.bytes() as u64, Ordering::Relaxed);
        self.engine.write(batch)
    }

    fn sync(&self) -> Result<()> {
        let position = self.engine.position();
        self.engine.sync()?;
        self.ship.wait(position)
    }

    fn ingest(&self, _run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        // A run is in no log.
        Err(failed("a server with a journal takes in no tables".to_owned()))
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.engine.snapshot()
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        self.engine.checkpoint(to)
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        self.engine.sizes(ranges)
    }

    fn position(&self) -> u64 {
        self.engine.position()
    }

    fn unwritten_bytes(&self) -> u64 {
        self.engine.unwritten_bytes()
    }

    fn write_out(&self) -> Result<()> {
        self.engine.write_out()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
