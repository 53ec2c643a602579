//! Extended attributes: set, list with values, remove.
//!
//! Cost: one locked read and one batch; one more of each when they are many.
//! POSIX: none; Linux xattr(7). EEXIST, ENODATA, ERANGE, E2BIG, ENOSPC, EOPNOTSUPP.

use base::{
    Access, Acl, AclKind, Attr, Cred, FileKind, FsError,
    attr::MODE_STICKY,
    limits::{
        XATTR_NAME_BYTES_MAX, XATTR_NAMES_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
    },
};
use bytes::Bytes;
use wire::{Getattr, Removexattr, SetXattr, XattrMode};

use super::{acl, settings};
use crate::{
    error::Result,
    record::XattrSet,
    txn::{Node, Txn},
};

pub(crate) fn set(txn: &mut Txn<'_>, req: &SetXattr) -> Result<()> {
    if req.value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(FsError::TooBig.into());
    }
    let (name, value) = (&req.name, &req.value);
    if let Some(setting) = settings::name_of(name) {
        return settings::set(txn, &req.node, setting, Some(value));
    }
    if let Some(kind) = AclKind::of(name) {
        let clear_setgid = req.mode == XattrMode::SetClearSetgid;
        return acl::set(txn, &req.node, kind, Acl::parse(value)?, clear_setgid);
    }
    change(txn, &req.node, name, |set| {
        match (set.find(name), req.mode) {
            (Ok(_), XattrMode::Create) => return Err(FsError::Exists),
            (Err(_), XattrMode::Replace) => return Err(FsError::NoData),
            (Ok(at), XattrMode::Set | XattrMode::SetClearSetgid | XattrMode::Replace) => {
                set.list[at].1 = value.clone()
            }
            (Err(at), XattrMode::Set | XattrMode::SetClearSetgid | XattrMode::Create) => {
                set.list.insert(at, (name.clone(), value.clone()));
            }
        }
        fits(set)
    })
}

/// Checks the limits on the attributes of one node: on all their bytes, and on their names.
pub(super) fn fits(set: &XattrSet) -> std::result::Result<(), FsError> {
    let names: usize = set.list.iter().map(|(name, _)| name.len() + 1).sum();
    let fit = set.bytes() <= XATTRS_BYTES_MAX && names <= XATTR_NAMES_BYTES_MAX;
    if fit { Ok(()) } else { Err(FsError::NoSpace) }
}

pub(crate) fn remove(txn: &mut Txn<'_>, req: &Removexattr) -> Result<()> {
    if let Some(setting) = settings::name_of(&req.name) {
        return settings::set(txn, &req.node, setting, None);
    }
    if let Some(kind) = AclKind::of(&req.name) {
        return acl::set(txn, &req.node, kind, None, false);
    }
    change(txn, &req.node, &req.name, |set| {
        if set.take(&req.name) { Ok(()) } else { Err(FsError::NoData) }
    })
}

pub(crate) fn list(txn: &mut Txn<'_>, req: &Getattr) -> Result<Vec<(Bytes, Bytes)>> {
    let cred = txn.caller.cred;
    let (readable, set) = txn.settled(|txn| match txn.node(&req.node)? {
        Node::Dir(dir) => {
            Ok((dir.content.permits(cred, Access::READ).is_ok(), txn.dir_xattrs(&dir)?))
        }
        Node::File(file) => {
            Ok((file.inode.permits(cred, Access::READ).is_ok(), txn.file_xattrs(&file)?))
        }
    })?;
    let mut list = set.list;
    if txn.checks() {
        list.retain(|(name, _)| match namespace(name) {
            Some(Namespace::User) => readable,
            Some(Namespace::Trusted) => cred.is_root(),
            Some(Namespace::Security | Namespace::System) | None => true,
        });
    }
    Ok(list)
}

fn change(
    txn: &mut Txn<'_>,
    node: &wire::NodeRef,
    name: &Bytes,
    change: impl FnOnce(&mut XattrSet) -> std::result::Result<(), FsError>,
) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX || name.contains(&0) {
        return Err(FsError::Range.into());
    }
    match txn.node_locked(node)? {
        Node::Dir(mut dir) => {
            permit(txn, &dir.attr(), name, |cred| dir.content.permits(cred, Access::WRITE))?;
            let mut set = txn.settled(|txn| txn.dir_xattrs(&dir))?;
            change(&mut set)?;
            dir.content.times.ctime = txn.now;
            txn.put_dir_xattrs(&mut dir, set);
        }
        Node::File(mut file) => {
            permit(txn, &file.inode.attr(), name, |cred| file.inode.permits(cred, Access::WRITE))?;
            let mut set = txn.settled(|txn| txn.file_xattrs(&file))?;
            change(&mut set)?;
            file.inode.times.ctime = txn.now;
            txn.put_file_xattrs(&mut file, set);
        }
    }
    Ok(())
}

enum Namespace {
    User,
    Trusted,
    Security,
    System,
}

fn namespace(name: &[u8]) -> Option<Namespace> {
    let (space, rest) = name.split_at(name.iter().position(|byte| *byte == b'.')?);
    match space {
        _ if rest.is_empty() => None,
        b"user" => Some(Namespace::User),
        b"trusted" => Some(Namespace::Trusted),
        b"security" => Some(Namespace::Security),
        b"system" => Some(Namespace::System),
        _ => None,
    }
}

fn permit(
    txn: &Txn<'_>,
    attr: &Attr,
    name: &[u8],
    may_write: impl Fn(&Cred) -> std::result::Result<(), FsError>,
) -> Result<()> {
    let cred = txn.caller.cred;
    let checks = txn.checks() && !cred.is_root();
    let Some(space) = namespace(name) else {
        if checks {
            may_write(cred)?;
        }
        return Err(FsError::NotSupported.into());
    };
    may_change(txn, attr, &space, may_write)?;
    // A namespace alone is no name. Linux checks this last.
    if name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1 {
        return Err(FsError::Invalid.into());
    }
    Ok(())
}

fn may_change(
    txn: &Txn<'_>,
    attr: &Attr,
    space: &Namespace,
    may_write: impl Fn(&Cred) -> std::result::Result<(), FsError>,
) -> Result<()> {
    let cred = txn.caller.cred;
    // xattr(7): user attributes are for files and directories only.
    if matches!(space, Namespace::User)
        && !matches!(attr.kind, FileKind::File | FileKind::Directory)
    {
        return Err(FsError::NotPermitted.into());
    }
    if !txn.checks() || cred.is_root() {
        return Ok(());
    }
    // In a sticky directory only the owner has user attributes.
    let bound = attr.kind == FileKind::Directory && attr.mode & MODE_STICKY != 0;
    if matches!(space, Namespace::User) && bound && cred.uid != attr.uid {
        return Err(FsError::NotPermitted.into());
    }
    match space {
        Namespace::User => Ok(may_write(cred)?),
        Namespace::System if cred.uid == attr.uid => Ok(()),
        Namespace::System | Namespace::Trusted | Namespace::Security => {
            Err(FsError::NotPermitted.into())
        }
    }
}
