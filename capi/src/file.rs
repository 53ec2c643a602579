//! Open files.

use std::{
    ffi::{c_char, c_int, c_void},
    path::Path,
    sync::Arc,
};

use base::{Attr, FsError, SetAttr, attr::MODE_BITS};
use client::{File, FileSystem as _, OpenOptions};
use parking_lot::Mutex;
use wire::{AllocateMode, NodeRef, SeekTo};

use crate::{
    args::{self, Buffer, Out, PIECE_BYTES, count},
    error::{Failed, Result, guard, status},
    fs::{Fs, with},
    paths::owners,
    table::Table,
    types::{pando_file, pando_fs, pando_stat, pando_timespec},
};

/// For pando_fallocate(): change nothing but what is stored; the file does not get longer.
pub const PANDO_FALLOC_KEEP_SIZE: c_int = 1;
/// For pando_fallocate(), with PANDO_FALLOC_KEEP_SIZE: make the range a hole, which reads as zeros.
pub const PANDO_FALLOC_PUNCH_HOLE: c_int = 2;
/// For pando_fallocate(): make the range zeros.
pub const PANDO_FALLOC_ZERO_RANGE: c_int = 16;

static FILES: Table<pando_file, Open> = Table::new(3);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    FILES.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    FILES.release();
}

/// Makes the lock anew, in a child.
pub(crate) fn renew() {
    FILES.renew();
}

/// Flags of open(2) that mean nothing here: no terminal, no descriptor, and no cache of a kernel.
const IGNORED: c_int = libc::O_CLOEXEC
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_NOATIME
    | libc::O_DIRECT
    | libc::O_LARGEFILE
    // The bit that glibc shows as 0, and programs of other libraries do not.
    | 0o100_000;

/// An open file.
pub(crate) struct Open {
    fs: Arc<Fs>,
    /// `None` only while the last user takes it away.
    file: Option<File>,
    /// Where read and write go on.
    offset: Mutex<u64>,
    append: bool,
    sync: bool,
}

/// The flags of open(2), understood.
#[derive(Clone, Copy)]
pub(crate) struct Flags {
    options: OpenOptions,
    unnamed: bool,
    linkable: bool,
    append: bool,
    sync: bool,
}

impl Flags {
    pub(crate) fn new(fs: &Fs, flags: c_int, mode: u32) -> Result<Flags> {
        let has = |bits| flags & bits == bits;
        let unnamed = has(libc::O_TMPFILE);
        let known = libc::O_ACCMODE
            | libc::O_CREAT
            | libc::O_EXCL
            | libc::O_TRUNC
            | libc::O_APPEND
            | libc::O_SYNC
            | libc::O_NOFOLLOW
            | if unnamed { libc::O_TMPFILE } else { 0 };
        if flags & !(known | IGNORED) != 0 {
            return Err(Failed::invalid("a flag of open is not known: directories are listed"));
        }
        let mut options = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => OpenOptions::reading(),
            libc::O_WRONLY => OpenOptions::writing(),
            libc::O_RDWR => OpenOptions::both(),
            _ => return Err(Failed::invalid("neither reading nor writing")),
        };
        if unnamed && !has(libc::O_RDWR) && !has(libc::O_WRONLY) {
            return Err(Failed::invalid("a file without a name is for writing"));
        }
        if has(libc::O_CREAT) {
            let mode = fs.new_mode(mode);
            let exclusive = has(libc::O_EXCL);
            options = if exclusive { options.create_new(mode) } else { options.create(mode) };
        }
        if has(libc::O_TRUNC) {
            options = options.truncate();
        }
        if has(libc::O_NOFOLLOW) {
            options = options.no_follow();
        }
        let (linkable, append) = (!has(libc::O_EXCL), has(libc::O_APPEND));
        // The bit of O_DSYNC is in O_SYNC.
        let sync = flags & libc::O_DSYNC != 0;
        Ok(Flags { options, unnamed, linkable, append, sync })
    }
}

impl Open {
    /// Finds an open file.
    pub(crate) fn get(file: *mut pando_file) -> Result<Arc<Open>> {
        if file.is_null() {
            return Err(Failed::new(libc::EFAULT, "the file is null"));
        }
        let open = FILES.get(file).ok_or_else(closed)?;
        open.fs.check()?;
        Ok(open)
    }

    /// Opens a file by its path.
    pub(crate) async fn open(
        fs: &Arc<Fs>,
        path: &Path,
        flags: Flags,
        mode: u32,
    ) -> client::Result<Open> {
        let file = if flags.unnamed {
            fs.client.tmpfile(path, fs.new_mode(mode), flags.linkable).await?
        } else {
            fs.client.open_with(path, flags.options).await?
        };
        let Flags { append, sync, .. } = flags;
        Ok(Open { fs: Arc::clone(fs), file: Some(file), offset: Mutex::new(0), append, sync })
    }

    /// The handle for C.
    pub(crate) fn into_handle(self) -> Result<*mut pando_file> {
        FILES.insert(Arc::new(self)).ok_or_else(|| Failed::new(libc::EMFILE, "too many open files"))
    }

    /// Takes the handle from C.
    pub(crate) fn take(file: *mut pando_file) -> Result<Arc<Open>> {
        if file.is_null() {
            return Err(Failed::new(libc::EFAULT, "the file is null"));
        }
        let open = FILES.remove(file).ok_or_else(closed)?;
        if let Err(error) = open.fs.check() {
            // Of another process or an ended session nothing can be sent, or given back.
            if open.fs.check_process().is_err() {
                std::mem::forget(open);
            }
            return Err(error);
        }
        Ok(open)
    }

    /// Closes the file; where others still use it, all that was written is sent, and the last of
    /// them closes it.
    pub(crate) async fn close(self: Arc<Open>) -> client::Result<()> {
        match Arc::try_unwrap(self) {
            Ok(mut open) => match open.file.take() {
                Some(file) => file.close().await,
                None => Ok(()),
            },
            Err(shared) => shared.file()?.flush().await,
        }
    }

    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    pub(crate) fn file(&self) -> client::Result<&File> {
        Ok(self.file.as_ref().ok_or(FsError::BadHandle)?)
    }

    pub(crate) fn node(&self) -> NodeRef {
        self.file.as_ref().expect("it is there until the last user has gone").node()
    }

    fn run<T>(&self, operation: impl Future<Output = client::Result<T>>) -> Result<T> {
        self.fs.run(operation)
    }

    pub(crate) async fn pread(&self, room: Buffer, offset: u64) -> client::Result<i64> {
        let file = self.file()?;
        let mut read = 0;
        loop {
            let len = u32::try_from(room.len() - read).unwrap_or(u32::MAX).min(PIECE_BYTES);
            let bytes = file.read_at(offset + read as u64, len).await?;
            let bytes = &bytes[..bytes.len().min(len as usize)];
            room.put(read, bytes);
            read += bytes.len();
            if bytes.len() < len as usize || read == room.len() {
                return Ok(count(read));
            }
        }
    }

    pub(crate) async fn pwrite(&self, data: Buffer, offset: u64) -> client::Result<i64> {
        let file = self.file()?;
        if self.append {
            self.append(data).await?;
            return Ok(count(data.len()));
        }
        let mut at = offset;
        for piece in data.bytes().chunks(PIECE_BYTES as usize) {
            file.write_at(at, piece).await?;
            at = at.checked_add(piece.len() as u64).ok_or(FsError::FileTooBig)?;
        }
        self.after_write().await?;
        Ok(count(data.len()))
    }

    /// Writes at the end; where that is afterwards.
    async fn append(&self, data: Buffer) -> client::Result<u64> {
        let at = self.file()?.append(data.bytes()).await?;
        self.after_write().await?;
        Ok(at + data.len() as u64)
    }

    async fn after_write(&self) -> client::Result<()> {
        if self.sync { self.file()?.sync_all().await } else { Ok(()) }
    }

    async fn set(&self, set: SetAttr) -> client::Result<Attr> {
        self.fs.client.setattr(&self.fs.cred, &self.node(), set).await
    }
}

impl Drop for Open {
    /// Race: this may be within a turn, or in another thread; the file itself goes in a turn.
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.fs.driver().spawn(async move { drop(file) });
        }
    }
}

fn closed() -> Failed {
    Failed::new(libc::EBADF, "this is no open file, or it was closed")
}

/// An offset that C has as a signed number.
pub(crate) fn offset(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Failed::invalid("an offset is negative"))
}

/// Opens a file and puts it to `file`. `flags` are those of open(2): one of O_RDONLY, O_WRONLY and
/// O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_NOFOLLOW and O_TMPFILE;
/// O_CLOEXEC, O_NONBLOCK, O_NOCTTY, O_NOATIME, O_DIRECT and O_LARGEFILE change nothing. `mode` is
/// for a file that is made.
///
/// -EISDIR for a directory, which pando_opendir() opens; -EINVAL for other flags. Special files
/// cannot be opened (-EOPNOTSUPP).
#[unsafe(no_mangle)]
pub extern "C" fn pando_open(
    fs: *mut pando_fs,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut pando_file,
) -> c_int {
    with(fs, |fs| {
        let place = Out::new(file)?;
        place.put(std::ptr::null_mut());
        let (path, flags) = (args::path(path)?, Flags::new(fs, flags, mode)?);
        let open = fs.run(Open::open(fs, path, flags, mode))?;
        place.put(open.into_handle()?);
        Ok(())
    })
}

/// Sends what was written, gives back the file's locks and frees the handle, also when it returns
/// an error: that of sending what was written, if no call has returned it yet. As close(2), but
/// other clients that open the file afterwards see what was written.
///
/// Operations on the file that other threads or batches have under way end on their own; what they
/// write is sent later. A program that wants to know of that waits for them first.
#[unsafe(no_mangle)]
pub extern "C" fn pando_close(file: *mut pando_file) -> c_int {
    status(|| {
        let open = Open::take(file)?;
        let fs = Arc::clone(&open.fs);
        fs.run(open.close())
    })
}

/// Reads up to `size` bytes from `offset`; returns how many, fewer only at the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn pando_pread(
    file: *mut pando_file,
    buffer: *mut c_void,
    size: usize,
    offset: i64,
) -> i64 {
    guard(|| {
        let (open, room) = (Open::get(file)?, Buffer::room(buffer, size)?);
        open.run(open.pread(room, self::offset(offset)?))
    })
}

/// Writes all of `size` bytes at `offset`, or at the end with O_APPEND; returns `size`. Others see
/// it after pando_fsync(), pando_flush() or pando_close().
#[unsafe(no_mangle)]
pub extern "C" fn pando_pwrite(
    file: *mut pando_file,
    buffer: *const c_void,
    size: usize,
    offset: i64,
) -> i64 {
    guard(|| {
        let (open, data) = (Open::get(file)?, Buffer::of(buffer, size)?);
        open.run(open.pwrite(data, self::offset(offset)?))
    })
}

/// Reads as pando_pread() does, from where the last read or write ended.
#[unsafe(no_mangle)]
pub extern "C" fn pando_read(file: *mut pando_file, buffer: *mut c_void, size: usize) -> i64 {
    guard(|| {
        let (open, room) = (Open::get(file)?, Buffer::room(buffer, size)?);
        let mut offset = open.offset.lock();
        let read = open.run(open.pread(room, *offset))?;
        *offset += read.unsigned_abs();
        Ok(read)
    })
}

/// Writes as pando_pwrite() does, from where the last read or write ended.
#[unsafe(no_mangle)]
pub extern "C" fn pando_write(file: *mut pando_file, buffer: *const c_void, size: usize) -> i64 {
    guard(|| {
        let (open, data) = (Open::get(file)?, Buffer::of(buffer, size)?);
        let mut offset = open.offset.lock();
        if open.append {
            *offset = open.run(open.append(data))?;
            return Ok(count(data.len()));
        }
        let written = open.run(open.pwrite(data, *offset))?;
        *offset += written.unsigned_abs();
        Ok(written)
    })
}

/// Sets where the next read or write begins and returns it. `whence` is SEEK_SET, SEEK_CUR,
/// SEEK_END, SEEK_DATA or SEEK_HOLE. As lseek(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_lseek(file: *mut pando_file, offset: i64, whence: c_int) -> i64 {
    guard(|| {
        let open = Open::get(file)?;
        let mut at = open.offset.lock();
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *at,
            libc::SEEK_END => open.run(async { open.file()?.metadata().await })?.size,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let to = if whence == libc::SEEK_DATA { SeekTo::Data } else { SeekTo::Hole };
                // Before the beginning is nothing, as behind the end.
                let from = u64::try_from(offset).map_err(|_| FsError::NoSuchDevice)?;
                *at = open.run(async { open.file()?.seek(from, to).await })?;
                return Ok(i64::try_from(*at).unwrap_or(i64::MAX));
            }
            _ => return Err(Failed::invalid("no such whence")),
        };
        let to = from.checked_add_signed(offset).and_then(|to| i64::try_from(to).ok());
        let to = to.ok_or_else(|| Failed::invalid("the offset is before the beginning"))?;
        *at = to.unsigned_abs();
        Ok(to)
    })
}

/// Attributes of an open file. As fstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_fstat(file: *mut pando_file, stat: *mut pando_stat) -> c_int {
    status(|| {
        let (open, place) = (Open::get(file)?, Out::new(stat)?);
        place.put((&open.run(async { open.file()?.metadata().await })?).into());
        Ok(())
    })
}

/// Cuts an open file, or makes it longer with zeros. As ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_ftruncate(file: *mut pando_file, size: u64) -> c_int {
    status(|| {
        let open = Open::get(file)?;
        open.run(async { open.file()?.set_len(size).await })
    })
}

/// Sets permission bits of an open file. As fchmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_fchmod(file: *mut pando_file, mode: u32) -> c_int {
    status(|| {
        let open = Open::get(file)?;
        let set = SetAttr { mode: Some(mode & MODE_BITS), ..SetAttr::default() };
        open.run(open.set(set)).map(drop)
    })
}

/// Sets owner and group of an open file; PANDO_ID_SAME leaves one as it is. As fchown(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_fchown(file: *mut pando_file, uid: u32, gid: u32) -> c_int {
    status(|| {
        let open = Open::get(file)?;
        open.run(open.set(owners(uid, gid))).map(drop)
    })
}

/// Sets the times of an open file, as pando_utimens() does.
#[unsafe(no_mangle)]
pub extern "C" fn pando_futimens(file: *mut pando_file, times: *const pando_timespec) -> c_int {
    status(|| {
        let (open, set) = (Open::get(file)?, crate::paths::times(times)?);
        open.run(open.set(set)).map(drop)
    })
}

/// Sends what was written: other clients that open the file afterwards see it.
#[unsafe(no_mangle)]
pub extern "C" fn pando_flush(file: *mut pando_file) -> c_int {
    status(|| {
        let open = Open::get(file)?;
        open.run(async { open.file()?.flush().await })
    })
}

/// Sends what was written; contents and attributes are on stable storage when this returns. As
/// fsync(2).
#[unsafe(no_mangle)]
pub extern "C" fn pando_fsync(file: *mut pando_file) -> c_int {
    status(|| {
        let open = Open::get(file)?;
        open.run(async { open.file()?.sync_all().await })
    })
}

/// Like pando_fsync(): attributes travel with the contents.
#[unsafe(no_mangle)]
pub extern "C" fn pando_fdatasync(file: *mut pando_file) -> c_int {
    pando_fsync(file)
}

/// Makes an open file longer, or a range of it zeros. `mode` is 0, or of PANDO_FALLOC_KEEP_SIZE,
/// PANDO_FALLOC_PUNCH_HOLE and PANDO_FALLOC_ZERO_RANGE what fallocate(2) allows; -EOPNOTSUPP
/// otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pando_fallocate(
    file: *mut pando_file,
    mode: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    const ZERO_WITHIN: c_int = PANDO_FALLOC_ZERO_RANGE | PANDO_FALLOC_KEEP_SIZE;
    const HOLE: c_int = PANDO_FALLOC_PUNCH_HOLE | PANDO_FALLOC_KEEP_SIZE;
    status(|| {
        let (open, offset, len) = (Open::get(file)?, self::offset(offset)?, self::offset(len)?);
        let mode = match mode {
            0 => AllocateMode::Grow,
            PANDO_FALLOC_KEEP_SIZE => AllocateMode::Keep,
            PANDO_FALLOC_ZERO_RANGE => AllocateMode::Zero,
            ZERO_WITHIN | HOLE => AllocateMode::ZeroWithin,
            _ => return Err(FsError::NotSupported.into()),
        };
        open.run(async { open.file()?.allocate(offset, len, mode).await })
    })
}

/// Copies up to `len` bytes from one open file to another of the same session, without moving
/// either's offset; returns how many: fewer at the end of `from`, or after 64 MiB.
#[unsafe(no_mangle)]
pub extern "C" fn pando_copy_file_range(
    from: *mut pando_file,
    from_offset: i64,
    to: *mut pando_file,
    to_offset: i64,
    len: usize,
) -> i64 {
    guard(|| {
        let (from, to) = (Open::get(from)?, Open::get(to)?);
        if !Fs::same_session(&from.fs, &to.fs) {
            return Err(Failed::new(libc::EXDEV, "the files are of different sessions"));
        }
        let (from_offset, to_offset) = (offset(from_offset)?, offset(to_offset)?);
        let copied = from.run(async {
            from.file()?.copy_to(from_offset, to.file()?, to_offset, len as u64).await
        })?;
        Ok(i64::try_from(copied).unwrap_or(i64::MAX))
    })
}

/// Gives an open file one more name, or its first one (O_TMPFILE), with all that was written to it.
#[unsafe(no_mangle)]
pub extern "C" fn pando_flink(file: *mut pando_file, path: *const c_char) -> c_int {
    status(|| {
        let (open, path) = (Open::get(file)?, args::path(path)?);
        open.run(async { open.file()?.link(path).await })
    })
}
