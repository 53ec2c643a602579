//! A deliberate bug, which the simulation in `lab` must find, as those of the servers (`meta`).
//!
//! Without the feature `bugs` it cannot be planted and the compiler drops it; `cli` never has the
//! feature.

#[cfg(feature = "bugs")]
thread_local! {
    static LATE_LOOKUPS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether clients on this thread take answers into their cache that were overtaken by news, from
/// now on.
#[cfg(feature = "bugs")]
pub fn take_late_lookups(take: bool) {
    LATE_LOOKUPS.set(take);
}

#[cfg(feature = "bugs")]
pub(crate) fn takes_late_lookups() -> bool {
    LATE_LOOKUPS.get()
}

/// Never.
#[cfg(not(feature = "bugs"))]
pub(crate) const fn takes_late_lookups() -> bool {
    false
}
