//! Extensions that the kernel appends to create-like requests: security labels and supplementary
//! groups.
//!
//! Iterators decode lazily; bytes that do not fit their lengths end the iteration, they are never
//! an error of the request.

use std::ffi::CStr;

use zerocopy::FromBytes;

use super::Extensions;
use crate::abi;

/// The security labels that a new inode should have.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecurityContexts<'a>(&'a [u8]);

/// One label: the xattr's name and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// Name of the extended attribute, such as `security.selinux`.
    pub name: &'a CStr,
    /// Value of the attribute.
    pub value: &'a [u8],
}

impl<'a> Iterator for SecurityContexts<'a> {
    type Item = SecurityContext<'a>;

    fn next(&mut self) -> Option<SecurityContext<'a>> {
        let (head, rest) = abi::Secctx::read_from_prefix(self.0).ok()?;
        let name = CStr::from_bytes_until_nul(rest).ok()?;
        let rest = &rest[name.count_bytes() + 1..];
        let value = rest.get(..usize::try_from(head.size).ok()?)?;
        let taken = (self.0.len() - rest.len() + value.len()).next_multiple_of(8);
        self.0 = self.0.get(taken..).unwrap_or_default();
        Some(SecurityContext { name, value })
    }
}

/// The caller's groups that a new inode may belong to: the parent's, when the caller is in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SupplementaryGroups<'a>(&'a [u8]);

impl Iterator for SupplementaryGroups<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (gid, rest) = u32::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(gid)
    }
}

/// Walks the extensions; unknown ones are skipped.
pub(super) fn parse(mut bytes: &[u8]) -> Extensions<'_> {
    let mut found = Extensions::default();
    while let Ok((head, _)) = abi::SecctxHeader::read_from_prefix(bytes) {
        let size = usize::try_from(head.size).unwrap_or(usize::MAX);
        let Some(body) = bytes.get(size_of::<abi::SecctxHeader>()..size) else { break };
        if head.nr_secctx <= abi::MAX_NR_SECCTX {
            found.security = SecurityContexts(if head.nr_secctx == 0 { &[] } else { body });
        } else if head.nr_secctx == abi::EXT_GROUPS
            && let Ok((count, groups)) = u32::read_from_prefix(body)
        {
            let len = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(4);
            found.groups = SupplementaryGroups(groups.get(..len).unwrap_or(groups));
        }
        bytes = bytes.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    found
}
