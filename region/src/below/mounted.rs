//! A file system below that is a directory of this machine.
//!
//! The node opens the directory before its own mount covers it. From then on every call starts at
//! that descriptor, so it meets the directory and never the mount.
//!
//! Always true: the kernel resolves each path beneath the descriptor, follows no symbolic link and
//! enters no other mount. What is read or changed is first opened by `O_PATH` and then reached
//! through that descriptor, so it cannot be exchanged between a check and its use.
//!
//! Requires: Linux 5.6 for `openat2`, and `/proc`.

mod contents;
mod make;
mod node;
mod set;
mod walk;

use std::{io, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use base::{EntryName, FileKind, FsError, Ino, acl::AclKind};
use bytes::Bytes;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags},
    io::Errno,
};
use wire::{RenameMode, Statfs, XattrMode};

use self::node::Node;
use super::{Below, Change, Contents, Found, Listed, Meta, New, Result};
use crate::Path;

/// Why a directory cannot be used as a file system below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path names no file or directory.
    #[error("{path} does not exist")]
    NotThere {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Something else than a directory has this path.
    #[error("{path} is not a directory")]
    NotDirectory {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The kernel is older than Linux 5.6, or a filter of system calls refuses `openat2`.
    #[error("this kernel has no openat2; Linux 5.6 or newer is needed")]
    NoOpenat2,
    /// `/proc/self/fd` does not lead to the open files of this process.
    #[error("/proc is not mounted")]
    NoProc,
    /// Any other failure.
    #[error("cannot open {path}")]
    Other {
        /// The path that was asked for.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
}

/// A directory of this machine.
#[derive(Debug)]
pub struct Mounted {
    /// The directory, opened by `O_PATH`.
    root: OwnedFd,
    /// User and group that new files get, where their directory does not say another.
    owner: (u32, u32),
}

impl Mounted {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// When there is no directory that this process may search, or the machine lacks what
    /// [`Mounted`] needs.
    pub fn open(path: &std::path::Path) -> std::result::Result<Mounted, OpenError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let named = || path.to_owned();
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => OpenError::NotThere { path: named() },
            Errno::NOTDIR => OpenError::NotDirectory { path: named() },
            other => OpenError::Other { path: named(), source: other.into() },
        })?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mounted = Mounted { root, owner };
        let other = |source: Errno| OpenError::Other { path: named(), source: source.into() };
        let again = walk::openat2(&mounted.root, b".", flags).map_err(|errno| match errno {
            Errno::NOSYS | Errno::PERM => OpenError::NoOpenat2,
            errno => other(errno),
        })?;
        let opened = rustix::fs::fstat(&again).map_err(other)?;
        let by_proc = rustix::fs::stat(node::proc_path(&again)).map_err(|_| OpenError::NoProc)?;
        if (opened.st_dev, opened.st_ino) != (by_proc.st_dev, by_proc.st_ino) {
            return Err(OpenError::NoProc);
        }
        Ok(mounted)
    }

    fn node(&self, path: &Path) -> Result<Node> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        walk::open(&self.root, path, flags).map_err(walk::error).map(Node::new)
    }

    fn file(&self, path: &Path) -> Result<Node> {
        let node = self.node(path)?;
        node.must_be_file()?;
        Ok(node)
    }

    fn sync_root(&self) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = walk::openat2(&self.root, b".", flags).map_err(walk::error)?;
        rustix::fs::syncfs(root).map_err(walk::error)
    }
}

impl Below for Mounted {
    fn look(&self, path: &Path) -> Result<Option<Found>> {
        match self.node(path) {
            Ok(node) => node.found().map(Some),
            Err(FsError::NotFound | FsError::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &Path, entries_max: usize) -> Result<Vec<Listed>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = walk::open(&self.root, path, flags).map_err(walk::error)?;
        let mut listed = Vec::new();
        for entry in rustix::fs::Dir::new(dir).map_err(walk::error)? {
            let entry = match entry {
                Ok(entry) => entry,
                // The directory was removed meanwhile.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(walk::error(errno)),
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let Ok(name) = EntryName::new(name) else {
                tracing::debug!(name = %name.escape_ascii(), "a name below is too long");
                continue;
            };
            if listed.len() == entries_max {
                break;
            }
            listed.push(Listed { name, ino: Ino(entry.ino()), kind: kind_of(entry.file_type()) });
        }
        Ok(listed)
    }

    fn read(&self, path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
        let file = self.file(path)?.reopen(OFlags::RDONLY)?;
        contents::read(&file, 0, bytes_max)
    }

    fn target(&self, path: &Path) -> Result<Bytes> {
        self.node(path)?.target()
    }

    fn make(&self, path: &Path, new: &New, meta: &Meta) -> Result<Found> {
        make::run(self, path, new, meta)
    }

    fn set(&self, path: &Path, change: &Change) -> Result<Found> {
        set::run(&self.node(path)?, change)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let at = walk::parent(&self.root, path)?;
        rustix::fs::unlinkat(at.dir(), at.name(), AtFlags::empty()).map_err(walk::error)
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        let at = walk::parent(&self.root, path)?;
        rustix::fs::unlinkat(at.dir(), at.name(), AtFlags::REMOVEDIR).map_err(walk::error)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let from = walk::parent(&self.root, from)?;
        let to = walk::parent(&self.root, to)?;
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(from.dir(), from.name(), to.dir(), to.name(), flags)
            .map_err(walk::error)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let from = walk::parent(&self.root, from)?;
        let to = walk::parent(&self.root, to)?;
        rustix::fs::linkat(from.dir(), from.name(), to.dir(), to.name(), AtFlags::empty())
            .map_err(walk::error)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(Bytes, Bytes)>> {
        self.node(path)?.xattrs()
    }

    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let node = self.node(path)?;
        let flags = match mode {
            XattrMode::Set | XattrMode::SetClearSetgid => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::setxattr(node.path(), name, value, flags).map_err(walk::error)?;
        if mode == XattrMode::SetClearSetgid && AclKind::of(name) == Some(AclKind::Access) {
            let mode = node.attr()?.mode;
            if mode & base::attr::MODE_SETGID != 0 {
                node.set_mode(mode & !base::attr::MODE_SETGID)?;
            }
        }
        Ok(())
    }

    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()> {
        rustix::fs::removexattr(self.node(path)?.path(), name).map_err(walk::error)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Contents>> {
        let node = self.file(path)?;
        let fd = match node.reopen(OFlags::RDWR) {
            Err(
                FsError::Denied | FsError::NotPermitted | FsError::ReadOnly | FsError::TextBusy,
            ) => node.reopen(OFlags::RDONLY)?,
            opened => opened?,
        };
        Ok(Arc::new(contents::File::new(fd, self.root()?)))
    }

    fn unnamed(&self, dir: &Path, meta: &Meta) -> Result<(Found, Arc<dyn Contents>)> {
        let (found, fd) = make::unnamed(self, dir, meta)?;
        Ok((found, Arc::new(contents::File::new(fd, self.root()?))))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        let node = self.node(path)?;
        match node.attr()?.kind {
            FileKind::File => match node.reopen(OFlags::RDONLY) {
                Ok(file) => rustix::fs::fsync(file).map_err(walk::error),
                Err(FsError::Denied | FsError::NotPermitted) => self.sync_root(),
                Err(error) => Err(error),
            },
            FileKind::Directory => self.sync_dir(path),
            // Only a regular file can be opened without an effect.
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => self.sync_root(),
        }
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match walk::open(&self.root, path, flags) {
            Ok(dir) => rustix::fs::fsync(dir).map_err(walk::error),
            // A directory that may be written and searched, but not listed.
            Err(Errno::ACCESS) => self.sync_root(),
            Err(errno) => Err(walk::error(errno)),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.sync_root()
    }

    fn statfs(&self) -> Result<Statfs> {
        let found = rustix::fs::fstatvfs(&self.root).map_err(walk::error)?;
        Ok(Statfs {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            files: found.f_files.saturating_sub(found.f_ffree),
            files_free: found.f_favail,
        })
    }
}

impl Mounted {
    /// A descriptor of the region's directory, for a file that outlives this borrow.
    fn root(&self) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.root, 0).map_err(walk::error)
    }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}
