//! Something below that is open by `O_PATH`: its attributes, and ways to change them.
//!
//! `/proc/self/fd/N` names it for calls that want a path, also where it is a symbolic link, which
//! is not followed then.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use base::{Attr, FileKind, FsError, Ino, Time, acl::AclKind, attr};
use bytes::Bytes;
use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
        Uid,
    },
    io::Errno,
};

use super::walk::error;
use crate::below::{Found, Result};

/// The most that the kernel tells of names of attributes, and the longest value.
const XATTR_BYTES_MAX: usize = 1 << 16;
/// Names of attributes that fit into this are listed in one call.
const XATTR_NAMES_BYTES: usize = 1 << 10;

/// An inode below.
pub(super) struct Node<F = OwnedFd> {
    fd: F,
}

/// The path by which this process reaches what it has open.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

impl<F: AsFd> Node<F> {
    pub(super) fn new(fd: F) -> Node<F> {
        Node { fd }
    }

    /// The path by which this process reaches the inode.
    pub(super) fn path(&self) -> String {
        proc_path(&self.fd)
    }

    /// Attributes, without [`attr::MODE_ACL`] and [`attr::MODE_XATTRS`].
    pub(super) fn attr(&self) -> Result<Attr> {
        attr_of(&self.fd)
    }

    pub(super) fn found(&self) -> Result<Found> {
        found_of(&self.fd)
    }

    /// Fails where this is no regular file.
    pub(super) fn must_be_file(&self) -> Result<Attr> {
        let attr = self.attr()?;
        match attr.kind {
            FileKind::File => Ok(attr),
            FileKind::Directory => Err(FsError::IsDirectory),
            FileKind::Symlink => Err(FsError::Loop),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Err(FsError::Invalid)
            }
        }
    }

    /// Opens a regular file of ours, although its mode may not let us.
    pub(super) fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        let opened = self.reopen_once(flags);
        if opened.as_ref().err() != Some(&FsError::Denied) {
            return opened;
        }
        let attr = self.attr()?;
        if attr.uid != rustix::process::geteuid().as_raw() {
            return opened;
        }
        // The owner has a permission for the moment; what is open keeps it.
        self.set_mode(attr.mode | 0o600)?;
        let opened = self.reopen_once(flags);
        self.set_mode(attr.mode)?;
        opened
    }

    fn reopen_once(&self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        rustix::fs::open(self.path(), flags, Mode::empty()).map_err(error)
    }

    pub(super) fn target(&self) -> Result<Bytes> {
        match rustix::fs::readlinkat(&self.fd, "", Vec::new()) {
            Ok(target) => Ok(target.into_bytes().into()),
            // Linux answers so where it is no symbolic link.
            Err(Errno::NOENT) => Err(FsError::Invalid),
            Err(errno) => Err(error(errno)),
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode & attr::MODE_BITS);
        rustix::fs::chmod(self.path(), mode).map_err(error)
    }

    pub(super) fn set_owner(&self, (uid, gid): (u32, u32)) -> Result<()> {
        let (uid, gid) = owner(uid, gid)?;
        rustix::fs::chownat(&self.fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(error)
    }

    pub(super) fn set_times(&self, atime: Time, mtime: Time) -> Result<()> {
        let times = timestamps(atime, mtime);
        rustix::fs::utimensat(CWD, self.path(), &times, AtFlags::empty()).map_err(error)
    }

    pub(super) fn xattrs(&self) -> Result<Vec<(Bytes, Bytes)>> {
        let path = self.path();
        let mut value = Vec::new();
        let mut xattrs = Vec::new();
        let names = names_of(&self.fd)?;
        for name in names.split(|byte| *byte == 0).filter(|name| is_told(name)) {
            value.resize(XATTR_BYTES_MAX, 0);
            match rustix::fs::getxattr(&path, name, &mut value[..]) {
                Ok(len) => xattrs
                    .push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(&value[..len]))),
                // Somebody has removed it meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(error(errno)),
            }
        }
        Ok(xattrs)
    }
}

/// Owner and group for a call that changes them.
pub(super) fn owner(uid: u32, gid: u32) -> Result<(Option<Uid>, Option<Gid>)> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(FsError::Invalid);
    }
    Ok((Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
}

/// Times for a call that sets them.
pub(super) fn timestamps(atime: Time, mtime: Time) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// The attributes of what a descriptor is open for, with the bits that tell of extended ones.
pub(super) fn found_of(fd: impl AsFd) -> Result<Found> {
    let mut attr = attr_of(&fd)?;
    let mut default_acl = false;
    if attr.kind != FileKind::Symlink {
        let names = names_of(&fd)?;
        for name in names.split(|byte| *byte == 0).filter(|name| is_told(name)) {
            match AclKind::of(name) {
                Some(kind) => {
                    attr.mode |= attr::MODE_ACL;
                    default_acl |= kind == AclKind::Default;
                }
                None if attr.kind != FileKind::Directory => attr.mode |= attr::MODE_XATTRS,
                None => {}
            }
        }
    }
    Ok(Found { attr, default_acl })
}

/// The attributes of what a descriptor is open for.
pub(super) fn attr_of(fd: impl AsFd) -> Result<Attr> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, mask).map_err(error)?;
    Ok(Attr {
        ino: Ino(statx.stx_ino),
        kind: FileKind::from_mode(statx.stx_mode.into()).ok_or(FsError::Io)?,
        mode: u32::from(statx.stx_mode) & attr::MODE_BITS,
        nlink: statx.stx_nlink,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        rdev: rdev(&statx),
        size: statx.stx_size,
        allocated: statx.stx_blocks * 512,
        atime: time(statx.stx_atime),
        mtime: time(statx.stx_mtime),
        ctime: time(statx.stx_ctime),
        btime: time(statx.stx_btime),
    })
}

fn time(time: StatxTimestamp) -> Time {
    Time { sec: time.tv_sec, nsec: time.tv_nsec }
}

/// The number of a device as Linux encodes it in 32 bits.
fn rdev(statx: &Statx) -> u32 {
    let (major, minor) = (statx.stx_rdev_major, statx.stx_rdev_minor);
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Major and minor number of a device as Linux encodes it in 32 bits.
pub(super) fn major_minor(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

/// The names of all extended attributes, a NUL after each; none where there cannot be any.
fn names_of(fd: impl AsFd) -> Result<Vec<u8>> {
    let path = proc_path(fd);
    let mut names = vec![0; XATTR_NAMES_BYTES];
    let mut listed = rustix::fs::listxattr(&path, &mut names[..]);
    if listed == Err(Errno::RANGE) {
        names.resize(XATTR_BYTES_MAX, 0);
        listed = rustix::fs::listxattr(&path, &mut names[..]);
    }
    match listed {
        Ok(len) => names.truncate(len),
        Err(Errno::NOTSUP) => names.clear(),
        Err(errno) => return Err(error(errno)),
    }
    Ok(names)
}

/// Whether an extended attribute is one that a user has set, and not one by which a security
/// module or the file system below keeps its own books.
fn is_told(name: &[u8]) -> bool {
    const BOOKS: [&[u8]; 6] = [
        b"trusted.overlay.",
        b"trusted.glusterfs.",
        b"trusted.gfid",
        b"trusted.lov",
        b"trusted.lma",
        b"trusted.link",
    ];
    AclKind::of(name).is_some()
        || name.starts_with(b"user.")
        || name == b"security.capability"
        || name.starts_with(b"trusted.") && !BOOKS.iter().any(|own| name.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_number_that_it_was_made_with() {
        for rdev in [0, 0x0103, 0xf_ff00, 0xffff_ffff, 0x1234_5678] {
            let (major, minor) = major_minor(rdev);
            assert_eq!(minor & 0xff | major << 8 | (minor & !0xff) << 12, rdev);
        }
    }

    #[test]
    fn attributes_that_the_system_gives_by_itself_do_not_count() {
        assert!(is_told(b"user.a") && is_told(b"trusted.a") && is_told(b"security.capability"));
        assert!(is_told(base::acl::ACCESS) && is_told(base::acl::DEFAULT));
        assert!(!is_told(b"security.selinux") && !is_told(b"trusted.overlay.opaque"));
        assert!(!is_told(b"system.nfs4_acl") && !is_told(b"lustre.lov") && !is_told(b""));
    }
}
