//! Between the kernel's words and ours: attributes, times, errors, flags.
//!
//! Pure functions; nothing here knows a node or a handle.

use std::fmt;

use base::{Access, Attr, Cred, NameError, SetAttr, SetTime, Time, attr::MODE_BITS};
use fuse::{Errno, Header, Timespec};
use wire::{RenameMode, Statfs, XattrMode};

/// The preferred size of an IO, and the unit in which space is told.
const BLOCK_BYTES: u32 = 4096;
/// Open modes of `open(2)`.
const O_ACCMODE: u32 = 3;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Why a request is not answered with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) Errno);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed(errno)
    }
}

impl From<NameError> for Failed {
    fn from(error: NameError) -> Failed {
        Failed(Errno::from_raw_os_error(base::FsError::from(error).errno()))
    }
}

impl From<client::Error> for Failed {
    fn from(error: client::Error) -> Failed {
        match &error {
            client::Error::Fs(_) => {}
            client::Error::SessionLost
            | client::Error::Refused(_)
            | client::Error::TokenExpired
            | client::Error::Silent(..)
            | client::Error::Closed => {
                // Why is told once, by the client.
                tracing::debug!(%error, "a request failed");
            }
        }
        Failed(Errno::from_raw_os_error(error.errno()))
    }
}

pub(crate) fn cred(header: &Header) -> Cred {
    Cred { uid: header.uid, gid: header.gid, groups: Vec::new() }
}

pub(crate) fn time(time: Time) -> Timespec {
    Timespec { secs: time.sec, nanos: time.nsec }
}

/// Converts attributes to those that `stat` shows.
pub(crate) fn attr(attr: &Attr) -> fuse::Attr {
    fuse::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks(),
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.kind.mode_bits() | attr.mode & MODE_BITS,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
    }
}

pub(crate) fn set_attr(set: &fuse::SetAttr) -> SetAttr {
    let time = |time| match time {
        fuse::SetTime::Now => SetTime::Now,
        fuse::SetTime::At(at) => SetTime::At(Time { sec: at.secs, nsec: at.nanos }),
    };
    SetAttr {
        mode: set.mode.map(|mode| mode & MODE_BITS),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        clear_set_id: set.kill_suidgid,
        access_only: false,
    }
}

/// Access that an open with these flags asks for. A program that is executed is read, and the
/// kernel has checked that it may be.
pub(crate) fn access(flags: u32) -> Option<Access> {
    match flags & O_ACCMODE {
        0 => Some(Access::READ),
        1 => Some(Access::WRITE),
        2 => Some(Access::READ.and(Access::WRITE)),
        _ => None,
    }
}

pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Failed> {
    match flags {
        0 => Ok(RenameMode::Replace),
        RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Failed(Errno::INVAL)),
    }
}

pub(crate) fn xattr_mode(flags: u32) -> Result<XattrMode, Failed> {
    match flags {
        0 => Ok(XattrMode::Set),
        XATTR_CREATE => Ok(XattrMode::Create),
        XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Failed(Errno::INVAL)),
    }
}

/// Limits what is shown to a quota, if the lines that `pando info` shows tell of one. Inodes that
/// are counted for a quota, also one without a limit, take the place of the estimate.
pub(crate) fn limit_statfs(statfs: &mut Statfs, lines: &[(String, String)]) {
    let line = |name: &str| lines.iter().find(|(found, _)| found == name);
    let number = |name: &str| -> Option<u64> { line(name)?.1.parse().ok() };
    if let (Some(max), Some(used)) = (number("quota.bytes"), number("used.bytes")) {
        statfs.bytes = max.min(statfs.bytes);
        statfs.bytes_free = statfs.bytes_free.min(max.saturating_sub(used));
    }
    let is_counted = line("quota.state").is_some_and(|(_, state)| state == "active");
    if let Some(used) = number("used.entries").filter(|_| is_counted) {
        statfs.files = used;
        if let Some(max) = number("quota.entries") {
            statfs.files_free = statfs.files_free.min(max.saturating_sub(used));
        }
    }
}

pub(crate) fn statfs(statfs: &Statfs) -> fuse::StatFs {
    let free = statfs.bytes_free / u64::from(BLOCK_BYTES);
    fuse::StatFs {
        blocks: statfs.bytes / u64::from(BLOCK_BYTES),
        bfree: free,
        bavail: free,
        files: statfs.files.saturating_add(statfs.files_free),
        ffree: statfs.files_free,
        bsize: BLOCK_BYTES,
        namelen: u32::try_from(base::limits::NAME_BYTES_MAX).expect("255"),
        frsize: BLOCK_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Ino};

    fn file(size: u64, allocated: u64) -> Attr {
        Attr { mode: 0o644, size, allocated, ..Attr::blank(Ino(2), FileKind::File) }
    }

    #[test]
    fn small_contents_take_space_and_large_holes_do_not() {
        assert_eq!(attr(&file(0, 0)).blocks, 0);
        assert_eq!(attr(&file(1, 0)).blocks, 1);
        assert_eq!(attr(&file(4096, 4096)).blocks, 8);
        assert_eq!(attr(&file(1 << 40, 0)).blocks, 0);
        assert_eq!(attr(&file(1 << 40, 513)).blocks, 2);
    }

    #[test]
    fn an_open_asks_for_what_its_flags_say() {
        let (read, write) = (Access::READ, Access::WRITE);
        assert_eq!(access(0), Some(read));
        assert_eq!(access(0o101), Some(write));
        assert_eq!(access(0o2002), Some(read.and(write)));
        assert_eq!(access(3), None);
    }

    #[test]
    fn flags_that_we_do_not_know_are_refused() {
        let whiteout = 4;
        assert_eq!(rename_mode(whiteout), Err(Failed(Errno::INVAL)));
        assert_eq!(rename_mode(RENAME_NOREPLACE | RENAME_EXCHANGE), Err(Failed(Errno::INVAL)));
        assert_eq!(xattr_mode(XATTR_CREATE | XATTR_REPLACE), Err(Failed(Errno::INVAL)));
    }

    #[test]
    fn statfs_below_a_quota_shows_the_quota() {
        let mut shown = Statfs { bytes: 1 << 30, bytes_free: 1 << 29, files: 3, files_free: 700 };
        let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut lines = vec![line("quota.bytes", "4096"), line("used.bytes", "1000")];
        lines.extend([line("quota.entries", "12"), line("used.entries", "5")]);
        lines.push(line("quota.state", "active"));
        limit_statfs(&mut shown, &lines);
        let expected = Statfs { bytes: 4096, bytes_free: 3096, files: 5, files_free: 7 };
        assert_eq!(shown, expected);
        lines[2].1 = "4".to_owned();
        limit_statfs(&mut shown, &lines);
        assert_eq!((shown.files, shown.files_free), (5, 0));
    }

    #[test]
    fn statfs_shows_the_inodes_that_are_counted_for_a_quota_without_a_limit() {
        let estimate = Statfs { bytes: 1 << 30, bytes_free: 1 << 29, files: 30, files_free: 700 };
        let shown = |state: &str, max: &str| {
            let mut shown = estimate;
            let lines = [
                ("quota.bytes", "none"),
                ("quota.entries", max),
                ("used.entries", "5"),
                ("quota.state", state),
            ];
            let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
            limit_statfs(&mut shown, &lines);
            shown
        };
        let counted = Statfs { files: 5, ..estimate };
        assert_eq!([shown("active", "unlimited"), shown("active", "none")], [counted; 2]);
        assert_eq!(shown("counting", "unlimited"), estimate, "the count is not complete");
        assert_eq!(shown("counting", "9"), estimate);
    }

    #[test]
    fn statfs_counts_what_could_be_there() {
        let shown = statfs(&Statfs { bytes: 1 << 20, bytes_free: 8191, files: 3, files_free: 7 });
        assert_eq!((shown.blocks, shown.bfree, shown.bavail), (256, 1, 1));
        assert_eq!((shown.files, shown.ffree, shown.namelen), (10, 7, 255));
    }
}
