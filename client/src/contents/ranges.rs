//! Ranges of open files: making them longer or zeros, and finding data and holes.
//!
//! Both are the server's to say. What was written here is sent first, so that it counts.

use std::sync::Arc;

use base::{Access, FsError};
use wire::{Allocate, AllocateMode, Reply, Request, Seek, SeekTo};

use super::OpenFile;
use crate::{Client, Result, error::unexpected};

impl Client {
    /// `fallocate`.
    pub(crate) async fn allocate_file(
        &self,
        open: &Arc<OpenFile>,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        if !open.may.includes(Access::WRITE) {
            return Err(FsError::BadHandle.into());
        }
        self.flush_state(&open.state).await;
        self.core.may_write(open.cred.uid, open.state.ino, open.opened_at)?;
        let file = {
            let mut inner = open.state.lock();
            inner.check()?;
            inner.forget_contents();
            inner.file.clone()
        };
        let clear_set_id =
            clear_set_id || (!self.core.config.kernel_checks && !open.cred.is_root());
        let home = file.dir.home;
        let request = Request::Allocate(Allocate { file, offset, len, mode, clear_set_id });
        match self.core.ask(&open.cred, home, request).await?.reply {
            Reply::Attr(attr) => {
                self.core.files.resized(&open.state, attr);
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
    pub(crate) async fn seek_file(
        &self,
        open: &Arc<OpenFile>,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        self.flush_state(&open.state).await;
        let file = {
            let inner = open.state.lock();
            inner.check()?;
            inner.file.clone()
        };
        let home = file.dir.home;
        let request = Request::Seek(Seek { file, offset, to });
        match self.core.ask(&open.cred, home, request).await?.reply {
            Reply::Offset(offset) => Ok(offset),
            _ => Err(unexpected()),
        }
    }
}
