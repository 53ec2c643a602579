//! The caller of an operation, and its permissions.

use base::{Attr, Cred, FsError, access::permits_removal};

/// The identity of a request, and whether a kernel has checked it already.
#[derive(Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) cred: &'a Cred,
    pub(super) trusted: bool,
    /// Whether the caller may not learn where something was moved to.
    pub(super) limited: bool,
    pub(super) client: u64,
}

impl Who<'_> {
    /// Whether nothing is forbidden: to the superuser, and where the kernel has checked.
    pub(super) fn privileged(self) -> bool {
        self.trusted || self.cred.is_root()
    }

    /// The sticky bit of `dir`, for an entry that belongs to `owner`.
    pub(super) fn may_remove(self, dir: &Attr, owner: u32) -> Result<(), FsError> {
        if self.trusted { Ok(()) } else { permits_removal(dir, owner, self.cred) }
    }

    /// The user that the caller's opens count for: a kernel that checks has them for all its users.
    pub(super) fn opener(self) -> u32 {
        if self.trusted { 0 } else { self.cred.uid }
    }

    /// Allows operations that only the owner may do.
    pub(super) fn owns(self, attr: &Attr) -> Result<(), FsError> {
        if self.privileged() || self.cred.uid == attr.uid {
            Ok(())
        } else {
            Err(FsError::NotPermitted)
        }
    }

    /// Allows operations that only the superuser may do.
    pub(super) fn rules(self) -> Result<(), FsError> {
        if self.privileged() { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Whether it may give something to `gid` and leave the set-group-id bit on it.
    pub(super) fn in_group(self, gid: u32) -> bool {
        self.privileged() || self.cred.in_group(gid)
    }
}
