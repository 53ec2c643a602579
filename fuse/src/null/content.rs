//! A file's bytes, in pages; a page that was never written is a hole.
//!
//! Invariant: no page lies wholly after the end of the file, and the last page is zero after it.

use std::collections::BTreeMap;

use crate::pages::{PAGE_BYTES as PAGE_LEN, pieces};

const PAGE: u64 = 4096;

/// The pages that were written.
#[derive(Debug, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Box<[u8; PAGE_LEN]>>,
    size: u64,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Space taken, in units of 512 bytes.
    pub(super) fn blocks(&self) -> u64 {
        u64::try_from(self.pages.len()).expect("pages fit in memory") * (PAGE / 512)
    }

    pub(super) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let len = len.min(self.size.saturating_sub(offset));
        let mut data = vec![0; usize::try_from(len).expect("a read fits in memory")];
        let mut done = 0;
        for (page, within, piece) in pieces(offset, data.len()) {
            if let Some(page) = self.pages.get(&page) {
                data[done..done + piece].copy_from_slice(&page[within..within + piece]);
            }
            done += piece;
        }
        data
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (page, within, piece) in pieces(offset, data.len()) {
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_LEN]));
            page[within..within + piece].copy_from_slice(&data[done..done + piece]);
            done += piece;
        }
        let end = offset + u64::try_from(data.len()).expect("a write fits in memory");
        self.size = self.size.max(end);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        self.pages.split_off(&size.div_ceil(PAGE));
        if let Some(last) = self.pages.get_mut(&(size / PAGE)) {
            last[usize::try_from(size % PAGE).expect("below a page")..].fill(0);
        }
        self.size = size;
    }

    /// Where the first data at or after `offset` begins.
    pub(super) fn data(&self, offset: u64) -> Option<u64> {
        let (&page, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(page * PAGE)).filter(|_| offset < self.size)
    }

    /// Where the first hole at or after `offset` begins; the end of the file is one.
    pub(super) fn hole(&self, offset: u64) -> Option<u64> {
        let mut page = offset / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        (offset < self.size).then(|| offset.max(page * PAGE).min(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_reads_as_zeros_and_is_a_hole() {
        let mut content = Content::default();
        content.write(10_000, b"abc");

        assert_eq!(content.read(9_999, 100), b"\0abc");
        assert_eq!(content.data(0), Some(8192));
        assert_eq!(content.hole(0), Some(0));
        assert_eq!(content.hole(10_000), Some(10_003));
        assert_eq!(content.data(10_003), None);
    }

    #[test]
    fn what_is_cut_off_does_not_come_back() {
        let mut content = Content::default();
        content.write(0, &[7; 6000]);
        content.truncate(100);
        content.truncate(6000);

        assert_eq!(content.read(99, 3), [7, 0, 0]);
        assert_eq!(content.blocks(), 8);
    }
}
