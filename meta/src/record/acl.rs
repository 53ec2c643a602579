//! POSIX ACLs among the extended attributes of a record, and what they permit.
//!
//! Invariant: ACLs always stand in the record itself, never beside it, so that a permission check reads nothing
//! more; and an access ACL agrees with the mode beside it.

use base::{
    Access, Acl, AclKind, Attr, Cred, FsError,
    acl::{self, permits_with},
    attr::MODE_ACL,
};
use bytes::Bytes;

use super::{Content, Inode, XattrSet, Xattrs};

impl Xattrs {
    /// Those that are in the record itself.
    pub(crate) fn here(&self) -> &[(Bytes, Bytes)] {
        match self {
            Xattrs::Embedded(set) | Xattrs::Split(set) => &set.list,
            Xattrs::Spilled => &[],
        }
    }

    /// Whether some are in the record beside it.
    pub(crate) fn is_spilled(&self) -> bool {
        match self {
            Xattrs::Embedded(_) => false,
            Xattrs::Split(_) | Xattrs::Spilled => true,
        }
    }

    /// The value of one that is in the record itself.
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

    /// An ACL.
    pub(crate) fn acl(&self, kind: AclKind) -> Result<Option<Acl>, FsError> {
        let Some(value) = self.get(kind.name()) else { return Ok(None) };
        Acl::parse(value).map_err(|_| {
            tracing::error!("a stored ACL is none; run `pando fsck`");
            FsError::Io
        })
    }

    /// Those of a new inode.
    pub(crate) fn of_acls(access: Option<&Acl>, default: Option<&Acl>) -> Xattrs {
        let mut set = XattrSet::default();
        // In the order of their names.
        for (name, acl) in [(acl::ACCESS, access), (acl::DEFAULT, default)] {
            set.list.extend(acl.map(|acl| (Bytes::from_static(name), acl.to_bytes())));
        }
        Xattrs::Embedded(set)
    }

    /// Only the ACLs: what every partition of a directory has.
    pub(crate) fn acls(&self) -> Xattrs {
        let acls = self.here().iter().filter(|(name, _)| AclKind::of(name).is_some());
        Xattrs::Embedded(XattrSet { list: acls.cloned().collect() })
    }

    /// The mode was set: the access ACL follows.
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
    /// The place of an attribute, or where it would be.
    pub(crate) fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.list.binary_search_by(|(other, _)| other[..].cmp(name))
    }

    /// Sets one.
    pub(crate) fn put(&mut self, name: Bytes, value: Bytes) {
        match self.find(&name) {
            Ok(at) => self.list[at].1 = value,
            Err(at) => self.list.insert(at, (name, value)),
        }
    }

    /// Removes one; whether it was there.
    pub(crate) fn take(&mut self, name: &[u8]) -> bool {
        let found = self.find(name);
        found.map(|at| self.list.remove(at)).is_ok()
    }
}

impl Inode {
    /// Whether `cred` has `want`.
    pub(crate) fn permits(&self, cred: &Cred, want: Access) -> Result<(), FsError> {
        self.xattrs.permits(&self.attr(), cred, want)
    }
}

impl Content {
    /// Whether `cred` has `want`.
    pub(crate) fn permits(&self, cred: &Cred, want: Access) -> Result<(), FsError> {
        self.xattrs.permits(&self.attr(), cred, want)
    }
}
