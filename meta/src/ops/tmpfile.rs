//! `tmpfile`: make a file that has no name, and open it.
//!
//! The file is like one whose last name was removed while it is open: in its slot, noted to be
//! reclaimed. The note says whether a link may give it a name. Nothing in the directory changes.
//! The directory is locked so that no walk that counts for a quota passes in between.
//!
//! Cost: one locked read and one batch of two puts and the stored answer.
//! POSIX: open(2) with `O_TMPFILE`, as Linux has it.

use base::{Access, FileKind};
use bytes::Bytes;
use wire::{Created, Tmpfile};

use super::{create::new_inode, open};
use crate::{
    error::Result,
    lock,
    record::{Contents, Reclaim, ReclaimKind, Slot, key, key::Part},
    txn::{Txn, show_inode},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Tmpfile) -> Result<Created> {
    let dir = txn.master_locked(&req.dir)?;
    txn.dir_permits(&dir, Access::CHANGE)?;
    let contents = Contents::Inline(Bytes::new());
    let mut inode = new_inode(txn, &dir, FileKind::File, req.mode, contents)?;
    inode.nlink = 0;

    let ino = inode.ino;
    // Race: the inode cannot be reclaimed until the group is written, and then it is open.
    txn.lock(lock::ino_lock(ino))?;
    txn.put(key::inode(ino, Part::Main), &Slot::Inode(inode.clone()));
    let kind = if req.linkable { ReclaimKind::Unnamed } else { ReclaimKind::Orphan };
    txn.put(key::reclaim(ino), &Reclaim { kind });
    txn.facts.left.push(ino);
    // The creator may use the file as it was opened, whatever mode it got.
    let opened = open::opened(txn, &inode, None, req.number, Access::READ.and(Access::WRITE))?;
    Ok(Created { entry: show_inode(&inode), existed: false, opened: Some(opened) })
}
