//! `acl`: POSIX ACLs, which are set and removed as extended attributes.
//!
//! An access ACL and the mode say the same of the owner, of others and of the group, or the mask
//! where there is one; an ACL that says no more than a mode is not kept. A directory's ACL decides
//! who walks: changing it tells clients that cached the directory, as chmod does.
//!
//! Cost: one locked read and one batch; one read and put more for a directory, and one of each for
//! many extended attributes.
//! POSIX: draft 1003.1e; Linux: `vfs_set_acl`. EPERM, EACCES for a default ACL on no directory,
//! EOPNOTSUPP.

use base::{Acl, AclKind, FileKind, FsError, attr::MODE_SETGID};
use bytes::Bytes;
use wire::NodeRef;

use super::{setattr::change_access, xattr::fits};
use crate::{
    error::Result,
    permissions,
    record::XattrSet,
    txn::{Node, Txn},
};

/// Sets an ACL, or removes it. Removing an ACL that does not exist is no error.
pub(super) fn set(
    txn: &mut Txn<'_>,
    node: &NodeRef,
    kind: AclKind,
    acl: Option<Acl>,
    clear_setgid: bool,
) -> Result<()> {
    match txn.node_locked(node)? {
        Node::Dir(mut dir) => {
            may_set(txn, dir.content.uid)?;
            txn.coordinate(dir.id)?;
            let granted = dir.content.search_class();
            let mut set = txn.settled(|txn| txn.dir_xattrs(&dir))?;
            if let Some(mode) = change(&mut set, kind, acl.as_ref(), dir.content.mode)? {
                let keeps = keeps_setgid(txn, dir.content.gid) && !clear_setgid;
                dir.content.mode = if keeps { mode } else { mode & !MODE_SETGID };
            }
            dir.content.times.ctime = txn.now;
            txn.put_dir_xattrs(&mut dir, set);
            change_access(txn, &dir)?;
            txn.facts.moved.push(dir.id);
            permissions::changed(txn, &mut dir, &granted);
            txn.put_everywhere(&dir)?;
        }
        Node::File(mut file) => {
            if file.inode.kind == FileKind::Symlink {
                return Err(FsError::NotSupported.into());
            }
            if kind == AclKind::Default {
                return if acl.is_some() { Err(FsError::Denied.into()) } else { Ok(()) };
            }
            may_set(txn, file.inode.uid)?;
            let mut set = txn.settled(|txn| txn.file_xattrs(&file))?;
            if let Some(mode) = change(&mut set, kind, acl.as_ref(), file.inode.mode)? {
                let keeps = keeps_setgid(txn, file.inode.gid) && !clear_setgid;
                file.inode.mode = if keeps { mode } else { mode & !MODE_SETGID };
            }
            file.inode.times.ctime = txn.now;
            txn.put_file_xattrs(&mut file, set);
        }
    }
    Ok(())
}

fn may_set(txn: &Txn<'_>, owner: u32) -> Result<()> {
    let cred = txn.caller.cred;
    let may = !txn.checks() || cred.is_root() || cred.uid == owner;
    if may { Ok(()) } else { Err(FsError::NotPermitted.into()) }
}

/// Whether the file keeps its setgid bit: a caller outside the file's group loses it, as with
/// chmod.
fn keeps_setgid(txn: &Txn<'_>, gid: u32) -> bool {
    !txn.checks() || txn.caller.cred.is_root() || txn.caller.cred.in_group(gid)
}

/// Changes the set. Returns the new mode, if the ACL decides it.
fn change(
    set: &mut XattrSet,
    kind: AclKind,
    acl: Option<&Acl>,
    mode: u32,
) -> std::result::Result<Option<u32>, FsError> {
    let new_mode = acl.filter(|_| kind == AclKind::Access).map(|acl| acl.in_mode(mode));
    let kept = acl.filter(|acl| kind == AclKind::Default || acl.says_more_than_a_mode());
    match kept {
        Some(acl) => set.put(Bytes::from_static(kind.name()), acl.to_bytes()),
        None => {
            set.take(kind.name());
        }
    }
    fits(set)?;
    Ok(new_mode)
}
