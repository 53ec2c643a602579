//! Deliberate bugs, which the simulation in `lab` must find, as those of the servers (`meta`).
//!
//! Without the feature `bugs` none can be planted and the compiler drops them; `cli` never has the
//! feature.

/// A bug of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "only `lab` names bugs"))]
pub enum Bug {
    /// Clients take answers into their cache that were overtaken by news.
    LateLookupTaken,
    /// Clients that have opened files without asking do not tell the server before they remove names
    /// of these, or give the directory back.
    OpenNotTold,
    /// Clients ask for a directory, and take its names, while they are changing something there.
    PresenceIgnored,
}

#[cfg(feature = "bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug into clients on this thread, or none, from now on.
#[cfg(feature = "bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "bugs")]
pub(crate) fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Never.
#[cfg(not(feature = "bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}
