//! The functions that add operations to a batch.
//!
//! Each has the name and arguments of the function that waits for the same operation, and a number
//! by which the program knows the completion. Paths, names and values are copied; other buffers and
//! places must stay until the completion was returned or the batch was freed. An argument that is
//! wrong is the answer of the call, and adds nothing.

use std::ffi::{c_char, c_int, c_uint, c_void};

use base::{SetAttr, attr::MODE_BITS};
use bytes::Bytes;

use super::{Batch, op::Op};
use crate::{
    args::{self, Buffer, Out},
    file::{Flags, Open},
    paths,
    types::{pando_batch, pando_file, pando_stat, pando_timespec},
};

/// Attributes to `stat`, as pando_stat().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_stat(
    batch: *mut pando_batch,
    path: *const c_char,
    stat: *mut pando_stat,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, place) = (args::path(path)?.to_owned(), Out::new(stat)?);
        Ok(Op::Stat { path, follow: true, place })
    })
}

/// Attributes to `stat`, as pando_lstat().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_lstat(
    batch: *mut pando_batch,
    path: *const c_char,
    stat: *mut pando_stat,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, place) = (args::path(path)?.to_owned(), Out::new(stat)?);
        Ok(Op::Stat { path, follow: false, place })
    })
}

/// Like pando_create().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_create(
    batch: *mut pando_batch,
    path: *const c_char,
    mode: u32,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |fs| {
        let (path, new) = (args::path(path)?.to_owned(), paths::new(fs, mode & MODE_BITS, 0)?);
        Ok(Op::Mknod { path, new })
    })
}

/// Like pando_mkdir().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_mkdir(
    batch: *mut pando_batch,
    path: *const c_char,
    mode: u32,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |fs| {
        let (path, mode) = (args::path(path)?.to_owned(), fs.new_mode(mode));
        Ok(Op::Mkdir { path, mode })
    })
}

/// Like pando_rmdir().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_rmdir(
    batch: *mut pando_batch,
    path: *const c_char,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| Ok(Op::Rmdir { path: args::path(path)?.to_owned() }))
}

/// Like pando_unlink().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_unlink(
    batch: *mut pando_batch,
    path: *const c_char,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| Ok(Op::Unlink { path: args::path(path)?.to_owned() }))
}

/// Like pando_rename().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_rename(
    batch: *mut pando_batch,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (from, to) = (args::path(from)?.to_owned(), args::path(to)?.to_owned());
        Ok(Op::Rename { from, to, mode: paths::rename_mode(flags)? })
    })
}

/// Like pando_link().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_link(
    batch: *mut pando_batch,
    existing: *const c_char,
    path: *const c_char,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (existing, path) = (args::path(existing)?.to_owned(), args::path(path)?.to_owned());
        Ok(Op::Link { existing, path })
    })
}

/// Like pando_symlink().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_symlink(
    batch: *mut pando_batch,
    target: *const c_char,
    path: *const c_char,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (target, path) = (args::path(target)?.to_owned(), args::path(path)?.to_owned());
        Ok(Op::Symlink { target, path })
    })
}

/// Like pando_chmod().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_chmod(
    batch: *mut pando_batch,
    path: *const c_char,
    mode: u32,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let path = args::path(path)?.to_owned();
        let set = SetAttr { mode: Some(mode & MODE_BITS), ..SetAttr::default() };
        Ok(Op::Set { path, set, follow: true })
    })
}

/// Like pando_chown().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_chown(
    batch: *mut pando_batch,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, follow) = (args::path(path)?.to_owned(), paths::follows(flags)?);
        Ok(Op::Set { path, set: paths::owners(uid, gid), follow })
    })
}

/// Like pando_utimens(); `times` is read at once.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_utimens(
    batch: *mut pando_batch,
    path: *const c_char,
    times: *const pando_timespec,
    flags: c_int,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, follow) = (args::path(path)?.to_owned(), paths::follows(flags)?);
        Ok(Op::Set { path, set: paths::times(times)?, follow })
    })
}

/// Like pando_truncate().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_truncate(
    batch: *mut pando_batch,
    path: *const c_char,
    size: u64,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        Ok(Op::Truncate { path: args::path(path)?.to_owned(), size })
    })
}

/// Like pando_getxattr().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_getxattr(
    batch: *mut pando_batch,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let path = args::path(path)?.to_owned();
        let (name, room) = (args::bytes(name)?, Buffer::room(value, size)?);
        Ok(Op::GetXattr { path, name: Bytes::copy_from_slice(name), room })
    })
}

/// Like pando_setxattr(); `value` is read at once.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_setxattr(
    batch: *mut pando_batch,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, mode) = (args::path(path)?.to_owned(), crate::xattr::mode(flags)?);
        let name = Bytes::copy_from_slice(args::bytes(name)?);
        let value = Bytes::copy_from_slice(Buffer::of(value, size)?.bytes());
        Ok(Op::SetXattr { path, name, value, mode })
    })
}

/// Like pando_read_file().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_read_file(
    batch: *mut pando_batch,
    path: *const c_char,
    buffer: *mut c_void,
    size: usize,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (path, room) = (args::path(path)?.to_owned(), Buffer::room(buffer, size)?);
        Ok(Op::ReadFile { path, room })
    })
}

/// Like pando_write_file().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_write_file(
    batch: *mut pando_batch,
    path: *const c_char,
    mode: u32,
    contents: *const c_void,
    size: usize,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |fs| {
        let (path, mode) = (args::path(path)?.to_owned(), fs.new_mode(mode));
        Ok(Op::WriteFile { path, mode, contents: Buffer::of(contents, size)? })
    })
}

/// Like pando_open(); `file` is written when the operation succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_open(
    batch: *mut pando_batch,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut pando_file,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |fs| {
        let (path, place) = (args::path(path)?.to_owned(), Out::new(file)?);
        Ok(Op::Open { path, flags: Flags::new(fs, flags, mode)?, mode, place })
    })
}

/// Like pando_close(). The handle is free at once; operations that use it and are under way end
/// first or see their own errors.
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_close(
    batch: *mut pando_batch,
    file: *mut pando_file,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| Ok(Op::Close { file: Open::take(file)? }))
}

/// Like pando_pread().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_pread(
    batch: *mut pando_batch,
    file: *mut pando_file,
    buffer: *mut c_void,
    size: usize,
    offset: i64,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (file, room) = (Open::get(file)?, Buffer::room(buffer, size)?);
        Ok(Op::Read { file, room, offset: crate::file::offset(offset)? })
    })
}

/// Like pando_pwrite().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_pwrite(
    batch: *mut pando_batch,
    file: *mut pando_file,
    buffer: *const c_void,
    size: usize,
    offset: i64,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| {
        let (file, data) = (Open::get(file)?, Buffer::of(buffer, size)?);
        Ok(Op::Write { file, data, offset: crate::file::offset(offset)? })
    })
}

/// Like pando_fsync().
#[unsafe(no_mangle)]
pub extern "C" fn pando_batch_fsync(
    batch: *mut pando_batch,
    file: *mut pando_file,
    user_data: u64,
) -> c_int {
    Batch::add(batch, user_data, |_fs| Ok(Op::Sync { file: Open::get(file)? }))
}
