//! `load`: a file system made from a dump, in an empty engine.
//!
//! Records go in as they come, in runs of ascending keys, so memory does not grow with the dump. The
//! configuration goes in last: what was interrupted is no file system.

use base::{HashMap, limits::SHARDS_MAX};
use bytes::Bytes;
use store::{Batch, Engine};

use super::file::Header;
use crate::{
    reclaim::chunk_of,
    record::{
        Config, Content, EntryRecord, QuotaId, Record as _, Slot, Tail, Usage,
        inode::blocks_of,
        key::{self, Part, UsagePart},
    },
};

/// A run has so many bytes.
const RUN_BYTES: usize = 32 << 20;

/// Why a dump was not loaded. What was loaded so far is no file system.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is something in the engine.
    #[error("there is a file system already")]
    Exists,
    /// The dump holds what no dump does.
    #[error("not a dump of a file system: {0}")]
    Invalid(&'static str),
    /// The engine failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A load under way.
pub struct Loader<'a> {
    engine: &'a dyn Engine,
    shards: u16,
    run: Vec<(Vec<u8>, Vec<u8>)>,
    run_bytes: usize,
    last: Vec<u8>,
    usage: HashMap<QuotaId, Usage>,
    chunks_in_blocks: u64,
}

impl<'a> Loader<'a> {
    /// Begins, in an empty engine.
    ///
    /// # Errors
    /// When it is not empty, or the header is of no file system.
    pub fn begin(engine: &'a dyn Engine, header: &Header) -> Result<Loader<'a>, LoadError> {
        if engine.get(&key::config())?.is_some() {
            return Err(LoadError::Exists);
        }
        let inline = header.inline_bytes_max <= base::limits::INLINE_BYTES_MAX;
        if !(1..=SHARDS_MAX).contains(&header.shards) || !inline {
            return Err(LoadError::Invalid("header out of bounds"));
        }
        Ok(Loader {
            engine,
            shards: header.shards,
            run: Vec::new(),
            run_bytes: 0,
            last: Vec::new(),
            usage: HashMap::default(),
            chunks_in_blocks: 0,
        })
    }

    /// Takes in records.
    ///
    /// # Errors
    /// When they are out of order, or none that a dump has; when the engine fails.
    pub fn records(&mut self, records: Vec<(Bytes, Bytes)>) -> Result<(), LoadError> {
        for (key, value) in records {
            if key[..] <= self.last[..] {
                return Err(LoadError::Invalid("keys out of order"));
            }
            self.check(&key, &value)?;
            self.last = key.to_vec();
            self.run_bytes += key.len() + value.len();
            self.run.push((key.into(), value.into()));
            if self.run_bytes >= RUN_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// How many chunks of files have contents in blocks.
    #[must_use]
    pub fn chunks_in_blocks(&self) -> u64 {
        self.chunks_in_blocks
    }

    /// All of it was taken in: from now on it is a file system. On stable storage when this returns.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn finish(
        mut self,
        header: &Header,
        blocks: &str,
        signing_key: &[u8],
    ) -> Result<(), LoadError> {
        self.flush()?;
        let mut batch = Batch::new();
        for (id, usage) in &self.usage {
            batch.put(&key::usage(*id, UsagePart::Core(0)), &usage.to_record());
        }
        let config = Config {
            name: header.name.clone(),
            uuid: header.uuid,
            shards: header.shards,
            hash_key: header.hash_key,
            locality: header.locality,
            inline_bytes_max: header.inline_bytes_max,
            blocks: blocks.to_owned(),
            signing_key: Bytes::copy_from_slice(signing_key),
            created: header.created,
        };
        batch.put(&key::config(), &config.to_record());
        self.engine.write(batch)?;
        Ok(self.engine.sync()?)
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        if !self.run.is_empty() {
            self.run_bytes = 0;
            self.engine.ingest(&mut std::mem::take(&mut self.run).into_iter())?;
        }
        Ok(())
    }

    /// Only what a dump has may come in; what it charges to quotas is added up.
    fn check(&mut self, key: &[u8], value: &Bytes) -> Result<(), LoadError> {
        let shard = key.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
        if shard.is_none_or(|shard| shard >= self.shards) {
            return Err(LoadError::Invalid("a key of no shard"));
        }
        let main = key.last() == Some(&(Part::Main as u8));
        let damaged = |_| LoadError::Invalid("a record that cannot be read");
        match key.get(2) {
            Some(b'N') if main => {
                if let EntryRecord::Node(inode) =
                    EntryRecord::from_record(value).map_err(damaged)?
                {
                    self.charge(inode.quota, inode.attr().allocated);
                }
            }
            Some(b'I') if main => {
                if let Slot::Inode(inode) = Slot::from_record(value).map_err(damaged)? {
                    self.charge(inode.quota, inode.attr().allocated);
                }
            }
            Some(b'D') if main => {
                let content = Content::from_record(value).map_err(damaged)?;
                self.charge(content.quota, 0);
            }
            Some(b'B') => {
                let chunk = chunk_of(value).map_err(damaged)?;
                self.chunks_in_blocks += u64::from(blocks_of(&chunk.slices).next().is_some());
            }
            Some(b'T') => drop(Tail::from_record(value).map_err(damaged)?),
            Some(b'N' | b'I' | b'D' | b'C' | b'O' | b'A') => {}
            _ => return Err(LoadError::Invalid("a record of no known kind")),
        }
        Ok(())
    }

    fn charge(&mut self, id: QuotaId, bytes: u64) {
        if id != QuotaId::NONE {
            let sum = self.usage.entry(id).or_default();
            *sum = sum.plus(Usage::of(1, bytes));
        }
    }
}
