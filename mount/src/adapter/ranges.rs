//! Ranges of open files: fallocate, lseek to data and holes, copies.
//!
//! Unlike a write, none of these requests says whether set-id bits must go: users other than root
//! lose them.
//!
//! The kernel has written back the pages of the range before it asks, and drops those that change.

use base::Cred;
use client::{FileSystem, Handle};
use fuse::{Errno, NodeId};
use wire::{AllocateMode, SeekTo};

use super::Adapter;
use crate::{
    answer::{Answer, Outcome},
    convert::Failed,
};

// Flags of fallocate(2), whences of lseek(2).
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
const PUNCH_AND_KEEP: u32 = PUNCH_HOLE | KEEP_SIZE;
const ZERO_AND_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl<S: FileSystem> Adapter<S> {
    pub(super) async fn allocate(
        &self,
        cred: &Cred,
        node: NodeId,
        (fh, offset, len): (fuse::Handle, u64, u64),
        flags: u32,
    ) -> Outcome {
        let mode = match flags {
            0 => AllocateMode::Grow,
            KEEP_SIZE => AllocateMode::Keep,
            ZERO_RANGE => AllocateMode::Zero,
            PUNCH_AND_KEEP | ZERO_AND_KEEP => AllocateMode::ZeroWithin,
            _ => return Err(Failed(Errno::OPNOTSUPP)),
        };
        self.fs.allocate(Handle(fh.0), offset, len, mode, !cred.is_root()).await?;
        let end = match mode {
            AllocateMode::Grow | AllocateMode::Zero => offset.saturating_add(len),
            AllocateMode::Keep | AllocateMode::ZeroWithin => 0,
        };
        self.nodes.lock().written(node, end);
        if !cred.is_root() {
            self.lost_set_id(node).await;
        }
        Ok(Answer::Done)
    }

    pub(super) async fn seek(&self, fh: fuse::Handle, offset: u64, whence: u32) -> Outcome {
        let to = match whence {
            SEEK_DATA => SeekTo::Data,
            SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Failed(Errno::INVAL)),
        };
        Ok(Answer::Offset(self.fs.seek(Handle(fh.0), offset, to).await?))
    }

    pub(super) async fn copy_range(
        &self,
        cred: &Cred,
        (from, from_offset): (fuse::Handle, u64),
        (to, to_offset): (fuse::Handle, u64),
        node: NodeId,
        len: u64,
    ) -> Outcome {
        let (from, to) = ((Handle(from.0), from_offset), (Handle(to.0), to_offset));
        let copied = self.fs.copy_range(from, to, len, !cred.is_root()).await?;
        self.nodes.lock().written(node, to_offset.saturating_add(copied));
        if !cred.is_root() {
            self.lost_set_id(node).await;
        }
        Ok(Answer::Copied(copied))
    }
}
