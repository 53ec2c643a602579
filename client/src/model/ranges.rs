//! Ranges of files: `fallocate`, and `lseek` to data and holes.
//!
//! POSIX: posix_fallocate(3), lseek(2); Linux: fallocate(2). A page that is missing is a hole.

use base::{Access, FsError, attr::without_set_id, limits::FILE_BYTES_MAX};
use wire::{AllocateMode, SeekTo};

use super::State;
use crate::Handle;

impl State {
    pub(super) fn allocate(
        &mut self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<(), FsError> {
        let open = self.opened(handle)?;
        if !open.may.includes(Access::WRITE) {
            return Err(FsError::BadHandle);
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooBig)?;

        let (ino, clear, now) = (open.ino, clear_set_id || open.clears_set_id, self.now());
        let contents = self.contents_mut(ino);
        if matches!(mode, AllocateMode::Zero | AllocateMode::ZeroWithin) {
            contents.zero(offset, end);
        }
        if matches!(mode, AllocateMode::Zero | AllocateMode::Grow) && contents.len() < end {
            contents.truncate(end);
        }
        self.drop_capability(ino);
        let attr = &mut self.inode_mut(ino).attr;
        (attr.mtime, attr.ctime) = (now, now);
        if clear {
            attr.mode = without_set_id(attr.mode);
        }
        Ok(())
    }

    pub(super) fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        let contents = self.contents(self.opened(handle)?.ino);
        if offset >= contents.len() {
            return Err(FsError::NoSuchDevice);
        }
        match to {
            SeekTo::Data => contents.next_data(offset).ok_or(FsError::NoSuchDevice),
            SeekTo::Hole => Ok(contents.next_hole(offset)),
        }
    }
}
