//! Blocks: reading and writing them, through the server or in the store itself.
//!
//! A range is read once at a time, by a task of its own. Other readers of it wait for that task,
//! which goes on when they go away.
//!
//! * `cache`: what was read lately. `io`: the way to the store.

mod cache;
mod io;

use std::{ops::Range, sync::Arc};

use base::{BlockId, Cred, FsError, Ino, error::describe};
use bytes::Bytes;
use store::{BlocksError, SignedFor};
use tokio::sync::watch;
use wire::{BlockDrop, BlockGet, BlockPut, Reply, Request, Stand, data::BlockPart};

use self::cache::{Load, Loaded, Part, UNIT_BYTES, Unit};
pub(crate) use self::{cache::ReadCache, io::BlockIo};
use crate::{Client, Error, Result, done::Failure, error::unexpected, route::Route};

impl Client {
    /// Stores a block; it is on stable storage when this returns.
    pub(crate) async fn put_block(
        &self,
        cred: &Cred,
        ino: Ino,
        block: BlockId,
        data: Bytes,
    ) -> Result<()> {
        self.core.files.read_cache.keep(block, &data);
        match &self.core.files.io {
            BlockIo::Server => {}
            BlockIo::Store(blocks) => {
                let put = blocks.put(block, data).await;
                return put.map(drop).map_err(|error| Error::Fs(store_error(&error)));
            }
            BlockIo::Direct(direct) => {
                let route = Route::Shard(ino.shard());
                if let Some(store) = direct.store(&self.core, route, block, SignedFor::Put).await? {
                    match store.put(block, data.clone()).await {
                        Ok(_) => return Ok(()),
                        // The server stores it unless that has happened after all.
                        Err(error) => direct.avoid(&error),
                    }
                }
            }
        }
        let put = Request::BlockPut(BlockPut { block, data });
        self.core.ask(cred, Route::Shard(ino.shard()), put).await?;
        Ok(())
    }

    /// The blocks of a write that the server stores with it.
    pub(crate) fn bring(&self, puts: Vec<(BlockId, Bytes)>) -> Vec<BlockPut> {
        let puts = puts.into_iter().map(|(block, data)| {
            self.core.files.read_cache.keep(block, &data);
            BlockPut { block, data }
        });
        puts.collect()
    }

    /// Tells the server that nothing will name these blocks, since the write has failed, and does
    /// not wait for it; the server deletes them. Those in a store that this client reaches itself
    /// stay, as one of them may be named: `pando fsck --gc` knows.
    pub(crate) fn give_up_blocks(&self, cred: &Arc<Cred>, ino: Ino, blocks: Vec<BlockId>) {
        if blocks.is_empty() || matches!(self.core.files.io, BlockIo::Store(_)) {
            return;
        }
        let (client, cred) = (self.clone(), Arc::clone(cred));
        self.core.spawn(async move {
            let drop = Request::BlockDrop(BlockDrop { blocks });
            // Otherwise they go with the session.
            let _ = client.core.ask(&cred, Route::Shard(ino.shard()), drop).await;
        });
    }

    /// Reads `len` bytes of a block from `part.offset` on; `None` when the block is gone. Returns
    /// them in parts, each with its place in the block; there may be more in a part than was asked
    /// for.
    pub(crate) async fn get_block(
        &self,
        (cred, ino): (&Arc<Cred>, Ino),
        part: BlockPart,
        len: u32,
    ) -> Result<Option<Vec<(u32, Bytes)>>> {
        if !self.core.files.read_cache.enabled() {
            let bytes = self.load((cred, ino), part, len).await?;
            return Ok(bytes.map(|bytes| vec![(part.offset, bytes)]));
        }
        let range = part.offset..part.offset + len;
        let mut found = Vec::new();
        for wanted in self.want_block((cred, ino), part, range) {
            match wanted {
                Part::Ready(start, bytes) => found.push((start, bytes)),
                Part::Waiting(mut load) => {
                    let loaded = match load.result.wait_for(Option::is_some).await {
                        Ok(result) => result.clone(),
                        Err(_) => None,
                    };
                    match loaded.unwrap_or(Err(Error::Closed))? {
                        Some(bytes) => found.push((load.start, bytes)),
                        None => return Ok(None),
                    }
                }
            }
        }
        Ok(Some(found))
    }

    /// Starts to read a range of a block, for later.
    pub(crate) fn prefetch_block(&self, of: (&Arc<Cred>, Ino), part: BlockPart, len: u32) {
        self.want_block(of, part, part.offset..part.offset + len);
    }

    /// Returns the cached parts of a range, and starts loads for the rest.
    fn want_block(&self, of: (&Arc<Cred>, Ino), part: BlockPart, range: Range<u32>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut missing: Option<(Range<u32>, watch::Sender<Option<Loaded>>)> = None;
        let start_load = |missing: &mut Option<(Range<u32>, watch::Sender<Option<Loaded>>)>| {
            if let Some((units, sender)) = missing.take() {
                self.spawn_load(of, part, units, sender);
            }
        };
        let mut inner = self.core.files.read_cache.inner.lock();
        for unit in range.start / UNIT_BYTES..range.end.div_ceil(UNIT_BYTES) {
            let key = (part.block, unit);
            match inner.units.get(&key) {
                Some(Unit::Ready { whole, start, .. }) => {
                    if !parts.last().is_some_and(|part| part.is(*start, whole)) {
                        parts.push(Part::Ready(*start, whole.clone()));
                    }
                    inner.touch(key);
                    start_load(&mut missing);
                }
                Some(Unit::Loading(load)) => {
                    if !parts.last().is_some_and(|part| part.is_of(load)) {
                        parts.push(Part::Waiting(load.clone()));
                    }
                    start_load(&mut missing);
                }
                None => {
                    if let Some((units, _)) = &mut missing {
                        units.end = unit + 1;
                    } else {
                        let (sender, result) = watch::channel(None);
                        parts.push(Part::Waiting(Load { start: unit * UNIT_BYTES, result }));
                        missing = Some((unit..unit + 1, sender));
                    }
                    let Some(Part::Waiting(load)) = parts.last() else { continue };
                    let load = load.clone();
                    inner.units.insert(key, Unit::Loading(load));
                }
            }
        }
        drop(inner);
        start_load(&mut missing);
        parts
    }

    fn spawn_load(
        &self,
        (cred, ino): (&Arc<Cred>, Ino),
        part: BlockPart,
        units: Range<u32>,
        sender: watch::Sender<Option<Loaded>>,
    ) {
        let (client, cred) = (self.clone(), Arc::clone(cred));
        self.core.spawn(async move {
            let offset = units.start * UNIT_BYTES;
            let end = (units.end * UNIT_BYTES).min(part.block_bytes);
            let whole = BlockPart { offset, ..part };
            let loaded = client.load((&cred, ino), whole, end - offset).await;
            let cache = &client.core.files.read_cache;
            let mut inner = cache.inner.lock();
            for unit in units {
                inner.units.remove(&(part.block, unit));
            }
            if let Ok(Some(bytes)) = &loaded {
                inner.store(part.block, offset, bytes);
                inner.evict(cache.bytes_max);
            }
            drop(inner);
            // Everybody who waited may have gone.
            let _ = sender.send(Some(loaded));
        });
    }

    async fn load(&self, (cred, ino): (&Cred, Ino), part: BlockPart, len: u32) -> Loaded {
        let range = part.offset..part.offset.saturating_add(len);
        let bytes = match &self.core.files.io {
            BlockIo::Server => self.load_from_server(cred, ino, part, len).await?,
            BlockIo::Store(blocks) => match blocks.get(part.block, part.block_bytes, range).await {
                Ok(bytes) => Some(bytes),
                Err(BlocksError::Missing { .. }) => None,
                Err(error) => return Err(Error::Fs(store_error(&error))),
            },
            BlockIo::Direct(direct) => {
                let route = Route::Shard(ino.shard());
                let store = direct.store(&self.core, route, part.block, SignedFor::Get).await?;
                let got = match store {
                    Some(store) => Some(store.get(part.block, part.block_bytes, range).await),
                    None => None,
                };
                match got {
                    Some(Ok(bytes)) => Some(bytes),
                    Some(Err(error)) => {
                        // One that is gone may have another name, as an older block: the server
                        // knows.
                        if !matches!(error, BlocksError::Missing { .. }) {
                            direct.avoid(&error);
                        }
                        self.load_from_server(cred, ino, part, len).await?
                    }
                    None => self.load_from_server(cred, ino, part, len).await?,
                }
            }
        };
        match bytes {
            Some(bytes) if bytes.len() != len as usize => Err(unexpected()),
            found => Ok(found),
        }
    }

    async fn load_from_server(&self, cred: &Cred, ino: Ino, part: BlockPart, len: u32) -> Loaded {
        let block = part.block;
        let get = Request::BlockGet(BlockGet { part, len });
        match self.core.call(cred, Route::Shard(ino.shard()), get, Stand::NONE).await {
            Ok(done) => match done.reply {
                Reply::Data(bytes) => Ok(Some(bytes)),
                _ => Err(unexpected()),
            },
            Err(
                Failure::StaleDir
                | Failure::StaleCache
                | Failure::StaleLayout(_)
                | Failure::NotHeld,
            ) => Ok(None),
            Err(Failure::Error(error)) => {
                if matches!(error, Error::Fs(_)) {
                    let said = "the server cannot read a block; its log says why";
                    tracing::error!(%ino, %block, %error, "{said}");
                }
                Err(error)
            }
        }
    }
}

fn store_error(error: &BlocksError) -> FsError {
    tracing::error!(error = describe(error), "a block cannot be read or written");
    match error {
        BlocksError::Full(_) => FsError::NoSpace,
        BlocksError::Refused(_) => FsError::Denied,
        BlocksError::Missing { .. }
        | BlocksError::Corrupt { .. }
        | BlocksError::Exists { .. }
        | BlocksError::Bounds { .. }
        | BlocksError::Config { .. }
        | BlocksError::Store(_)
        | BlocksError::Io(_) => FsError::Io,
    }
}
