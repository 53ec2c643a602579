//! POSIX ACLs: what they permit, what is inherited, and how the mode follows.
//!
//! Linux: `fs/posix_acl.c`.

use base::{
    Access, Acl, AclKind, FileKind, FsError, Ino,
    acl::{permits_with, without_umask},
    attr::{MODE_BITS, MODE_SETGID},
};
use bytes::Bytes;

use super::{State, who::Who};

type Result<T> = std::result::Result<T, FsError>;

impl State {
    /// Whether the caller has `want` on an inode.
    pub(super) fn may(&self, who: Who<'_>, ino: Ino, want: Access) -> Result<()> {
        if who.trusted {
            return Ok(());
        }
        permits_with(&self.attr(ino), self.acl(ino, AclKind::Access).as_ref(), who.cred, want)
    }

    fn acl(&self, ino: Ino, kind: AclKind) -> Option<Acl> {
        let value = self.inode(ino).xattrs.get(kind.name())?;
        Acl::parse(value).expect("checked when it was set")
    }

    fn put_acl(&mut self, ino: Ino, kind: AclKind, acl: Option<&Acl>) {
        let xattrs = &mut self.inode_mut(ino).xattrs;
        match acl {
            Some(acl) => xattrs.insert(Bytes::from_static(kind.name()), acl.to_bytes()),
            None => xattrs.remove(kind.name()),
        };
    }

    /// `setxattr` and `removexattr` of an ACL.
    pub(super) fn set_acl(
        &mut self,
        who: Who<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<Acl>,
        clear_setgid: bool,
    ) -> Result<()> {
        let attr = self.attr(ino);
        if attr.kind == FileKind::Symlink {
            return Err(FsError::NotSupported);
        }
        if kind == AclKind::Default && attr.kind != FileKind::Directory {
            return if acl.is_some() { Err(FsError::Denied) } else { Ok(()) };
        }
        who.owns(&attr)?;

        let now = self.now();
        let inode = self.inode_mut(ino);
        inode.attr.ctime = now;
        if let (AclKind::Access, Some(acl)) = (kind, &acl) {
            let keeps = who.in_group(attr.gid) && !clear_setgid;
            inode.attr.mode = acl.in_mode(inode.attr.mode) & !(if keeps { 0 } else { MODE_SETGID });
        }
        let kept = acl.filter(|acl| kind == AclKind::Default || acl.says_more_than_a_mode());
        self.put_acl(ino, kind, kept.as_ref());
        Ok(())
    }

    /// The mode was set.
    pub(super) fn follow_mode(&mut self, ino: Ino) {
        let mode = self.inode(ino).attr.mode;
        if let Some(mut acl) = self.acl(ino, AclKind::Access) {
            acl.follow_mode(mode);
            self.put_acl(ino, AclKind::Access, Some(&acl));
        }
    }

    /// Gives a new inode in `dir` its ACLs; its mode was asked for as `mode`.
    pub(super) fn inherit(&mut self, dir: Ino, ino: Ino, mode: u32) {
        let kind = self.inode(ino).attr.kind;
        if kind == FileKind::Symlink {
            return;
        }
        let nine = match self.acl(dir, AclKind::Default) {
            None => without_umask(mode),
            Some(default) => {
                let new = default.inherit(mode & MODE_BITS, kind);
                self.put_acl(ino, AclKind::Access, new.access.as_ref());
                self.put_acl(ino, AclKind::Default, new.default.as_ref());
                new.mode
            }
        };
        let attr = &mut self.inode_mut(ino).attr;
        attr.mode = attr.mode & !0o777 | nine & 0o777;
    }
}
