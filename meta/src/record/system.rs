//! Records of the server itself.

use base::{
    Decode, DecodeError, DirId, Encode, EntryName, HashKey, Ino, Locality, Placement, Reader, Time,
    codec,
};
use bytes::Bytes;

use super::{Record, tail};

codec! {
    /// The file system as it was formatted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Config {
        pub name: String,
        pub uuid: u128,
        pub shards: u16,
        /// Lanes of each shard. A shard has one owner; where one is to have several, the lanes tell
        /// which inodes go where.
        pub lanes: u8,
        pub hash_key: HashKey,
        pub locality: Locality,
        pub inline_bytes_max: u32,
        /// URL of the block store, as given to format.
        pub blocks: String,
        /// The key that signs tokens.
        pub signing_key: Bytes,
        pub created: Time,
    }
}

impl Record for Config {}

impl Config {
    /// Whether each server has blocks of its own.
    pub(crate) fn has_local_blocks(&self) -> bool {
        !self.blocks.contains("://")
    }

    /// The places of everything.
    pub(crate) fn placement(&self) -> Placement {
        Placement { shards: self.shards, lanes: self.lanes, locality: self.locality }
    }
}

codec! {
    /// The time up to which a server's trash has aged: seconds since 1970.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Lived {
        pub sec: i64,
    }
}

impl Record for Lived {}

codec! {
    /// Settings of the whole file system, made since it was formatted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Settings {
        pub inline_bytes_max: u32,
        /// The trash stands last: while there is none, nothing is stored.
        pub trash: TrashSetting,
    }
}

/// The trash, once there was one. Persisted: nothing when there is none; otherwise a tag and the
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TrashSetting(pub(crate) Option<Trash>);

codec! {
    /// The trash: for how long it keeps what is removed, and its directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Trash {
        /// Days for which removed files are kept. 0: the trash takes nothing, and is emptied.
        pub days: u32,
        pub dir: DirId,
        pub home: DirId,
        pub ino: Ino,
    }
}

impl Encode for TrashSetting {
    fn encode(&self, out: &mut Vec<u8>) {
        tail::encode(self.0.as_ref(), out);
    }
}

impl Decode for TrashSetting {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(TrashSetting(tail::decode(input)?))
    }
}

codec! {
    /// The place from which something in the trash was removed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Origin {
        /// The id of the directory that it was in.
        pub dir: DirId,
        pub home: DirId,
        pub ino: Ino,
        /// The name in that directory.
        pub name: EntryName,
        /// The path of directory and name, when it was removed.
        pub path: Bytes,
        pub removed: Time,
    }
}

impl Record for Origin {}

impl Record for Settings {
    fn is_sound(&self) -> bool {
        self.inline_bytes_max <= base::limits::SMALL_BYTES_MAX
    }
}

codec! {
    /// A session, stored so that it outlives a restart.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct SessionRecord {
        pub secret: u64,
        pub client: String,
        pub opened: Time,
    }
}

impl Record for SessionRecord {}

codec! {
    /// The reason why an inode must be looked at.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ReclaimKind {
        /// The inode has no name, and lives in its slot while it is open.
        Orphan = 1,
        /// The inode is gone; its chunks and blocks are not yet.
        Contents = 2,
        /// The inode is an orphan that never had a name, and may get one.
        Unnamed = 3,
        /// Like `Contents`, and all chunks before this one are gone.
        Rest(u32) = 4,
    }
}

codec! {
    /// An inode that a background task has to finish.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Reclaim {
        pub kind: ReclaimKind,
    }
}

impl Record for Reclaim {}

impl ReclaimKind {
    /// The first chunk to remove; `None` while the inode is there.
    pub(crate) fn chunks_from(self) -> Option<u32> {
        match self {
            ReclaimKind::Orphan | ReclaimKind::Unnamed => None,
            ReclaimKind::Contents => Some(0),
            ReclaimKind::Rest(first) => Some(first),
        }
    }
}

codec! {
    /// The contents that a file was cut by, and that are not removed yet.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Tail {
        /// The first chunk of these contents.
        pub first: u32,
        /// The name under which the inode rested; `None` for its slot. If it has moved since, its
        /// shard of birth knows.
        pub place: Option<super::Location>,
    }
}

impl Record for Tail {}

codec! {
    /// The first inode number of a shard that is not reserved.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Reserved {
        pub end: u64,
    }
}

impl Record for Reserved {}

codec! {
    /// A stored answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct StoredAnswer {
        pub seq: base::Seq,
        pub answer: Bytes,
    }
}

impl Record for StoredAnswer {}

impl StoredAnswer {
    /// Appends the record of an answer that is encoded already.
    pub(crate) fn encode_record(seq: base::Seq, answer: &[u8], out: &mut Vec<u8>) {
        out.push(super::VERSION);
        seq.encode(out);
        answer.encode(out);
    }
}
