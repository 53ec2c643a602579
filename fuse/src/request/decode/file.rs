//! Decoding of the operations of open files and directories.

use super::{Body, Malformed, given};
use crate::{
    abi::{self, opcode},
    request::Op,
    types::{FileLock, Handle, LockKind, LockOwner, NodeId},
};

/// The operation, or `None` for an opcode that we do not know.
pub(super) fn op<'a>(code: u32, body: &mut Body<'a>) -> Result<Option<Op<'a>>, Malformed> {
    Ok(Some(match code {
        opcode::OPEN => {
            let arg: abi::OpenIn = body.take()?;
            let kill_suidgid = arg.open_flags & abi::OPEN_KILL_SUIDGID != 0;
            Op::Open { flags: arg.flags, kill_suidgid }
        }
        opcode::OPENDIR => Op::OpenDir { flags: body.take::<abi::OpenIn>()?.flags },
        opcode::READ => read(&body.take()?),
        opcode::WRITE => write(body)?,
        opcode::READDIR => {
            let arg: abi::ReadIn = body.take()?;
            Op::ReadDir { fh: Handle(arg.fh), offset: arg.offset, size: arg.size }
        }
        opcode::READDIRPLUS => {
            let arg: abi::ReadIn = body.take()?;
            Op::ReadDirPlus { fh: Handle(arg.fh), offset: arg.offset, size: arg.size }
        }
        opcode::RELEASE => release(&body.take()?),
        opcode::RELEASEDIR => {
            let arg: abi::ReleaseIn = body.take()?;
            Op::ReleaseDir { fh: Handle(arg.fh), flags: arg.flags }
        }
        opcode::FLUSH => {
            let arg: abi::FlushIn = body.take()?;
            Op::Flush { fh: Handle(arg.fh), lock_owner: LockOwner(arg.lock_owner) }
        }
        opcode::FSYNC => {
            let arg: abi::FsyncIn = body.take()?;
            let datasync = arg.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            Op::FSync { fh: Handle(arg.fh), datasync }
        }
        opcode::FSYNCDIR => {
            let arg: abi::FsyncIn = body.take()?;
            let datasync = arg.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            Op::FSyncDir { fh: Handle(arg.fh), datasync }
        }
        opcode::GETLK => {
            let (fh, owner, lock, kind) = lock(&body.take()?)?;
            Op::GetLk { fh, owner, lock, kind }
        }
        opcode::SETLK | opcode::SETLKW => {
            let (fh, owner, lock, kind) = lock(&body.take()?)?;
            Op::SetLk { fh, owner, lock, kind, wait: code == opcode::SETLKW }
        }
        opcode::BMAP => {
            let arg: abi::BmapIn = body.take()?;
            Op::BMap { block: arg.block, blocksize: arg.blocksize }
        }
        opcode::IOCTL => ioctl(body)?,
        opcode::POLL => {
            let arg: abi::PollIn = body.take()?;
            let notify = arg.flags & abi::POLL_SCHEDULE_NOTIFY != 0;
            Op::Poll { fh: Handle(arg.fh), kh: arg.kh, events: arg.events, notify }
        }
        opcode::FALLOCATE => {
            let arg: abi::FallocateIn = body.take()?;
            let fh = Handle(arg.fh);
            Op::FAllocate { fh, offset: arg.offset, length: arg.length, mode: arg.mode }
        }
        opcode::LSEEK => {
            let arg: abi::LseekIn = body.take()?;
            Op::LSeek { fh: Handle(arg.fh), offset: arg.offset, whence: arg.whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => copy_file_range(&body.take()?),
        _ => return Ok(None),
    }))
}

fn read<'a>(arg: &abi::ReadIn) -> Op<'a> {
    Op::Read {
        fh: Handle(arg.fh),
        offset: arg.offset,
        size: arg.size,
        flags: arg.flags,
        lock_owner: given(arg.read_flags, abi::READ_LOCKOWNER, LockOwner(arg.lock_owner)),
    }
}

fn write<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let arg: abi::WriteIn = body.take()?;
    Ok(Op::Write {
        fh: Handle(arg.fh),
        offset: arg.offset,
        data: body.bytes(arg.size)?,
        flags: arg.flags,
        lock_owner: given(arg.write_flags, abi::WRITE_LOCKOWNER, LockOwner(arg.lock_owner)),
        cached: arg.write_flags & abi::WRITE_CACHE != 0,
        kill_suidgid: arg.write_flags & abi::WRITE_KILL_SUIDGID != 0,
    })
}

fn release<'a>(arg: &abi::ReleaseIn) -> Op<'a> {
    let owner = LockOwner(arg.lock_owner);
    Op::Release {
        fh: Handle(arg.fh),
        flags: arg.flags,
        flush: arg.release_flags & abi::RELEASE_FLUSH != 0,
        flock_owner: given(arg.release_flags, abi::RELEASE_FLOCK_UNLOCK, owner),
    }
}

fn ioctl<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let arg: abi::IoctlIn = body.take()?;
    Ok(Op::Ioctl {
        fh: Handle(arg.fh),
        flags: arg.flags,
        cmd: arg.cmd,
        arg: arg.arg,
        data: body.bytes(arg.in_size)?,
        out_size: arg.out_size,
    })
}

fn copy_file_range<'a>(arg: &abi::CopyFileRangeIn) -> Op<'a> {
    Op::CopyFileRange {
        fh_in: Handle(arg.fh_in),
        offset_in: arg.off_in,
        node_out: NodeId(arg.nodeid_out),
        fh_out: Handle(arg.fh_out),
        offset_out: arg.off_out,
        len: arg.len,
        flags: arg.flags,
    }
}

fn lock(arg: &abi::LkIn) -> Result<(Handle, LockOwner, FileLock, LockKind), Malformed> {
    let kind = if arg.lk_flags & abi::LK_FLOCK != 0 { LockKind::Flock } else { LockKind::Posix };
    let lock = FileLock::from_abi(arg.lk).ok_or(Malformed)?;
    Ok((Handle(arg.fh), LockOwner(arg.owner), lock, kind))
}
