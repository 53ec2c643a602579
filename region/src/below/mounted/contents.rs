//! An open regular file of this machine.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use base::{Attr, FsError};
use bytes::Bytes;
use rustix::{
    fs::{AtFlags, CWD, FallocateFlags, SeekFrom},
    io::Errno,
};
use wire::{AllocateMode, SeekTo};

use super::{
    node::{Node, found_of, proc_path},
    set,
    walk::{self, error},
};
use crate::{
    Path,
    below::{Change, Contents, Result},
};

/// The most that a buffer is made for before the first byte has come.
const PIECE_BYTES: usize = 1 << 20;

/// An open regular file.
pub(super) struct File {
    fd: OwnedFd,
    /// The region's directory, where the file can get a name.
    root: OwnedFd,
}

impl File {
    pub(super) fn new(fd: OwnedFd, root: OwnedFd) -> File {
        File { fd, root }
    }
}

impl Contents for File {
    fn attr(&self) -> Result<Attr> {
        found_of(&self.fd).map(|found| found.attr)
    }

    fn read_at(&self, offset: u64, len: u32) -> Result<Bytes> {
        let len = usize::try_from(len).map_err(|_| FsError::Invalid)?;
        read(&self.fd, offset, len).map(Bytes::from)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        write(&self.fd, offset, data)
    }

    fn set(&self, change: &Change) -> Result<()> {
        debug_assert!(change.contents.is_none(), "contents are written");
        set::meta(&Node::new(&self.fd), change)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.fd, size).map_err(error)
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let (zeros, keep) = (FallocateFlags::ZERO_RANGE, FallocateFlags::KEEP_SIZE);
        let flags = match mode {
            AllocateMode::Grow => FallocateFlags::empty(),
            AllocateMode::Keep => keep,
            AllocateMode::Zero => zeros,
            AllocateMode::ZeroWithin => FallocateFlags::PUNCH_HOLE | keep,
        };
        let allocated = rustix::fs::fallocate(&self.fd, flags, offset, len);
        // A file system in memory has no `ZERO_RANGE`.
        if mode == AllocateMode::Zero && allocated == Err(Errno::OPNOTSUPP) {
            let hole = FallocateFlags::PUNCH_HOLE | keep;
            rustix::fs::fallocate(&self.fd, hole, offset, len).map_err(error)?;
            let grow = FallocateFlags::empty();
            return rustix::fs::fallocate(&self.fd, grow, offset, len).map_err(error);
        }
        allocated.map_err(error)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        if offset > i64::MAX as u64 {
            return Err(FsError::NoSuchDevice);
        }
        let to = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&self.fd, to).map_err(error)
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(error)
    }

    fn link(&self, to: &Path) -> Result<()> {
        let at = walk::parent(&self.root, to)?;
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, proc_path(&self.fd), at.dir(), at.name(), follow).map_err(error)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// Reads up to `len` bytes, fewer only at the end.
pub(super) fn read(fd: &OwnedFd, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    while data.len() < len {
        let begin = data.len();
        let Some(at) = offset.checked_add(begin as u64).filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        data.resize(begin + (len - begin).min(PIECE_BYTES), 0);
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut data[begin..], at));
        let read = read.map_err(error)?;
        data.truncate(begin + read);
        if read == 0 {
            break;
        }
    }
    Ok(data)
}

/// Writes all of `data`, by one call where the kernel takes it so.
pub(super) fn write(fd: &OwnedFd, mut offset: u64, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, data, offset));
        let written = written.map_err(error)?;
        if written == 0 {
            return Err(FsError::Io);
        }
        data = &data[written..];
        offset += written as u64;
    }
    Ok(())
}
