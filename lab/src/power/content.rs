//! The contents of one file, as programs see them and as they are on stable storage, in pages of 4
//! KiB.
//!
//! Always true: a page that is not in `dirty` is the same in both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fuse::pages::{PAGE_BYTES as PAGE_LEN, pieces};

use super::Left;
use crate::sim::random::SimRandom;

const PAGE: u64 = 4096;

type Page = Arc<[u8; PAGE_LEN]>;

/// Pages that were written; a missing one reads as zeros.
#[derive(Debug, Clone, Default)]
struct Pages {
    pages: BTreeMap<u64, Page>,
    size: u64,
}

/// A file's contents.
#[derive(Debug, Default)]
pub(super) struct Content {
    live: Pages,
    stable: Pages,
    /// Pages that may differ.
    dirty: BTreeSet<u64>,
}

impl Content {
    /// Size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.live.size
    }

    pub(super) fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let len = u64::from(len).min(self.live.size.saturating_sub(offset));
        let mut data = vec![0; usize::try_from(len).expect("a read fits in memory")];
        let mut done = 0;
        for (page, within, piece) in pieces(offset, data.len()) {
            if let Some(page) = self.live.pages.get(&page) {
                data[done..done + piece].copy_from_slice(&page[within..within + piece]);
            }
            done += piece;
        }
        data
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (number, within, piece) in pieces(offset, data.len()) {
            let page = self.live.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_LEN]));
            let bytes = Arc::make_mut(page);
            bytes[within..within + piece].copy_from_slice(&data[done..done + piece]);
            self.dirty.insert(number);
            done += piece;
        }
        let end = offset + u64::try_from(data.len()).expect("a write fits in memory");
        self.live.size = self.live.size.max(end);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        let first = size / PAGE;
        self.dirty.extend(self.live.pages.range(first..).map(|(number, _)| *number));
        self.live.pages.split_off(&size.div_ceil(PAGE));
        if let Some(last) = self.live.pages.get_mut(&first) {
            let within = usize::try_from(size % PAGE).expect("below a page");
            Arc::make_mut(last)[within..].fill(0);
        }
        self.live.size = size;
    }

    pub(super) fn is_stable(&self) -> bool {
        self.dirty.is_empty() && self.live.size == self.stable.size
    }

    /// Makes the contents stable.
    pub(super) fn sync(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            self.stable.put(number, self.live.pages.get(&number));
        }
        self.stable.size = self.live.size;
    }

    /// Cuts the power. The file is at least long enough for each page that was kept.
    pub(super) fn cut(&mut self, left: Left, random: &SimRandom) {
        let kept = std::mem::take(&mut self.dirty).into_iter().filter(|_| match left {
            Left::Nothing | Left::FilesNamed(_) => false,
            Left::Some => random.one_in(2),
        });
        for number in kept {
            self.stable.put(number, self.live.pages.get(&number));
            let end = self.live.size.min((number + 1) * PAGE);
            self.stable.size = self.stable.size.max(end);
        }
        self.live = self.stable.clone();
    }
}

impl Pages {
    fn put(&mut self, number: u64, page: Option<&Page>) {
        match page {
            Some(page) => {
                self.pages.insert(number, Arc::clone(page));
            }
            None => {
                self.pages.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &Content) -> Vec<u8> {
        content.read(0, 100)
    }

    #[test]
    fn what_was_synced_survives_and_what_was_not_is_gone() {
        let mut content = Content::default();
        content.write(0, b"stable");
        content.sync();
        content.write(0, b"other and longer");
        assert_eq!(text(&content), b"other and longer");

        content.cut(Left::Nothing, &SimRandom::new(1));
        assert_eq!(text(&content), b"stable");
    }

    #[test]
    fn a_truncation_that_was_not_synced_is_taken_back() {
        let mut content = Content::default();
        content.write(0, &[7; 10_000]);
        content.sync();
        content.truncate(10);
        content.cut(Left::Nothing, &SimRandom::new(1));
        assert_eq!((content.size(), content.read(9_000, 2)), (10_000, vec![7, 7]));

        content.truncate(10);
        content.sync();
        content.cut(Left::Nothing, &SimRandom::new(1));
        content.truncate(20);
        assert_eq!(text(&content), [[7; 10], [0; 10]].concat());
    }

    #[test]
    fn of_many_pages_some_are_kept_and_some_are_not() {
        let mut content = Content::default();
        content.write(0, &[7; 100 * PAGE_LEN]);
        content.cut(Left::Some, &SimRandom::new(1));
        let kept = (0..100).filter(|page| content.read(page * PAGE, 1) == [7]).count();
        assert!((20..80).contains(&kept), "{kept} of 100");
    }
}
