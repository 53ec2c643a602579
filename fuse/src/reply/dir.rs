//! Pages of directory listings, never larger than the kernel asked for.
//!
//! Invariant: a page is a run of whole entries, each padded to 8 bytes, and its length is at most
//! the size it was made for. `push` says whether the entry fitted; one that did not is the first of
//! the next page, which the kernel asks for with the cookie of the last entry that fitted.

use zerocopy::IntoBytes;

use crate::{abi, types::Entry};

/// A page of READDIR.
#[derive(Debug)]
pub struct DirPage(Page);

impl DirPage {
    /// An empty page of at most `size` bytes.
    pub fn new(size: u32) -> Self {
        DirPage(Page::new(size))
    }

    /// Adds an entry, if there is room: the inode number and the type (bits of `st_mode`) that
    /// programs see, and the cookie that continues after it. False when it does not fit.
    #[must_use]
    pub fn push(&mut self, ino: u64, mode: u32, next: u64, name: &[u8]) -> bool {
        self.0.push(&[], ino, mode, next, name)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.0.bytes.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A page of READDIRPLUS.
#[derive(Debug)]
pub struct DirPlusPage(Page);

impl DirPlusPage {
    /// An empty page of at most `size` bytes.
    pub fn new(size: u32) -> Self {
        DirPlusPage(Page::new(size))
    }

    /// Adds an entry with its look-up, which counts like one of LOOKUP, if there is room. False
    /// when it does not fit, and then nothing counts.
    #[must_use]
    pub fn push(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let head = entry.to_abi();
        self.0.push(head.as_bytes(), entry.attr.ino, entry.attr.mode, next, name)
    }

    /// Adds an entry without a look-up, as `.` and `..` must be: it counts nothing.
    #[must_use]
    pub fn push_plain(&mut self, ino: u64, mode: u32, next: u64, name: &[u8]) -> bool {
        self.0.push(abi::EntryOut::default().as_bytes(), ino, mode, next, name)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.0.bytes.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    limit: usize,
}

/// No page is larger, whatever the kernel asks for; it asks for at most `max_pages`.
const PAGE_MAX: usize = 1 << 20;

impl Page {
    fn new(size: u32) -> Self {
        let limit = usize::try_from(size).unwrap_or(PAGE_MAX).min(PAGE_MAX);
        Page { bytes: Vec::with_capacity(limit), limit }
    }

    fn push(&mut self, head: &[u8], ino: u64, mode: u32, next: u64, name: &[u8]) -> bool {
        let len = head.len() + size_of::<abi::Dirent>() + name.len();
        let padded = len.next_multiple_of(8);
        let (Ok(namelen), true) =
            (u32::try_from(name.len()), self.bytes.len() + padded <= self.limit)
        else {
            return false;
        };
        let dirent = abi::Dirent { ino, off: next, namelen, kind: (mode >> 12) & 0xf };
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len() + padded - len, 0);
        true
    }
}
