//! `symlink` and `readlink`: a symbolic link's target rests in its entry.
//!
//! Cost: to make one as `create`; to read one as `stat`.
//! POSIX: symlink(2), EEXIST when the name is taken, ENAMETOOLONG beyond 4095 bytes. readlink(2),
//! EINVAL for anything else.

use base::{Access, FileKind, FsError, limits::SYMLINK_BYTES_MAX};
use wire::{Entry, Getattr, Symlink};

use super::create::new_inode;
use crate::{
    error::Result,
    record::Contents,
    txn::{Node, Txn, show_inode},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Symlink) -> Result<Entry> {
    if req.target.is_empty() {
        return Err(FsError::NotFound.into());
    }
    if req.target.contains(&0) {
        return Err(FsError::Invalid.into());
    }
    if req.target.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    let mut dir = txn.dir_for_locked(&req.dir, &req.name)?;
    if txn.entry(&dir, &req.name)?.is_some() {
        txn.dir_permits(&dir, Access::EXECUTE)?;
        return Err(FsError::Exists.into());
    }
    txn.dir_permits(&dir, Access::CHANGE)?;
    let contents = Contents::Target(req.target.clone());
    let inode = new_inode(txn, &dir, FileKind::Symlink, 0o777, contents)?;
    txn.put_new(&dir, &req.name, &inode);
    dir.content.entries += 1;
    txn.touch(&mut dir);
    txn.put_dir(&dir);
    txn.note_dir(&dir);
    Ok(show_inode(&inode))
}

/// Returns a symbolic link and its target, wherever the link was moved meanwhile.
pub(crate) fn read(txn: &mut Txn<'_>, req: &Getattr) -> Result<Entry> {
    match txn.node(&req.node)? {
        Node::File(file) if file.inode.kind == FileKind::Symlink => Ok(show_inode(&file.inode)),
        Node::File(_) | Node::Dir(_) => Err(FsError::Invalid.into()),
    }
}
