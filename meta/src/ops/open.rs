//! `open`: note that a session has a file open, so that it outlives its name.
//!
//! Cost: one locked read and no write; one read more for a file in blocks.
//! POSIX: open(2). EACCES, ESTALE.

use base::{Access, FileKind, FsError};
use wire::{Open, OpenState, Opened};

use super::blocks::mapped;
use crate::{
    error::Result,
    record::{Contents, Inode},
    txn::Txn,
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Open) -> Result<Opened> {
    let file = txn.file_locked(&req.file)?;
    if file.inode.kind != FileKind::File {
        return Err(FsError::Invalid.into());
    }
    txn.inode_permits(&file.inode, Access::from_bits(u32::from(req.access)))?;
    opened(txn, &file.inode, req.number)
}

/// Notes the open and tells what the client needs of the contents.
///
/// Race: the inode is locked until the group is written, so an unlink sees the open, or we see the unlink.
pub(crate) fn opened(txn: &mut Txn<'_>, inode: &Inode, number: u64) -> Result<Opened> {
    let contents = match &inode.contents {
        Contents::Inline(data) => OpenState::Inline(data.clone()),
        Contents::Blocks => OpenState::Blocks(mapped(txn, inode.ino, 0)?.unwrap_or_default()),
        Contents::Target(_) | Contents::Device(_) => return Err(FsError::Invalid.into()),
    };
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    txn.shared.opens.open(inode.ino, session.id, number);
    let proof = open_proof(session, inode.ino);
    Ok(Opened { attr: inode.attr(), contents, proof })
}

/// Proof for a session that it has opened an inode.
pub(crate) fn open_proof(session: &crate::session::Session, ino: base::Ino) -> u64 {
    session.ticket(&[u64::from_le_bytes(*b"open-ino"), ino.0])
}
