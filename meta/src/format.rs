//! Format: makes a file system, or a joining server's part of one.

use base::{
    Clock, DirId, HashKey, Ino, Layout, Locality, NameVersion, Random, SearchClass, ShardId, Time,
    limits::{LANES_MAX, SHARDS_MAX},
    permissions::Listing,
};
use bytes::Bytes;
use store::{Batch, Engine};
use wire::Joined;

use crate::{
    cluster::member::Member,
    coordinator::roster::{Roster, dealt},
    placing,
    record::{
        Config, Content, ContentState, Placing, Policy, QuotaId, Record as _, StoredListing, Times,
        Xattrs, key, key::Part, system::Reserved,
    },
};

/// Options that are chosen once and for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOptions {
    /// Name of the file system, for people.
    pub name: String,
    /// Number of shards.
    pub shards: u16,
    /// Number of lanes of each shard: a power of two, [`LANES_MAX`] for all but tests.
    pub lanes: u8,
    /// Number of servers that the file system will have. With more than one, this one is its
    /// coordinator, and nothing is served until the others have joined.
    pub servers: u16,
    /// Policy for the home of new directories.
    pub locality: Locality,
    /// Contents up to this many bytes are stored in the entry; 0 puts all of them in blocks.
    pub inline_bytes_max: u32,
    /// URL of the block store.
    pub blocks: String,
    /// Key that signs and checks tokens (see [`wire::Token::sign`]); 32 random bytes.
    pub signing_key: Vec<u8>,
}

/// Why a file system was not made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The engine has a file system already.
    #[error("there is a file system already")]
    Exists,
    /// The number of shards is out of bounds.
    #[error("shards={0} is not between 1 and {SHARDS_MAX}")]
    Shards(u16),
    /// The number of lanes is none that inode numbers can hold.
    #[error("lanes={0} is no power of two up to {LANES_MAX}")]
    Lanes(u8),
    /// The number of servers is out of bounds.
    #[error("servers={servers} is not between 1 and the number of shards, which is {shards}")]
    Servers {
        /// Number of servers asked for.
        servers: u16,
        /// Number of shards asked for.
        shards: u16,
    },
    /// The coordinator's record of the file system cannot be read.
    #[error("what the coordinator says of the file system is damaged")]
    Damaged(#[from] base::DecodeError),
    /// The inline maximum is more bytes than an entry may carry.
    #[error("inline_max={0} is more than {max}", max = base::limits::SMALL_BYTES_MAX)]
    Inline(u32),
    /// The engine failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Makes an empty file system in an empty engine. It is on stable storage when this returns.
///
/// # Errors
/// When the engine has one already, or an option is out of bounds.
pub fn format(
    engine: &dyn Engine,
    options: &FormatOptions,
    clock: &dyn Clock,
    random: &dyn Random,
) -> Result<(), FormatError> {
    if !(1..=SHARDS_MAX).contains(&options.shards) {
        return Err(FormatError::Shards(options.shards));
    }
    if !options.lanes.is_power_of_two() || options.lanes > LANES_MAX {
        return Err(FormatError::Lanes(options.lanes));
    }
    if !(1..=options.shards).contains(&options.servers) {
        let FormatOptions { servers, shards, .. } = *options;
        return Err(FormatError::Servers { servers, shards });
    }
    if options.inline_bytes_max > base::limits::SMALL_BYTES_MAX {
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
        lanes: options.lanes,
        hash_key: HashKey::new(random.next(), random.next()),
        locality: options.locality,
        inline_bytes_max: options.inline_bytes_max,
        blocks: options.blocks.clone(),
        signing_key: Bytes::copy_from_slice(&options.signing_key),
        created: now,
    };

    let mut batch = of_server(0, options.servers, &config);
    let root = Content { placing: placing::of_root(config.locality), ..root_content(now) };
    batch.put(&key::content(ShardId(0), DirId::ROOT, 0, Part::Main), &root.to_record());
    if options.servers > 1 {
        let member = random.next();
        let first = Member::new(0, options.servers, member);
        batch.put(&key::member(), &first.to_record());
        batch.put(&key::roster(), &Roster::new(member).to_record());
    }
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// Makes the ids of directories of a file system that was just made so short that they collide. For
/// tests.
///
/// # Errors
/// When the engine has no file system that can be read.
#[cfg(feature = "bugs")]
pub fn shorten_ids(engine: &dyn Engine, bits: u8) -> Result<(), FormatError> {
    let config = engine.get(&key::config())?.unwrap_or_default();
    let mut config = Config::from_record(&config)?;
    config.hash_key = config.hash_key.shortened(bits);
    let mut batch = Batch::default();
    batch.put(&key::config(), &config.to_record());
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// Facts that a server needs to make its part of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belonging {
    /// Name of the file system.
    pub name: String,
    /// URL of the block store, as it was given to format.
    pub blocks: String,
    /// Key that signs and checks tokens.
    pub signing_key: Bytes,
}

impl Belonging {
    /// Reads the coordinator's reply.
    ///
    /// # Errors
    /// When the reply cannot be read: it is of another version.
    pub fn of(joined: &Joined) -> Result<Belonging, FormatError> {
        let Config { name, blocks, signing_key, .. } = Config::from_record(&joined.config)?;
        Ok(Belonging { name, blocks, signing_key })
    }
}

/// Makes the part of a file system that is on a server which has joined it as `member`, in an empty
/// engine. It is on stable storage when this returns.
///
/// # Errors
/// When the engine has a file system already.
pub fn format_joined(
    engine: &dyn Engine,
    joined: &Joined,
    member: u64,
    servers: u16,
) -> Result<(), FormatError> {
    let config = Config::from_record(&joined.config)?;
    let servers = servers.max(joined.server + 1);
    if engine.get(&key::config())?.is_some() {
        return Err(FormatError::Exists);
    }
    let mut batch = of_server(joined.server, servers, &config);
    if joined.is_dealt {
        batch = Batch::default();
        batch.put(&key::config(), &joined.config);
    }
    let member = Member::new(joined.server, servers, member);
    batch.put(&key::member(), &member.to_record());
    engine.write(batch)?;
    Ok(engine.sync()?)
}

/// Records with which a server begins: the configuration, and a counter for each of its shards.
fn of_server(server: u16, servers: u16, config: &Config) -> Batch {
    let mut batch = Batch::default();
    for shard in (0..config.shards).map(ShardId).filter(|at| dealt(*at, servers) == server) {
        // Counter 0 is no inode, and 1 on shard 0 is the root.
        batch.put(&key::counter(shard), &Reserved { end: 2 }.to_record());
    }
    batch.put(&key::config(), &config.to_record());
    batch
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
        layout: Layout::Whole,
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
        policy: Policy::NONE,
        placing: Placing::NONE,
        listing: StoredListing(Listing::of_root(&SearchClass::All)),
    }
}
