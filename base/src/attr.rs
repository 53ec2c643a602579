//! Attributes of an inode that `stat` shows, and the changes that `chmod`, `chown`, `utimensat` and
//! `truncate` make.

use crate::{
    codec,
    codec::{Decode, DecodeError, Element, Encode, Reader},
    id::Ino,
    limits::INLINE_BYTES_MAX,
};

/// Permission bits and the three special bits of a mode.
pub const MODE_BITS: u32 = 0o7777;
/// Set-user-id.
pub const MODE_SETUID: u32 = 0o4000;
/// Set-group-id.
pub const MODE_SETGID: u32 = 0o2000;
/// The sticky bit.
pub const MODE_STICKY: u32 = 0o1000;
/// In attributes only, never in what is asked for or stored: there is a POSIX ACL, so the mode
/// alone does not say what others than the owner may do. The bit is above those of a umask
/// ([`with_umask`](crate::acl::with_umask)), so a mode that was told may be asked for.
pub const MODE_ACL: u32 = 1 << 26;
/// Like [`MODE_ACL`], and never of a directory: there are extended attributes that are no ACLs.
pub const MODE_XATTRS: u32 = 1 << 25;
/// Execute permission of the group.
pub const MODE_GROUP_EXECUTE: u32 = 0o010;

/// The mode that is left when a write or a change of owner takes the set-id bits. Set-group-id
/// without group execution once meant mandatory locking, and stays.
#[must_use]
pub fn without_set_id(mode: u32) -> u32 {
    let keeps_group = mode & MODE_GROUP_EXECUTE == 0;
    mode & !(if keeps_group { MODE_SETUID } else { MODE_SETUID | MODE_SETGID })
}

/// `mtime` and `ctime` of a directory after a change of a name that was made at `at`. Such changes
/// come in any order, and after later ones of mode and owner, where a session makes them without
/// asking first: neither time goes back. An `mtime` after `ctime` was set by somebody, and does not
/// stay.
#[must_use]
pub fn touched(mtime: Time, ctime: Time, at: Time) -> (Time, Time) {
    let now = at.max(ctime);
    (if mtime > ctime { now } else { at.max(mtime) }, now)
}

codec! {
    /// Type of an inode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum FileKind {
        /// A regular file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link.
        Symlink = 3,
        /// A named pipe.
        Fifo = 4,
        /// A socket.
        Socket = 5,
        /// A character device.
        CharDevice = 6,
        /// A block device.
        BlockDevice = 7,
    }
}

impl FileKind {
    /// The file type bits of `st_mode`.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// The kind that the file type bits of `mode` say, if any.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & 0o170_000 {
            0o100_000 => FileKind::File,
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// A point in time, since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub sec: i64,
    /// The rest, 0 to 999,999,999 nanoseconds.
    pub nsec: u32,
}

impl Element for Time {}

impl Encode for Time {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sec.encode(out);
        self.nsec.encode(out);
    }
}

impl Decode for Time {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (sec, nsec) = <(i64, u32)>::decode(input)?;
        if nsec < 1_000_000_000 {
            Ok(Time { sec, nsec })
        } else {
            Err(DecodeError::Invalid("time"))
        }
    }
}

impl Time {
    /// Nanoseconds since the epoch, for differences.
    #[must_use]
    pub fn as_nanos(self) -> i128 {
        i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec)
    }

    /// The time a nanosecond later.
    #[must_use]
    pub fn just_after(self) -> Time {
        match self.nsec {
            999_999_999 => Time { sec: self.sec.saturating_add(1), nsec: 0 },
            nsec => Time { nsec: nsec + 1, ..self },
        }
    }

    /// The least time that is later.
    #[must_use]
    pub fn next(self) -> Time {
        match self.nsec {
            999_999_999 => Time { sec: self.sec.saturating_add(1), nsec: 0 },
            nsec => Time { sec: self.sec, nsec: nsec + 1 },
        }
    }

    /// The time this many milliseconds later.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Time {
        let nsec = u64::from(self.nsec) + ms % 1000 * 1_000_000;
        let sec = ms / 1000 + nsec / 1_000_000_000;
        Time {
            sec: self.sec.saturating_add_unsigned(sec),
            nsec: u32::try_from(nsec % 1_000_000_000).expect("a remainder of 10^9"),
        }
    }
}

codec! {
    /// The attributes of an inode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Attr {
        /// Inode number.
        pub ino: Ino,
        /// Type of the inode.
        pub kind: FileKind,
        /// Permission and special bits only (`0o7777`).
        pub mode: u32,
        /// Number of names; of a directory 2 and one for each subdirectory.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Device number of a special file, as Linux encodes it.
        pub rdev: u32,
        /// Bytes; of a directory, its entries; of a symlink, the length of its target.
        pub size: u64,
        /// Bytes that are really stored.
        pub allocated: u64,
        /// Last access.
        pub atime: Time,
        /// Last change of contents.
        pub mtime: Time,
        /// Last change of attributes.
        pub ctime: Time,
        /// Birth.
        pub btime: Time,
    }
}

/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

impl Attr {
    /// The space that is taken, in blocks of 512 bytes as `stat` shows them. Contents that rest in the entry
    /// count too: programs that copy files take one without blocks for a hole from end to end.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let inline = self.kind == FileKind::File && self.size <= u64::from(INLINE_BYTES_MAX);
        let stored = if inline { self.allocated.max(self.size) } else { self.allocated };
        stored.div_ceil(SECTOR_BYTES)
    }

    /// Attributes of a new and empty inode that no user can use yet: no permission, root's, born at
    /// the epoch, with one name (a directory has itself as well).
    #[must_use]
    pub fn blank(ino: Ino, kind: FileKind) -> Attr {
        let time = Time::default();
        Attr {
            ino,
            kind,
            mode: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }
}

codec! {
    /// A time to set.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SetTime {
        /// The server's present time.
        Now = 1,
        /// This time.
        At(Time) = 2,
    }
}

codec! {
    /// Changes of attributes; a field that is `None` stays.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SetAttr {
        /// New permission and special bits.
        pub mode: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// New size: cut, or grown with zeros.
        pub size: Option<u64>,
        /// New access time.
        pub atime: Option<SetTime>,
        /// New modification time.
        pub mtime: Option<SetTime>,
        /// Clear set-id bits, because the caller may not keep them (a write or truncate without
        /// privilege).
        pub clear_set_id: bool,
        /// Set `atime` only where it is not newer already, and leave `ctime`: a read happened
        /// (relatime).
        pub access_only: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_directory_are_those_of_its_latest_change_in_whichever_order_they_come() {
        let time = |sec| Time { sec, nsec: 0 };
        let after = |changes: &[i64]| {
            let start = (time(1), time(1));
            changes.iter().fold(start, |(mtime, ctime), at| touched(mtime, ctime, time(*at)))
        };
        assert_eq!(after(&[2, 3]), (time(3), time(3)));
        assert_eq!(after(&[3, 2]), (time(3), time(3)));
        // The mode was changed at 5, and a name at 4.
        assert_eq!(touched(time(3), time(5), time(4)), (time(4), time(5)));
        // Somebody has set a time to come.
        assert_eq!(touched(time(90), time(5), time(6)), (time(6), time(6)));
        assert_eq!(touched(time(90), time(5), time(4)), (time(5), time(5)));
    }

    #[test]
    fn kinds_and_mode_bits_agree() {
        for kind in [
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
    }

    #[test]
    fn a_time_of_more_nanoseconds_than_a_second_has_is_no_time() {
        let time = Time { sec: 1, nsec: 999_999_999 };
        assert_eq!(Time::from_bytes(&time.to_vec().into()), Ok(time));
        let wrong = Time { nsec: 1_000_000_000, ..time };
        assert!(Time::from_bytes(&wrong.to_vec().into()).is_err());
    }

    #[test]
    fn milliseconds_carry_into_seconds() {
        let time = Time { sec: -1, nsec: 999_000_000 };
        assert_eq!(time.plus_ms(2001), Time { sec: 2, nsec: 0 });
    }
}
