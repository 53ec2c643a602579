//! The answer to one request.
//!
//! A [`Reply`] comes with each request; the handler sends it at once or moves it into a task. Each
//! of its verbs consumes it, so a request is answered at most once, and one that is dropped
//! unanswered says EIO: at least once. Data is written where it lies, without a copy; over io_uring
//! it is copied into the request's entry.
//!
//! An answer that the kernel no longer wants (ENOENT: the mount is going away) is dropped silently;
//! one that it refuses is a bug on our side and logged.

mod dir;
#[cfg(test)]
mod tests;

use std::{future::poll_fn, sync::Arc, time::Duration};

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::{
    abi::{self, opcode},
    channel::Channel,
    interrupt::{Reader, Slot},
    ring::Taken,
    types::{Attr, Entry, FileLock, Handle, OpenFlags, StatFs, StatxExtra, Timespec, Unique},
};

pub use dir::{DirPage, DirPlusPage};

/// The right, and the duty, to answer one request.
#[derive(Debug)]
pub struct Reply {
    channel: Arc<Channel>,
    unique: Unique,
    opcode: u32,
    slot: Option<Slot>,
    /// The entry of a request that came over io_uring.
    taken: Option<Taken>,
}

impl Reply {
    pub(crate) fn new(
        channel: &Arc<Channel>,
        unique: Unique,
        opcode: u32,
        by: Reader,
        taken: Option<Taken>,
    ) -> Self {
        let slot = Some(channel.shared.interrupts.register(unique, by));
        Reply { channel: Arc::clone(channel), unique, opcode, slot, taken }
    }

    /// The kernel's number of the request.
    pub fn unique(&self) -> Unique {
        self.unique
    }

    /// Whether the request came over io_uring. There the kernel does not tell of a signal that is
    /// pending when the request begins, or comes before it has arrived here.
    pub fn is_over_io_uring(&self) -> bool {
        self.taken.is_some()
    }

    /// Waits until the kernel wants the request to end: a signal came for the process that waits.
    /// The answer is then EINTR, unless the operation is done already. Only this ends the process's
    /// wait, so every long operation watches this.
    pub async fn interrupted(&self) {
        poll_fn(|cx| match self.slot {
            Some(slot) => self.channel.shared.interrupts.poll(slot, cx),
            None => unreachable!("the slot is only taken by answering, which consumes the reply"),
        })
        .await;
    }

    /// Whether [`interrupted`](Self::interrupted) would return at once.
    pub fn is_interrupted(&self) -> bool {
        self.slot.is_some_and(|slot| self.channel.shared.interrupts.is_interrupted(slot))
    }

    /// Answers that the request failed.
    pub fn error(self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    /// Answers that the request is done, without data.
    pub fn ok(self) {
        self.send(0, &[]);
    }

    /// The name was found or made.
    pub fn entry(self, entry: &Entry) {
        self.send_struct(&entry.to_abi());
    }

    /// The name does not exist, and the kernel may believe so for this long.
    pub fn negative(self, entry_ttl: Duration) {
        self.send_struct(&abi::EntryOut {
            entry_valid: entry_ttl.as_secs(),
            entry_valid_nsec: entry_ttl.subsec_nanos(),
            ..Default::default()
        });
    }

    /// The attributes, and for how long the kernel may believe them.
    pub fn attr(self, attr: &Attr, attr_ttl: Duration) {
        self.send_struct(&abi::AttrOut {
            attr_valid: attr_ttl.as_secs(),
            attr_valid_nsec: attr_ttl.subsec_nanos(),
            dummy: 0,
            attr: attr.to_abi(),
        });
    }

    /// The attributes and what statx(2) adds.
    pub fn statx(self, attr: &Attr, extra: &StatxExtra, attr_ttl: Duration) {
        self.send_struct(&abi::StatxOut {
            attr_valid: attr_ttl.as_secs(),
            attr_valid_nsec: attr_ttl.subsec_nanos(),
            stat: statx(attr, extra),
            ..Default::default()
        });
    }

    /// The file or directory is open.
    pub fn opened(self, fh: Handle, flags: OpenFlags) {
        self.send_struct(&open_out(fh, flags));
    }

    /// The file was made and is open.
    pub fn created(self, entry: &Entry, fh: Handle, flags: OpenFlags) {
        self.send_struct(&abi::CreateOut { entry: entry.to_abi(), open: open_out(fh, flags) });
    }

    /// Contents: of a file, a symlink, an xattr, a list of xattrs.
    pub fn data(self, data: &[u8]) {
        self.send(0, &[data]);
    }

    /// Contents in several pieces, which the kernel sees as one.
    pub fn data_parts(self, parts: &[&[u8]]) {
        self.send(0, parts);
    }

    /// A page of a listing; an empty one is the end.
    pub fn dir(self, page: &DirPage) {
        self.send(0, &[page.bytes()]);
    }

    /// A page of a listing with look-ups; an empty one is the end.
    pub fn dir_plus(self, page: &DirPlusPage) {
        self.send(0, &[page.bytes()]);
    }

    /// Answers how many bytes were written.
    pub fn written(self, size: u32) {
        self.send_struct(&abi::WriteOut { size, padding: 0 });
    }

    /// Answers how many bytes were copied. Older kernels have 32 bits for it, and never ask for
    /// more.
    pub fn copied(self, bytes: u64) {
        if self.opcode == opcode::COPY_FILE_RANGE_64 {
            self.send_struct(&abi::CopyFileRangeOut { bytes_copied: bytes });
        } else {
            self.written(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// Answers with the size and usage of the file system.
    pub fn statfs(self, statfs: &StatFs) {
        self.send_struct(&abi::StatfsOut {
            blocks: statfs.blocks,
            bfree: statfs.bfree,
            bavail: statfs.bavail,
            files: statfs.files,
            ffree: statfs.ffree,
            bsize: statfs.bsize,
            namelen: statfs.namelen,
            frsize: statfs.frsize,
            ..Default::default()
        });
    }

    /// Answers with the size of the xattr, or of the list of them; the answer when a size of 0 was
    /// given.
    pub fn xattr_size(self, size: u32) {
        self.send_struct(&abi::GetxattrOut { size, padding: 0 });
    }

    /// The lock that is in the way, or the asked one with `Unlock` when none is.
    pub fn lock(self, lock: &FileLock) {
        self.send_struct(&abi::LkOut { lk: lock.to_abi() });
    }

    /// Where the data or the hole begins.
    pub fn offset(self, offset: u64) {
        self.send_struct(&abi::LseekOut { offset });
    }

    /// Where the block is.
    pub fn bmap(self, block: u64) {
        self.send_struct(&abi::BmapOut { block });
    }

    /// Answers which poll events are ready.
    pub fn poll(self, revents: u32) {
        self.send_struct(&abi::PollOut { revents, padding: 0 });
    }

    /// The ioctl's result and the data it gives back.
    pub fn ioctl(self, result: i32, data: &[u8]) {
        let out = abi::IoctlOut { result, ..Default::default() };
        self.send(0, &[out.as_bytes(), data]);
    }

    fn send_struct(self, out: &(impl IntoBytes + Immutable)) {
        self.send(0, &[out.as_bytes()]);
    }

    fn send(mut self, error: i32, parts: &[&[u8]]) {
        self.answer(error, parts);
    }

    fn answer(&mut self, error: i32, parts: &[&[u8]]) {
        let Some(slot) = self.slot.take() else { return };
        let sent = match self.taken.take() {
            Some(taken) => taken.answer(error, parts),
            None => self.channel.write(self.unique.0, error, parts),
        };
        // Only now, for a thread that has no request in hand may wait for the kernel alone.
        self.channel.shared.interrupts.unregister(slot);
        match sent {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let (unique, op) = (self.unique.0, opcode::name(self.opcode));
                tracing::error!(unique, op, %errno, "the kernel refused an answer");
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let (unique, op) = (self.unique.0, opcode::name(self.opcode));
            tracing::error!(unique, op, "a request was dropped unanswered");
            self.answer(-Errno::IO.raw_os_error(), &[]);
        }
    }
}

fn open_out(fh: Handle, flags: OpenFlags) -> abi::OpenOut {
    abi::OpenOut { fh: fh.0, open_flags: flags.bits(), backing_id: 0 }
}

const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

fn statx(attr: &Attr, extra: &StatxExtra) -> abi::Statx {
    let time = |at: Timespec| abi::SxTime { tv_sec: at.secs, tv_nsec: at.nanos, reserved: 0 };
    abi::Statx {
        mask: STATX_BASIC_STATS | if extra.btime.is_some() { STATX_BTIME } else { 0 },
        blksize: attr.blksize,
        attributes: extra.attributes,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: u16::try_from(attr.mode & 0xffff).expect("masked to 16 bits"),
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        attributes_mask: extra.attributes_mask,
        atime: time(attr.atime),
        btime: time(extra.btime.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: (attr.rdev >> 8) & 0xfff,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
        ..Default::default()
    }
}
