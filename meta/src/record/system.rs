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

/// The answers of one group to one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredAnswers {
    /// The client needed no answer to a request before this one when these were stored. 0 in a
    /// record of version 1.
    pub(crate) settled: base::Seq,
    /// Numbers of requests, and the answers as they were sent; at least one.
    pub(crate) answers: Vec<(base::Seq, Bytes)>,
}

/// Version of a record with one answer, without the number that is settled.
const ONE_ANSWER: u8 = 1;
const SEVERAL_ANSWERS: u8 = 2;

impl Record for StoredAnswers {
    fn encode_record(&self, out: &mut Vec<u8>) {
        out.push(SEVERAL_ANSWERS);
        self.encode(out);
    }

    fn from_record(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let stored = match u8::decode(&mut reader)? {
            ONE_ANSWER => {
                let answer = Decode::decode(&mut reader)?;
                StoredAnswers { settled: base::Seq(0), answers: vec![answer] }
            }
            SEVERAL_ANSWERS => StoredAnswers::decode(&mut reader)?,
            tag => return Err(DecodeError::Tag { what: "version of stored answers", tag }),
        };
        if reader.is_empty() { Ok(stored) } else { Err(DecodeError::Trailing) }
    }
}

impl Encode for StoredAnswers {
    fn encode(&self, out: &mut Vec<u8>) {
        self.settled.encode(out);
        self.answers
            .iter()
            .for_each(|(seq, answer)| StoredAnswers::encode_answer(*seq, answer, out));
    }
}

impl Decode for StoredAnswers {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let settled = base::Seq::decode(input)?;
        let mut answers = vec![Decode::decode(input)?];
        while !input.is_empty() {
            answers.push(Decode::decode(input)?);
        }
        Ok(StoredAnswers { settled, answers })
    }
}

impl StoredAnswers {
    /// The highest number of a request that is answered.
    pub(crate) fn newest(&self) -> base::Seq {
        self.answers.iter().map(|(seq, _)| *seq).max().unwrap_or_default()
    }

    /// Appends how a record begins; answers follow.
    pub(crate) fn begin_record(settled: base::Seq, out: &mut Vec<u8>) {
        out.push(SEVERAL_ANSWERS);
        settled.encode(out);
    }

    /// Appends an answer that is encoded already.
    pub(crate) fn encode_answer(seq: base::Seq, answer: &[u8], out: &mut Vec<u8>) {
        seq.encode(out);
        answer.encode(out);
    }
}
