//! `load`: makes a file system from a dump, in empty engines, one for each server that it will
//! have.
//!
//! Records are written as they come, in runs of ascending keys, so memory does not grow with the
//! dump. Each goes to the server that will have its shard, as the coordinator deals them out.
//! Accounting roots go to the coordinator, which is charged with all usage below them. The
//! configuration is written last, that of the first server last of all: an interrupted load leaves
//! no file system.

use std::{collections::BTreeMap, iter::repeat};

use base::{
    BlockId, DirId, HashMap, Ino, Random, ShardId,
    limits::{LANES_MAX, SHARDS_MAX},
    placement::shard_of,
};
use bytes::Bytes;
use store::{Batch, Engine};

use super::file::{Header, KeyLayout};
use crate::{
    cluster::member::Member,
    coordinator::roster::{Roster, dealt},
    quota::owners,
    reclaim::notes::chunk_of,
    record::{
        Config, Content, EntryRecord, QuotaId, QuotaRecord, QuotaState, Record as _, Slot, Tail,
        Usage,
        inode::blocks_of,
        key::{self, Key, Part, UsagePart, Zone},
    },
    upgrade,
};

/// Number of bytes in the runs of all servers together.
const RUN_BYTES: usize = 32 << 20;

/// Why a dump was not loaded. An engine that was loaded in part holds no file system.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The engine is not empty.
    #[error("there is a file system already")]
    Exists,
    /// Some server would have no shard.
    #[error(
        "servers={servers} is not between 1 and the number of shards of the dump, which is {shards}"
    )]
    Servers {
        /// Number of servers asked for.
        servers: usize,
        /// Number of shards of the dump.
        shards: u16,
    },
    /// The stream holds what no dump does.
    #[error("not a dump of a file system: {0}")]
    Invalid(&'static str),
    /// The engine failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A load in progress.
pub struct Loader<'a> {
    /// The part of each server.
    targets: Vec<Target<'a>>,
    shards: u16,
    keys: KeyLayout,
    last: Vec<u8>,
    /// Records that stand elsewhere than in the dump, or replace others that it has.
    late: BTreeMap<Key, Bytes>,
    /// The latest entry whose inode has got a slot: its key but for the part.
    lifted: Option<(Key, Ino)>,
    usage: HashMap<QuotaId, Usage>,
    /// Accounting roots, as dumped.
    quotas: Vec<(QuotaId, QuotaRecord)>,
    chunks_in_blocks: u64,
    /// The server of each block that the latest records name.
    named: HashMap<BlockId, u16>,
}

/// The part of one server.
struct Target<'a> {
    engine: &'a dyn Engine,
    run: Vec<(Vec<u8>, Vec<u8>)>,
    run_bytes: usize,
    run_bytes_max: usize,
}

impl Target<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        self.run_bytes += key.len() + value.len();
        self.run.push((key.to_vec(), value.to_vec()));
        if self.run_bytes >= self.run_bytes_max { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        if !self.run.is_empty() {
            self.run_bytes = 0;
            self.engine.ingest(&mut std::mem::take(&mut self.run).into_iter())?;
        }
        Ok(())
    }
}

impl<'a> Loader<'a> {
    /// Begins a load into empty engines, one for each server.
    ///
    /// # Errors
    /// When an engine is not empty, the header is not valid, or there are more servers than shards.
    pub fn begin(engines: &[&'a dyn Engine], header: &Header) -> Result<Loader<'a>, LoadError> {
        for engine in engines {
            if engine.get(&key::config())?.is_some() {
                return Err(LoadError::Exists);
            }
        }
        let inline = header.inline_bytes_max <= base::limits::SMALL_BYTES_MAX;
        let lanes = header.lanes.is_power_of_two() && header.lanes <= LANES_MAX;
        if !(1..=SHARDS_MAX).contains(&header.shards) || !lanes || !inline {
            return Err(LoadError::Invalid("header out of bounds"));
        }
        let (servers, shards) = (engines.len(), header.shards);
        if !(1..=usize::from(shards)).contains(&servers) {
            return Err(LoadError::Servers { servers, shards });
        }
        let target = |engine: &&'a dyn Engine| Target {
            engine: *engine,
            run: Vec::new(),
            run_bytes: 0,
            run_bytes_max: RUN_BYTES / servers,
        };
        Ok(Loader {
            targets: engines.iter().map(target).collect(),
            shards,
            keys: header.keys,
            last: Vec::new(),
            late: BTreeMap::new(),
            lifted: None,
            usage: HashMap::default(),
            quotas: Vec::new(),
            chunks_in_blocks: 0,
            named: HashMap::default(),
        })
    }

    /// Loads records.
    ///
    /// # Errors
    /// When records are out of order, or none that a dump has; when an engine fails.
    pub fn records(&mut self, records: Vec<(Bytes, Bytes)>) -> Result<(), LoadError> {
        self.named.clear();
        for (key, value) in records {
            if key[..] <= self.last[..] {
                return Err(LoadError::Invalid("keys out of order"));
            }
            self.last = key.to_vec();
            if self.keys == KeyLayout::Shards && upgrade::has_moved(&key) {
                let key = upgrade::moved(&key);
                self.check(&key, &value)?;
                self.late.insert(key, value);
                continue;
            }
            self.check(&key, &value)?;
            if let Some(value) = self.with_slot(&key, value)? {
                let server = self.server_of(&key);
                self.targets[usize::from(server)].put(&key, &value)?;
            }
        }
        Ok(())
    }

    /// The record as it is loaded. With several servers an inode is embedded on the shard of its
    /// birth alone, while one server embeds it wherever the entry is, in the trash and in lost+found:
    /// such an inode gets a slot, as in [`founding`](crate::founding).
    fn with_slot(&mut self, key: &[u8], value: Bytes) -> Result<Option<Bytes>, LoadError> {
        let Some((of_name, part)) = key.split_at_checked(key.len().saturating_sub(1)) else {
            return Ok(Some(value));
        };
        if self.targets.len() == 1 || !key::is_name(key) {
            return Ok(Some(value));
        }
        if let Some((lifted, ino)) = &self.lifted
            && lifted[..] == *of_name
            && *part == [Part::Xattrs as u8]
        {
            self.late.insert(key::inode(*ino, Part::Xattrs), value);
            return Ok(None);
        }
        if !key::is_entry(key) {
            return Ok(Some(value));
        }
        let damaged = |_| LoadError::Invalid("a record that cannot be read");
        match EntryRecord::from_record(&value).map_err(damaged)? {
            EntryRecord::Node(inode) if inode.ino.shard() != key::shard_of(key) => {
                let ino = inode.ino;
                self.lifted = Some((Key::from_slice(of_name), ino));
                self.late.insert(key::inode(ino, Part::Main), Slot::Inode(inode).to_record());
                Ok(Some(EntryRecord::Link(ino).to_record()))
            }
            EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_) => Ok(Some(value)),
        }
    }

    /// Number of the server that gets a block: the one whose records name it. A dump has each block
    /// directly after them.
    ///
    /// # Errors
    /// When the latest records do not name the block.
    pub fn server_of_block(&self, block: BlockId) -> Result<u16, LoadError> {
        match (self.targets.len(), self.named.get(&block)) {
            (1, _) => Ok(0),
            (_, Some(server)) => Ok(*server),
            (_, None) => Err(LoadError::Invalid("a block that the records before it do not name")),
        }
    }

    /// Number of chunks of files with contents in blocks.
    #[must_use]
    pub fn chunks_in_blocks(&self) -> u64 {
        self.chunks_in_blocks
    }

    /// Ends the load: the engines hold a file system from now on. If there are several servers,
    /// they get member numbers drawn from `random`. All is on stable storage when this returns.
    ///
    /// # Errors
    /// When an engine fails.
    pub fn finish(
        mut self,
        header: &Header,
        blocks: &str,
        signing_key: &[u8],
        random: &dyn Random,
    ) -> Result<(), LoadError> {
        self.targets.iter_mut().try_for_each(Target::flush)?;
        for (key, value) in std::mem::take(&mut self.late) {
            let server = self.server_of(&key);
            self.targets[usize::from(server)].put(&key, &value)?;
        }
        self.targets.iter_mut().try_for_each(Target::flush)?;
        let config = Config {
            name: header.name.clone(),
            uuid: header.uuid,
            shards: header.shards,
            lanes: header.lanes,
            hash_key: header.hash_key,
            locality: header.locality,
            inline_bytes_max: header.inline_bytes_max,
            blocks: blocks.to_owned(),
            signing_key: Bytes::copy_from_slice(signing_key),
            created: header.created,
        };
        let servers = self.servers();
        let members: Vec<u64> = (0..servers).map(|_| random.next()).collect();
        for (server, target) in (0..servers).zip(&self.targets).rev() {
            let mut batch = Batch::new();
            if servers > 1 {
                let member = Member::new(server, servers, members[usize::from(server)]);
                batch.put(&key::member(), &member.to_record());
                if server == 0 {
                    batch.put(&key::roster(), &Roster::of(&members).to_record());
                }
            }
            batch.put(&owners::note(), &Usage::default().to_record());
            if server == 0 {
                for (id, usage) in &self.usage {
                    batch.put(&key::usage(*id, UsagePart::Core(0)), &usage.to_record());
                }
                for (id, quota) in self.gone()? {
                    batch.put(&key::usage(id, UsagePart::Root), &quota.to_record());
                }
            }
            batch.put(&key::config(), &config.to_record());
            target.engine.write(batch)?;
            target.engine.sync()?;
        }
        Ok(())
    }

    fn servers(&self) -> u16 {
        u16::try_from(self.targets.len()).expect("there are no more than shards")
    }

    fn server_of(&self, key: &[u8]) -> u16 {
        match key::shard_of(key) {
            // Settings and accounting roots belong to the coordinator.
            ShardId::SERVER => 0,
            shard => dealt(shard, self.servers()),
        }
    }

    /// Refuses records that no dump has, and adds up what is charged to quotas.
    fn check(&mut self, key: &[u8], value: &Bytes) -> Result<(), LoadError> {
        let Some((zone, _)) = key::zone_among(key, self.shards) else {
            return Err(LoadError::Invalid("a key of no shard"));
        };
        let main = key.last() == Some(&(Part::Main as u8));
        let damaged = |_| LoadError::Invalid("a record that cannot be read");
        match (zone, key[2]) {
            (Zone::Users, b'N' | b'I' | b'D') if main => {
                let charge = owners::charge_of(key, value).map_err(damaged)?;
                for (id, usage) in charge.iter().flat_map(|(to, usage)| to.ids().zip(repeat(usage)))
                {
                    let sum = self.usage.entry(id).or_default();
                    *sum = sum.plus(*usage);
                }
            }
            (Zone::Users, b'B') => {
                let chunk = chunk_of(value).map_err(damaged)?;
                let server = self.server_of(key);
                self.named.extend(blocks_of(&chunk.slices).map(|block| (block, server)));
                self.chunks_in_blocks += u64::from(blocks_of(&chunk.slices).next().is_some());
            }
            (Zone::Work, b'T') => drop(Tail::from_record(value).map_err(damaged)?),
            (Zone::Server, b'A') => {
                let Some((id, UsagePart::Root)) = key::parse_usage(key) else {
                    return Err(LoadError::Invalid("what is charged to a quota"));
                };
                let quota = QuotaRecord::from_record(value).map_err(damaged)?;
                self.quotas.push((id, quota));
            }
            (Zone::Users, b'N' | b'I' | b'D') | (Zone::Work, b'C') | (Zone::Server, b'O') => {}
            _ => return Err(LoadError::Invalid("a record of no known kind")),
        }
        Ok(())
    }

    /// Roots whose directory was removed before the coordinator of the dump had heard of it.
    fn gone(&self) -> Result<Vec<(QuotaId, QuotaRecord)>, LoadError> {
        let mut gone = Vec::new();
        for (id, quota) in self.quotas.iter().filter(|(id, _)| !id.is_owners()) {
            let content = self.content(quota.dir, quota.home)?;
            if content.is_none_or(|content| content.ino != id.0) {
                gone.push((*id, QuotaRecord { state: QuotaState::Gone, ..*quota }));
            }
        }
        Ok(gone)
    }

    /// The loaded content record of a directory, if there is one.
    fn content(&self, dir: DirId, home: DirId) -> Result<Option<Content>, LoadError> {
        let at = key::content(shard_of(home, 0, self.shards), dir, 0, Part::Main);
        let target = &self.targets[usize::from(self.server_of(&at))];
        let content = target.engine.get(&at)?;
        Ok(content.and_then(|content| Content::from_record(&content).ok()))
    }
}
