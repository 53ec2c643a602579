//! What is put together from several partitions of one directory, without any IO: listings and
//! attributes.
//!
//! Partitions answer one after the other, while names go from one to another. Both machines say
//! whom to ask, take in what is answered, and say when that is how the directory was at one moment,
//! or as good as it.
//!
//! * `merge`: a listing (`listing` drives it). `shares`: attributes (`stat` does).

pub(crate) mod merge;
pub(crate) mod shares;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;

use base::Layout;

/// What was read of each partition, and how the directory is divided as far as all answers and news
/// have said.
///
/// Always true: what was read fits the layout.
#[derive(Debug)]
struct View<T> {
    layout: Layout,
    read: BTreeMap<u16, T>,
    /// Since something was of use.
    vain: Vain,
}

/// Something that was read of a partition.
trait Reading {
    /// Whether it is still of use in a directory that is divided like this.
    fn fits(&self, partition: u16, now: &Layout) -> bool;
}

impl<T: Reading> View<T> {
    fn new(layout: Layout) -> View<T> {
        View { layout, read: BTreeMap::new(), vain: Vain::default() }
    }

    /// Whether it was news.
    fn learn(&mut self, layout: &Layout) -> bool {
        let news = self.layout.learn(layout);
        if news {
            self.drop_outdated();
        }
        news
    }

    /// What is known may never have been so: a server may have told of something that it lost with
    /// its power.
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

/// After so many, what is known of the directory is taken for wrong.
const VAIN_MAX: u32 = 256;
/// After so many, others get time to agree.
const VAIN_AT_ONCE: u32 = 8;

impl Vain {
    /// One more; whether all that is known must be forgotten.
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
