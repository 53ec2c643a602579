//! The ordered engine: the one seam between metadata and what keeps it.
//!
//! Servers call it from their cores, inline; it may block for as long as a disk read takes, and
//! only [`Engine::sync`], [`Engine::ingest`] and [`Engine::checkpoint`] wait for stable storage.
//! It never interprets keys and values, and never starts an operation on its own account that a
//! caller could see.
//!
//! Always true: keys are ordered as byte strings; a batch is there as a whole or not at all, for
//! readers, after a crash of the process and after a power cut; a power cut loses a suffix of the
//! batches written since the last sync, never one from the middle.

use std::{ops::ControlFlow, path::Path};

use bytes::Bytes;

pub mod batch;
pub mod error;
pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocks;

pub use batch::{Batch, Op};
pub use error::{Error, Result};

/// Callback of [`Engine::scan`] for each key and value, until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The first key of a range, and the end before which its last key is.
pub type KeyRange<'a> = (&'a [u8], &'a [u8]);

/// An ordered map of byte strings, shared by all cores of a server.
pub trait Engine: Send + Sync + 'static {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The values of `keys`, in their order. They need not be of one moment.
    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// Visits the entries with `from <= key < to` in key order, as they are when the scan starts,
    /// until the visitor breaks. The visitor may call the engine.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()>;

    /// Applies a batch. When it returns, the batch is visible to everyone and survives a crash of
    /// this process, but not yet a power cut. After an error the batch may or may not be there.
    fn write(&self, batch: Batch) -> Result<()>;

    /// Returns when all writes are on stable storage that returned before this call, or that any
    /// reader has seen.
    fn sync(&self) -> Result<()>;

    /// Adds a run of entries with strictly ascending keys, as one batch. On stable storage when it
    /// returns, with all that was written before. Cheaper than [`Engine::write`] for many new keys.
    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()>;

    /// Takes a snapshot of the engine's contents, unchanged by later writes. A snapshot keeps
    /// replaced data alive: drop it.
    fn snapshot(&self) -> Box<dyn Snapshot>;

    /// Makes a copy of the present state that this kind of engine can open, at a path that must not
    /// exist yet but whose parent does. On stable storage when it returns.
    fn checkpoint(&self, to: &Path) -> Result<()>;

    /// Position of the newest write. Positions grow with each write and outlive a restart. After a
    /// power cut, or in an older copy, the position is less where writes are missing, and never
    /// more.
    fn position(&self) -> u64;

    /// Bytes of recent writes in memory that must still be written to a table: so much more room
    /// the disk must have. 0 where an engine has no such thing.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Starts to write recent writes to a table, so that their log can go; does not wait for it.
    fn write_out(&self) -> Result<()> {
        Ok(())
    }

    /// Bytes of the entries in each of these ranges (`from <= key < to`): estimates where counting
    /// would be slow, without what is still to be written to a table
    /// ([`Engine::unwritten_bytes`]).
    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>>;

    /// Sizes for the status page and for metrics; estimates where counting would be slow.
    fn stats(&self) -> EngineStats;
}

/// A moment of an engine, to read from.
pub trait Snapshot: Send {
    /// The value of `key` at that moment.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Scans like [`Engine::scan`], at the moment of the snapshot.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()>;
}

/// Sizes of an engine. Bytes unless said otherwise; 0 where an engine has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Files on disk: tables and log.
    pub disk_bytes: u64,
    /// Number of keys, estimated.
    pub keys_estimated: u64,
    /// Recent writes held in memory.
    pub memtable_bytes: u64,
    /// Cached blocks, indexes and filters.
    pub block_cache_bytes: u64,
    /// Indexes and filters held outside the cache.
    pub table_reader_bytes: u64,
    /// Old data that compaction still has to rewrite, estimated.
    pub compaction_pending_bytes: u64,
    /// Blocks that were read because they were not cached, for whatever; only where that is
    /// counted.
    pub block_reads: BlockReads,
}

/// Numbers of blocks, by what they have in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockReads {
    /// Keys and values.
    pub data: u64,
    /// Where keys are.
    pub index: u64,
    /// Blocks of filters, which say that keys are absent.
    pub filter: u64,
}
