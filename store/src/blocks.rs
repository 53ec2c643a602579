//! File contents: immutable blocks of up to 4 MiB in an object store.
//!
//! The server puts and gets blocks for its clients when the store is a local directory; with S3 the
//! clients do it themselves. References to blocks are in metadata, and unknown here. A block is
//! never changed: a new one gets a new id, and a put never replaces anything.
//!
//! Always true: a block that was put survives a crash of the process at once, and a power cut as
//! soon as a `sync` that began after it has returned, or at once where `puts_are_stable`; bytes
//! that a get returns are the bytes that were put, in the same block and place, or the checksums
//! have failed us.

use std::{io, ops::Range, path::Path as FsPath, sync::Arc, time::SystemTime};

use base::BlockId;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutPayload, memory::InMemory, path::Path,
};

mod config;
mod directory;
mod format;
mod name;
mod packed;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod signed;
#[cfg(test)]
mod tests;
mod trial;
mod volatile;

pub use config::BlocksConfig;
use directory::{Directory, off_the_core};
pub use packed::Compression;
use volatile::Volatile;

/// The most data one block holds, in bytes.
pub const BLOCK_BYTES_MAX: u32 = base::limits::CHUNK_BYTES;

const _: () = assert!(BLOCK_BYTES_MAX.is_multiple_of(format::PIECE_BYTES));

/// The blocks of a file system. Cloning is cheap, and clones share everything.
#[derive(Clone)]
pub struct Blocks {
    objects: Arc<dyn ObjectStore>,
    /// Where the names of blocks start: empty, or a prefix that ends in `/`.
    prefix: Arc<str>,
    /// The local directory, if it is one.
    directory: Option<Arc<Directory>>,
    /// Writes that a power cut would take, if this is memory that can lose anything.
    volatile: Option<Arc<Volatile>>,
    /// How new blocks are stored, and which of its two names a block is looked for under first.
    compression: Compression,
    /// Makes addresses for clients, where the store can.
    #[cfg(feature = "s3")]
    signer: Option<Arc<dyn object_store::signer::Signer>>,
}

/// A request that an address is signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignedFor {
    /// Reading a block, whole or in part.
    Get,
    /// Storing a block that is not there yet.
    Put,
}

/// Addresses that a server has signed.
pub trait SignedUrls: std::fmt::Debug + Send + Sync + 'static {
    /// The address of a block, stored compressed (`packed`) or as it is; `None` where there is none
    /// that is still good.
    fn url(&self, id: BlockId, packed: bool, access: SignedFor) -> Option<String>;
}

/// One stored block, as [`Blocks::list`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMeta {
    /// The block.
    pub id: BlockId,
    /// Length of the block's data, in bytes. `None` for a compressed block, whose object's length
    /// does not tell.
    pub bytes: Option<u32>,
    /// When it was put, by the clock of the store.
    pub modified: SystemTime,
}

/// Why blocks could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// There is no such block.
    #[error("block is missing id={id}")]
    Missing {
        /// The block asked for.
        id: BlockId,
    },
    /// The stored bytes are not those that were put, or not as many. A person should look.
    #[error("block is corrupt id={id}")]
    Corrupt {
        /// The block asked for.
        id: BlockId,
    },
    /// There is another block of this id. It stays as it is.
    #[error("another block of this id is stored id={id}")]
    Exists {
        /// The block that was to be put.
        id: BlockId,
    },
    /// No block has such a length, or the range is not within it. Nothing was done.
    #[error("block bounds are invalid id={id} bytes={len} range={range:?}")]
    Bounds {
        /// The block.
        id: BlockId,
        /// The length given, in bytes.
        len: usize,
        /// The range given.
        range: Range<u32>,
    },
    /// There is no room left in the store.
    #[error("block store is full")]
    Full(#[source] object_store::Error),
    /// The store does not let us in: a wrong key, or a missing right.
    #[error("block store refuses access")]
    Refused(#[source] object_store::Error),
    /// The configuration names no store that this program can open.
    #[error("block store cannot be opened url={url} reason={reason}")]
    Config {
        /// The address given.
        url: String,
        /// The fault in it.
        reason: String,
    },
    /// The store, or the way to it, failed. A put may or may not have happened.
    #[error("block store failed")]
    Store(#[source] object_store::Error),
    /// The local directory failed.
    #[error("block directory failed")]
    Io(#[from] io::Error),
}

type Result<T> = std::result::Result<T, BlocksError>;

/// Number of times that a put is tried.
const PUT_ATTEMPTS_MAX: u32 = 3;

impl Blocks {
    /// Blocks in memory, for tests and simulations; needs no runtime.
    #[must_use]
    pub fn memory() -> Self {
        Self::over(Arc::new(InMemory::new()), "")
    }

    /// Blocks in a store, below a prefix.
    fn over(objects: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            objects,
            prefix: prefix.into(),
            directory: None,
            volatile: None,
            compression: Compression::None,
            #[cfg(feature = "s3")]
            signer: None,
        }
    }

    /// Whether the store can sign addresses for clients, see `sign`.
    #[must_use]
    pub fn signs(&self) -> bool {
        #[cfg(feature = "s3")]
        return self.signer.is_some();
        #[cfg(not(feature = "s3"))]
        false
    }

    /// The same store, which compresses new blocks like this. Every block can be read and deleted
    /// with any setting.
    #[must_use]
    pub fn compressing(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// How new blocks are compressed.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Opens the store that a configuration names. A local directory is made when it is missing.
    pub fn open(config: &BlocksConfig) -> Result<Self> {
        config.open()
    }

    /// Opens a local directory, which is made when it is missing. Its parent must exist.
    pub fn directory(path: &FsPath) -> Result<Self> {
        config::open_directory(path)
    }

    /// Stores a block unless something of its id is stored; see [`Blocks::puts_are_stable`]. Doing
    /// it again, after an error or not, is fine when the data is the same, and
    /// [`BlocksError::Exists`] when it is not.
    ///
    /// Cost: one request; more only where something of this id is stored already.
    ///
    /// Returns `true` when there was none, and this put has made it.
    pub async fn put(&self, id: BlockId, data: Bytes) -> Result<bool> {
        let len = u32::try_from(data.len()).ok().filter(|len| format::is_block_len(*len));
        let Some(len) = len else {
            return Err(BlocksError::Bounds { id, len: data.len(), range: 0..0 });
        };
        // A compressed block has one name, however it is compressed, so that the store can tell
        // that there is one.
        let (path, object) = match self.pack(id, &data, len).await? {
            Some(packed) => (name::packed(&self.prefix, id), packed.into()),
            None => {
                let plain: PutPayload = format::encode(id, &data, len).into_iter().collect();
                (name::path(&self.prefix, id), plain)
            }
        };
        let stored = self.put_object(id, &path, &data, &object).await;
        if let Some(directory) = &self.directory {
            directory.changed(path.as_ref());
        }
        if let (Some(volatile), Ok(true)) = (&self.volatile, &stored) {
            volatile.has_put(&path);
        }
        stored
    }

    /// Puts a block like [`Blocks::put`], but replaces one that a power cut has torn. Only for
    /// callers that know the block's data for certain.
    pub async fn restore(&self, id: BlockId, data: Bytes) -> Result<()> {
        match self.put(id, data.clone()).await {
            Err(BlocksError::Exists { .. }) if self.is_torn(id, &data).await? => {
                self.delete(id).await?;
                self.put(id, data).await.map(drop)
            }
            put => put.map(drop),
        }
    }

    async fn put_object(
        &self,
        id: BlockId,
        path: &Path,
        data: &Bytes,
        object: &PutPayload,
    ) -> Result<bool> {
        let mut attempts = 1..=PUT_ATTEMPTS_MAX;
        loop {
            let last = attempts.next().is_none_or(|attempt| attempt == PUT_ATTEMPTS_MAX);
            let put = match &self.directory {
                Some(directory) => directory.put(path.as_ref(), object.clone()).await,
                None => {
                    let put = self.objects.put_opts(path, object.clone(), PutMode::Create.into());
                    put.await.map(drop)
                }
            };
            match put {
                Ok(()) => return Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => {}
                // The store's client repeats by itself only requests that may happen twice, as it
                // sees them.
                Err(error) if !last && is_unheard(&error) => continue,
                Err(error) => return Err(from_store(id, error)),
            }
            match self.is_stored(id, path, data).await {
                Ok(true) => return Ok(false),
                Ok(false) => return Err(BlocksError::Exists { id }),
                // The block was deleted meanwhile, or is just being put.
                Err(BlocksError::Missing { .. }) if !last => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the object under a name is this block.
    async fn is_stored(&self, id: BlockId, path: &Path, data: &Bytes) -> Result<bool> {
        let (object, data) = (self.get_object(id, path).await?, data.clone());
        let is_packed = name::parse(path).is_some_and(|(_, is_packed)| is_packed);
        let compare = move || {
            let len = u32::try_from(data.len()).ok()?;
            let found = if is_packed {
                packed::read(id, &object, len)
            } else {
                format::decode(id, len, 0..len, object)
            };
            found.filter(|found| *found == data)
        };
        Ok(off_the_core(move || Ok(compare())).await?.is_some())
    }

    /// Whether the object of an id may be what a power cut has left of this block: no whole block,
    /// or a part of this one that ends where a piece does.
    async fn is_torn(&self, id: BlockId, data: &Bytes) -> Result<bool> {
        let (path, is_packed) = match self.compression {
            Compression::None => (name::path(&self.prefix, id), false),
            _ => (name::packed(&self.prefix, id), true),
        };
        let (object, data) = (self.get_object(id, &path).await?, data.clone());
        let look = move || {
            if is_packed {
                return !packed::is_whole(id, &object);
            }
            let len = format::data_len(object.len() as u64);
            let found = len.and_then(|len| format::decode(id, len, 0..len, object));
            found.is_none_or(|found| found.len() < data.len() && data.starts_with(&found))
        };
        Ok(off_the_core(move || Ok(look())).await?)
    }

    async fn get_object(&self, id: BlockId, path: &Path) -> Result<Bytes> {
        let failed = |error| from_store(id, error);
        self.objects.get(path).await.map_err(failed)?.bytes().await.map_err(failed)
    }

    /// Whether a block is on stable storage when its put returns. Otherwise [`Blocks::sync`] makes
    /// it stable.
    #[must_use]
    pub fn puts_are_stable(&self) -> bool {
        self.directory.is_none() && self.volatile.is_none()
    }

    /// Notes a block that an earlier process may have put without a sync: the next sync covers it.
    pub fn suspect(&self, id: BlockId) {
        if let Some(directory) = &self.directory {
            directory.changed(name::path(&self.prefix, id).as_ref());
            directory.changed(name::packed(&self.prefix, id).as_ref());
        }
    }

    /// Makes every block stable whose put has returned. The calling thread waits for the disk.
    pub fn sync(&self) -> Result<()> {
        if let Some(volatile) = &self.volatile {
            volatile.sync();
        }
        self.directory.as_ref().map_or(Ok(()), |directory| Ok(directory.sync()?))
    }

    /// The block compressed; `None` where it is to be stored as it is.
    async fn pack(&self, id: BlockId, data: &Bytes, len: u32) -> Result<Option<Bytes>> {
        let (data, how) = (data.clone(), self.compression);
        if how == Compression::None {
            return Ok(None);
        }
        Ok(Some(off_the_core(move || Ok(packed::encode(id, &data, len, how))).await?))
    }

    /// Reads a range of a block, checked. `len` is the block's length as its writer recorded it.
    ///
    /// Cost: one request, for the 64 KiB pieces that cover the range. One more for a part of a
    /// compressed block, and one where the block is not stored as blocks now are.
    pub async fn get(&self, id: BlockId, len: u32, range: Range<u32>) -> Result<Bytes> {
        if !format::is_block_len(len) || range.start > range.end || range.end > len {
            return Err(BlocksError::Bounds { id, len: len as usize, range });
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let packed = self.compression != Compression::None;
        match self.get_stored(packed, id, len, range.clone()).await {
            Err(BlocksError::Missing { .. }) => self.get_stored(!packed, id, len, range).await,
            found => found,
        }
    }

    async fn get_stored(
        &self,
        packed: bool,
        id: BlockId,
        len: u32,
        range: Range<u32>,
    ) -> Result<Bytes> {
        if packed {
            self.get_packed(id, len, range).await
        } else {
            self.get_plain(id, len, range).await
        }
    }

    /// Reads a range of a block that is stored compressed: the whole object at once, or its table
    /// first.
    async fn get_packed(&self, id: BlockId, len: u32, range: Range<u32>) -> Result<Bytes> {
        let path = name::packed(&self.prefix, id);
        let corrupt = || BlocksError::Corrupt { id };
        if range.end - range.start > len / 2 {
            let object = self.get_object(id, &path).await?;
            let unpack = move || {
                let table = packed::Table::read(id, len, &object)?;
                let part = table.covering(&range);
                let at = |offset: u64| usize::try_from(offset).ok();
                table.decode(range, object.get(at(part.start)?..at(part.end)?)?)
            };
            return off_the_core(move || Ok(unpack())).await?.ok_or_else(corrupt);
        }
        let table = self.get_part(id, &path, 0..packed::table_len(len) as u64).await?;
        let table = packed::Table::read(id, len, &table).ok_or_else(corrupt)?;
        let stored = self.get_part(id, &path, table.covering(&range)).await?;
        off_the_core(move || Ok(table.decode(range, &stored))).await?.ok_or_else(corrupt)
    }

    /// Reads a part of an object, which must be there. A local file that ends before gives the
    /// bytes that it has.
    async fn get_part(&self, id: BlockId, path: &Path, part: Range<u64>) -> Result<Bytes> {
        if let Some(directory) = &self.directory {
            return match directory.read(path.as_ref(), part).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(BlocksError::Missing { id })
                }
                found => Ok(found?),
            };
        }
        let end = part.end;
        match self.objects.get_range(path, part).await {
            Ok(bytes) => Ok(bytes),
            // Stores do not report in a distinct way that an object is too short.
            Err(error) => match self.objects.head(path).await {
                Ok(meta) if meta.size < end => Err(BlocksError::Corrupt { id }),
                Ok(_) | Err(_) => Err(from_store(id, error)),
            },
        }
    }

    /// Reads a range of a block that is stored as it is.
    async fn get_plain(&self, id: BlockId, len: u32, range: Range<u32>) -> Result<Bytes> {
        let covering = format::covering(len, &range);
        let stored = self.get_part(id, &name::path(&self.prefix, id), covering).await?;
        format::decode(id, len, range, stored).ok_or(BlocksError::Corrupt { id })
    }

    /// Removes a block. A block that is not there is no error.
    pub async fn delete(&self, id: BlockId) -> Result<()> {
        for path in [name::packed(&self.prefix, id), name::path(&self.prefix, id)] {
            match self.objects.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(from_store(id, error)),
            }
            if let Some(volatile) = &self.volatile {
                volatile.has_deleted(&path);
            }
        }
        Ok(())
    }

    /// All blocks, in no order. Blocks put or deleted meanwhile may be there or not; objects that
    /// are no blocks are passed over.
    #[must_use]
    pub fn list(&self) -> BoxStream<'static, Result<BlockMeta>> {
        let prefix = name::root(&self.prefix);
        let found = self.objects.list(Some(&prefix));
        found
            .filter_map(|object| async {
                let object = match object {
                    Ok(object) => object,
                    Err(error) => return Some(Err(from_listing(error))),
                };
                let (id, packed) = name::parse(&object.location)?;
                let bytes = if packed { None } else { Some(format::data_len(object.size)?) };
                Some(Ok(BlockMeta { id, bytes, modified: object.last_modified.into() }))
            })
            .boxed()
    }

    /// Removes what unfinished puts have left in a local directory, if last touched before
    /// `before`. Returns the number of files removed. Other stores keep nothing of the kind.
    pub async fn sweep(&self, before: SystemTime) -> Result<u64> {
        match &self.directory {
            Some(directory) => Ok(directory.sweep(before).await?),
            None => Ok(0),
        }
    }
}

/// Without HTTP there are no addresses.
#[cfg(not(feature = "s3"))]
impl Blocks {
    /// Signs nothing.
    #[expect(clippy::unused_async, reason = "it stands for the one that may wait")]
    pub async fn sign(
        &self,
        _: BlockId,
        _: bool,
        _: SignedFor,
        _: std::time::Duration,
    ) -> Result<Option<String>> {
        Ok(None)
    }

    /// Opens nothing.
    ///
    /// # Errors
    /// Always.
    pub fn signed(_: Arc<dyn SignedUrls>, _: Compression) -> Result<Blocks> {
        Err(BlocksConfig::new("https://").refused("this program is built without s3"))
    }
}

fn from_store(id: BlockId, error: object_store::Error) -> BlocksError {
    match error {
        object_store::Error::NotFound { .. } => BlocksError::Missing { id },
        error => from_listing(error),
    }
}

fn from_listing(error: object_store::Error) -> BlocksError {
    use object_store::Error as Store;
    if is_full(&error) {
        return BlocksError::Full(error);
    }
    match error {
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
            BlocksError::Refused(error)
        }
        // A foreign enum that grows; all that is left is a failure to us.
        _ => BlocksError::Store(error),
    }
}

/// Whether a full device is among the causes.
fn is_full(error: &object_store::Error) -> bool {
    cause_of::<io::Error>(error).is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    })
}

/// Whether a request was sent and its answer was lost.
#[cfg(feature = "s3")]
fn is_unheard(error: &object_store::Error) -> bool {
    use object_store::client::{HttpError, HttpErrorKind};
    cause_of::<HttpError>(error).is_some_and(|http| {
        matches!(http.kind(), HttpErrorKind::Timeout | HttpErrorKind::Interrupted)
    })
}

/// Only a network loses answers.
#[cfg(not(feature = "s3"))]
fn is_unheard(_: &object_store::Error) -> bool {
    false
}

/// The first error of this kind among the causes.
fn cause_of<E: std::error::Error + 'static>(error: &object_store::Error) -> Option<&E> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
