//! `getattr`: the attributes of a node by handle.
//!
//! Cost: one read of a directory or of a file under its name; one more for a file with several
//! names; two for one that was renamed. Here and wherever a file is named: one more for its
//! directory where the server checks walks.
//! POSIX: fstat(2). ESTALE when it is gone.

use wire::{Getattr, NodeRef, Reply, ShareStat};

use crate::{error::Result, txn::Txn};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Getattr) -> Result<Reply> {
    let dir = match &req.node {
        NodeRef::Dir(dir) => txn.share_asked(dir)?,
        NodeRef::File(file) => return Ok(Reply::Attr(txn.file(file)?.inode.attr())),
    };
    txn.settle_shown_counts(&dir)?;
    let attr = dir.attr();
    // Each of several partitions answers for itself: the client asks them all.
    let divided = dir.is_divided();
    let layout = dir.content.layout;
    Ok(if divided { Reply::Share(ShareStat { attr, layout }) } else { Reply::Attr(attr) })
}
