//! Every bound in one place, with the relations between them asserted when this crate compiles.

/// The longest name of an entry.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest path that a request may carry; Linux's `PATH_MAX` without the final NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// The longest target of a symbolic link.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Number of symbolic links that a walk follows before `ELOOP`, as Linux does.
pub const SYMLINKS_FOLLOWED_MAX: u32 = 40;
/// Number of names that a file can have.
pub const LINKS_MAX: u32 = 65_000;
/// The longest name of an extended attribute, its namespace included (Linux: `XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// The longest value of an extended attribute (Linux: `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// The longest POSIX ACL, 511 entries: a page, which is what Linux' FUSE carries.
pub const ACL_BYTES_MAX: usize = 4096;
/// Number of users and groups that a search class may name; more are kept as nobody, so that users
/// cannot fill permission tables with large ACLs.
pub const SEARCH_NAMES_MAX: usize = 32;
/// Bytes that the names of all extended attributes of one file may take, a NUL after each (Linux:
/// `XATTR_LIST_MAX`).
pub const XATTR_NAMES_BYTES_MAX: usize = 65_536;
/// Bytes that all extended attributes of one file may take together.
pub const XATTRS_BYTES_MAX: usize = 262_144;
/// Extended attributes up to this size rest in the file's own record.
pub const XATTRS_EMBEDDED_BYTES_MAX: usize = 512;
/// Contents up to this size rest in the entry, unless the file system says less.
pub const INLINE_BYTES_MAX: u32 = 4096;
/// The longest contents that a file system can keep with its metadata: those that do not rest in
/// the entry are in the record of their chunk.
pub const SMALL_BYTES_MAX: u32 = 64 << 10;
/// Contents up to this size are kept with the metadata, unless the file system was formatted
/// otherwise.
pub const SMALL_BYTES_DEFAULT: u32 = 16 << 10;
/// A chunk of a file: what one `B` record describes, and the largest block.
pub const CHUNK_BYTES: u32 = 4 << 20;
/// The largest file: chunk numbers are 32 bits wide, and the one after the last chunk is a number
/// too.
pub const FILE_BYTES_MAX: u64 = CHUNK_BYTES as u64 * u32::MAX as u64;
/// Number of slices of one chunk that a write may carry.
pub const SLICES_A_WRITE_MAX: usize = 1024;
/// Slices of a chunk at which it takes no more until it was compacted.
pub const SLICES_A_CHUNK_MAX: usize = 4096;
/// Number of embedded bytes of one chunk that a write may carry; more come as a block.
pub const EMBEDDED_BYTES_A_WRITE_MAX: usize = 256 << 10;
/// Number of blocks that a write may bring with it.
pub const WRITE_BLOCKS_MAX: usize = 64;
/// Bytes of all blocks that a write may bring with it.
pub const WRITE_BLOCKS_BYTES_MAX: usize = 64 << 10;
/// Embedded bytes of a chunk at which it takes no more until it was compacted.
pub const EMBEDDED_BYTES_A_CHUNK_MAX: usize = 1 << 20;
/// Number of chunks that a write may carry.
pub const CHUNKS_A_WRITE_MAX: usize = 1024;
/// Number of changes in a held directory that one request may carry.
pub const HELD_CHANGES_MAX: usize = 256;
/// Number of names of a directory that exists up to which a session may be granted it.
pub const HELD_NAMES_MAX: u64 = 8192;
/// The largest frame either side accepts.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
/// Number of mutating requests that a session may have unanswered: the server remembers the answers
/// to that many.
pub const REQUESTS_IN_FLIGHT_MAX: u64 = 4096;
/// Number of locks that a session may have, including those it waits for, before `ENOLCK`.
pub const LOCKS_A_SESSION_MAX: usize = 65_536;
/// Number of locks that one claim may carry.
pub const LOCKS_A_CLAIM_MAX: usize = 1000;
/// The most shards a file system can be formatted with: inode numbers have 12 bits for them.
pub const SHARDS_MAX: u16 = 4096;
/// The most lanes of a shard: inode numbers have 4 bits for them.
pub const LANES_MAX: u8 = 16;
/// In a file system with hybrid placement, how many levels of directories below the root have
/// places of their own, where nothing else was set.
pub const HYBRID_LEVELS: u8 = 2;
/// Number of groups that a request's credentials may carry.
pub const GROUPS_MAX: usize = 65_536;

const _: () = assert!((CHUNK_BYTES as usize) < FRAME_BYTES_MAX, "a block fits in a frame");
const _: () = assert!(
    INLINE_BYTES_MAX <= SMALL_BYTES_DEFAULT && SMALL_BYTES_DEFAULT <= SMALL_BYTES_MAX,
    "what rests in an entry is small"
);
const _: () = assert!(
    SMALL_BYTES_MAX as usize <= EMBEDDED_BYTES_A_WRITE_MAX,
    "a write carries the contents of a small file"
);
const _: () = assert!(
    EMBEDDED_BYTES_A_CHUNK_MAX + EMBEDDED_BYTES_A_WRITE_MAX < FRAME_BYTES_MAX / 4,
    "a chunk's record fits in a frame beside others"
);
const _: () = assert!(XATTRS_BYTES_MAX < FRAME_BYTES_MAX, "a file's attributes fit in a frame");
const _: () = assert!(XATTR_VALUE_BYTES_MAX < XATTRS_BYTES_MAX, "one attribute fits in the set");
const _: () = assert!(FILE_BYTES_MAX <= i64::MAX as u64, "a file's size is a positive off_t");
