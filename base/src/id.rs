//! Ids: one newtype for each thing that is numbered.
//!
//! They are made by the server that owns what they name, travel in messages and rest in records. A
//! number of one kind never stands where another is meant.

use std::fmt;

use crate::codec::{Decode, DecodeError, Element, Encode, Reader};
use crate::limits::SHARDS_MAX;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        id!($(#[$doc])* $name($inner) as "{:x}");
    };
    ($(#[$doc:meta])* $name:ident($inner:ty) as $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $form, self.0)
            }
        }

        impl Element for $name {}

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self(<$inner>::decode(input)?))
            }
        }
    };
}

id! {
    /// A directory: `hash(parent, name, version)`, its birth triple. It never changes, but is used
    /// again when a directory of the same name is made anew in the same place; so it always travels
    /// with an [`Ino`].
    DirId(u128)
}
id! {
    /// An inode number: the lane (high 4 bits) and the shard (12 bits) where the inode was born, and
    /// that shard's counter. Never given out twice. Shown in decimal, as `ls -i` does.
    Ino(u64) as "{}"
}
id! {
    /// A shard: a hash bucket of the namespace. Their number is fixed when a file system is
    /// formatted.
    ShardId(u16)
}
id! {
    /// A version of the cluster map.
    Epoch(u64)
}

impl Epoch {
    /// Number of moves of shards up to this map.
    #[must_use]
    pub fn moves(self) -> u64 {
        self.0 >> 32
    }

    /// The epoch of the map that the next move of shards makes. Other maps count on by one.
    #[must_use]
    pub fn after_move(self) -> Epoch {
        Epoch((self.moves() + 1) << 32)
    }
}
id! {
    /// A client's session with the file system.
    SessionId(u64)
}
id! {
    /// A mutating request within a session, counted from 1. Zero marks a request that changes
    /// nothing.
    Seq(u64)
}
id! {
    /// The last part of a birth triple: 0, unless an older directory born under the name still
    /// lives elsewhere.
    NameVersion(u32)
}
id! {
    /// An immutable block of file contents: the session that wrote it (high 64 bits) and that
    /// session's counter.
    BlockId(u128)
}

impl DirId {
    /// The root directory of every file system.
    pub const ROOT: DirId = DirId(1);
}

impl ShardId {
    /// In place of a shard, where a server itself is meant.
    pub const SERVER: ShardId = ShardId(u16::MAX);

    /// The bit by which what is asked of one server differs from what is asked about a shard.
    const OF_SERVERS: u16 = 1 << 15;

    /// No shard: what is asked of one server, by its number, among questions about shards.
    ///
    /// # Panics
    /// With debug assertions, when no cluster has a server of this number.
    #[must_use]
    pub fn of_server(server: u16) -> ShardId {
        debug_assert!(server < SHARDS_MAX, "a server for each shard at most: {server}");
        ShardId(Self::OF_SERVERS | server)
    }

    /// The server that [`ShardId::of_server`] names.
    #[must_use]
    pub fn server(self) -> Option<u16> {
        let server = self.0 & !Self::OF_SERVERS;
        (self.0 & Self::OF_SERVERS != 0 && server < SHARDS_MAX).then_some(server)
    }
}

impl Ino {
    /// The inode number of the root directory.
    pub const ROOT: Ino = Ino(1);

    /// How many bits of an inode number count within its shard.
    pub const COUNTER_BITS: u32 = 48;

    /// How many bits of an inode number are below its lane.
    const LANE_SHIFT: u32 = 60;

    /// The number that `counter` gives on `shard`.
    ///
    /// # Panics
    /// When the counter does not fit in 48 bits; a shard cannot have given out that many.
    #[must_use]
    pub fn new(shard: ShardId, counter: u64) -> Ino {
        assert!(counter < 1 << Self::COUNTER_BITS, "inode counter exhausted: counter={counter}");
        debug_assert!(shard.0 < SHARDS_MAX, "a shard has 12 bits: {shard:?}");
        Ino(u64::from(shard.0) << Self::COUNTER_BITS | counter)
    }

    /// This number, of an inode that is born on `lane` of its shard.
    #[must_use]
    pub fn on_lane(self, lane: u8) -> Ino {
        let without = self.0 & ((1 << Self::LANE_SHIFT) - 1);
        Ino(u64::from(lane) << Self::LANE_SHIFT | without)
    }

    /// The lane of its shard on which the inode was born.
    #[must_use]
    pub fn lane(self) -> u8 {
        (self.0 >> Self::LANE_SHIFT).try_into().expect("4 bits are left")
    }

    /// The shard where the inode was born; it keeps the inode's blocks and knows where a renamed
    /// file is.
    #[must_use]
    pub fn shard(self) -> ShardId {
        let shard = self.0 >> Self::COUNTER_BITS & u64::from(SHARDS_MAX - 1);
        ShardId(u16::try_from(shard).expect("12 bits are left"))
    }
}

impl BlockId {
    /// The block that `session` wrote as its `counter`th.
    #[must_use]
    pub fn new(session: SessionId, counter: u64) -> BlockId {
        BlockId(u128::from(session.0) << 64 | u128::from(counter))
    }

    /// Number of this block among the blocks of its session.
    #[must_use]
    pub fn counter(self) -> u64 {
        u64::try_from(self.0 & u128::from(u64::MAX)).expect("64 bits are left")
    }

    /// The session that wrote the block.
    #[must_use]
    pub fn session(self) -> SessionId {
        SessionId(u64::try_from(self.0 >> 64).expect("64 bits are left"))
    }
}

impl Seq {
    /// The request after this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_to_a_server_is_about_no_shard() {
        for server in [0, 7, SHARDS_MAX - 1] {
            assert_eq!(ShardId::of_server(server).server(), Some(server));
            assert_eq!(ShardId(server).server(), None);
        }
        assert_eq!(ShardId::SERVER.server(), None);
    }

    #[test]
    fn an_ino_knows_its_shard() {
        let ino = Ino::new(ShardId(63), 77);
        assert_eq!(ino.shard(), ShardId(63));
        assert_eq!((ino.0 & 0xffff, ino.lane()), (77, 0));
        let last = Ino::new(ShardId(SHARDS_MAX - 1), 77).on_lane(15);
        assert_eq!((last.shard(), last.lane()), (ShardId(SHARDS_MAX - 1), 15));
        assert_eq!(last.on_lane(0), Ino::new(ShardId(SHARDS_MAX - 1), 77));
        assert_eq!(Ino::ROOT.shard(), ShardId(0));
    }

    #[test]
    fn a_block_knows_its_session() {
        assert_eq!(BlockId::new(SessionId(9), 4).session(), SessionId(9));
    }
}
