//! Requests about file contents.
//!
//! A file is cut into chunks of [`base::limits::CHUNK_BYTES`]. A chunk is a list of slices, newest
//! first: where slices overlap, the newer one counts; where none is, the bytes are zero. A slice's
//! bytes are a part of an immutable block, or stand in the record itself when they are few.

use base::{Attr, BlockId, SetAttr, Time, codec};
use bytes::Bytes;

use crate::node::FileRef;

codec! {
    /// Source of a slice's bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum SliceSource {
        /// The bytes themselves.
        Embedded(Bytes) = 1,
        /// A part of a block.
        Block(BlockPart) = 2,
        /// Zeros, which hide older slices.
        Zeros = 3,
    }
}

codec! {
    /// A part of a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BlockPart {
        /// The block.
        pub block: BlockId,
        /// Length of the whole block, in bytes.
        pub block_bytes: u32,
        /// Offset of the part within the block, in bytes.
        pub offset: u32,
        /// Proof for this session that it may read the block; zero where it needs none, and in
        /// records.
        pub ticket: u64,
    }
}

codec! {
    /// A range of a chunk, and the source of its bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Slice {
        /// Offset of the slice within the chunk, in bytes.
        pub start: u32,
        /// Length of the slice, in bytes, at least 1.
        pub len: u32,
        /// Source of the bytes.
        pub source: SliceSource,
    }
}

codec! {
    /// The slices of one chunk, newest first.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ChunkSlices {
        /// Number of the chunk within the file.
        pub chunk: u32,
        /// The slices of the chunk.
        pub slices: Vec<Slice>,
    }
}

codec! {
    /// Writes to a file. The blocks named here are in the store already, or come along. Answer:
    /// [`Written`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Write {
        /// The file to write; the session has it open.
        pub file: FileRef,
        /// The written slices, oldest first; slices of one request may overlap. Small ones are
        /// embedded: the server keeps them in the entry while the file is small enough, whatever
        /// else happens to it.
        pub chunks: Vec<ChunkSlices>,
        /// Least length of the file afterwards, in bytes.
        pub end: u64,
        /// Time of the last of these writes, by the client's clock. The server sets the file's
        /// times to it, so that they do not change again when a write that was seen already is
        /// sent; never later than now. `None`: now.
        pub at: Option<Time>,
        /// Whether to clear set-id bits, because the writer may not keep them.
        pub clear_set_id: bool,
        /// Attributes to change after the write, in the same transaction, as [`crate::Setattr`]
        /// does. Neither a size nor an access alone.
        pub set: Option<SetAttr>,
        /// Blocks that the server stores first, as for [`BlockPut`]: together at most
        /// [`WRITE_BLOCKS_BYTES_MAX`](base::limits::WRITE_BLOCKS_BYTES_MAX) bytes.
        pub blocks: Vec<BlockPut>,
    }
}

codec! {
    /// A file after a write.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Written {
        /// Attributes of the file.
        pub attr: Attr,
    }
}

codec! {
    /// Asks where the contents of a file are. Answer: [`BlockMapped`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockMap {
        /// The file to map.
        pub file: FileRef,
        /// Number of the first chunk.
        pub first: u32,
        /// Number of chunks, at least 1; the server answers at most 64.
        pub count: u32,
    }
}

codec! {
    /// Where the contents of a file are.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockMapped {
        /// Attributes of the file.
        pub attr: Attr,
        /// The whole contents, when the file is small.
        pub inline: Option<Bytes>,
        /// The chunks from the first one asked for to before `end` that are not all zeros, in
        /// order.
        pub chunks: Vec<ChunkSlices>,
        /// Number of the chunk at which to continue: an answer is bounded in bytes as well.
        pub end: u32,
    }
}

codec! {
    /// Stores a block through the server. The block is immutable: the server refuses other bytes
    /// under the same id with `Exists`. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockPut {
        /// Id of the block, of this session.
        pub block: BlockId,
        /// Bytes of the block, at most one chunk.
        pub data: Bytes,
    }
}

codec! {
    /// Access of a client to blocks that it reaches itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SignFor {
        /// The client reads the blocks.
        Get = 1,
        /// The client stores new blocks.
        Put = 2,
    }
}

codec! {
    /// Asks for addresses under which a client reaches blocks in a shared store, without its keys.
    /// Only for sessions whose [`crate::Welcome::direct`] is set. Answer: [`SignedBlocks`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignBlocks {
        /// Access that the addresses allow.
        pub access: SignFor,
        /// The first block; the others are the next ones by its session's numbers. To put, a block
        /// of this session.
        pub first: BlockId,
        /// Number of blocks, at least 1; the server answers at most 64.
        pub count: u32,
        /// Whether to name the blocks as compressed ones are stored.
        pub packed: bool,
    }
}

codec! {
    /// Addresses of blocks.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignedBlocks {
        /// One address for each block, in the order of their numbers.
        pub urls: Vec<String>,
        /// Milliseconds for which the addresses are valid.
        pub valid_ms: u64,
    }
}

codec! {
    /// Blocks that the session has put and will not name, because its write has failed: the server
    /// deletes them. Blocks that are named stay. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockDrop {
        /// The blocks to drop.
        pub blocks: Vec<BlockId>,
    }
}

codec! {
    /// Read a part of a block through the server. Answer: [`Bytes`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BlockGet {
        /// The part's block and offset, and the ticket to read it.
        pub part: BlockPart,
        /// Number of bytes to read.
        pub len: u32,
    }
}

codec! {
    /// Effect of `fallocate` on a range of a file. Space is not reserved: blocks never change, so a
    /// write needs new ones in any case.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AllocateMode {
        /// Make the file at least as long as the range's end.
        Grow = 1,
        /// Change nothing but the times (`KEEP_SIZE`).
        Keep = 2,
        /// Make the range zeros, and the file at least as long as the range's end (`ZERO_RANGE`).
        Zero = 3,
        /// Make the range zeros as far as the file reaches (`PUNCH_HOLE`, `ZERO_RANGE` with
        /// `KEEP_SIZE`).
        ZeroWithin = 4,
    }
}

codec! {
    /// `fallocate`. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Allocate {
        /// The file to change.
        pub file: FileRef,
        /// Offset of the range, in bytes.
        pub offset: u64,
        /// Length of the range, in bytes, at least 1.
        pub len: u64,
        /// Effect on the range.
        pub mode: AllocateMode,
        /// Whether to clear set-id bits, because the caller may not keep them.
        pub clear_set_id: bool,
    }
}

codec! {
    /// The target of a seek.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SeekTo {
        /// The next byte that is stored.
        Data = 1,
        /// The next byte that is not stored, at the latest the end of the file.
        Hole = 2,
    }
}

codec! {
    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`. Answer: the offset; `NoSuchDevice` when there is
    /// none, as from the end of the file on.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Seek {
        /// The file to search.
        pub file: FileRef,
        /// Offset from which to search, in bytes.
        pub offset: u64,
        /// The target of the seek.
        pub to: SeekTo,
    }
}
