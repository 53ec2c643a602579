//! An open file in memory.

use base::{Attr, FsError};
use bytes::Bytes;
use wire::{AllocateMode, SeekTo};

use super::{Call, Memory, state::State};
use crate::{
    Path,
    below::{Change, Contents, Result},
};

/// An open regular file; while there is one, the file lives on without a name.
pub(super) struct File {
    memory: Memory,
    ino: u64,
}

impl File {
    /// The file must be counted as open already.
    pub(super) fn new(memory: Memory, ino: u64) -> File {
        File { memory, ino }
    }

    fn change<T>(&self, call: Call<'_>, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.memory.change(&call, run)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.memory.inner().state.closed(self.ino);
    }
}

fn changes(method: &'static str) -> Call<'static> {
    Call { method, path: None, to: None, is_change: true, needs_space: false }
}

fn grows(method: &'static str) -> Call<'static> {
    Call { needs_space: true, ..changes(method) }
}

impl Contents for File {
    fn attr(&self) -> Result<Attr> {
        self.memory.ask("file.attr", None, |state| Ok(state.node(self.ino).found().attr))
    }

    fn read_at(&self, offset: u64, len: u32) -> Result<Bytes> {
        let read = |state: &mut State| Ok(state.read(self.ino, offset, len.into()).into());
        self.memory.ask("file.read_at", None, read)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(grows("file.write_at"), |state| state.write(self.ino, offset, data))
    }

    fn set(&self, change: &Change) -> Result<()> {
        debug_assert!(change.contents.is_none(), "contents are written");
        self.change(changes("file.set"), |state| state.set(self.ino, change))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.change(changes("file.truncate"), |state| state.truncate(self.ino, size))
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let call = match mode {
            AllocateMode::Grow | AllocateMode::Keep | AllocateMode::Zero => grows("file.allocate"),
            AllocateMode::ZeroWithin => changes("file.allocate"),
        };
        self.change(call, |state| state.allocate(self.ino, offset, len, mode))
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.memory.ask("file.seek", None, |state| {
            let (pages, size) = state.pages(self.ino);
            if offset >= size {
                return Err(FsError::NoSuchDevice);
            }
            pages.seek(offset, to, size).ok_or(FsError::NoSuchDevice)
        })
    }

    fn sync(&self) -> Result<()> {
        self.memory.ask("file.sync", None, |_| Ok(()))
    }

    fn link(&self, to: &Path) -> Result<()> {
        self.change(Call { to: Some(to), ..changes("file.link") }, |state| {
            let (dir, name) = state.parent(to)?;
            state.link(self.ino, dir, name.as_ref())
        })
    }
}
