//! Where bytes rest: an ordered key-value engine for metadata, and blocks for file contents.
//!
//! `meta` and `coordinator` write records through [`Engine`]; `meta` and `client` keep the contents
//! of files in [`Blocks`]. Nothing here knows what a key, a value or a block means, no code here
//! reads a clock, and no method answers before what it promises is true.
//!
//! * [`kv`]: the engine trait, its [`Batch`], the memory engine that defines what it means, and
//!   RocksDB (feature `rocksdb`).
//! * [`blocks`]: immutable, checksummed blocks over a local directory, memory or S3 (feature `s3`).

#![warn(missing_docs)]

pub mod blocks;
#[cfg(test)]
mod conformance;
pub mod kv;
pub mod stable;

pub use blocks::{
    BLOCK_BYTES_MAX, BlockMeta, Blocks, BlocksConfig, BlocksError, Compression, SignedFor,
    SignedUrls,
};
pub use kv::batch::{Batch, Op};
pub use kv::error::{Error, Result};
pub use kv::memory::MemoryEngine;
#[cfg(feature = "rocksdb")]
pub use kv::rocks::{
    LogFollower, LogRecord, LogTail, RocksConfig, RocksEngine, Stabilize, records_of,
};
pub use kv::{BlockReads, Engine, EngineStats, Snapshot};
