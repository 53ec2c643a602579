//! The identity a request acts as, and what mode bits let it do.

use crate::{Attr, FileKind, FsError, attr::MODE_STICKY, codec};

codec! {
    /// Identity that a request acts as.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Cred {
        /// User.
        pub uid: u32,
        /// Primary group; new files get it.
        pub gid: u32,
        /// Further groups.
        pub groups: Vec<u32>,
    }
}

impl Cred {
    /// The superuser.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new() };

    /// Whether this is the superuser, whom mode bits do not hold.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the identity is a member of `gid`.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A set of permissions, with the bits of `access(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Read.
    pub const READ: Access = Access(4);
    /// Write.
    pub const WRITE: Access = Access(2);
    /// Execute a file, or walk through a directory.
    pub const EXECUTE: Access = Access(1);
    /// Change what is in a directory.
    pub const CHANGE: Access = Access(3);

    /// Both.
    #[must_use]
    pub fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// None at all.
    pub const NONE: Access = Access(0);

    /// Whether all of `other` are among these.
    #[must_use]
    pub fn includes(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The low three bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The permissions of the low three bits.
    #[must_use]
    pub fn from_bits(bits: u32) -> Access {
        Access(bits & 7)
    }
}

/// Whether `cred` has `want` on an inode with these attributes.
///
/// # Errors
/// `Denied` when not.
///
/// POSIX: file access permissions; the superuser needs one execute bit to execute a file.
pub fn permits(attr: &Attr, cred: &Cred, want: Access) -> Result<(), FsError> {
    let granted = if cred.is_root() {
        let executable = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
        if executable { 7 } else { 6 }
    } else if cred.uid == attr.uid {
        attr.mode >> 6
    } else if cred.in_group(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    if granted & want.0 == want.0 { Ok(()) } else { Err(FsError::Denied) }
}

/// Whether `cred` may remove or rename an entry of `dir` that belongs to `owner`, as far as the
/// sticky bit is concerned.
///
/// # Errors
/// `NotPermitted` when the directory is sticky and neither it nor the entry belongs to the caller.
pub fn permits_removal(dir: &Attr, owner: u32, cred: &Cred) -> Result<(), FsError> {
    let bound = dir.mode & MODE_STICKY != 0 && !cred.is_root();
    if bound && cred.uid != owner && cred.uid != dir.uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ino;

    fn attr(kind: FileKind, mode: u32) -> Attr {
        Attr { mode, uid: 10, gid: 20, ..Attr::blank(Ino(2), kind) }
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = attr(FileKind::File, 0o077);
        assert_eq!(permits(&file, &user(10, 20, &[]), Access::READ), Err(FsError::Denied));
        assert_eq!(permits(&file, &user(11, 1, &[20]), Access::READ), Ok(()));
        assert_eq!(permits(&file, &user(11, 1, &[]), Access::CHANGE), Ok(()));
    }

    #[test]
    fn root_needs_one_execute_bit_to_execute_a_file() {
        let want = Access::EXECUTE;
        assert_eq!(permits(&attr(FileKind::File, 0o600), &Cred::ROOT, want), Err(FsError::Denied));
        assert_eq!(permits(&attr(FileKind::File, 0o610), &Cred::ROOT, want), Ok(()));
        assert_eq!(permits(&attr(FileKind::Directory, 0), &Cred::ROOT, want), Ok(()));
    }

    #[test]
    fn a_sticky_directory_keeps_what_is_not_yours() {
        let dir = attr(FileKind::Directory, 0o1777);
        assert_eq!(permits_removal(&dir, 30, &user(31, 1, &[])), Err(FsError::NotPermitted));
        assert_eq!(permits_removal(&dir, 30, &user(30, 1, &[])), Ok(()));
        assert_eq!(permits_removal(&dir, 30, &user(10, 1, &[])), Ok(()));
    }
}
