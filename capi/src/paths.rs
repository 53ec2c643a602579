//! Operations by path. Paths are bytes, absolute or relative to the root of the session, which is
//! the same.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    path::Path,
    sync::Arc,
};

use base::{Access, Acl, Attr, FileKind, FsError, SetAttr, acl, attr::MODE_BITS};
use client::{Client, FileSystem as _, New};
use wire::{RenameMode, Statfs};

use crate::{
    args::{self, Buffer, Out, PIECE_BYTES, count},
    error::{Failed, Result, guard},
    fs::{Fs, with},
    types::{PANDO_NAME_MAX, pando_fs, pando_stat, pando_statfs, pando_timespec},
};

/// For pando_rename(): fail with -EEXIST when the new name is taken.
pub const PANDO_RENAME_NOREPLACE: c_uint = 1;
/// For pando_rename(): both names must exist, and change places.
pub const PANDO_RENAME_EXCHANGE: c_uint = 2;

/// For pando_chown() and pando_utimens(): a symbolic link itself, instead of what it points to.
pub const PANDO_NOFOLLOW: c_int = 1;

/// Stays as it is, as an owner or group of pando_chown().
pub const PANDO_ID_SAME: u32 = u32::MAX;

pub(crate) fn rename_mode(flags: c_uint) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        PANDO_RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        PANDO_RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Failed::invalid("no such flags of rename")),
    }
}

/// Whether symbolic links are followed.
pub(crate) fn follows(flags: c_int) -> Result<bool> {
    match flags {
        0 => Ok(true),
        PANDO_NOFOLLOW => Ok(false),
        _ => Err(Failed::invalid("no such flags")),
    }
}

pub(crate) fn owners(uid: u32, gid: u32) -> SetAttr {
    let given = |id| (id != PANDO_ID_SAME).then_some(id);
    SetAttr { uid: given(uid), gid: given(gid), clear_set_id: true, ..SetAttr::default() }
}

/// Access and modification time from an array of the two; null is now.
pub(crate) fn times(times: *const pando_timespec) -> Result<SetAttr> {
    if times.is_null() {
        let now = Some(base::SetTime::Now);
        return Ok(SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    }
    let &[atime, mtime] = args::array(times, 2)? else { return Err(FsError::Invalid.into()) };
    Ok(SetAttr { atime: atime.to_set()?, mtime: mtime.to_set()?, ..SetAttr::default() })
}

pub(crate) async fn set(
    client: &Client,
    path: &Path,
    set: SetAttr,
    follow: bool,
) -> client::Result<Attr> {
    if follow { client.set_attr(path, set).await } else { client.lset_attr(path, set).await }
}

/// A file that mknod(2) makes with this mode.
pub(crate) fn new(fs: &Fs, mode: u32, rdev: u32) -> Result<New> {
    let kind = if mode & libc::S_IFMT == 0 {
        FileKind::File
    } else {
        FileKind::from_mode(mode).ok_or(FsError::Invalid)?
    };
    match kind {
        FileKind::Directory => Err(FsError::NotPermitted.into()),
        FileKind::Symlink => Err(FsError::Invalid.into()),
        _ => Ok(New { kind, mode: fs.new_mode(mode), rdev }),
    }
}

/// An operation that changes names or attributes and returns nothing.
fn change<T>(
    fs: *mut pando_fs,
    path: *const c_char,
    operation: impl AsyncFnOnce(&Client, &Path) -> client::Result<T>,
) -> c_int {
    with(fs, |fs| {
        let path = args::path(path)?;
        fs.run(operation(&fs.client, path)).map(drop)
    })
}

/// Attributes of what a path names; symbolic links are followed. As stat(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_stat(
    fs: *mut pando_fs,
    path: *const c_char,
    stat: *mut pando_stat,
) -> c_int {
    with(fs, |fs| {
        let (path, stat) = (args::path(path)?, Out::new(stat)?);
        stat.put((&fs.run(fs.client.stat(path))?).into());
        Ok(())
    })
}

/// Attributes of what a path names, of a symbolic link itself. As lstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_lstat(
    fs: *mut pando_fs,
    path: *const c_char,
    stat: *mut pando_stat,
) -> c_int {
    with(fs, |fs| {
        let (path, stat) = (args::path(path)?, Out::new(stat)?);
        stat.put((&fs.run(fs.client.lstat(path))?).into());
        Ok(())
    })
}

/// Space and inodes of the file system.
#[unsafe(no_mangle)]
pub extern "C" fn pando_statfs(fs: *mut pando_fs, statfs: *mut pando_statfs) -> c_int {
    with(fs, |fs| {
        let place = Out::new(statfs)?;
        let Statfs { bytes, bytes_free, files, files_free } = fs.run(fs.client.statfs())?;
        let name_max = PANDO_NAME_MAX as u64;
        place.put(pando_statfs {
            bytes,
            bytes_free,
            files,
            files_free,
            name_max,
            reserved: [0; 3],
        });
        Ok(())
    })
}

/// Checks whether the session's user may read (4), write (2) or execute (1) what a path names, or
/// whether there is anything (0). As access(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_access(fs: *mut pando_fs, path: *const c_char, mode: c_int) -> c_int {
    with(fs, |fs| {
        let path = args::path(path)?;
        if !(0..=7).contains(&mode) {
            return Err(Failed::invalid("no such permissions"));
        }
        fs.run(access(fs, path, Access::from_bits(args::bits(mode))))
    })
}

async fn access(fs: &Arc<Fs>, path: &Path, want: Access) -> client::Result<()> {
    let attr = fs.client.stat(path).await?;
    let mut list = None;
    if !acl::mode_decides(&attr, &fs.cred) {
        // Anybody may read an ACL; what is not there any more says nothing.
        let node = fs.client.resolve(path).await?;
        let xattrs = fs.client.xattrs(&fs.cred, &node).await?;
        let found = xattrs.iter().find(|(name, _)| name == acl::ACCESS);
        list = found.map(|(_, value)| Acl::parse(value)).transpose()?.flatten();
    }
    Ok(acl::permits_with(&attr, list.as_ref(), &fs.cred, want)?)
}

/// Makes a directory. As mkdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_mkdir(fs: *mut pando_fs, path: *const c_char, mode: u32) -> c_int {
    with(fs, |fs| {
        let path = args::path(path)?;
        fs.run(fs.client.mkdir(path, fs.new_mode(mode))).map(drop)
    })
}

/// Makes a directory and those above it that are missing. Fine when all are there.
#[unsafe(no_mangle)]
pub extern "C" fn pando_mkdirs(fs: *mut pando_fs, path: *const c_char, mode: u32) -> c_int {
    with(fs, |fs| {
        let path = args::path(path)?;
        fs.run(fs.client.create_dir_all(path, fs.new_mode(mode)))
    })
}

/// Removes an empty directory. As rmdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_rmdir(fs: *mut pando_fs, path: *const c_char) -> c_int {
    change(fs, path, async |client, path| client.rmdir(path).await)
}

/// Makes an empty regular file without opening it; -EEXIST when the name is taken.
#[unsafe(no_mangle)]
pub extern "C" fn pando_create(fs: *mut pando_fs, path: *const c_char, mode: u32) -> c_int {
    pando_mknod(fs, path, mode & MODE_BITS, 0)
}

/// Makes a regular or special file; `mode` has its type, `rdev` the number of a device. As mknod(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_mknod(
    fs: *mut pando_fs,
    path: *const c_char,
    mode: u32,
    rdev: u32,
) -> c_int {
    with(fs, |fs| {
        let (path, new) = (args::path(path)?, new(fs, mode, rdev)?);
        fs.run(fs.client.mknod(path, new)).map(drop)
    })
}

/// Removes a name that is not a directory's. As unlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_unlink(fs: *mut pando_fs, path: *const c_char) -> c_int {
    change(fs, path, async |client, path| client.unlink(path).await)
}

/// Moves an entry; `flags` are 0, PANDO_RENAME_NOREPLACE or PANDO_RENAME_EXCHANGE. As renameat2(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_rename(
    fs: *mut pando_fs,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    with(fs, |fs| {
        let (from, to, mode) = (args::path(from)?, args::path(to)?, rename_mode(flags)?);
        fs.run(fs.client.rename_with(from, to, mode))
    })
}

/// Gives what `existing` names (a symbolic link itself) the name `path`, too. As link(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_link(
    fs: *mut pando_fs,
    existing: *const c_char,
    path: *const c_char,
) -> c_int {
    with(fs, |fs| {
        let (existing, path) = (args::path(existing)?, args::path(path)?);
        fs.run(fs.client.link(existing, path))
    })
}

/// Makes a symbolic link at `path` that points to `target`. As symlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_symlink(
    fs: *mut pando_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    with(fs, |fs| {
        let (target, path) = (args::path(target)?, args::path(path)?);
        fs.run(fs.client.symlink(target, path))
    })
}

/// Puts the target of a symbolic link to `buffer`, with a zero byte behind it; returns its length
/// without that byte. -ERANGE when `size` is not larger than the length; -EINVAL for what is no
/// symbolic link.
#[unsafe(no_mangle)]
pub extern "C" fn pando_readlink(
    fs: *mut pando_fs,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    guard(|| {
        let fs = Fs::get(fs)?;
        let (path, room) = (args::path(path)?, Buffer::room(buffer, size)?);
        let target = fs.run(fs.client.readlink(path))?;
        if room.len() <= target.len() {
            return Err(Failed::new(libc::ERANGE, "the buffer is too small for the target"));
        }
        room.put(0, &target);
        room.put(target.len(), &[0]);
        Ok(count(target.len()))
    })
}

/// Sets permission bits; symbolic links are followed. As chmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_chmod(fs: *mut pando_fs, path: *const c_char, mode: u32) -> c_int {
    change(fs, path, async |client, path| client.chmod(path, mode & MODE_BITS).await)
}

/// Sets owner and group; PANDO_ID_SAME leaves one as it is. `flags` are 0 or PANDO_NOFOLLOW. As
/// fchownat(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_chown(
    fs: *mut pando_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    with(fs, |fs| {
        let (path, follow) = (args::path(path)?, follows(flags)?);
        fs.run(set(&fs.client, path, owners(uid, gid), follow)).map(drop)
    })
}

/// Sets access time `times[0]` and modification time `times[1]`; null sets both to now, and
/// PANDO_UTIME_NOW and PANDO_UTIME_OMIT are for one. `flags` are 0 or PANDO_NOFOLLOW. As
/// utimensat(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_utimens(
    fs: *mut pando_fs,
    path: *const c_char,
    times: *const pando_timespec,
    flags: c_int,
) -> c_int {
    with(fs, |fs| {
        let (path, times, follow) = (args::path(path)?, self::times(times)?, follows(flags)?);
        fs.run(set(&fs.client, path, times, follow)).map(drop)
    })
}

/// Cuts a file, or makes it longer with zeros. As truncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_truncate(fs: *mut pando_fs, path: *const c_char, size: u64) -> c_int {
    change(fs, path, async |client, path| client.truncate(path, size).await)
}

/// Sends everything that was written to any file; all that was answered before is on stable storage
/// when this returns. As syncfs(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_sync(fs: *mut pando_fs) -> c_int {
    with(fs, |fs| fs.run(fs.client.sync()))
}

/// The names in a directory are on stable storage when this returns. As fsync(2) of a directory.
#[unsafe(no_mangle)]
pub extern "C" fn pando_sync_dir(fs: *mut pando_fs, path: *const c_char) -> c_int {
    with(fs, |fs| {
        let path = args::path(path)?;
        fs.run(async {
            match fs.client.resolve(path).await? {
                wire::NodeRef::Dir(dir) => fs.client.sync_dir(&dir).await,
                wire::NodeRef::File(_) => Err(FsError::NotDirectory.into()),
            }
        })
    })
}

/// Reads a whole file of at most `size` bytes to `buffer`; returns its length. -EFBIG when it is
/// longer.
#[unsafe(no_mangle)]
pub extern "C" fn pando_read_file(
    fs: *mut pando_fs,
    path: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> i64 {
    guard(|| {
        let fs = Fs::get(fs)?;
        let (path, room) = (args::path(path)?, Buffer::room(buffer, size)?);
        fs.run(read_file(&fs.client, path, room))
    })
}

pub(crate) async fn read_file(client: &Client, path: &Path, room: Buffer) -> client::Result<i64> {
    let file = client.open(path).await?;
    let mut read = 0;
    // One byte more than there is room for tells a longer file.
    let wanted = room.len().saturating_add(1);
    while read < wanted {
        let len = u32::try_from(wanted - read).unwrap_or(u32::MAX).min(PIECE_BYTES);
        let bytes = file.read_at(read as u64, len).await?;
        if bytes.len() > room.len() - read {
            return Err(FsError::FileTooBig.into());
        }
        room.put(read, &bytes);
        read += bytes.len();
        if bytes.len() < len as usize {
            break;
        }
    }
    file.close().await?;
    Ok(count(read))
}

/// Makes a file with these contents, or replaces the contents of the file that is there; returns
/// `size`.
#[unsafe(no_mangle)]
pub extern "C" fn pando_write_file(
    fs: *mut pando_fs,
    path: *const c_char,
    mode: u32,
    contents: *const c_void,
    size: usize,
) -> i64 {
    guard(|| {
        let fs = Fs::get(fs)?;
        let (path, contents) = (args::path(path)?, Buffer::of(contents, size)?);
        fs.run(write_file(&fs.client, path, fs.new_mode(mode), contents))
    })
}

pub(crate) async fn write_file(
    client: &Client,
    path: &Path,
    mode: u32,
    contents: Buffer,
) -> client::Result<i64> {
    let options = client::OpenOptions::writing().create(mode).truncate();
    let file = client.open_with(path, options).await?;
    file.write_at(0, contents.bytes()).await?;
    file.close().await?;
    Ok(count(contents.len()))
}
