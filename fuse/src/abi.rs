//! The kernel's structures and numbers, as `include/uapi/linux/fuse.h` has them (protocol 7.45).
//!
//! Used by the decoder, the encoder and the session; nothing outside this crate sees them. Every
//! structure is plain bytes in native order, its size is asserted against the kernel's, and field
//! names are the kernel's too, so that the two files can be read side by side.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that this crate speaks in full.
pub(crate) const MINOR: u32 = 45;
/// The oldest one it accepts (Linux 5.4).
pub(crate) const MINOR_MIN: u32 = 31;

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// The kernel's opcodes, one constant each.
        pub(crate) mod opcode {
            $(pub(crate) const $name: u32 = $value;)*

            /// The opcode's name, for logs.
            pub(crate) fn name(opcode: u32) -> &'static str {
                match opcode {
                    $($value => stringify!($name),)*
                    _ => "unknown",
                }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
    MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16,
    STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23,
    REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
    FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
    BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42,
    FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50,
    TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
}

pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_ATIME: u32 = 1 << 4;
pub(crate) const FATTR_MTIME: u32 = 1 << 5;
pub(crate) const FATTR_FH: u32 = 1 << 6;
pub(crate) const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(crate) const FATTR_MTIME_NOW: u32 = 1 << 8;
pub(crate) const FATTR_LOCKOWNER: u32 = 1 << 9;
pub(crate) const FATTR_CTIME: u32 = 1 << 10;
pub(crate) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub(crate) const GETATTR_FH: u32 = 1 << 0;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const LK_FLOCK: u32 = 1 << 0;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;

/// Extension types up to this one are security contexts, and the type is their number.
pub(crate) const MAX_NR_SECCTX: u32 = 31;
pub(crate) const EXT_GROUPS: u32 = 32;

pub(crate) const NOTIFY_POLL: i32 = 1;
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_STORE: i32 = 4;
pub(crate) const NOTIFY_DELETE: i32 = 6;
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;

/// Commands to an io_uring descriptor (`IORING_OP_URING_CMD`).
pub(crate) const IO_URING_CMD_REGISTER: u32 = 1;
pub(crate) const IO_URING_CMD_COMMIT_AND_FETCH: u32 = 2;

macro_rules! structs {
    ($($name:ident = $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
            pub(crate) struct $name { $(pub(crate) $field: $type),* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

structs! {
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    OutHeader = 16 { len: u32, error: i32, unique: u64 }

    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }

    InitIn = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }

    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrInCompat = 8 { size: u32, flags: u32 }
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn = 8 { size: u32, padding: u32 }
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    AccessIn = 8 { mask: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    BmapIn = 16 { block: u64, blocksize: u32, padding: u32 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    SecctxHeader = 8 { size: u32, nr_secctx: u32 }
    Secctx = 8 { size: u32, padding: u32 }

    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    StatxOut = 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    CreateOut = 144 { entry: EntryOut, open: OpenOut }
    WriteOut = 8 { size: u32, padding: u32 }
    CopyFileRangeOut = 8 { bytes_copied: u64 }
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    GetxattrOut = 8 { size: u32, padding: u32 }
    LkOut = 24 { lk: FileLock }
    BmapOut = 8 { block: u64 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollOut = 8 { revents: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }

    UringEntInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    UringReqHeader = 288 { in_out: [u64; 16], op_in: [u64; 16], ring_ent_in_out: UringEntInOut }
    UringSqe = 128 {
        opcode: u8, flags: u8, ioprio: u16, fd: i32, cmd_op: u32, pad1: u32, addr: u64, len: u32,
        uring_cmd_flags: u32, user_data: u64, buf_index: u16, personality: u16, file_index: u32,
        cmd: UringCmdReq, unused: [u64; 7],
    }
    UringCmdReq = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }

    NotifyPollWakeupOut = 8 { kh: u64 }
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
}
