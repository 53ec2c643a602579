//! Deliberate bugs, which the simulation in `lab` must find: they show that its checks can fail.
//!
//! Each is one wrong step in the code that it names, asked for with [`Planted::has`]. Without the feature
//! `bugs` nothing can be planted and the compiler drops every one of them; `cli` never has the feature.

use std::time::Duration;

use store::Batch;

use crate::{Problem, server::Shared};

/// One wrong step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "bugs"),
    expect(unreachable_pub, reason = "it is exported with the feature")
)]
pub enum Bug {
    /// The answer to a change is remembered, but not stored with its effect (`driver`).
    AnswerNotStored,
    /// The echo of a request that was answered long ago is executed (`driver`).
    EchoExecuted,
    /// Answers leave before the write that holds their effects (`core`).
    AnswerBeforeWrite,
    /// Whoever waits for stable storage is answered at once (`core`, `data`).
    SyncNotAwaited,
    /// Inode numbers are given out that no record reserves (`server`).
    InosNotReserved,
    /// A file that loses its last name goes, though somebody has it open (`txn::files`).
    OpensIgnored,
    /// A release also closes what was opened after it (`ops::session`).
    ReleaseNumberIgnored,
    /// After a restart nobody waits for claims before orphans are removed (`server`).
    ClaimsNotAwaited,
    /// Clients are not told that a directory was moved (`ops::rename`).
    MoveNotAnnounced,
    /// A block is deleted before it is sure that nothing names it (`reclaim`).
    BlockDeletedEarly,
    /// After a restart locks are given before all who had some have claimed them (`ops::lock`).
    LockClaimsNotAwaited,
    /// A directory that was made in the place of a removed one is taken for that (`txn::dirs`).
    StaleInoAccepted,
    /// The client takes an answer into its cache that was overtaken by news (`client`, feature `bugs`).
    #[cfg(feature = "bugs")]
    LateLookupTaken,
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All of them.
    pub const ALL: [Bug; 13] = [
        Bug::AnswerNotStored,
        Bug::EchoExecuted,
        Bug::AnswerBeforeWrite,
        Bug::SyncNotAwaited,
        Bug::InosNotReserved,
        Bug::OpensIgnored,
        Bug::ReleaseNumberIgnored,
        Bug::ClaimsNotAwaited,
        Bug::MoveNotAnnounced,
        Bug::BlockDeletedEarly,
        Bug::LockClaimsNotAwaited,
        Bug::StaleInoAccepted,
        Bug::LateLookupTaken,
    ];
}

/// The bug of one server, if it has one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "bugs")]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    /// Whether this is the wrong step to take.
    #[cfg(feature = "bugs")]
    pub(crate) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Never.
    #[cfg(not(feature = "bugs"))]
    #[expect(clippy::unused_self, reason = "the signature is that of a build with bugs")]
    pub(crate) fn has(self, _: Bug) -> bool {
        false
    }
}

/// Writes what was answered already, a moment later.
pub(crate) async fn write_late(shared: &Shared, batch: Batch) {
    tokio::time::sleep(Duration::from_millis(1)).await;
    match shared.engine.write(batch) {
        Ok(()) => shared.sync.written(),
        Err(error) => shared.halt(Problem::of(&error)),
    }
}
