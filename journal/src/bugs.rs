//! Deliberate bugs, which the tests of this crate must find: they show that its checks can fail.
//!
//! Each is one wrong step, asked for with [`Journal::has`](crate::Journal). Outside of this crate's
//! tests nothing can be planted, and the compiler drops every one of them.

/// One wrong step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// J1: a put that is answered "exists" counts as stored, whatever is there (`put`).
    StatusDecides,
    /// J2: the next segment is put when the one before is not known to be stored (`put`).
    NextPutEarly,
    /// J3: a fence counts though the segment before was collected (`fence`).
    PredecessorNotLookedAt,
    /// J3: a fence counts though a base lies beyond (`fence`).
    BasesNotLookedAt,
    /// The last segment is collected as well, and in falling order (`collect`).
    CollectedFalling,
    /// A journal is taken over though its owner has renewed its lease since (`fence`).
    RenewalIgnored,
    /// A journal is taken over before the lease of its owner has certainly ended (tests).
    #[cfg(test)]
    TakenEarly,
    /// A lease counts from when a segment is known to be stored (tests).
    #[cfg(test)]
    LeaseFromStored,
}
