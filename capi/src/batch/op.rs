//! One operation of a batch: what it needs, and how it runs.

use std::{path::PathBuf, sync::Arc};

use base::SetAttr;
use bytes::Bytes;
use client::{FileSystem as _, New};
use wire::{RenameMode, XattrMode};

use crate::{
    args::{Buffer, Out},
    error::{Failed, Result},
    file::{Flags, Open},
    fs::Fs,
    paths,
    types::{pando_file, pando_stat},
};

/// An operation. Places and buffers are the program's until it is told of the end.
pub(crate) enum Op {
    Stat { path: PathBuf, follow: bool, place: Out<pando_stat> },
    Mknod { path: PathBuf, new: New },
    Mkdir { path: PathBuf, mode: u32 },
    Rmdir { path: PathBuf },
    Unlink { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, mode: RenameMode },
    Link { existing: PathBuf, path: PathBuf },
    Symlink { target: PathBuf, path: PathBuf },
    Set { path: PathBuf, set: SetAttr, follow: bool },
    Truncate { path: PathBuf, size: u64 },
    GetXattr { path: PathBuf, name: Bytes, room: Buffer },
    SetXattr { path: PathBuf, name: Bytes, value: Bytes, mode: XattrMode },
    ReadFile { path: PathBuf, room: Buffer },
    WriteFile { path: PathBuf, mode: u32, contents: Buffer },
    Open { path: PathBuf, flags: Flags, mode: u32, place: Out<*mut pando_file> },
    Close { file: Arc<Open> },
    Read { file: Arc<Open>, room: Buffer, offset: u64 },
    Write { file: Arc<Open>, data: Buffer, offset: u64 },
    Sync { file: Arc<Open> },
}

impl Op {
    /// Runs the operation to its end; what its function would return.
    pub(super) async fn run(self, fs: &Arc<Fs>) -> i64 {
        let answer = match fs.within() {
            None => self.answer(fs).await,
            Some(limit) => match tokio::time::timeout(limit, self.answer(fs)).await {
                Ok(answer) => answer,
                Err(_) => Err(Failed::new(libc::ETIMEDOUT, "the operation took too long")),
            },
        };
        answer.unwrap_or_else(|failed| -i64::from(failed.errno))
    }

    async fn answer(self, fs: &Arc<Fs>) -> Result<i64> {
        let client = &fs.client;
        match self {
            Op::Stat { path, follow, place } => {
                let attr =
                    if follow { client.stat(path).await? } else { client.lstat(path).await? };
                place.put((&attr).into());
            }
            Op::Mknod { path, new } => drop(client.mknod(path, new).await?),
            Op::Mkdir { path, mode } => drop(client.mkdir(path, mode).await?),
            Op::Rmdir { path } => client.rmdir(path).await?,
            Op::Unlink { path } => client.unlink(path).await?,
            Op::Rename { from, to, mode } => client.rename_with(from, to, mode).await?,
            Op::Link { existing, path } => client.link(existing, path).await?,
            Op::Symlink { target, path } => client.symlink(target, path).await?,
            Op::Set { path, set, follow } => {
                paths::set(client, &path, set, follow).await?;
            }
            Op::Truncate { path, size } => drop(client.truncate(path, size).await?),
            Op::GetXattr { path, name, room } => {
                return crate::xattr::get(fs, &path, &name, room).await;
            }
            Op::SetXattr { path, name, value, mode } => {
                let node = client.resolve(path).await?;
                client.setxattr(&fs.cred, &node, name, value, mode).await?;
            }
            Op::ReadFile { path, room } => return Ok(paths::read_file(client, &path, room).await?),
            Op::WriteFile { path, mode, contents } => {
                return Ok(paths::write_file(client, &path, mode, contents).await?);
            }
            Op::Open { path, flags, mode, place } => {
                place.put(Open::open(fs, &path, flags, mode).await?.into_handle()?);
            }
            Op::Close { file } => file.close().await?,
            Op::Read { file, room, offset } => return Ok(file.pread(room, offset).await?),
            Op::Write { file, data, offset } => return Ok(file.pwrite(data, offset).await?),
            Op::Sync { file } => file.file()?.sync_all().await?,
        }
        Ok(0)
    }
}
