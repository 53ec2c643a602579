//! From the bytes of one read(2) of `/dev/fuse` to a [`Message`].
//!
//! The kernel is trusted to mean well but not believed blindly: a length or a missing NUL that does
//! not fit gives [`Malformed`], and the session answers EIO.

mod file;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{Header, Op, Request, SetAttr, SetTime, Source, extension};
use crate::{
    abi::{self, opcode},
    types::{Handle, LockOwner, NodeId, Timespec, Unique},
};

/// Everything the kernel sends.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// For the file system, which answers it.
    Request(Request<'a>),
    /// Nodes that the kernel no longer refers to; not answered.
    Forget(Forgets<'a>),
    /// This request should end with EINTR.
    Interrupt { interrupted: Unique },
    /// The first message of a mount.
    Init(abi::InitIn),
    /// The last message of some mounts.
    Destroy,
    /// Data that was never asked for; not answered.
    NotifyReply,
    /// An opcode of the future, or of a feature that was not negotiated.
    Unknown,
}

/// The (node, look-ups) pairs of a FORGET or a BATCH_FORGET.
#[derive(Clone, Debug)]
pub(crate) enum Forgets<'a> {
    One(Option<(NodeId, u64)>),
    Batch(&'a [u8]),
}

impl Iterator for Forgets<'_> {
    type Item = (NodeId, u64);

    fn next(&mut self) -> Option<(NodeId, u64)> {
        match self {
            Forgets::One(one) => one.take(),
            Forgets::Batch(bytes) => {
                let (one, rest) = abi::ForgetOne::read_from_prefix(bytes).ok()?;
                *bytes = rest;
                Some((NodeId(one.nodeid), one.nlookup))
            }
        }
    }
}

/// The message has not the form that its opcode promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed request from the kernel")]
pub(crate) struct Malformed;

/// The rest of a message, taken from the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// The header alone, so that even a malformed message can be answered.
pub(crate) fn header(bytes: &[u8]) -> Result<(abi::InHeader, &[u8]), Malformed> {
    abi::InHeader::read_from_prefix(bytes).map_err(|_| Malformed)
}

/// Decodes one message; `source` says where `bytes` live.
pub(crate) fn decode<'a>(bytes: &'a [u8], source: Source<'a>) -> Result<Message<'a>, Malformed> {
    let (head, rest) = header(bytes)?;
    if usize::try_from(head.len) != Ok(bytes.len()) {
        return Err(Malformed);
    }
    let extensions_at =
        rest.len().checked_sub(usize::from(head.total_extlen) * 8).ok_or(Malformed)?;
    let (body, extensions) = rest.split_at(extensions_at);
    let mut body = Body(body);

    let op = match head.opcode {
        opcode::FORGET => return forget(&head, &mut body),
        opcode::BATCH_FORGET => return batch_forget(&mut body),
        opcode::INIT => return init(&body),
        opcode::INTERRUPT => {
            let interrupted = Unique(body.take::<abi::InterruptIn>()?.unique);
            return Ok(Message::Interrupt { interrupted });
        }
        opcode::DESTROY => return Ok(Message::Destroy),
        opcode::NOTIFY_REPLY => return Ok(Message::NotifyReply),
        code => match op(code, &mut body)? {
            Some(op) => op,
            None => return Ok(Message::Unknown),
        },
    };
    let header = Header {
        unique: Unique(head.unique),
        node: NodeId(head.nodeid),
        uid: head.uid,
        gid: head.gid,
        pid: head.pid,
        opcode: head.opcode,
    };
    Ok(Message::Request(Request {
        header,
        op,
        extensions: extension::parse(extensions),
        bytes: source,
    }))
}

fn forget<'a>(head: &abi::InHeader, body: &mut Body<'a>) -> Result<Message<'a>, Malformed> {
    let lookups = body.take::<abi::ForgetIn>()?.nlookup;
    Ok(Message::Forget(Forgets::One(Some((NodeId(head.nodeid), lookups)))))
}

fn batch_forget<'a>(body: &mut Body<'a>) -> Result<Message<'a>, Malformed> {
    let count = body.take::<abi::BatchForgetIn>()?.count;
    let size = u32::try_from(size_of::<abi::ForgetOne>()).map_err(|_| Malformed)?;
    Ok(Message::Forget(Forgets::Batch(body.bytes(count.checked_mul(size).ok_or(Malformed)?)?)))
}

/// Before 7.36 the structure was 16 bytes; what is missing is zero.
fn init<'a>(body: &Body<'_>) -> Result<Message<'a>, Malformed> {
    let mut init = [0; size_of::<abi::InitIn>()];
    let len = body.0.len().min(init.len());
    if len < 16 {
        return Err(Malformed);
    }
    init[..len].copy_from_slice(&body.0[..len]);
    Ok(Message::Init(abi::InitIn::read_from_bytes(&init).map_err(|_| Malformed)?))
}

/// Operations of names and inodes; `file::op` has the rest.
fn op<'a>(code: u32, body: &mut Body<'a>) -> Result<Option<Op<'a>>, Malformed> {
    Ok(Some(match code {
        opcode::LOOKUP => Op::Lookup { name: body.name()? },
        opcode::GETATTR => {
            let arg: abi::GetattrIn = body.take()?;
            Op::GetAttr { fh: given(arg.getattr_flags, abi::GETATTR_FH, Handle(arg.fh)) }
        }
        opcode::STATX => {
            let arg: abi::StatxIn = body.take()?;
            let fh = given(arg.getattr_flags, abi::GETATTR_FH, Handle(arg.fh));
            Op::Statx { fh, flags: arg.sx_flags, mask: arg.sx_mask }
        }
        opcode::SETATTR => Op::SetAttr(set_attr(&body.take()?)),
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => Op::Symlink { name: body.name()?, target: body.name()? },
        opcode::MKNOD => {
            let arg: abi::MknodIn = body.take()?;
            Op::MkNod { name: body.name()?, mode: arg.mode, rdev: arg.rdev, umask: arg.umask }
        }
        opcode::MKDIR => {
            let arg: abi::MkdirIn = body.take()?;
            Op::MkDir { name: body.name()?, mode: arg.mode, umask: arg.umask }
        }
        opcode::UNLINK => Op::Unlink { name: body.name()? },
        opcode::RMDIR => Op::RmDir { name: body.name()? },
        opcode::RENAME => {
            let new_parent = NodeId(body.take::<abi::RenameIn>()?.newdir);
            Op::Rename { name: body.name()?, new_parent, new_name: body.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let arg: abi::Rename2In = body.take()?;
            let new_parent = NodeId(arg.newdir);
            Op::Rename { name: body.name()?, new_parent, new_name: body.name()?, flags: arg.flags }
        }
        opcode::LINK => {
            let node = NodeId(body.take::<abi::LinkIn>()?.oldnodeid);
            Op::Link { node, name: body.name()? }
        }
        opcode::CREATE => {
            let arg: abi::CreateIn = body.take()?;
            Op::Create {
                name: body.name()?,
                mode: arg.mode,
                umask: arg.umask,
                flags: arg.flags,
                kill_suidgid: arg.open_flags & abi::OPEN_KILL_SUIDGID != 0,
            }
        }
        opcode::TMPFILE => {
            let arg: abi::CreateIn = body.take()?;
            Op::TmpFile { mode: arg.mode, umask: arg.umask, flags: arg.flags }
        }
        opcode::STATFS => Op::StatFs,
        opcode::SYNCFS => Op::SyncFs,
        opcode::ACCESS => Op::Access { mask: body.take::<abi::AccessIn>()?.mask },
        opcode::SETXATTR => set_xattr(body)?,
        opcode::GETXATTR => {
            let arg: abi::GetxattrIn = body.take()?;
            Op::GetXattr { name: body.name()?, size: arg.size }
        }
        opcode::LISTXATTR => Op::ListXattr { size: body.take::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: body.name()? },
        code => return file::op(code, body),
    }))
}

/// `value`, when its bit is set.
fn given<T>(flags: u32, bit: u32, value: T) -> Option<T> {
    (flags & bit != 0).then_some(value)
}

fn set_attr(arg: &abi::SetattrIn) -> SetAttr {
    let valid = arg.valid;
    let at = |secs: u64, nanos| Timespec { secs: secs.cast_signed(), nanos };
    let time = |set, now, value| {
        given(valid, set, if valid & now != 0 { SetTime::Now } else { SetTime::At(value) })
    };
    SetAttr {
        mode: given(valid, abi::FATTR_MODE, arg.mode),
        uid: given(valid, abi::FATTR_UID, arg.uid),
        gid: given(valid, abi::FATTR_GID, arg.gid),
        size: given(valid, abi::FATTR_SIZE, arg.size),
        atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, at(arg.atime, arg.atimensec)),
        mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, at(arg.mtime, arg.mtimensec)),
        ctime: given(valid, abi::FATTR_CTIME, at(arg.ctime, arg.ctimensec)),
        fh: given(valid, abi::FATTR_FH, Handle(arg.fh)),
        lock_owner: given(valid, abi::FATTR_LOCKOWNER, LockOwner(arg.lock_owner)),
        kill_suidgid: valid & abi::FATTR_KILL_SUIDGID != 0,
    }
}

/// With `SETXATTR_EXT` two more words stand before the name: the flags and a zero. No xattr's name
/// can begin with those bytes, so they tell the two forms apart.
fn set_xattr<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let arg: abi::SetxattrInCompat = body.take()?;
    let mut flags = 0;
    if let Ok((words, rest)) = <[u32; 2]>::read_from_prefix(body.0)
        && words[0] & !abi::SETXATTR_ACL_KILL_SGID == 0
        && words[1] == 0
    {
        flags = words[0];
        body.0 = rest;
    }
    Ok(Op::SetXattr {
        name: body.name()?,
        value: body.bytes(arg.size)?,
        flags: arg.flags,
        acl_kill_sgid: flags & abi::SETXATTR_ACL_KILL_SGID != 0,
    })
}
