//! `open`: note that a session has a file open, so that it outlives its name.
//!
//! Cost: one locked read and no write; one read more for a file in blocks.
//! POSIX: open(2). EACCES, ESTALE.

use base::{Access, FileKind, FsError, Ino};
use wire::{ChunkSlices, Open, OpenState, Opened};

use super::blocks::mapped;
use crate::{
    error::Result,
    record::{Contents, Inode, Location, key},
    session::Session,
    txn::Txn,
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Open) -> Result<Opened> {
    let file = txn.file_locked(&req.file)?;
    match file.inode.kind {
        FileKind::File => {}
        FileKind::Symlink => return Err(FsError::Loop.into()),
        FileKind::Directory => return Err(FsError::IsDirectory.into()),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            return Err(FsError::NoSuchDevice.into());
        }
    }
    let access = Access::from_bits(u32::from(req.access));
    txn.inode_permits(&file.inode, access)?;
    let name =
        Location { dir: req.file.dir.id, home: req.file.dir.home, name: req.file.name.clone() };
    opened(txn, &file.inode, Some(name), req.number, access)
}

/// Notes the open and answers with the contents that the client needs.
///
/// Race: the inode is locked until the group is written, so an unlink sees the open, or we see the
/// unlink.
pub(crate) fn opened(
    txn: &mut Txn<'_>,
    inode: &Inode,
    name: Option<Location>,
    number: u64,
    access: Access,
) -> Result<Opened> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    txn.settle_change(&key::open(inode.ino))?;
    // While a user has a file open several times, each open may do what any of them may.
    let reads = access.includes(Access::READ) || txn.opened_for(inode.ino, Access::READ);
    let contents = match &inode.contents {
        _ if txn.checks() && !reads => OpenState::Withheld,
        Contents::Inline(data) => OpenState::Inline(data.clone()),
        // Chunks that a truncate cut off may still be stored, behind the file's end.
        Contents::Blocks if inode.size == 0 => OpenState::Blocks(ChunkSlices::default()),
        Contents::Blocks => OpenState::Blocks(mapped(txn, inode.ino, 0)?.unwrap_or_default()),
        Contents::Target(_) | Contents::Device(_) => return Err(FsError::Invalid.into()),
    };
    // The open is noted last, because nobody releases an open that was refused.
    let opens = &txn.shared.opens;
    let opener = (session.id, txn.caller.opener());
    let access = opens.open_at(inode.ino, name, opener, number, access);
    let proof = open_proof(session, inode.ino, txn.caller.cred.uid, access);
    Ok(Opened { attr: inode.attr(), contents, proof })
}

/// Proof for a user of a session of having opened an inode. Its low three bits say for which
/// access.
fn open_proof(session: &Session, ino: Ino, uid: u32, access: Access) -> u64 {
    let bits = u64::from(access.bits());
    let mac = session.ticket(&[u64::from_le_bytes(*b"open-ino"), ino.0, uid.into(), bits]);
    mac & !ACCESS_MASK | bits
}

/// The access for which a user has opened an inode, if the proof is valid.
pub(crate) fn proven_access(session: &Session, ino: Ino, uid: u32, proof: u64) -> Option<Access> {
    let access = Access::from_bits(u32::try_from(proof & ACCESS_MASK).ok()?);
    (open_proof(session, ino, uid, access) == proof).then_some(access)
}

const ACCESS_MASK: u64 = 7;
