//! Extended attributes, by path and of open files.

use std::{
    ffi::{c_char, c_int, c_void},
    path::Path,
};

use base::FsError;
use bytes::Bytes;
use client::FileSystem as _;
use wire::{NodeRef, XattrMode};

use crate::{
    args::{self, Buffer, count},
    error::{Failed, Result, guard, status},
    file::Open,
    fs::Fs,
    types::{pando_file, pando_fs},
};

/// For pando_setxattr(): -EEXIST when the attribute is there.
pub const PANDO_XATTR_CREATE: c_int = 1;
/// For pando_setxattr(): -ENODATA when the attribute is not there.
pub const PANDO_XATTR_REPLACE: c_int = 2;

pub(crate) fn mode(flags: c_int) -> Result<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        PANDO_XATTR_CREATE => Ok(XattrMode::Create),
        PANDO_XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Failed::invalid("no such flags of an extended attribute")),
    }
}

/// Copies to where there is room; with no room at all only the length is asked for.
fn give(bytes: &[u8], room: Buffer) -> Result<i64> {
    if room.len() == 0 {
        return Ok(count(bytes.len()));
    }
    if bytes.len() > room.len() {
        return Err(Failed::new(libc::ERANGE, "the buffer is too small"));
    }
    room.put(0, bytes);
    Ok(count(bytes.len()))
}

async fn value(fs: &Fs, node: &NodeRef, name: &[u8]) -> client::Result<Bytes> {
    let xattrs = fs.client.xattrs(&fs.cred, node).await?;
    let found = xattrs.into_iter().find(|(found, _)| found == name);
    found.map(|(_, value)| value).ok_or(FsError::NoData.into())
}

/// Copies the value of an extended attribute to where there is room.
pub(crate) async fn get(fs: &Fs, path: &Path, name: &[u8], room: Buffer) -> Result<i64> {
    let node = fs.client.resolve(path).await?;
    give(&value(fs, &node, name).await?, room)
}

async fn names(fs: &Fs, node: &NodeRef) -> client::Result<Vec<u8>> {
    let xattrs = fs.client.xattrs(&fs.cred, node).await?;
    Ok(xattrs.iter().flat_map(|(name, _)| name.iter().copied().chain([0])).collect())
}

async fn put(
    fs: &Fs,
    node: &NodeRef,
    name: &[u8],
    bytes: Buffer,
    mode: XattrMode,
) -> client::Result<()> {
    let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(bytes.bytes()));
    fs.client.setxattr(&fs.cred, node, name, value, mode).await
}

/// Puts the value of an extended attribute to `value`; returns its length. With `size` 0 only the
/// length is returned; -ERANGE when it is larger than `size`. As getxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_getxattr(
    fs: *mut pando_fs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    guard(|| {
        let fs = Fs::get(fs)?;
        let (path, name, room) =
            (args::path(path)?, args::bytes(name)?, Buffer::room(value, size)?);
        fs.run(get(&fs, path, name, room))
    })
}

/// Sets an extended attribute; `flags` are 0, PANDO_XATTR_CREATE or PANDO_XATTR_REPLACE. As
/// setxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_setxattr(
    fs: *mut pando_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        let fs = Fs::get(fs)?;
        let (path, name, mode) = (args::path(path)?, args::bytes(name)?, mode(flags)?);
        let bytes = Buffer::of(value, size)?;
        fs.run(async {
            let node = fs.client.resolve(path).await?;
            put(&fs, &node, name, bytes, mode).await
        })
    })
}

/// Puts the names of all extended attributes to `names`, each with a zero byte behind it; returns
/// the length of them all. With `size` 0 only the length is returned; -ERANGE when it is larger than
/// `size`. As listxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_listxattr(
    fs: *mut pando_fs,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> i64 {
    guard(|| {
        let fs = Fs::get(fs)?;
        let (path, room) = (args::path(path)?, Buffer::room(names, size)?);
        let found = fs.run(async {
            let node = fs.client.resolve(path).await?;
            self::names(&fs, &node).await
        })?;
        give(&found, room)
    })
}

/// Removes an extended attribute; -ENODATA when there is none of that name. As removexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_removexattr(
    fs: *mut pando_fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        let fs = Fs::get(fs)?;
        let (path, name) = (args::path(path)?, Bytes::copy_from_slice(args::bytes(name)?));
        fs.run(async {
            let node = fs.client.resolve(path).await?;
            fs.client.removexattr(&fs.cred, &node, name).await
        })
    })
}

/// Like pando_getxattr(), of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn pando_fgetxattr(
    file: *mut pando_file,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    guard(|| {
        let file = Open::get(file)?;
        let (name, room) = (args::bytes(name)?, Buffer::room(value, size)?);
        let (fs, node) = (file.fs(), file.node());
        give(&fs.run(self::value(fs, &node, name))?, room)
    })
}

/// Like pando_setxattr(), of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn pando_fsetxattr(
    file: *mut pando_file,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        let file = Open::get(file)?;
        let (name, mode, bytes) = (args::bytes(name)?, mode(flags)?, Buffer::of(value, size)?);
        let (fs, node) = (file.fs(), file.node());
        fs.run(put(fs, &node, name, bytes, mode))
    })
}

/// Like pando_listxattr(), of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn pando_flistxattr(file: *mut pando_file, names: *mut c_char, size: usize) -> i64 {
    guard(|| {
        let (file, room) = (Open::get(file)?, Buffer::room(names, size)?);
        let (fs, node) = (file.fs(), file.node());
        give(&fs.run(self::names(fs, &node))?, room)
    })
}

/// Like pando_removexattr(), of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn pando_fremovexattr(file: *mut pando_file, name: *const c_char) -> c_int {
    status(|| {
        let file = Open::get(file)?;
        let name = Bytes::copy_from_slice(args::bytes(name)?);
        let (fs, node) = (file.fs(), file.node());
        fs.run(fs.client.removexattr(&fs.cred, &node, name))
    })
}
