//! POSIX ACLs among the extended attributes of a record, and what they permit.
//!
//! Invariant: ACLs always stand in the record itself, never beside it, so that a permission check
//! reads nothing more; and an access ACL agrees with the mode beside it.

use base::{
    Access, Acl, AclKind, Attr, Cred, FsError,
    acl::{self, permits_with},
    attr::MODE_ACL,
};
use bytes::Bytes;

use super::{Content, Inode, XattrSet, Xattrs};

impl Xattrs {
    /// The attributes that stand in the record itself.
    pub(crate) fn here(&self) -> &[(Bytes, Bytes)] {
        match self {
            Xattrs::Embedded(set) | Xattrs::Split(set) => &set.list,
            Xattrs::Spilled => &[],
        }
    }

    /// Whether some attributes stand in the record beside this one.
    pub(crate) fn is_spilled(&self) -> bool {
        match self {
            Xattrs::Embedded(_) => false,
            Xattrs::Split(_) | Xattrs::Spilled => true,
        }
    }

    /// The value of an attribute that stands in the record itself.
    fn get(&self, name: &[u8]) -> Option<&Bytes> {
        let here = self.here();
        let at = here.binary_search_by(|(other, _)| other[..].cmp(name)).ok()?;
        Some(&here[at].1)
    }

    fn has_acl(&self) -> bool {
        self.here().iter().any(|(name, _)| AclKind::of(name).is_some())
    }

    /// `mode` as attributes show it.
    pub(crate) fn shown_mode(&self, mode: u32) -> u32 {
        if self.has_acl() { mode | MODE_ACL } else { mode }
    }

    /// Whether there are attributes that are no ACLs.
    pub(crate) fn has_others(&self) -> bool {
        self.is_spilled() || self.here().iter().any(|(name, _)| AclKind::of(name).is_none())
    }

    /// The ACL of a kind, if there is one.
    pub(crate) fn acl(&self, kind: AclKind) -> Result<Option<Acl>, FsError> {
        let Some(value) = self.get(kind.name()) else { return Ok(None) };
        Acl::parse(value).map_err(|_| {
            tracing::error!("a stored ACL is none; run `pando fsck`");
            FsError::Io
        })
    }

    /// The attributes of a new inode with these ACLs.
    pub(crate) fn of_acls(access: Option<&Acl>, default: Option<&Acl>) -> Xattrs {
        let mut set = XattrSet::default();
        // Attributes are in the order of their names.
        for (name, acl) in [(acl::ACCESS, access), (acl::DEFAULT, default)] {
            set.list.extend(acl.map(|acl| (Bytes::from_static(name), acl.to_bytes())));
        }
        Xattrs::Embedded(set)
    }

    /// Only the ACLs: the attributes that every partition of a directory has.
    pub(crate) fn acls(&self) -> Xattrs {
        let acls = self.here().iter().filter(|(name, _)| AclKind::of(name).is_some());
        Xattrs::Embedded(XattrSet { list: acls.cloned().collect() })
    }

    /// Changes the access ACL to agree with a mode that was set.
    pub(crate) fn follow_mode(&mut self, mode: u32) -> Result<(), FsError> {
        let Some(mut acl) = self.acl(AclKind::Access)? else { return Ok(()) };
        acl.follow_mode(mode);
        if let Xattrs::Embedded(set) | Xattrs::Split(set) = self {
            set.put(Bytes::from_static(acl::ACCESS), acl.to_bytes());
        }
        Ok(())
    }

    fn permits(&self, attr: &Attr, cred: &Cred, want: Access) -> Result<(), FsError> {
        permits_with(attr, self.acl(AclKind::Access)?.as_ref(), cred, want)
    }
}

impl XattrSet {
    /// The place of an attribute, or the place where it would be.
    pub(crate) fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.list.binary_search_by(|(other, _)| other[..].cmp(name))
    }

    /// Sets an attribute.
    pub(crate) fn put(&mut self, name: Bytes, value: Bytes) {
        match self.find(&name) {
            Ok(at) => self.list[at].1 = value,
            Err(at) => self.list.insert(at, (name, value)),
        }
    }

    /// Removes an attribute. Returns whether it was there.
    pub(crate) fn take(&mut self, name: &[u8]) -> bool {
        let found = self.find(name);
        found.map(|at| self.list.remove(at)).is_ok()
    }
}

impl Inode {
    /// Checks that `cred` may access the inode as `want` says.
    pub(crate) fn permits(&self, cred: &Cred, want: Access) -> Result<(), FsError> {
        self.xattrs.permits(&self.attr(), cred, want)
    }
}

impl Content {
    /// Checks that `cred` may access the directory as `want` says.
    pub(crate) fn permits(&self, cred: &Cred, want: Access) -> Result<(), FsError> {
        self.xattrs.permits(&self.attr(), cred, want)
    }
}
