//! Classes of requests: which of them are told, and as what.

use wire::{KeysChange, MoveStage, MoveStep, Request, Setattr};

/// Class of a request, as an auditor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// The request keeps a session, moves bytes that another one names, or has lines of its own.
    Silent,
    /// A change of the tree or of contents.
    Change,
    /// The begin or end of a session.
    Session,
    /// An act of an administrator.
    Administration,
    /// An open of a file.
    Open,
    /// Anything else that is looked at.
    Read,
}

/// The class of a request. Requests between servers are parts of those of clients.
pub(super) fn of(request: &Request) -> Class {
    match request {
        // A read has brought an access time up to date.
        Request::Setattr(Setattr { set, .. }) if set.access_only => Class::Silent,
        Request::Setattr(_)
        | Request::Create(_)
        | Request::Mkdir(_)
        | Request::Symlink(_)
        | Request::Link(_)
        | Request::Unlink(_)
        | Request::Rmdir(_)
        | Request::Rename(_)
        | Request::Tmpfile(_)
        | Request::Write(_)
        | Request::Allocate(_)
        | Request::Setxattr(_)
        | Request::Removexattr(_) => Class::Change,
        Request::Hello(_) | Request::Bye => Class::Session,
        // The coordinator's process looks every minute.
        Request::Move(MoveStep {
            stage: MoveStage::Loads | MoveStage::Busy | MoveStage::Looked(_),
            ..
        }) => Class::Read,
        Request::Keys(KeysChange::Show) => Class::Read,
        Request::Keys(_)
        | Request::SignToken(_)
        | Request::Evict(_)
        | Request::FsckStart(_)
        | Request::Repair(_)
        | Request::FsckMend(_)
        | Request::DumpStart
        | Request::DumpStep(_)
        | Request::Move(_)
        | Request::Join(_) => Class::Administration,
        Request::Open(_) => Class::Open,
        Request::Lookup(_)
        | Request::Walk(_)
        | Request::WalkTo(_)
        | Request::Getattr(_)
        | Request::Readdir(_)
        | Request::Readlink(_)
        | Request::Search(_)
        | Request::Speculate(_)
        | Request::Watch(_)
        | Request::BlockMap(_)
        | Request::Seek(_)
        | Request::Xattrs(_)
        | Request::Info(_)
        | Request::Delegate(_)
        | Request::Lock(_)
        | Request::LockTest(_)
        | Request::Status
        | Request::Standing(_)
        | Request::FsckPoll(_)
        | Request::FsckNames(_)
        | Request::FsckFixes(_)
        | Request::FsckInos(_)
        | Request::FsckQuotas(_)
        | Request::Accounts(_)
        | Request::Load
        | Request::Slow(_)
        | Request::Sessions
        | Request::Opens(_)
        | Request::Locks(_)
        | Request::DumpNext(_)
        | Request::Cluster => Class::Read,
        // Each change of `Apply` has a line. Blocks are what a write or a map has named.
        Request::Apply(_)
        | Request::BlockPut(_)
        | Request::BlockGet(_)
        | Request::BlockDrop(_)
        | Request::SignBlocks(_)
        | Request::Ping
        | Request::Claim(_)
        | Request::LockClaim(_)
        | Request::LockCancel(_)
        | Request::Statfs
        | Request::Sync
        | Request::Recalls
        | Request::Return(_)
        | Request::ReserveInos(_)
        | Request::Release(_)
        | Request::PeerHello(_)
        | Request::PeerRead(_)
        | Request::Prepare(_)
        | Request::Decide(_)
        | Request::AskOutcome(_)
        | Request::Heartbeat(_)
        | Request::Announce(_)
        | Request::HandoffBegin(_)
        | Request::HandoffPut(_)
        | Request::LayoutLearnt(_)
        | Request::Born(_)
        | Request::AskBirths
        | Request::SettleBirths
        | Request::HurryBirths(_)
        | Request::Count(_)
        | Request::AskRoom(_)
        | Request::GiveRoom(_)
        | Request::AskOver(_)
        | Request::ShardPull(_)
        | Request::ShardBlock(_) => Class::Silent,
    }
}
