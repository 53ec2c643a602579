//! What is put together from several partitions of one directory, without any IO: listings and attributes.
//!
//! Partitions answer one after the other, while names go from one to another. Both machines say whom to ask, take in what
//! is answered, and say when that is how the directory was at one moment, or as good as it.
//!
//! * `merge`: a listing (`listing` drives it). `shares`: attributes (`stat` does).

pub(crate) mod merge;
pub(crate) mod shares;
#[cfg(test)]
mod world;

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
