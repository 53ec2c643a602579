//! Extended attributes.
//!
//! POSIX: xattr(7). Who may do what is Linux' `xattr_permission`, and what `security.` and ACLs add
//! to it.

use base::{
    Access, Acl, AclKind, Attr, FileKind, FsError, Ino,
    attr::MODE_STICKY,
    limits::{
        XATTR_NAME_BYTES_MAX, XATTR_NAMES_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
    },
};
use bytes::Bytes;
use wire::{NodeRef, XattrMode};

use super::{State, who::Who};

/// Bytes that each attribute counts towards the limit, besides its name and value.
const OVERHEAD_BYTES: usize = 8;

type Result<T> = std::result::Result<T, FsError>;

/// The first part of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    System,
}

impl Namespace {
    fn of(name: &[u8]) -> Option<Namespace> {
        let all = [
            (&b"user."[..], Namespace::User),
            (b"trusted.", Namespace::Trusted),
            (b"security.", Namespace::Security),
            (b"system.", Namespace::System),
        ];
        all.into_iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, found)| found)
    }
}

impl State {
    /// Returns the attributes that the caller may read. Linux: `trusted.` is the superuser's,
    /// `user.` needs permission to read, and the others need none.
    pub(super) fn xattrs(&self, who: Who<'_>, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        let ino = self.node(who, node)?;
        let readable = self.may(who, ino, Access::READ).is_ok();
        let shown = |name: &Bytes| match Namespace::of(name) {
            Some(Namespace::User) => readable,
            Some(Namespace::Trusted) => who.privileged(),
            Some(Namespace::Security | Namespace::System) => true,
            None => unreachable!("refused when it was set"),
        };
        let all = self.inode(ino).xattrs.iter().filter(|(name, _)| shown(name));
        Ok(all.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    pub(super) fn setxattr(
        &mut self,
        who: Who<'_>,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        if let Some(kind) = AclKind::of(&name) {
            let (ino, acl) = (self.node(who, node), Acl::parse(&value)?);
            let clear_setgid = mode == XattrMode::SetClearSetgid;
            return self.set_acl(who, ino?, kind, acl, clear_setgid);
        }
        let ino = self.may_write_xattr(who, node, &name)?;
        let xattrs = &self.inode(ino).xattrs;
        match mode {
            XattrMode::Create if xattrs.contains_key(&name) => return Err(FsError::Exists),
            XattrMode::Replace if !xattrs.contains_key(&name) => return Err(FsError::NoData),
            XattrMode::Set | XattrMode::SetClearSetgid | XattrMode::Create | XattrMode::Replace => {
            }
        }
        let (mut bytes, mut names) = (name.len() + value.len() + OVERHEAD_BYTES, name.len() + 1);
        for (other, value) in xattrs.iter().filter(|(other, _)| **other != name) {
            bytes += other.len() + value.len() + OVERHEAD_BYTES;
            names += other.len() + 1;
        }
        if bytes > XATTRS_BYTES_MAX || names > XATTR_NAMES_BYTES_MAX {
            return Err(FsError::NoSpace);
        }

        let now = self.now();
        let inode = self.inode_mut(ino);
        inode.xattrs.insert(name, value);
        inode.attr.ctime = now;
        Ok(())
    }

    pub(super) fn removexattr(&mut self, who: Who<'_>, node: &NodeRef, name: &Bytes) -> Result<()> {
        if let Some(kind) = AclKind::of(name) {
            let ino = self.node(who, node)?;
            return self.set_acl(who, ino, kind, None, false);
        }
        let ino = self.may_write_xattr(who, node, name)?;
        let now = self.now();
        let inode = self.inode_mut(ino);
        inode.xattrs.remove(name).ok_or(FsError::NoData)?;
        inode.attr.ctime = now;
        Ok(())
    }

    /// Linux: a write, a truncation and a change of owner take it, whoever does it.
    pub(super) fn drop_capability(&mut self, ino: Ino) {
        if self.inode(ino).attr.kind != FileKind::Directory {
            self.inode_mut(ino).xattrs.remove(&b"security.capability"[..]);
        }
    }

    fn may_write_xattr(&self, who: Who<'_>, node: &NodeRef, name: &[u8]) -> Result<Ino> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX || name.contains(&0) {
            return Err(FsError::Range);
        }
        let ino = self.node(who, node)?;
        let attr = self.attr(ino);
        let Some(namespace) = Namespace::of(name) else {
            self.may(who, ino, Access::WRITE)?;
            return Err(FsError::NotSupported);
        };
        match namespace {
            Namespace::User => {
                may_have_user(who, &attr)?;
                self.may(who, ino, Access::WRITE)?;
            }
            Namespace::Trusted | Namespace::Security => who.rules()?,
            Namespace::System => who.owns(&attr)?,
        }
        if name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1 {
            return Err(FsError::Invalid);
        }
        Ok(ino)
    }
}

/// Only files and directories can have `user.` attributes; in a sticky directory they are the
/// owner's.
fn may_have_user(who: Who<'_>, attr: &Attr) -> Result<()> {
    if !matches!(attr.kind, FileKind::File | FileKind::Directory) {
        return Err(FsError::NotPermitted);
    }
    if attr.kind == FileKind::Directory && attr.mode & MODE_STICKY != 0 {
        who.owns(attr)?;
    }
    Ok(())
}
