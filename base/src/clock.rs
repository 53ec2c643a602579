//! Time and randomness, handed in by whoever builds a process or a simulated one.

use crate::attr::Time;

/// The wall clock. File times come from it; waiting does not.
pub trait Clock: Send + Sync + 'static {
    /// Now, since the Unix epoch.
    fn now(&self) -> Time;
}

/// A source of random numbers; a simulation hands in one with a seed.
pub trait Random: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next(&self) -> u64;
}
