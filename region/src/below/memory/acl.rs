//! Extended attributes in memory, by the rules of Linux for each namespace.

use base::{
    FileKind, FsError,
    acl::{self, Acl, AclKind},
    attr::MODE_SETGID,
    limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX},
};
use bytes::Bytes;
use wire::XattrMode;

use super::state::State;
use crate::below::Result;

/// Sets an extended attribute.
pub(super) fn set_xattr(
    state: &mut State,
    ino: u64,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    check_name(name)?;
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(FsError::TooBig);
    }
    let kind = state.node(ino).attr.kind;
    if let Some(which) = AclKind::of(name) {
        return set_acl(state, ino, which, value, mode);
    }
    check_namespace(name, kind)?;
    let taken = state.node(ino).xattrs.contains_key(name);
    match mode {
        XattrMode::Create if taken => return Err(FsError::Exists),
        XattrMode::Replace if !taken => return Err(FsError::NoData),
        XattrMode::Set | XattrMode::Create | XattrMode::Replace | XattrMode::SetClearSetgid => {}
    }
    let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
    state.change(ino).xattrs.insert(name, value);
    Ok(())
}

/// Removes an extended attribute.
pub(super) fn remove_xattr(state: &mut State, ino: u64, name: &[u8]) -> Result<()> {
    check_name(name)?;
    let kind = state.node(ino).attr.kind;
    if AclKind::of(name).is_some() {
        if kind == FileKind::Symlink {
            return Err(FsError::NotSupported);
        }
        // Linux does not mind that there is none.
        state.change(ino).xattrs.remove(name);
        return Ok(());
    }
    check_namespace(name, kind)?;
    if !state.node(ino).xattrs.contains_key(name) {
        return Err(FsError::NoData);
    }
    state.change(ino).xattrs.remove(name);
    Ok(())
}

fn check_name(name: &[u8]) -> Result<()> {
    let fits = (1..=XATTR_NAME_BYTES_MAX).contains(&name.len());
    if fits { Ok(()) } else { Err(FsError::Range) }
}

fn check_namespace(name: &[u8], kind: FileKind) -> Result<()> {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let Some(prefix) = prefixes.into_iter().find(|prefix| name.starts_with(prefix)) else {
        return Err(FsError::NotSupported);
    };
    let is_users = prefix == b"user.";
    if is_users && !matches!(kind, FileKind::File | FileKind::Directory) {
        return Err(FsError::NotPermitted);
    }
    if name == prefix { Err(FsError::Invalid) } else { Ok(()) }
}

/// Linux looks at no flags where an ACL is set.
fn set_acl(
    state: &mut State,
    ino: u64,
    which: AclKind,
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let acl = Acl::parse(value)?;
    let attr = state.node(ino).attr;
    if attr.kind == FileKind::Symlink {
        return Err(FsError::NotSupported);
    }
    if which == AclKind::Default && attr.kind != FileKind::Directory {
        return if acl.is_some() { Err(FsError::Denied) } else { Ok(()) };
    }
    let node = state.change(ino);
    if which == AclKind::Access
        && let Some(acl) = &acl
    {
        node.attr.mode = acl.in_mode(node.attr.mode);
        if mode == XattrMode::SetClearSetgid {
            node.attr.mode &= !MODE_SETGID;
        }
    }
    let acl = acl.filter(|acl| which == AclKind::Default || acl.says_more_than_a_mode());
    let name = Bytes::from_static(which.name());
    match acl {
        Some(acl) => node.xattrs.insert(name, acl.to_bytes()),
        None => node.xattrs.remove(&name),
    };
    Ok(())
}

/// The ACL of an inode.
pub(super) fn of(state: &State, ino: u64, which: AclKind) -> Option<Acl> {
    let bytes = state.node(ino).xattrs.get(which.name())?;
    Acl::parse(bytes).expect("checked when it was set")
}

/// Has the access ACL follow a new mode.
pub(super) fn follow_mode(state: &mut State, ino: u64, mode: u32) {
    if let Some(mut acl) = of(state, ino, AclKind::Access) {
        acl.follow_mode(mode);
        let (name, acl) = (Bytes::from_static(acl::ACCESS), acl.to_bytes());
        state.node_mut(ino).xattrs.insert(name, acl);
    }
}
