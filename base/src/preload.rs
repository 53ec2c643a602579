//! Messages between a region and the library that is preloaded into its programs.
//!
//! They travel over a Unix socket of this machine, and both ends are of one version, so the format
//! is simple: a header of fixed size, and bytes. An *ask* names an operation; its answer is the next
//! one on its connection, and [`Kind::Close`] has none. Reading and writing them allocates nothing,
//! because the library runs in signal handlers, too.
//!
//! Numbers are little-endian.

use crate::{Attr, Ino, Time, attr::MODE_BITS};

/// Version of the messages. Another one is refused by [`Kind::Hello`].
pub const VERSION: u64 = 1;

/// Bytes of an ask's header.
pub const ASK_BYTES: usize = 64;

/// Bytes of an answer's header.
pub const ANSWER_BYTES: usize = 120;

/// Most bytes that follow a header.
pub const BODY_MAX: usize = 64 << 10;

/// Bytes of a region's token, which are hexadecimal digits: whoever has it is one of its programs.
pub const TOKEN_BYTES: usize = 32;

/// The [`Answer::status`] of an operation that is to be done through the mount.
pub const ASK_MOUNT: i32 = -1;

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The first one of a connection: [`VERSION`] as offset, a number of the process as `at`, and
    /// the region's [`TOKEN_BYTES`] as body.
    Hello = 1,
    /// Opens, and perhaps makes, the file at a path.
    Open = 2,
    /// Closes a handle. There is no answer.
    Close = 3,
    /// Reads `len` bytes at an offset of a handle.
    Read = 4,
    /// Writes the body at an offset of a handle, or at its end.
    Write = 5,
    /// Attributes of a handle, or of what is at a path.
    Stat = 6,
    /// Whether what is at a path may be used as `mode` says, with the bits of access(2).
    Access = 7,
    /// Makes a directory.
    Mkdir = 8,
    /// Removes a name that is no directory's.
    Unlink = 9,
    /// Makes a symbolic link: the body is a path of `len` bytes, and the target.
    Symlink = 10,
    /// The target of a symbolic link.
    Readlink = 11,
    /// Sets attributes of a handle, or of what is at a path; answers with all.
    Set = 12,
    /// Waits until a handle's contents and name are stable.
    Sync = 13,
    /// From now on the kernel is to see all changes, as somebody watches.
    Watch = 14,
}

impl Kind {
    const ALL: [Kind; 14] = [
        Kind::Hello,
        Kind::Open,
        Kind::Close,
        Kind::Read,
        Kind::Write,
        Kind::Stat,
        Kind::Access,
        Kind::Mkdir,
        Kind::Unlink,
        Kind::Symlink,
        Kind::Readlink,
        Kind::Set,
        Kind::Sync,
        Kind::Watch,
    ];
}

/// Bits of [`Ask::flags`].
pub mod flag {
    /// Open: for reading.
    pub const READ: u16 = 1;
    /// Open: for writing.
    pub const WRITE: u16 = 1 << 1;
    /// Open: make it if it is not there.
    pub const CREATE: u16 = 1 << 2;
    /// Open: fail if it is there.
    pub const EXCLUSIVE: u16 = 1 << 3;
    /// Open: cut it.
    pub const TRUNCATE: u16 = 1 << 4;
    /// Write: at the end.
    pub const APPEND: u16 = 1 << 5;
    /// Stat and Set: of the link itself.
    pub const NO_FOLLOW: u16 = 1 << 6;
    /// Stat and Set: `at` is a handle.
    pub const HANDLE: u16 = 1 << 7;
    /// Set: the mode.
    pub const MODE: u16 = 1 << 8;
    /// Set: the owner.
    pub const UID: u16 = 1 << 9;
    /// Set: the group.
    pub const GID: u16 = 1 << 10;
    /// Set: the size, which is the offset.
    pub const SIZE: u16 = 1 << 11;
    /// Set: the time of access.
    pub const ATIME: u16 = 1 << 12;
    /// Set: the time of access, to the present.
    pub const ATIME_NOW: u16 = 1 << 13;
    /// Set: the time of modification.
    pub const MTIME: u16 = 1 << 14;
    /// Set: the time of modification, to the present.
    pub const MTIME_NOW: u16 = 1 << 15;
}

/// Header of an operation that a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The operation.
    pub kind: Kind,
    /// See [`flag`].
    pub flags: u16,
    /// Inode number of the directory from which the path in the body leads on, or a handle.
    pub at: u64,
    /// Position in the file, or its new size, in bytes.
    pub offset: u64,
    /// Permission bits.
    pub mode: u32,
    /// A number of bytes.
    pub len: u32,
    /// New owner.
    pub uid: u32,
    /// New group.
    pub gid: u32,
    /// New time of access.
    pub atime: Time,
    /// New time of modification.
    pub mtime: Time,
}

impl Ask {
    /// An ask with nothing but its kind.
    #[must_use]
    pub const fn new(kind: Kind) -> Ask {
        let time = Time { sec: 0, nsec: 0 };
        Ask {
            kind,
            flags: 0,
            at: 0,
            offset: 0,
            mode: 0,
            len: 0,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
        }
    }

    /// The header, before a body of so many bytes.
    #[must_use]
    pub fn header(&self, body: usize) -> [u8; ASK_BYTES] {
        let mut bytes = [0; ASK_BYTES];
        let mut out = Out(&mut bytes);
        out.put(total(ASK_BYTES, body).to_le_bytes());
        out.put((self.kind as u16).to_le_bytes());
        out.put(self.flags.to_le_bytes());
        out.put(self.at.to_le_bytes());
        out.put(self.offset.to_le_bytes());
        out.put(self.mode.to_le_bytes());
        out.put(self.len.to_le_bytes());
        out.put(self.uid.to_le_bytes());
        out.put(self.gid.to_le_bytes());
        out.put(self.atime.sec.to_le_bytes());
        out.put(self.mtime.sec.to_le_bytes());
        out.put(self.atime.nsec.to_le_bytes());
        out.put(self.mtime.nsec.to_le_bytes());
        bytes
    }

    /// The ask of a header, if it is one.
    #[must_use]
    pub fn parse(header: &[u8; ASK_BYTES]) -> Option<Ask> {
        let mut from = In(&header[4..]);
        let number = u16::from_le_bytes(from.take());
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u16 == number)?;
        let mut ask = Ask::new(kind);
        ask.flags = u16::from_le_bytes(from.take());
        ask.at = u64::from_le_bytes(from.take());
        ask.offset = u64::from_le_bytes(from.take());
        ask.mode = u32::from_le_bytes(from.take());
        ask.len = u32::from_le_bytes(from.take());
        ask.uid = u32::from_le_bytes(from.take());
        ask.gid = u32::from_le_bytes(from.take());
        ask.atime.sec = i64::from_le_bytes(from.take());
        ask.mtime.sec = i64::from_le_bytes(from.take());
        ask.atime.nsec = u32::from_le_bytes(from.take());
        ask.mtime.nsec = u32::from_le_bytes(from.take());
        Some(ask)
    }
}

/// Header of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    /// 0, an errno, or [`ASK_MOUNT`].
    pub status: i32,
    /// A handle, or a number of bytes.
    pub value: u64,
    /// Attributes, of operations that tell them.
    pub stat: Stat,
}

/// Attributes as stat(2) shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
}

impl Stat {
    /// Of an operation that tells none.
    pub const NOTHING: Stat = {
        let time = Time { sec: 0, nsec: 0 };
        Stat {
            ino: 0,
            size: 0,
            blocks: 0,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    };

    /// Attributes as they are shown.
    #[must_use]
    pub fn of(attr: &Attr) -> Stat {
        Stat {
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks(),
            mode: attr.kind.mode_bits() | attr.mode & MODE_BITS,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
        }
    }
}

impl Answer {
    /// The header, before a body of so many bytes.
    #[must_use]
    pub fn header(&self, body: usize) -> [u8; ANSWER_BYTES] {
        let Answer { status, value, stat } = self;
        let mut bytes = [0; ANSWER_BYTES];
        let mut out = Out(&mut bytes);
        out.put(total(ANSWER_BYTES, body).to_le_bytes());
        out.put(status.to_le_bytes());
        out.put(value.to_le_bytes());
        for number in [stat.ino, stat.size, stat.blocks] {
            out.put(number.to_le_bytes());
        }
        for number in [stat.mode, stat.nlink, stat.uid, stat.gid, stat.rdev, 0] {
            out.put(number.to_le_bytes());
        }
        for time in [stat.atime, stat.mtime, stat.ctime, stat.btime] {
            out.put(time.sec.to_le_bytes());
        }
        for time in [stat.atime, stat.mtime, stat.ctime, stat.btime] {
            out.put(time.nsec.to_le_bytes());
        }
        bytes
    }

    /// The answer of a header.
    #[must_use]
    pub fn parse(header: &[u8; ANSWER_BYTES]) -> Answer {
        let mut from = In(&header[4..]);
        let (status, value) = (i32::from_le_bytes(from.take()), u64::from_le_bytes(from.take()));
        let [ino, size, blocks] = std::array::from_fn(|_| u64::from_le_bytes(from.take()));
        let [mode, nlink, uid, gid, rdev, _] =
            std::array::from_fn(|_| u32::from_le_bytes(from.take()));
        let secs: [i64; 4] = std::array::from_fn(|_| i64::from_le_bytes(from.take()));
        let [atime, mtime, ctime, btime] = std::array::from_fn(|index| Time {
            sec: secs[index],
            nsec: u32::from_le_bytes(from.take()),
        });
        let stat =
            Stat { ino, size, blocks, mode, nlink, uid, gid, rdev, atime, mtime, ctime, btime };
        Answer { status, value, stat }
    }
}

/// Bytes of the message that begins with these four; `None`: no message is so short, or so long.
#[must_use]
pub fn message_bytes(first: [u8; 4], header: usize) -> Option<usize> {
    let total = usize::try_from(u32::from_le_bytes(first)).ok()?;
    (header..=header + BODY_MAX).contains(&total).then_some(total)
}

fn total(header: usize, body: usize) -> u32 {
    debug_assert!(body <= BODY_MAX, "{body} bytes in a message");
    u32::try_from(header + body).unwrap_or(u32::MAX)
}

struct Out<'a>(&'a mut [u8]);

impl Out<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(N);
        here.copy_from_slice(&bytes);
        self.0 = rest;
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (here, rest) = self.0.split_at(N);
        self.0 = rest;
        here.try_into().expect("split to its length")
    }
}

/// The prefix of the names by which the library has the kernel open files that it knows by number:
/// hidden ones, in the region's directory. The token, `-` and the number follow.
pub const OPEN_PREFIX: &[u8] = b".pando-region-open-";

/// The token and the number in a hidden name, if it is one.
#[must_use]
pub fn opened_number(name: &[u8]) -> Option<(&[u8], Ino)> {
    let (token, digits) = name.strip_prefix(OPEN_PREFIX)?.split_at_checked(TOKEN_BYTES)?;
    let number = std::str::from_utf8(digits.strip_prefix(b"-")?).ok()?.parse().ok()?;
    Some((token, Ino(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for kind in Kind::ALL {
            let ask = Ask {
                kind,
                flags: 0xa5c3,
                at: 1 << 62 | 7,
                offset: 11,
                mode: 0o644,
                len: 13,
                uid: 17,
                gid: 19,
                atime: Time { sec: -1, nsec: 23 },
                mtime: Time { sec: 29, nsec: 999_999_999 },
            };
            let header = ask.header(100);
            assert_eq!(Ask::parse(&header), Some(ask));
            assert_eq!(message_bytes([header[0], header[1], header[2], header[3]], 64), Some(164));
        }
        let time = |sec| Time { sec, nsec: 5 };
        let stat = Stat {
            ino: 1,
            size: 2,
            blocks: 3,
            mode: 4,
            nlink: 5,
            uid: 6,
            gid: 7,
            rdev: 8,
            atime: time(9),
            mtime: time(10),
            ctime: time(11),
            btime: time(-12),
        };
        let answer = Answer { status: ASK_MOUNT, value: 1 << 40, stat };
        assert_eq!(Answer::parse(&answer.header(0)), answer);
    }

    #[test]
    fn no_message_is_longer_than_its_bound() {
        assert_eq!(message_bytes(63_u32.to_le_bytes(), ASK_BYTES), None);
        assert_eq!(message_bytes(u32::MAX.to_le_bytes(), ASK_BYTES), None);
        let largest = ASK_BYTES + BODY_MAX;
        let first = u32::try_from(largest).expect("small").to_le_bytes();
        assert_eq!(message_bytes(first, ASK_BYTES), Some(largest));
        assert_eq!(Ask::parse(&[0; ASK_BYTES]), None);
    }

    #[test]
    fn a_hidden_name_has_a_token_and_a_number() {
        let name = b".pando-region-open-0123456789abcdef0123456789abcdef-77";
        assert_eq!(opened_number(name), Some((&name[19..51], Ino(77))));
        for name in [&name[..52], &name[..50], b".pando-region-open-77", b".pando-region", b"77"] {
            assert_eq!(opened_number(name), None, "{}", name.escape_ascii());
        }
    }
}
