//! The protocol between two processes: frames, messages and tokens.
//!
//! Clients and servers both build on this crate and never on each other. Everything here is bytes
//! and values; reading and writing sockets is done where the runtime is (`meta::serve`,
//! `client::connection`).
#![warn(missing_docs)]

pub mod admin;
pub mod data;
pub mod delegation;
pub mod dial;
pub mod file;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod handoff;
pub mod ids;
pub mod keys;
pub mod kind;
pub mod lock;
pub mod moves;
pub mod namespace;
pub mod node;
pub mod observe;
pub mod peer;
pub mod quota;
pub mod request;
pub mod session;
mod stand;
pub mod token;
pub mod watch;

pub use admin::{
    AskStanding, DumpNext, DumpPage, DumpStage, DumpStarted, DumpStep, FsckFix, FsckFixes,
    FsckInos, FsckMend, FsckNames, FsckPoll, FsckProgress, FsckQuotas, FsckStart, Info, InosPage,
    Mend, MendLinks, MendQuota, NamesOf, ProcessStatus, QuotaOf, Repair, SessionStatus, Standing,
    Status,
};
pub use data::{
    Allocate, AllocateMode, BlockDrop, BlockGet, BlockMap, BlockMapped, BlockPart, BlockPut,
    ChunkSlices, Seek, SeekTo, SignBlocks, SignFor, SignedBlocks, Slice, SliceSource, Write,
    Written,
};
pub use delegation::{
    Applied, Apply, Delegate, DelegatedEntry, DelegatedFile, DelegatedName, DelegatedPage, Grant,
    Held, HeldChange, HeldMade, HeldReply, HeldRequest, InoRange, Recalled, ReserveInos, Return,
};
pub use dial::{Binding, Dial, Dialled, Stream, TLS_ONLY};
pub use file::{Open, OpenState, Opened, Release};
pub use frame::{FrameError, MAGIC, PROTOCOL_VERSION};
pub use handoff::{HandoffBegin, HandoffPut, LayoutLearnt, Tally};
pub use ids::{ANONYMOUS, IdMapping, IdRange, Squash};
pub use keys::{KeyShown, KeysChange, KeysShown, Revoke, RevokedShown, Secret, SignToken};
pub use kind::{Kind, Needs};
pub use lock::{ClaimedLock, Lock, LockCancel, LockClaim, LockFound, LockTest};
pub use moves::{
    BalanceLook, BalanceMode, BalanceStatus, MoveStage, MoveStep, ShardBlock, ShardCounts,
    ShardMove, ShardPage, ShardPull, ShardsFrom,
};
pub use namespace::{
    Create, Created, Getattr, Link, Lookup, Mkdir, Readdir, ReaddirEntry, ReaddirPage, Rename,
    RenameMode, Renamed, Rmdir, Setattr, Symlink, Tmpfile, Unlink, Walk, WalkTo, Walked,
};
pub use node::{
    DirRef, Entry, FileRef, Guess, LayoutNews, NodeRef, Removexattr, Search, Searched, SetXattr,
    ShareStat, XattrMode,
};
pub use observe::{
    BusyDirectory, BusySession, Distribution, Evict, Load, LockEntry, LockPage, LocksQuery,
    OpenFile, OpenPage, OpensQuery, Operation, SessionDetail, SlowLog, SlowOperation, SlowQuery,
    TokenShown,
};
pub use peer::{
    Admission, Announce, AskOutcome, AskOver, Birth, Born, Challenge, ClusterStatus, ContentPatch,
    Decide, Expected, Guessed, Heartbeat, Hold, HurryBirths, InDoubt, Join, Joined, Lease, Life,
    Outcome, PeerHello, PeerRead, PeerWrite, Prepare, ServerStatus, Speculate, Stands, Term, TxnId,
    Vote,
};
pub use quota::{
    AccountLimits, AccountUse, Accounts, Allowed, Amounts, AskRoom, Count, CountNames, CountShare,
    CountWhat, Counted, Gave, GiveRoom, Room,
};
pub use request::{
    Answer, CacheEvents, Granted, Noted, Reply, ReplyHeader, Request, RequestHeader, Retry,
};
pub use session::{Claim, ClaimedFile, FsInfo, Hello, Resume, Statfs, Welcome};
pub use stand::{Stand, Way, way_mark};
pub use token::{Fingerprint, Scope, SigningKeys, Token, TokenError};
pub use watch::{Change, Watch, WatchEvent, Watched};

#[cfg(test)]
mod tests;
