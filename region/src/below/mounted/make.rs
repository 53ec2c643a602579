//! Making what is not there, with its metadata.
//!
//! The umask and set-group-id directories have no part in the result: what differs from what was
//! asked for is set afterwards. Where the directory has a default ACL, the new inode has what that
//! ACL makes of the mode.
//!
//! An inode that was begun and could not be finished is removed, unless somebody has replaced it
//! meanwhile.

use std::os::fd::{AsFd, OwnedFd};

use base::{
    FileKind, FsError,
    acl::{self, Acl},
    attr::MODE_BITS,
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, XattrFlags, makedev},
    io::Errno,
};

use super::{
    Mounted,
    contents::write,
    node::{Node, found_of, major_minor, proc_path},
    walk::{self, At, error},
};
use crate::{
    Path,
    below::{Found, Meta, New, Result},
};

pub(super) fn run(below: &Mounted, path: &Path, new: &New, meta: &Meta) -> Result<Found> {
    let at = walk::parent(&below.root, path)?;
    let mode = first_mode(below, meta);
    match new {
        New::File(contents) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(mode);
            let fd = rustix::fs::openat(at.dir(), at.name(), flags, mode).map_err(error)?;
            let done = write(&fd, 0, contents).and_then(|()| settle(at.dir(), &fd, meta, mode));
            done.inspect_err(|_| take_away(&at, &fd, AtFlags::empty()))
        }
        New::Directory => {
            let meta = Meta { mode: meta.mode | 0o700, ..*meta };
            let mode = Mode::from_raw_mode(mode | 0o700);
            rustix::fs::mkdirat(at.dir(), at.name(), mode).map_err(error)?;
            let fd = reopen(&at, AtFlags::REMOVEDIR, OFlags::DIRECTORY)?;
            let done = settle(at.dir(), &fd, &meta, mode);
            done.inspect_err(|_| take_away(&at, &fd, AtFlags::REMOVEDIR))
        }
        New::Symlink(target) => {
            rustix::fs::symlinkat(&target[..], at.dir(), at.name()).map_err(error)?;
            let fd = reopen(&at, AtFlags::empty(), OFlags::empty())?;
            let done = finish_symlink(&fd, meta);
            done.inspect_err(|_| take_away(&at, &fd, AtFlags::empty()))
        }
        New::Special(kind, rdev) => {
            let file_type = special(*kind)?;
            let mode = Mode::from_raw_mode(mode);
            let (major, minor) = match kind {
                FileKind::CharDevice | FileKind::BlockDevice => major_minor(*rdev),
                _ => (0, 0),
            };
            let dev = makedev(major, minor);
            rustix::fs::mknodat(at.dir(), at.name(), file_type, mode, dev).map_err(error)?;
            let fd = reopen(&at, AtFlags::empty(), OFlags::empty())?;
            let done = settle(at.dir(), &fd, meta, mode);
            done.inspect_err(|_| take_away(&at, &fd, AtFlags::empty()))
        }
    }
}

/// Makes a file without a name.
pub(super) fn unnamed(below: &Mounted, dir: &Path, meta: &Meta) -> Result<(Found, OwnedFd)> {
    let mode = Mode::from_raw_mode(first_mode(below, meta));
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = walk::open_with(&below.root, dir, flags, mode).map_err(|errno| match errno {
        // A file system that does not know the flag takes it for `O_DIRECTORY`.
        Errno::ISDIR => FsError::NotSupported,
        errno => error(errno),
    })?;
    let above = walk::open(&below.root, dir, OFlags::PATH | OFlags::DIRECTORY).map_err(error)?;
    let found = settle(&above, &fd, meta, mode)?;
    Ok((found, fd))
}

fn special(kind: FileKind) -> Result<FileType> {
    match kind {
        FileKind::Fifo => Ok(FileType::Fifo),
        FileKind::Socket => Ok(FileType::Socket),
        FileKind::CharDevice => Ok(FileType::CharacterDevice),
        FileKind::BlockDevice => Ok(FileType::BlockDevice),
        FileKind::File | FileKind::Directory | FileKind::Symlink => Err(FsError::Invalid),
    }
}

/// The permissions with which an inode begins: those that it is to have where its owner is us, and
/// only its owner's where it is still to get another owner.
fn first_mode(below: &Mounted, meta: &Meta) -> u32 {
    let ours = below.owner == (meta.uid, meta.gid);
    0o600 | if ours { meta.mode & 0o777 } else { 0 }
}

/// Opens by `O_PATH` what was just made and has no descriptor.
fn reopen(at: &At<'_>, remove: AtFlags, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(at.dir(), at.name(), flags, Mode::empty());
    opened.map_err(|errno| {
        // No more descriptors, for example: then it is ours still. Race: somebody has replaced it
        // meanwhile, which cannot be seen without a descriptor.
        if errno != Errno::NOENT && errno != Errno::NOTDIR {
            let _ = rustix::fs::unlinkat(at.dir(), at.name(), remove);
        }
        error(errno)
    })
}

/// Gives a new inode in `above` its owner, mode and times.
fn settle(above: impl AsFd, fd: &OwnedFd, meta: &Meta, asked: Mode) -> Result<Found> {
    let node = Node::new(fd);
    let got = node.attr()?;
    let mut now = got.mode;
    if (got.uid, got.gid) != (meta.uid, meta.gid) {
        node.set_owner((meta.uid, meta.gid))?;
        now = base::attr::without_set_id(now);
    }
    let mut mode = meta.mode & MODE_BITS;
    // The umask took bits away, or a default ACL did, or the mode began as the owner's only.
    let whole = asked.as_raw_mode() & 0o777 == mode & 0o777 && now & 0o777 == mode & 0o777;
    if !whole && let Some(default) = default_acl(above)? {
        let inherited = default.inherit(mode, got.kind);
        if let Some(access) = &inherited.access {
            let (path, access) = (node.path(), access.to_bytes());
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(path, acl::ACCESS, &access, flags).map_err(error)?;
            now = node.attr()?.mode;
        }
        mode = inherited.mode | if got.kind == FileKind::Directory { 0o700 } else { 0 };
    }
    if mode != now {
        node.set_mode(mode)?;
    }
    node.set_times(meta.atime, meta.mtime)?;
    found_of(fd)
}

fn default_acl(dir: impl AsFd) -> Result<Option<Acl>> {
    let mut bytes = vec![0; base::limits::XATTR_VALUE_BYTES_MAX];
    match rustix::fs::getxattr(proc_path(dir), acl::DEFAULT, &mut bytes[..]) {
        Ok(len) => Acl::parse(&bytes[..len]),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(error(errno)),
    }
}

fn finish_symlink(fd: &OwnedFd, meta: &Meta) -> Result<Found> {
    let node = Node::new(fd);
    let got = node.attr()?;
    if (got.uid, got.gid) != (meta.uid, meta.gid) {
        node.set_owner((meta.uid, meta.gid))?;
    }
    node.set_times(meta.atime, meta.mtime)?;
    node.found()
}

/// Removes the name of what was begun, if it is still what the name stands for.
fn take_away(at: &At<'_>, fd: &OwnedFd, flags: AtFlags) {
    let open = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(there) = rustix::fs::openat(at.dir(), at.name(), open, Mode::empty()) else { return };
    let same = |one: &OwnedFd, other: &OwnedFd| {
        let (one, other) = (rustix::fs::fstat(one.as_fd())?, rustix::fs::fstat(other.as_fd())?);
        Ok::<_, Errno>((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    };
    if same(&there, fd) == Ok(true)
        && let Err(errno) = rustix::fs::unlinkat(at.dir(), at.name(), flags)
    {
        let name = at.name().escape_ascii();
        tracing::warn!(%name, %errno, "something unfinished stays below");
    }
}
