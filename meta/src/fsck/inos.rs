//! Sets of inode numbers.

use base::{HashMap, Ino};
use wire::InosPage;

/// A set of inode numbers, a bit each: they are given out one after the other.
#[derive(Default)]
pub(super) struct InoSet {
    pages: HashMap<u64, Box<[u64; PAGE_WORDS]>>,
}

const PAGE_WORDS: usize = 256;

impl InoSet {
    fn place(ino: Ino) -> (u64, usize, u64) {
        let word = usize::try_from(ino.0 / 64 % PAGE_WORDS as u64).expect("less than PAGE_WORDS");
        (ino.0 / 64 / PAGE_WORDS as u64, word, 1 << (ino.0 % 64))
    }

    /// Adds a number; `false` when it was there.
    pub(super) fn insert(&mut self, ino: Ino) -> bool {
        let (page, word, bit) = InoSet::place(ino);
        let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_WORDS]));
        let new = page[word] & bit == 0;
        page[word] |= bit;
        new
    }

    /// Some pages in order, to be compared with those of other servers.
    pub(super) fn pages_from(&self, from: u64, max: usize) -> Vec<InosPage> {
        let mut pages: Vec<u64> = self.pages.keys().copied().filter(|page| *page >= from).collect();
        pages.sort_unstable();
        pages.truncate(max);
        let bits = |page: u64| self.pages[&page].iter().flat_map(|word| word.to_le_bytes());
        pages.into_iter().map(|page| InosPage { page, bits: bits(page).collect() }).collect()
    }

    /// Whether a number is in the set.
    pub(super) fn contains(&self, ino: Ino) -> bool {
        let (page, word, bit) = InoSet::place(ino);
        self.pages.get(&page).is_some_and(|page| page[word] & bit != 0)
    }
}
