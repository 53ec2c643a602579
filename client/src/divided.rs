//! Listings and attributes, put together from several partitions of one directory, without any IO.
//!
//! Partitions answer one after the other, while names move between them. Both machines say which
//! partition to ask, and take in its answer. They say when the result is how the directory was at
//! one moment, or as good as that.
//!
//! * `merge`: a listing (`listing` drives it). `shares`: attributes (`stat` does).

pub(crate) mod merge;
pub(crate) mod shares;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;

use base::Layout;

/// The readings of each partition, and the layout of the directory as far as all answers and news
/// have said.
///
/// Always true: the readings fit the layout.
#[derive(Debug)]
struct View<T> {
    layout: Layout,
    read: BTreeMap<u16, T>,
    /// Counts useless answers since the last useful one.
    vain: Vain,
}

/// A reading of one partition.
trait Reading {
    /// Whether the reading is still of use in a directory that is divided like `now`.
    fn fits(&self, partition: u16, now: &Layout) -> bool;
}

impl<T: Reading> View<T> {
    fn new(layout: Layout) -> View<T> {
        View { layout, read: BTreeMap::new(), vain: Vain::default() }
    }

    /// Takes in a layout; returns whether it was news.
    fn learn(&mut self, layout: &Layout) -> bool {
        let news = self.layout.learn(layout);
        if news {
            self.drop_outdated();
        }
        news
    }

    /// Replaces the layout, even by an older one: the known one may never have been stable, if a
    /// server told it and lost it in a power cut.
    fn forget(&mut self, layout: Layout) {
        self.layout = layout;
        self.drop_outdated();
    }

    fn in_vain(&mut self) {
        if self.vain.add() {
            self.forget(Layout::Whole);
        }
    }

    fn drop_outdated(&mut self) {
        let now = &self.layout;
        self.read.retain(|partition, reading| reading.fits(*partition, now));
    }
}

/// Counts answers that were of no use.
#[derive(Debug, Default)]
struct Vain(u32);

/// Number of useless answers after which the known layout is taken for wrong.
const VAIN_MAX: u32 = 256;
/// Number of useless answers after which the partitions get time to agree.
const VAIN_AT_ONCE: u32 = 8;

impl Vain {
    /// Counts one more. Returns whether all that is known must be forgotten.
    fn add(&mut self) -> bool {
        self.0 += 1;
        self.0.is_multiple_of(VAIN_MAX)
    }

    fn end(&mut self) {
        self.0 = 0;
    }

    fn must_wait(&self) -> bool {
        self.0 > VAIN_AT_ONCE
    }
}
