//! `getattr`: the attributes of a node by handle.
//!
//! Cost: one read of a directory or of a file under its name; one more for a file with several names; two for
//! one that was renamed. Here and wherever a file is named: one more for its directory where the server checks
//! walks.
//! POSIX: fstat(2). ESTALE when it is gone.

use base::Attr;
use wire::Getattr;

use crate::{
    error::Result,
    txn::{Node, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Getattr) -> Result<Attr> {
    Ok(match txn.node(&req.node)? {
        Node::Dir(dir) => {
            txn.settle_counts(dir.content.home, dir.id)?;
            dir.attr()
        }
        Node::File(file) => file.inode.attr(),
    })
}
