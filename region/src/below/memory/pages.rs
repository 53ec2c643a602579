//! Contents of a file in memory: pages, and holes between them.

use std::collections::BTreeMap;

use wire::SeekTo;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// The same, for indices.
const PAGE: usize = 4096;

/// The pages of a file that are stored, by number.
///
/// Invariant: bytes behind the end of the file are zeros, and no page lies wholly behind it.
#[derive(Debug, Clone, Default)]
pub(super) struct Pages(BTreeMap<u64, Box<[u8; PAGE]>>);

impl Pages {
    /// Bytes that the pages take.
    pub(super) fn allocated(&self) -> u64 {
        self.0.len() as u64 * PAGE_BYTES
    }

    /// Up to `len` bytes from `offset`, of a file of `size` bytes.
    pub(super) fn read(&self, offset: u64, len: u64, size: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(size);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let (page, from, to) = within(at, end);
            match self.0.get(&page) {
                Some(stored) => out.extend_from_slice(&stored[from..to]),
                None => out.resize(out.len() + (to - from), 0),
            }
            at += (to - from) as u64;
        }
        out
    }

    /// Stores `data`.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, end) = (offset, offset + data.len() as u64);
        let mut data = data;
        while at < end {
            let (page, from, to) = within(at, end);
            let stored = self.0.entry(page).or_insert_with(|| Box::new([0; PAGE]));
            let (now, later) = data.split_at(to - from);
            stored[from..to].copy_from_slice(now);
            data = later;
            at += (to - from) as u64;
        }
    }

    /// Makes a range zeros, and whole pages in it holes.
    pub(super) fn zero(&mut self, offset: u64, end: u64) {
        let touched: Vec<u64> = self
            .0
            .range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
            .map(|(at, _)| *at)
            .collect();
        for page in touched {
            let begin = page * PAGE_BYTES;
            let (from, to) = (offset.max(begin) - begin, end.min(begin + PAGE_BYTES) - begin);
            if (from, to) == (0, PAGE_BYTES) {
                self.0.remove(&page);
            } else if let Some(stored) = self.0.get_mut(&page) {
                stored[index(from)..index(to)].fill(0);
            }
        }
    }

    /// Forgets everything from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        self.0.split_off(&size.div_ceil(PAGE_BYTES));
        let tail = index(size % PAGE_BYTES);
        if tail > 0
            && let Some(last) = self.0.get_mut(&(size / PAGE_BYTES))
        {
            last[tail..].fill(0);
        }
    }

    /// The next data or hole from `offset` on, which lies within `size`.
    pub(super) fn seek(&self, offset: u64, to: SeekTo, size: u64) -> Option<u64> {
        let first = offset / PAGE_BYTES;
        let found = match to {
            SeekTo::Data => self.0.range(first..).next().map(|(page, _)| *page)?,
            SeekTo::Hole => {
                let stored = self.0.range(first..).map(|(page, _)| *page);
                let run = stored.zip(first..).take_while(|(page, next)| page == next).count();
                first + run as u64
            }
        };
        Some((found * PAGE_BYTES).clamp(offset, size))
    }

    /// The number of the last page.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last_key_value().map(|(page, _)| *page)
    }
}

/// The page of `at`, and which bytes of it lie between `at` and `end`.
fn within(at: u64, end: u64) -> (u64, usize, usize) {
    let (page, from) = (at / PAGE_BYTES, at % PAGE_BYTES);
    (page, index(from), index((end - page * PAGE_BYTES).min(PAGE_BYTES)))
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("within a page")
}
