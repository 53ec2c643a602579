//! Requests about file contents.
//!
//! A file is cut into chunks of [`base::limits::CHUNK_BYTES`]. A chunk is a list of slices, newest first: where
//! slices overlap, the newer one counts; where none is, the bytes are zero. A slice's bytes are a part of
//! an immutable block, or stand in the record itself when they are few.

use base::{Attr, BlockId, Time, codec};
use bytes::Bytes;

use crate::node::FileRef;

codec! {
    /// Where a slice's bytes are.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum SliceSource {
        /// Here.
        Embedded(Bytes) = 1,
        /// In a block.
        Block(BlockPart) = 2,
        /// Zeros: what was here before is cut off.
        Zeros = 3,
    }
}

codec! {
    /// A part of a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BlockPart {
        /// The block.
        pub block: BlockId,
        /// How many bytes the whole block has.
        pub block_bytes: u32,
        /// Where the part starts.
        pub offset: u32,
        /// Proof for this session that it may read the block; zero where it needs none, and in records.
        pub ticket: u64,
    }
}

codec! {
    /// A range of a chunk and where its bytes are.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Slice {
        /// Where it starts within the chunk.
        pub start: u32,
        /// How many bytes it covers, at least 1.
        pub len: u32,
        /// Where they are.
        pub source: SliceSource,
    }
}

codec! {
    /// The slices of one chunk, newest first.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ChunkSlices {
        /// The chunk's number.
        pub chunk: u32,
        /// Its slices.
        pub slices: Vec<Slice>,
    }
}

codec! {
    /// New contents. Blocks named here are in the store already. Answer: [`Written`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Write {
        /// Of which file; the session has it open.
        pub file: FileRef,
        /// What is written, oldest first; slices of one request may overlap. Small ones are embedded: the
        /// server keeps them in the entry while the file is small enough, whatever else happens to it.
        pub chunks: Vec<ChunkSlices>,
        /// The file is at least this long afterwards.
        pub end: u64,
        /// When the last of it was written, by the client's clock. The file's times become that, so that they
        /// do not change again when a write that was seen already is sent; never later than now. `None`: now.
        pub at: Option<Time>,
        /// Clear set-id bits: the writer may not keep them.
        pub clear_set_id: bool,
    }
}

codec! {
    /// A file after a write.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Written {
        /// Its attributes.
        pub attr: Attr,
    }
}

codec! {
    /// Where are the contents? Answer: [`BlockMapped`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockMap {
        /// Of which file.
        pub file: FileRef,
        /// The first chunk.
        pub first: u32,
        /// How many chunks, at least 1; at most 64 are answered.
        pub count: u32,
    }
}

codec! {
    /// Where contents are.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockMapped {
        /// The file's attributes.
        pub attr: Attr,
        /// All of it, when it is small.
        pub inline: Option<Bytes>,
        /// The chunks from the first one asked for to before `end` that are not all zeros, in order.
        pub chunks: Vec<ChunkSlices>,
        /// Where to go on asking: an answer is bounded in bytes as well.
        pub end: u32,
    }
}

codec! {
    /// Store a block through the server, which keeps it as it is from then on: other bytes under the same id are
    /// refused with `Exists`. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockPut {
        /// Its id, of this session.
        pub block: BlockId,
        /// Its bytes, at most one chunk.
        pub data: Bytes,
    }
}

codec! {
    /// What a client does with blocks that it reaches itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SignFor {
        /// It reads them.
        Get = 1,
        /// It stores them where there are none.
        Put = 2,
    }
}

codec! {
    /// Addresses under which blocks can be reached in a shared store, without its keys. Only for sessions that
    /// [`crate::Welcome::direct`] says it to. Answer: [`SignedBlocks`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignBlocks {
        /// For what.
        pub access: SignFor,
        /// The first block; others are those that its session has numbered after it. To put, of this session.
        pub first: BlockId,
        /// How many blocks, at least 1; at most 64 are answered.
        pub count: u32,
        /// As they are named where they are stored compressed.
        pub packed: bool,
    }
}

codec! {
    /// Addresses of blocks.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignedBlocks {
        /// One for each, in the order of their numbers.
        pub urls: Vec<String>,
        /// They are good for so long, milliseconds.
        pub valid_ms: u64,
    }
}

codec! {
    /// Blocks that the session has put and will not name, as its write has failed: the server deletes them. Those that are
    /// named stay. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockDrop {
        /// Which.
        pub blocks: Vec<BlockId>,
    }
}

codec! {
    /// Read a part of a block through the server. Answer: [`Bytes`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockGet {
        /// Which part starts where, and the proof that it may be read.
        pub part: BlockPart,
        /// How many bytes.
        pub len: u32,
    }
}

codec! {
    /// What is done with a range of a file (`fallocate`). Space is not reserved: blocks never change, so what is
    /// written needs new ones in any case.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AllocateMode {
        /// The file is at least as long as the range's end.
        Grow = 1,
        /// Nothing, but for the times (`KEEP_SIZE`).
        Keep = 2,
        /// It becomes zeros, and the file at least as long as its end (`ZERO_RANGE`).
        Zero = 3,
        /// It becomes zeros as far as the file reaches (`PUNCH_HOLE`, `ZERO_RANGE` with `KEEP_SIZE`).
        ZeroWithin = 4,
    }
}

codec! {
    /// `fallocate`. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Allocate {
        /// Of which file.
        pub file: FileRef,
        /// Where the range starts, in bytes.
        pub offset: u64,
        /// How many bytes it has, at least 1.
        pub len: u64,
        /// What is done with it.
        pub mode: AllocateMode,
        /// Clear set-id bits: the caller may not keep them.
        pub clear_set_id: bool,
    }
}

codec! {
    /// What a seek looks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SeekTo {
        /// The next byte that is stored.
        Data = 1,
        /// The next byte that is not; at the latest the end of the file.
        Hole = 2,
    }
}

codec! {
    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`. Answer: the offset; `NoSuchDevice` when there is none, as from
    /// the end of the file on.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Seek {
        /// In which file.
        pub file: FileRef,
        /// From which byte on.
        pub offset: u64,
        /// For what.
        pub to: SeekTo,
    }
}
