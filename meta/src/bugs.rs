//! Deliberate bugs, which the simulation in `lab` must find: they show that its checks can fail.
//!
//! Each is one wrong step in the code that it names, asked for with [`Planted::has`]. Without the
//! feature `bugs` nothing can be planted and the compiler drops every one of them; `cli` never has
//! the feature.

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
    /// Requests that wait for stable storage are answered at once (`core`, `data`).
    SyncNotAwaited,
    /// A sync makes the log stable, and not the blocks that it names (`server`).
    BlocksNotSynced,
    /// A server opens a log that names blocks which a power cut took (the caller of
    /// `unsynced::kept`).
    #[cfg_attr(not(feature = "bugs"), expect(dead_code, reason = "simulated hosts look for it"))]
    LogTakenUnseen,
    /// Inode numbers are given out that no record reserves (`server`).
    InosNotReserved,
    /// A directory that a session holds is shown to others before it was given back
    /// (`delegations::conflict`).
    RecallNotAwaited,
    /// After a restart nobody holds a directory (`assembly`).
    HoldersForgotten,
    /// A change is taken that stands on a delegation which has ended (`driver`).
    LateChangeTaken,
    /// A file that loses its last name goes, though somebody has it open (`txn::files`).
    OpensIgnored,
    /// A release also closes what was opened after it (`ops::session`).
    ReleaseNumberIgnored,
    /// After a restart orphans are removed before claims of clients have come (`server`).
    ClaimsNotAwaited,
    /// Clients are not told that a directory was moved (`ops::rename`).
    MoveNotAnnounced,
    /// A block is deleted before it is sure that nothing names it (`reclaim`).
    BlockDeletedEarly,
    /// After a restart locks are given before all who had some have claimed them (`ops::lock`).
    LockClaimsNotAwaited,
    /// A directory that was made in the place of a removed one is taken for that (`txn::dirs`).
    StaleInoAccepted,
    /// Directories move before all servers know that they will (`coordinator`).
    AnnounceNotAwaited,
    /// A version of the invalidation list comes without what happened in it (`coordinator`).
    VersionWithoutEvent,
    /// A prepared transaction holds no keys (`transact::participant`).
    PreparedNotHeld,
    /// Readers see records that a rename of a directory holds during its announcement
    /// (`transact::participant`).
    HoldNotKept,
    /// After a restart prepared transactions are not known (`transact::recover`).
    PreparedForgotten,
    /// A prepared transaction is not stored (`transact::participant`).
    PrepareNotStored,
    /// A server votes yes before its prepared record is stable (`core`).
    PromiseNotStable,
    /// A server says before it is stable that it has heard how a transaction ended (`core`).
    AcknowledgedEarly,
    /// The records that a transaction stands on are not compared when it is prepared
    /// (`transact::participant`).
    ExpectationsIgnored,
    /// A read does not wait for prepared transactions (`txn`).
    PreparedNotAwaited,
    /// Servers are told of a commit that is not stable (`transact::run`).
    CommitNotAwaited,
    /// A transaction is committed though a server had no room to prepare it (`transact::run`).
    NoRoomIgnored,
    /// A commit is not noted (`transact::run`).
    CommitNotNoted,
    /// The quota charges of a transaction are not stored with its commit (`txn`).
    ChargeLost,
    /// A commit is forgotten before all servers know of it (`transact::run`).
    CommitForgottenEarly,
    /// A server that hears twice of a commit applies it twice (`transact::participant`).
    CommitAppliedTwice,
    /// A transaction that is under way is said to have ended (`transact::participant`).
    PendingSaidAborted,
    /// A late part of an attempt that was given up is kept for ever (`transact::recover`).
    LatePrepareKept,
    /// A server prepares a transaction that it has promised to refuse (`transact::participant`).
    RefusalNotKept,
    /// A server serves when its lease has ended (`driver`).
    LeaseIgnored,
    /// A server serves when the lease of its journal has ended, and another one may have taken its
    /// place (`server`).
    TenureIgnored,
    /// A generation is given that no record holds (`coordinator`).
    GenerationNotStored,
    /// A process is let in while the one before it may serve (`coordinator::generations`).
    GenerationNotAwaited,
    /// A machine that has a copy of the disk is taken for the one that was served on, booted again
    /// (`coordinator::generations`).
    HomeIgnored,
    /// A coordinator goes on that hears of a later one (`coordinator`).
    OtherCoordinatorIgnored,
    /// Processes of older generations are believed (`cluster::generation`).
    OlderGenerationTaken,
    /// Answers leave after the time in which their server may serve (`core`).
    LateAnswersLeave,
    /// An administrator hears of a change of the key ring before it is stable (`driver`).
    RingToldEarly,
    /// Another key ring that comes with a lease is not put into force (`cluster::lease`).
    RingNotTaken,
    /// Sessions go on when another key ring is in force (`keys`).
    RingUnseen,
    /// The directories above the target of a directory rename may move meanwhile (`txn::dirs`).
    GraphIgnored,
    /// A transaction does not expect the content records that it has read as they were
    /// (`txn::remote`).
    ShareNotExpected,
    /// A change of a whole directory reaches only the partitions that its master knows
    /// (`txn::shares`).
    ClosureStops,
    /// After a restart the work that handoffs have left is not resumed (`handoff::finish`).
    HandoffForgotten,
    /// A partition tells another one of a handoff that is not stable (`handoff::finish`).
    LayoutToldEarly,
    /// A partition says that names have moved before they have (`handoff::give`).
    LayoutPublishedEarly,
    /// Moving names that change are not sent again (`handoff::table`).
    ChangesForgotten,
    /// Names move while they are changed (`handoff::steps`).
    NotFrozen,
    /// A sweep removes names that the partition owns (`handoff::steps`).
    OwnedSwept,
    /// Servers go on with changes while a moment of all servers is taken (`dump::pause`).
    PauseIgnored,
    /// A server that shards leave goes on serving while they are copied (`moves`).
    ServesWhileMoving,
    /// A server that gets shards is not told of sessions that have something open there (`moves`).
    SessionsStayBehind,
    /// Changes are not noted while shards are copied ahead of a move.
    AheadNotNoted,
    /// The charges of a server that leaves are taken over by nobody (`moves::leave`).
    ChargesLeftBehind,
    /// A refusal is answered though its reads at other servers may be of different moments
    /// (`transact::run`).
    RefusedUnseen,
    /// A quota grant that was given back is used all the same (`quota::grant`).
    AllowanceKept,
    /// The same with the grant of bytes alone (`quota::grant`).
    BytesAllowanceKept,
    /// A server that does not report its use below a quota is taken to use nothing (`quota::ask`).
    UnheardHaveNone,
    /// Directories are confirmed before their entries are stable (`transact::early_mkdirs`).
    ConfirmedEarly,
    /// A directory whose record was lost is not made again (`transact::early_mkdirs`).
    LostBirthForgotten,
    /// A directory is made under the id of one whose removal is not stable
    /// (`transact::early_mkdirs`).
    RemovalNotAwaited,
    /// A walk that counts misses directories whose entries are lost and put back meanwhile
    /// (`quota::count`).
    PutBackUncounted,
    /// A partition that gave everything away is forgotten before the master knows
    /// (`handoff::finish`).
    MergedForgotten,
    /// A page of a listing ends between names of one position (`ops::readdir`).
    PageEndsInRun,
    /// The last page of one partition's listing says that all other partitions are empty
    /// (`ops::readdir`).
    ListingEndsEarly,
    /// The client takes an answer into its cache that was overtaken by news (`client`, feature
    /// `bugs`).
    #[cfg(feature = "bugs")]
    LateLookupTaken,
    /// A mount that has opened a file of a held directory without asking does not say so before it
    /// removes the file's name, or gives the directory back (`client`, feature `bugs`).
    #[cfg(feature = "bugs")]
    OpenNotTold,
    /// A mount asks for a directory, and takes its names, while it is changing something there
    /// (`client`, feature `bugs`).
    #[cfg(feature = "bugs")]
    PresenceIgnored,
    /// A feed goes on with the numbers of before when its server starts (`feed`).
    FeedRunKept,
    /// Changes by other servers' transactions are not in the feed (`transact::participant`).
    ParticipantUnwatched,
    /// A new directory that grants less than its bound is not listed (`permissions`).
    StricterUnlisted,
    /// A directory that grants less than its bound from now on is not listed (`permissions`).
    ReducedUnlisted,
    /// A directory that has moved is not listed (`permissions`).
    MovedUnlisted,
    /// A user is not asked whether he may search the directories of a path (`ops::walk_to`).
    FastPathUnchecked,
    /// A directory is known as it was read, also when it was moved since (`ops::walk_to`).
    DirLearntLate,
    /// A change of a directory's permissions keeps them as they were (`txn::within`).
    OwnMoveLearnt,
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 83] = [
        Bug::AnswerNotStored,
        Bug::EchoExecuted,
        Bug::AnswerBeforeWrite,
        Bug::SyncNotAwaited,
        Bug::BlocksNotSynced,
        Bug::LogTakenUnseen,
        Bug::InosNotReserved,
        Bug::RecallNotAwaited,
        Bug::HoldersForgotten,
        Bug::LateChangeTaken,
        Bug::OpensIgnored,
        Bug::ReleaseNumberIgnored,
        Bug::ClaimsNotAwaited,
        Bug::MoveNotAnnounced,
        Bug::BlockDeletedEarly,
        Bug::LockClaimsNotAwaited,
        Bug::StaleInoAccepted,
        Bug::AnnounceNotAwaited,
        Bug::VersionWithoutEvent,
        Bug::PreparedNotHeld,
        Bug::HoldNotKept,
        Bug::PreparedForgotten,
        Bug::PrepareNotStored,
        Bug::PromiseNotStable,
        Bug::AcknowledgedEarly,
        Bug::ExpectationsIgnored,
        Bug::PreparedNotAwaited,
        Bug::CommitNotAwaited,
        Bug::NoRoomIgnored,
        Bug::CommitNotNoted,
        Bug::ChargeLost,
        Bug::CommitForgottenEarly,
        Bug::CommitAppliedTwice,
        Bug::PendingSaidAborted,
        Bug::LatePrepareKept,
        Bug::RefusalNotKept,
        Bug::LeaseIgnored,
        Bug::TenureIgnored,
        Bug::GenerationNotStored,
        Bug::GenerationNotAwaited,
        Bug::HomeIgnored,
        Bug::OtherCoordinatorIgnored,
        Bug::OlderGenerationTaken,
        Bug::LateAnswersLeave,
        Bug::RingToldEarly,
        Bug::RingNotTaken,
        Bug::RingUnseen,
        Bug::GraphIgnored,
        Bug::ShareNotExpected,
        Bug::ClosureStops,
        Bug::HandoffForgotten,
        Bug::LayoutToldEarly,
        Bug::LayoutPublishedEarly,
        Bug::ChangesForgotten,
        Bug::NotFrozen,
        Bug::OwnedSwept,
        Bug::PauseIgnored,
        Bug::ServesWhileMoving,
        Bug::SessionsStayBehind,
        Bug::AheadNotNoted,
        Bug::ChargesLeftBehind,
        Bug::RefusedUnseen,
        Bug::AllowanceKept,
        Bug::BytesAllowanceKept,
        Bug::UnheardHaveNone,
        Bug::ConfirmedEarly,
        Bug::LostBirthForgotten,
        Bug::RemovalNotAwaited,
        Bug::PutBackUncounted,
        Bug::MergedForgotten,
        Bug::PageEndsInRun,
        Bug::ListingEndsEarly,
        Bug::LateLookupTaken,
        Bug::OpenNotTold,
        Bug::PresenceIgnored,
        Bug::FeedRunKept,
        Bug::ParticipantUnwatched,
        Bug::StricterUnlisted,
        Bug::ReducedUnlisted,
        Bug::MovedUnlisted,
        Bug::FastPathUnchecked,
        Bug::DirLearntLate,
        Bug::OwnMoveLearnt,
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
