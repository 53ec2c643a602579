//! Structures that C shares with us. Their layout is fixed: fields are added in what is reserved.

use std::ffi::c_char;

use base::{Attr, FileKind, FsError, SetTime, Time, attr::MODE_BITS};

/// Nanoseconds of a pando_timespec in pando_utimens(): the present time of the server.
pub const PANDO_UTIME_NOW: u32 = 0x3fff_ffff;
/// Nanoseconds of a pando_timespec in pando_utimens(): leave this time as it is.
pub const PANDO_UTIME_OMIT: u32 = 0x3fff_fffe;

/// Longest name of an entry, in bytes.
pub const PANDO_NAME_MAX: usize = 255;

/// A session with a file system, acting as one user.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct pando_fs {
    _opaque: [u8; 0],
}

/// An open file.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct pando_file {
    _opaque: [u8; 0],
}

/// A directory that is being listed.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct pando_dir {
    _opaque: [u8; 0],
}

/// Operations that are under way at the same time.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct pando_batch {
    _opaque: [u8; 0],
}

/// How to connect.
#[allow(non_camel_case_types, reason = "a name of C")]
pub struct pando_options {
    _opaque: [u8; 0],
}

/// A point in time, since 1970.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pando_timespec {
    /// Whole seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds from 0 to 999999999.
    pub nsec: u32,
    /// Zero.
    pub reserved: u32,
}

/// Attributes of a file, directory or other inode.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pando_stat {
    /// Inode number.
    pub ino: u64,
    /// Bytes; of a directory its entries; of a symbolic link the length of its target.
    pub size: u64,
    /// Bytes that are really stored.
    pub allocated: u64,
    /// Type and permission bits, as st_mode of stat(2).
    pub mode: u32,
    /// Number of names; of a directory 2 and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, as Linux encodes it.
    pub rdev: u32,
    /// Bytes to read or write at once for speed.
    pub blksize: u32,
    /// Last access.
    pub atime: pando_timespec,
    /// Last change of contents.
    pub mtime: pando_timespec,
    /// Last change of attributes.
    pub ctime: pando_timespec,
    /// Birth.
    pub btime: pando_timespec,
    /// Zero.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<pando_stat>() == 144);

/// Space and inodes of the file system.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pando_statfs {
    /// Bytes in total.
    pub bytes: u64,
    /// Bytes that are free.
    pub bytes_free: u64,
    /// Inodes in use.
    pub files: u64,
    /// Inodes that could still be made.
    pub files_free: u64,
    /// Longest name of an entry, in bytes.
    pub name_max: u64,
    /// Zero.
    pub reserved: [u64; 3],
}

/// An entry of a directory, with its attributes.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pando_dirent {
    /// Inode number.
    pub ino: u64,
    /// Type bits of st_mode; 0 when the server that knows does not answer.
    pub r#type: u32,
    /// 1 when `stat` is filled in; 0 for a directory of another server: pando_lstat() asks there.
    pub has_stat: u32,
    /// Attributes, if `has_stat` is 1.
    pub stat: pando_stat,
    /// Name, with a zero byte at its end.
    pub name: [c_char; 256],
}

/// A lock of a range of bytes that conflicts with another.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pando_lock {
    /// First byte.
    pub start: u64,
    /// Number of bytes; 0: to the end of the file, however long it becomes.
    pub len: u64,
    /// Process that holds the lock; 0 when it is one of another client.
    pub pid: u32,
    /// PANDO_LOCK_SHARED, PANDO_LOCK_EXCLUSIVE, or PANDO_LOCK_NONE.
    pub mode: i32,
}

/// Result of an operation of a batch.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pando_completion {
    /// The number that was given with the operation.
    pub user_data: u64,
    /// Result as the function of the same name returns it: at least 0, or a negative errno.
    pub result: i64,
}

/// Bytes that a mount tells programs to read or write at once, too.
const BLOCK_BYTES: u32 = 128 << 10;

impl From<Time> for pando_timespec {
    fn from(time: Time) -> pando_timespec {
        pando_timespec { sec: time.sec, nsec: time.nsec, reserved: 0 }
    }
}

impl pando_timespec {
    /// The time to set; `None`: the time stays.
    pub(crate) fn to_set(self) -> Result<Option<SetTime>, FsError> {
        match self.nsec {
            PANDO_UTIME_NOW => Ok(Some(SetTime::Now)),
            PANDO_UTIME_OMIT => Ok(None),
            nsec if nsec < 1_000_000_000 => Ok(Some(SetTime::At(Time { sec: self.sec, nsec }))),
            _ => Err(FsError::Invalid),
        }
    }
}

/// The type bits of `st_mode`.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    kind.mode_bits()
}

impl From<&Attr> for pando_stat {
    fn from(attr: &Attr) -> pando_stat {
        pando_stat {
            ino: attr.ino.0,
            size: attr.size,
            allocated: attr.allocated,
            mode: type_bits(attr.kind) | attr.mode & MODE_BITS,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: BLOCK_BYTES,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
            reserved: [0; 4],
        }
    }
}
