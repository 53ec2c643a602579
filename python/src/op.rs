//! Operations: their names and arguments as Python gives them, and what they do.
//!
//! Each is written once, and called in three ways: waited for, started, or with many others.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{ByteRange, FileKind, FsError, LockMode, SetAttr, SetTime, Time};
use client::{Client, New, OpenOptions};
use futures::future::BoxFuture;
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    pybacked::PyBackedBytes,
    types::PyTuple,
};
use wire::{AllocateMode, RenameMode, SeekTo, XattrMode};

use crate::{
    errors::os_error,
    file::File,
    out::Out,
    walk::{Listing, Pages},
};

type Handle = Arc<client::File>;

/// An operation and its arguments.
pub(crate) enum Op {
    Stat { path: PathBuf, follow: bool },
    Statfs,
    Sync,
    Mkdir(PathBuf, u32),
    Makedirs(PathBuf, u32),
    Rmdir(PathBuf),
    Unlink(PathBuf),
    Mknod(PathBuf, New),
    Symlink(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, RenameMode),
    Readlink(PathBuf),
    SetAttr { path: PathBuf, set: SetAttr, follow: bool },
    Truncate(PathBuf, u64),
    GetXattr(PathBuf, String),
    Xattrs(PathBuf),
    SetXattr(PathBuf, String, PyBackedBytes, XattrMode),
    RemoveXattr(PathBuf, String),
    Listdir(PathBuf),
    Pages(PathBuf, bool),
    NextPage(Arc<tokio::sync::Mutex<Pages>>),
    Read(PathBuf, u64, Option<u64>),
    Write(PathBuf, PyBackedBytes),
    Open(PathBuf, OpenOptions),
    ReadAt(Handle, u64, u32),
    WriteAt(Handle, u64, PyBackedBytes),
    Append(Handle, PyBackedBytes),
    Flush(Handle),
    Fsync(Handle),
    SetLen(Handle, u64),
    Lock(Handle, LockMode, Option<ByteRange>, bool),
    Unlock(Handle, Option<ByteRange>),
    Allocate(Handle, u64, u64, AllocateMode),
    Seek(Handle, u64, SeekTo),
    Copy(Handle, u64, Handle, u64, u64),
    Fstat(Handle),
    Close(Handle),
}

/// The arguments of an operation, one after the other.
struct Args<'a, 'py> {
    all: &'a Bound<'py, PyTuple>,
    next: usize,
}

impl<'py> Args<'_, 'py> {
    fn next(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let arg = self.all.get_item(self.next)?;
        self.next += 1;
        Ok(arg)
    }

    fn path(&mut self) -> PyResult<PathBuf> {
        let path: PathBuf = self.next()?.extract()?;
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(path)
    }

    fn number(&mut self) -> PyResult<u64> {
        natural(&self.next()?)
    }

    fn small(&mut self) -> PyResult<u32> {
        self.next()?.extract()
    }

    fn maybe(&mut self) -> PyResult<Option<u64>> {
        let number = self.next()?;
        if number.is_none() { Ok(None) } else { natural(&number).map(Some) }
    }

    fn truth(&mut self) -> PyResult<bool> {
        self.next()?.extract()
    }

    fn text(&mut self) -> PyResult<String> {
        self.next()?.extract()
    }

    fn data(&mut self) -> PyResult<PyBackedBytes> {
        Ok(self.next()?.extract()?)
    }

    fn file(&mut self) -> PyResult<Handle> {
        let file = self.next()?;
        file.cast::<File>()?.get().get(file.py())
    }

    /// Seconds and nanoseconds from nanoseconds since 1970.
    fn time(&mut self) -> PyResult<Option<SetTime>> {
        let nanos: Option<i128> = self.next()?.extract()?;
        let second = 1_000_000_000;
        let at = |nanos: i128| {
            let sec = i64::try_from(nanos.div_euclid(second)).ok()?;
            let nsec = u32::try_from(nanos.rem_euclid(second)).ok()?;
            Some(SetTime::At(Time { sec, nsec }))
        };
        let too_far = || PyValueError::new_err("time out of range");
        nanos.map(|nanos| at(nanos).ok_or_else(too_far)).transpose()
    }

    fn range(&mut self) -> PyResult<Option<ByteRange>> {
        let range: Option<(u64, u64)> = self.next()?.extract()?;
        let Some((first, len)) = range else { return Ok(None) };
        let last = first.checked_add(len).and_then(|end| end.checked_sub(1));
        match last.filter(|last| *last >= first && *last <= ByteRange::END) {
            Some(last) => Ok(Some(ByteRange { first, last })),
            None => Err(PyValueError::new_err("no such range")),
        }
    }

    fn lock_mode(&mut self) -> PyResult<LockMode> {
        Ok(if self.truth()? { LockMode::Exclusive } else { LockMode::Shared })
    }

    /// One of some numbers, which are numbered from 0.
    fn choice<T: Copy>(&mut self, choices: &[T]) -> PyResult<T> {
        let number: usize = self.next()?.extract()?;
        choices.get(number).copied().ok_or_else(|| PyValueError::new_err("no such mode"))
    }

    fn options(&mut self) -> PyResult<OpenOptions> {
        let flags = self.small()?;
        let mode = self.small()?;
        let mut options = match flags & 3 {
            0 => OpenOptions::reading(),
            1 => OpenOptions::writing(),
            2 => OpenOptions::both(),
            _ => return Err(PyValueError::new_err("no such access mode")),
        };
        if flags & 4 != 0 {
            options = options.truncate();
        }
        match flags & 24 {
            0 => {}
            8 => options = options.create(mode),
            _ => options = options.create_new(mode),
        }
        Ok(options)
    }

    fn end(&self) -> PyResult<()> {
        if self.next == self.all.len() {
            return Ok(());
        }
        Err(PyTypeError::new_err("too many arguments"))
    }
}

/// A number of bytes, as system calls take it: `EINVAL` when it is negative.
fn natural(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    let signed: i64 = number.extract()?;
    let invalid = || os_error(number.py(), &FsError::Invalid.into(), None);
    u64::try_from(signed).map_err(|_| invalid())
}

impl Op {
    /// The operation of this name with these arguments.
    pub(crate) fn parse(name: &str, args: &Bound<'_, PyTuple>) -> PyResult<Op> {
        let mut args = Args { all: args, next: 0 };
        let op = Op::take(name, &mut args)?;
        args.end()?;
        Ok(op)
    }

    fn take(name: &str, args: &mut Args<'_, '_>) -> PyResult<Op> {
        let renames = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let xattrs = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let allocate =
            [AllocateMode::Grow, AllocateMode::Keep, AllocateMode::Zero, AllocateMode::ZeroWithin];
        Ok(match name {
            "stat" => Op::Stat { path: args.path()?, follow: args.truth()? },
            "statfs" => Op::Statfs,
            "sync" => Op::Sync,
            "mkdir" => Op::Mkdir(args.path()?, args.small()?),
            "makedirs" => Op::Makedirs(args.path()?, args.small()?),
            "rmdir" => Op::Rmdir(args.path()?),
            "unlink" => Op::Unlink(args.path()?),
            "mknod" => {
                let (path, mode, rdev) = (args.path()?, args.small()?, args.small()?);
                let kind = match mode & 0o170_000 {
                    0 => Some(FileKind::File),
                    _ => FileKind::from_mode(mode),
                };
                let kind = kind.ok_or_else(|| PyValueError::new_err("no such kind of file"))?;
                Op::Mknod(path, New { kind, mode: mode & 0o7777, rdev })
            }
            "symlink" => Op::Symlink(args.path()?, args.path()?),
            "link" => Op::Link(args.path()?, args.path()?),
            "rename" => Op::Rename(args.path()?, args.path()?, args.choice(&renames)?),
            "readlink" => Op::Readlink(args.path()?),
            "chmod" => {
                let (path, mode) = (args.path()?, Some(args.small()? & 0o7777));
                let set = SetAttr { mode, ..SetAttr::default() };
                Op::SetAttr { path, set, follow: args.truth()? }
            }
            "chown" => {
                let path = args.path()?;
                let (uid, gid) = (args.next()?.extract()?, args.next()?.extract()?);
                let set = SetAttr { uid, gid, clear_set_id: true, ..SetAttr::default() };
                Op::SetAttr { path, set, follow: args.truth()? }
            }
            "utime" => {
                let path = args.path()?;
                let (atime, mtime) = (args.time()?, args.time()?);
                let (atime, mtime) = match (atime, mtime) {
                    (None, None) => (Some(SetTime::Now), Some(SetTime::Now)),
                    some => some,
                };
                let set = SetAttr { atime, mtime, ..SetAttr::default() };
                Op::SetAttr { path, set, follow: args.truth()? }
            }
            "truncate" => Op::Truncate(args.path()?, args.number()?),
            "getxattr" => Op::GetXattr(args.path()?, args.text()?),
            "xattrs" => Op::Xattrs(args.path()?),
            "setxattr" => {
                Op::SetXattr(args.path()?, args.text()?, args.data()?, args.choice(&xattrs)?)
            }
            "removexattr" => Op::RemoveXattr(args.path()?, args.text()?),
            "listdir" => Op::Listdir(args.path()?),
            "pages" => Op::Pages(args.path()?, args.truth()?),
            "next_page" => {
                let listing = args.next()?;
                Op::NextPage(listing.cast::<Listing>()?.get().pages(listing.py())?)
            }
            "read" => Op::Read(args.path()?, args.number()?, args.maybe()?),
            "write" => Op::Write(args.path()?, args.data()?),
            "open" => Op::Open(args.path()?, args.options()?),
            "pread" => Op::ReadAt(args.file()?, args.number()?, args.small()?),
            "pwrite" => Op::WriteAt(args.file()?, args.number()?, args.data()?),
            "append" => Op::Append(args.file()?, args.data()?),
            "flush" => Op::Flush(args.file()?),
            "fsync" => Op::Fsync(args.file()?),
            "ftruncate" => Op::SetLen(args.file()?, args.number()?),
            "lock" => Op::Lock(args.file()?, args.lock_mode()?, args.range()?, args.truth()?),
            "unlock" => Op::Unlock(args.file()?, args.range()?),
            "fallocate" => {
                Op::Allocate(args.file()?, args.number()?, args.number()?, args.choice(&allocate)?)
            }
            "seek" => {
                Op::Seek(args.file()?, args.number()?, args.choice(&[SeekTo::Data, SeekTo::Hole])?)
            }
            "copy" => {
                Op::Copy(args.file()?, args.number()?, args.file()?, args.number()?, args.number()?)
            }
            "fstat" => Op::Fstat(args.file()?),
            "close" => {
                let file = args.next()?;
                Op::Close(file.cast::<File>()?.get().take(file.py())?)
            }
            _ => return Err(PyValueError::new_err(format!("no operation {name:?}"))),
        })
    }

    /// The path that an error names.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Op::Stat { path, .. } | Op::SetAttr { path, .. } => Some(path),
            Op::Mkdir(path, _)
            | Op::Makedirs(path, _)
            | Op::Rmdir(path)
            | Op::Unlink(path)
            | Op::Mknod(path, _)
            | Op::Symlink(_, path)
            | Op::Link(path, _)
            | Op::Rename(path, ..)
            | Op::Readlink(path)
            | Op::Truncate(path, _)
            | Op::GetXattr(path, _)
            | Op::Xattrs(path)
            | Op::SetXattr(path, ..)
            | Op::RemoveXattr(path, _)
            | Op::Listdir(path)
            | Op::Pages(path, _)
            | Op::Read(path, ..)
            | Op::Write(path, _)
            | Op::Open(path, _) => Some(path),
            _ => None,
        }
    }

    /// Does it. Operations of which there are many at a time have futures of their own, which are
    /// smaller than one for all.
    pub(crate) fn run(self, client: Client) -> BoxFuture<'static, client::Result<Out>> {
        match self {
            Op::Stat { path, follow: true } => {
                Box::pin(async move { Ok(Out::Attr(client.stat(path).await?)) })
            }
            Op::Stat { path, follow: false } => {
                Box::pin(async move { Ok(Out::Attr(client.lstat(path).await?)) })
            }
            Op::Mknod(path, new) => {
                Box::pin(async move { Ok(nothing(client.mknod(path, new).await?)) })
            }
            Op::Unlink(path) => Box::pin(async move { Ok(nothing(client.unlink(path).await?)) }),
            Op::Read(path, 0, None) => {
                Box::pin(async move { Ok(Out::Bytes(client.read(path).await?)) })
            }
            Op::Write(path, data) => {
                Box::pin(async move { Ok(nothing(client.write(path, &data).await?)) })
            }
            Op::ReadAt(file, offset, len) => {
                Box::pin(async move { Ok(Out::Bytes(file.read_at(offset, len).await?)) })
            }
            Op::WriteAt(file, offset, data) => {
                Box::pin(async move { Ok(nothing(file.write_at(offset, &data).await?)) })
            }
            other => Box::pin(other.run_by_path(client)),
        }
    }

    async fn run_by_path(self, client: Client) -> client::Result<Out> {
        Ok(match self {
            Op::Statfs => Out::Statfs(client.statfs().await?),
            Op::Sync => nothing(client.sync().await?),
            Op::Mkdir(path, mode) => nothing(client.mkdir(path, mode).await?),
            Op::Makedirs(path, mode) => nothing(client.create_dir_all(path, mode).await?),
            Op::Rmdir(path) => nothing(client.rmdir(path).await?),
            Op::Symlink(target, path) => nothing(client.symlink(target, path).await?),
            Op::Link(existing, path) => nothing(client.link(existing, path).await?),
            Op::Rename(from, to, mode) => nothing(client.rename_with(from, to, mode).await?),
            Op::Readlink(path) => Out::Text(client.readlink(path).await?),
            Op::SetAttr { path, set, follow: true } => nothing(client.set_attr(path, set).await?),
            Op::SetAttr { path, set, follow: false } => nothing(client.lset_attr(path, set).await?),
            Op::Truncate(path, size) => nothing(client.truncate(path, size).await?),
            Op::GetXattr(path, name) => Out::Bytes(client.get_xattr(path, &name).await?),
            Op::Xattrs(path) => Out::Xattrs(client.list_xattrs(path).await?),
            Op::SetXattr(path, name, value, mode) => {
                nothing(client.set_xattr(path, &name, &value, mode).await?)
            }
            Op::RemoveXattr(path, name) => nothing(client.remove_xattr(path, &name).await?),
            Op::Listdir(path) => Out::Names(client.read_dir(path).await?.all().await?),
            Op::Pages(path, is_deep) => Out::Pages(Pages::open(client, path, is_deep).await?),
            Op::NextPage(pages) => Out::Page(pages.lock().await.next().await),
            Op::Read(path, offset, len) => read_part(&client, &path, offset, len).await?,
            Op::Open(path, options) => Out::Opened(client.open_with(path, options).await?),
            other => return other.run_by_handle().await,
        })
    }

    async fn run_by_handle(self) -> client::Result<Out> {
        Ok(match self {
            Op::Append(file, data) => Out::Number(file.append(&data).await?),
            Op::Flush(file) => nothing(file.flush().await?),
            Op::Fsync(file) => nothing(file.sync_all().await?),
            Op::SetLen(file, size) => nothing(file.set_len(size).await?),
            Op::Lock(file, mode, None, true) => nothing(file.lock(mode).await?),
            Op::Lock(file, mode, None, false) => nothing(file.try_lock(mode).await?),
            Op::Lock(file, mode, Some(range), true) => nothing(file.lock_range(range, mode).await?),
            Op::Lock(file, mode, Some(range), false) => {
                nothing(file.try_lock_range(range, mode).await?)
            }
            Op::Unlock(file, None) => nothing(file.unlock().await?),
            Op::Unlock(file, Some(range)) => nothing(file.unlock_range(range).await?),
            Op::Allocate(file, offset, len, mode) => {
                nothing(file.allocate(offset, len, mode).await?)
            }
            Op::Seek(file, offset, to) => Out::Number(file.seek(offset, to).await?),
            Op::Copy(from, at, to, to_at, len) => {
                Out::Number(from.copy_to(at, &to, to_at, len).await?)
            }
            Op::Fstat(file) => Out::Attr(file.metadata().await?),
            Op::Close(file) => match Arc::try_unwrap(file) {
                Ok(file) => nothing(file.close().await?),
                // Another operation is under way; the file is closed when that is done.
                Err(file) => nothing(file.flush().await?),
            },
            _ => return Err(FsError::NotSupported.into()),
        })
    }
}

fn nothing<T>(_: T) -> Out {
    Out::Nothing
}

/// The bytes of a file from `offset` on, `len` at most.
async fn read_part(
    client: &Client,
    path: &Path,
    offset: u64,
    len: Option<u64>,
) -> client::Result<Out> {
    const AT_ONCE: u64 = 1 << 20;
    let file = client.open(path).await?;
    let mut left = len.unwrap_or(u64::MAX);
    let mut all = bytes::BytesMut::new();
    while left > 0 {
        let wanted = u32::try_from(left.min(AT_ONCE)).unwrap_or(1 << 20);
        let read = file.read_at(offset + all.len() as u64, wanted).await?;
        all.extend_from_slice(&read);
        left -= read.len() as u64;
        if read.len() < wanted as usize {
            break;
        }
    }
    file.close().await?;
    Ok(Out::Bytes(all.freeze()))
}
