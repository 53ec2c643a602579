//! Making a file system.

use base::{
    Clock, DirId, HashKey, Ino, Layout, Locality, NameVersion, Random, ShardId, Time,
    limits::SHARDS_MAX,
};
use bytes::Bytes;
use store::{Batch, Engine};

use crate::record::{
    Config, Content, ContentState, QuotaId, Record as _, Times, Xattrs, key, key::Part,
    system::Reserved,
};

/// What is chosen once and for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOptions {
    /// A name for people.
    pub name: String,
    /// How many shards.
    pub shards: u16,
    /// Which home new directories get.
    pub locality: Locality,
    /// Contents up to this many bytes rest in the entry; 0 puts all of them in blocks.
    pub inline_bytes_max: u32,
    /// URL of the block store.
    pub blocks: String,
    /// Signs and checks tokens (see [`wire::Token::sign`]); 32 random bytes.
    pub signing_key: Vec<u8>,
}

/// Why a file system was not made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// There is one already.
    #[error("there is a file system already")]
    Exists,
    /// The number of shards is out of bounds.
    #[error("shards={0} is not between 1 and {SHARDS_MAX}")]
    Shards(u16),
    /// More bytes than an entry may carry.
    #[error("inline_max={0} is more than {max}", max = base::limits::INLINE_BYTES_MAX)]
    Inline(u32),
    /// The engine failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Makes an empty file system in an empty engine. It is on stable storage when this returns.
///
/// # Errors
/// When there is one already, or an option is out of bounds.
pub fn format(
    engine: &dyn Engine,
    options: &FormatOptions,
    clock: &dyn Clock,
    random: &dyn Random,
) -> Result<(), FormatError> {
    if !(1..=SHARDS_MAX).contains(&options.shards) {
        return Err(FormatError::Shards(options.shards));
    }
    if options.inline_bytes_max > base::limits::INLINE_BYTES_MAX {
        return Err(FormatError::Inline(options.inline_bytes_max));
    }
    if engine.get(&key::config())?.is_some() {
        return Err(FormatError::Exists);
    }
    let now = clock.now();
    let draw = || u128::from(random.next()) << 64 | u128::from(random.next());
    let config = Config {
        name: options.name.clone(),
        uuid: draw(),
        shards: options.shards,
        hash_key: HashKey { k0: random.next(), k1: random.next() },
        locality: options.locality,
        inline_bytes_max: options.inline_bytes_max,
        blocks: options.blocks.clone(),
        signing_key: Bytes::copy_from_slice(&options.signing_key),
        created: now,
    };

    let mut batch = Batch::default();
    for shard in (0..options.shards).map(ShardId) {
        // Counter 0 is no inode, and 1 on shard 0 is the root.
        batch.put(&key::counter(shard), &Reserved { end: 2 }.to_record());
    }
    batch
        .put(&key::content(ShardId(0), DirId::ROOT, 0, Part::Main), &root_content(now).to_record());
    batch.put(&key::config(), &config.to_record());
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// The content record of a root with nothing in it.
pub(crate) fn root_content(now: Time) -> Content {
    Content {
        state: ContentState::Live,
        confirmed: true,
        ino: Ino::ROOT,
        birth_parent: DirId::ROOT,
        birth_name: None,
        birth_version: NameVersion(0),
        home: DirId::ROOT,
        layout: Layout::WHOLE,
        parent: DirId::ROOT,
        parent_ino: Ino::ROOT,
        parent_home: DirId::ROOT,
        name: None,
        mode: 0o755,
        uid: 0,
        gid: 0,
        times: Times::born(now),
        entries: 0,
        subdirs: 0,
        xattrs: Xattrs::NONE,
        quota: QuotaId::NONE,
    }
}
