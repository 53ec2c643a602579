//! The envelope: what every request and every reply carries, and the list of all of them.

use base::{
    Attr, Cred, Decode as _, DecodeError, DirId, Encode as _, Epoch, FsError, Reader, Seq, ShardId,
    codec,
};

use crate::{
    admin, data, delegation, file,
    frame::{self, FrameError},
    handoff, keys, lock, moves, namespace, node, observe, peer, quota, session,
    stand::Stand,
    watch,
};

codec! {
    /// The header of every request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RequestHeader {
        /// The client's number for this call on this connection; the reply carries it back.
        pub call: u64,
        /// The shard that the request is addressed to.
        pub shard: ShardId,
        /// Epoch of the cluster map by which the client addressed the request.
        pub epoch: Epoch,
        /// Number of a mutating request within its session; 0 for one that changes nothing.
        pub seq: Seq,
        /// Lowest number still unanswered: the server may forget stored answers before it.
        pub unanswered: Seq,
        /// The client's cached directories of the path that led to the request.
        pub stand: Stand,
        /// Credentials of the caller: user, group and supplementary groups.
        pub cred: Cred,
    }
}

codec! {
    /// The header of every answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ReplyHeader {
        /// Number of the call that this answers.
        pub call: u64,
        /// Version of the server's invalidation list. A client drops replies to look-ups that are
        /// older than its own version.
        pub cache_version: u64,
    }
}

impl RequestHeader {
    /// Header of a request without session, cached path or shard.
    #[must_use]
    pub fn bare(call: u64) -> RequestHeader {
        RequestHeader {
            call,
            shard: ShardId::SERVER,
            epoch: Epoch(0),
            seq: Seq(0),
            unanswered: Seq(1),
            stand: Stand::NONE,
            cred: Cred::default(),
        }
    }

    /// Appends the frame of a request. Returns `false`, and appends nothing, when it is too long to
    /// send.
    #[must_use]
    pub fn put(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        frame::try_put_frame(out, |out| {
            self.encode(out);
            request.encode(out);
        })
    }
}

impl ReplyHeader {
    /// Reads the header and the answer from a frame.
    ///
    /// When the frame holds anything else, or more.
    pub fn take(frame: &bytes::Bytes) -> Result<(ReplyHeader, Answer), FrameError> {
        let mut reader = Reader::new(frame);
        let header = ReplyHeader::decode(&mut reader)?;
        let answer = Answer::decode(&mut reader)?;
        if reader.is_empty() { Ok((header, answer)) } else { Err(DecodeError::Trailing.into()) }
    }
}

codec! {
    /// How a request ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Answer {
        /// Done.
        Done(Reply) = 1,
        /// The file system's own answer.
        Failed(FsError) = 2,
        /// The server did nothing. Ask again, where and when the reason says.
        Retry(Retry) = 3,
        /// The server stops serving; the operation may have happened. Ask again, with the same
        /// number.
        Halted = 4,
        /// The server will not serve this: the token, the protocol or the request is wrong, as the
        /// text says. Nothing happened.
        Refused(String) = 5,
        /// Done, with what a mount notes.
        Noted(Noted) = 6,
        /// Done, with what a mount notes and a delegation of the directory that was made.
        Granted(Granted) = 7,
    }
}

codec! {
    /// A success, and attributes of the moment of its transaction, for a session whose kernel
    /// checks permissions. They are not stored with the answer: a repeated one is
    /// [`Answer::Done`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Noted {
        /// Directories in which the request changed names, as it left them. A directory is absent
        /// where it has several partitions, is on another server, or where a transaction is about
        /// to change it: the client asks for its attributes then.
        pub dirs: Vec<Attr>,
        /// The reply.
        pub reply: Reply,
    }
}

codec! {
    /// A success with a delegation. The grant is not stored with the answer: a repeated one is
    /// [`Answer::Done`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Granted {
        /// The delegation.
        pub grant: delegation::Grant,
        /// The answer.
        pub noted: Noted,
    }
}

codec! {
    /// Why a request must be asked again.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Retry {
        /// The connection has no session, or the session ended: send [`session::Hello`] again.
        NoSession = 1,
        /// A conflicting operation or the grace period after a restart is in the way: wait a
        /// little.
        Busy = 2,
        /// Another server has the shard: this is the newer map.
        Moved(base::ClusterMap) = 3,
        /// Directories on cached paths changed: drop them and resolve again.
        StaleCache(CacheEvents) = 4,
        /// The directory does not have this pair (id, ino), or no longer: resolve its path again.
        StaleDir = 5,
        /// Only the coordinator does this: send the request to the first server, addressed to
        /// [`ShardId::SERVER`].
        Coordinate = 6,
        /// The inode is in its slot: send the request to the inode's shard of birth, with this
        /// ticket in place of that of the file's directory.
        AtBirth(u64) = 7,
        /// The asked partition does not have the name, or no longer. The number is finished; learn
        /// how the directory is divided, and send the request to the partition that has the name.
        StaleLayout(node::LayoutNews) = 8,
        /// The server may not serve this now: it does not hear from the coordinator, or does not
        /// reach another server that it needs. Nothing happened. Ask again, but less often than
        /// when the server is busy: this may last.
        Away = 9,
        /// The session does not hold the directory that the request stands on, or no longer.
        /// The request had no effect, and its number is finished.
        NotHeld = 10,
    }
}

codec! {
    /// Changes of directories since the version that a request stood on.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct CacheEvents {
        /// Current version of the server's invalidation list.
        pub version: u64,
        /// Whether the list no longer reaches back so far: the client drops its whole cache.
        pub reset: bool,
        /// Directories that were moved or whose permissions changed.
        pub dirs: Vec<DirId>,
    }
}

codec! {
    /// Every request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Request {
        /// Open or resume a session.
        Hello(session::Hello) = 1,
        /// Keep the session. Answer: nothing.
        Ping = 2,
        /// End the session. Answer: nothing.
        Bye = 3,
        /// Claim opens after a restart.
        Claim(session::Claim) = 4,
        /// `statfs`.
        Statfs = 5,
        /// Wait until everything that was answered before is on stable storage. Answer: nothing.
        Sync = 6,
        /// Wait for directories that the session is to give back. Answer: [`delegation::Recalled`].
        Recalls = 7,
        /// Give back directories.
        Return(delegation::Return) = 8,
        /// Ask for inode numbers.
        ReserveInos(delegation::ReserveInos) = 9,
        /// Change a directory that the session holds.
        Apply(delegation::Apply) = 43,
        /// Ask for a directory that exists, and for its names.
        Delegate(delegation::Delegate) = 44,

        /// Look up one name.
        Lookup(namespace::Lookup) = 10,
        /// Look up several names, each in the directory found before.
        Walk(namespace::Walk) = 11,
        /// Look up a path at the server of the directory where it ends.
        WalkTo(namespace::WalkTo) = 110,
        /// `stat`.
        Getattr(namespace::Getattr) = 12,
        /// `chmod`, `chown`, `utimensat`, `truncate`.
        Setattr(namespace::Setattr) = 13,
        /// Make a file or special file.
        Create(namespace::Create) = 14,
        /// `mkdir`.
        Mkdir(namespace::Mkdir) = 15,
        /// `symlink`.
        Symlink(namespace::Symlink) = 16,
        /// `link`.
        Link(namespace::Link) = 17,
        /// `unlink`.
        Unlink(namespace::Unlink) = 18,
        /// `rmdir`.
        Rmdir(namespace::Rmdir) = 19,
        /// `rename`.
        Rename(namespace::Rename) = 20,
        /// `readdir`.
        Readdir(namespace::Readdir) = 21,
        /// `readlink`.
        Readlink(namespace::Getattr) = 22,
        /// Make a file without a name.
        Tmpfile(namespace::Tmpfile) = 23,
        /// Find something by its number.
        Search(node::Search) = 24,
        /// Watch a directory, and all below it.
        Watch(watch::Watch) = 25,

        /// Open a file.
        Open(file::Open) = 30,
        /// Close files.
        Release(file::Release) = 31,
        /// Change a file's contents.
        Write(data::Write) = 32,
        /// List where a file's contents are.
        BlockMap(data::BlockMap) = 33,
        /// Store a block.
        BlockPut(data::BlockPut) = 34,
        /// Read a block.
        BlockGet(data::BlockGet) = 35,
        /// `fallocate`.
        Allocate(data::Allocate) = 36,
        /// `SEEK_DATA`, `SEEK_HOLE`.
        Seek(data::Seek) = 37,
        /// Drop blocks that no file will name.
        BlockDrop(data::BlockDrop) = 38,
        /// Get addresses of blocks in a shared store.
        SignBlocks(data::SignBlocks) = 39,

        /// `setxattr`.
        Setxattr(node::SetXattr) = 40,
        /// All extended attributes of a node.
        Xattrs(namespace::Getattr) = 41,
        /// `removexattr`.
        Removexattr(node::Removexattr) = 42,

        /// Report the state of the server.
        Status = 50,
        /// Start a check.
        FsckStart(admin::FsckStart) = 51,
        /// Follow a check.
        FsckPoll(admin::FsckPoll) = 52,
        /// Report where a path or an inode is stored.
        Info(admin::Info) = 53,
        /// Start a check that repairs.
        Repair(admin::Repair) = 54,
        /// List the names that a check has found.
        FsckNames(admin::FsckNames) = 55,
        /// List the repairs that a check proposes.
        FsckFixes(admin::FsckFixes) = 56,
        /// List the inode numbers that a check has found in use.
        FsckInos(admin::FsckInos) = 57,
        /// Repair one fault that a check has found.
        FsckMend(admin::FsckMend) = 58,
        /// List what a check has found of quotas.
        FsckQuotas(admin::FsckQuotas) = 59,

        /// List what is charged to users, groups and directories.
        Accounts(quota::Accounts) = 79,

        /// Take, change or give back a lock.
        Lock(lock::Lock) = 60,
        /// Find a lock that conflicts with this one.
        LockTest(lock::LockTest) = 61,
        /// Stop waiting for a lock.
        LockCancel(lock::LockCancel) = 62,
        /// Claim locks after a restart.
        LockClaim(lock::LockClaim) = 63,
        /// Report where the server's time goes, and which sessions ask for what.
        Load = 70,
        /// List slow requests.
        Slow(observe::SlowQuery) = 71,
        /// List the sessions.
        Sessions = 72,
        /// List open files.
        Opens(observe::OpensQuery) = 73,
        /// End a session.
        Evict(observe::Evict) = 74,
        /// List locks that sessions hold or wait for.
        Locks(observe::LocksQuery) = 75,
        /// Report how the server stands; needs no session.
        Standing(admin::AskStanding) = 76,
        /// Look at the signing keys and the revoked tokens, or change them.
        Keys(keys::KeysChange) = 77,
        /// Sign a token with the newest key.
        SignToken(keys::SignToken) = 78,
        /// Start a dump of all records, as of now. Answer: [`admin::DumpStarted`]; `Busy` while
        /// another is made.
        DumpStart = 80,
        /// Continue the dump.
        DumpNext(admin::DumpNext) = 81,
        /// Take a step of a dump of all servers.
        DumpStep(admin::DumpStep) = 82,
        /// Take a step of a move of shards.
        Move(moves::MoveStep) = 83,

        /// Open a connection from one server to another. Answer: nothing.
        PeerHello(peer::PeerHello) = 90,
        /// Read records for a transaction.
        PeerRead(peer::PeerRead) = 91,
        /// Prepare a transaction.
        Prepare(peer::Prepare) = 92,
        /// Tell the outcome of a transaction.
        Decide(peer::Decide) = 93,
        /// Ask for the outcome of a transaction.
        AskOutcome(peer::AskOutcome) = 94,
        /// Join the cluster as a server.
        Join(peer::Join) = 95,
        /// Renew a server's lease.
        Heartbeat(peer::Heartbeat) = 96,
        /// Announce directories that are about to change.
        Announce(peer::Announce) = 97,
        /// Report the cluster, as its coordinator sees it.
        Cluster = 98,
        /// Look-ups in directories whose ids were predicted.
        Speculate(peer::Speculate) = 99,
        /// Begin to take names of a directory.
        HandoffBegin(handoff::HandoffBegin) = 100,
        /// Receive names of a directory, after `HandoffBegin`.
        HandoffPut(handoff::HandoffPut) = 101,
        /// Learn how a directory is divided.
        LayoutLearnt(handoff::LayoutLearnt) = 102,
        /// Announce directories whose entries are written.
        Born(peer::Born) = 103,
        /// Ask, after a restart, which births prepared at the asking server have their entries
        /// here. The other prepared births of this server come to nothing.
        AskBirths = 104,
        /// Ask for directories that a request waits for.
        HurryBirths(peer::HurryBirths) = 105,
        /// Count records for another accounting root.
        Count(quota::Count) = 106,
        /// Ask the coordinator for a quota grant below an accounting root.
        AskRoom(quota::AskRoom) = 107,
        /// Give back the unused part of a quota grant.
        GiveRoom(quota::GiveRoom) = 108,
        /// Ask which transactions no server needs to remember.
        AskOver(peer::AskOver) = 109,
        /// Read records of shards that leave a server.
        ShardPull(moves::ShardPull) = 111,
        /// Read a block that records of such shards name. Answer: the block.
        ShardBlock(moves::ShardBlock) = 112,
        /// Wait until every directory that was born at the asked server before is confirmed, or has
        /// come to nothing.
        SettleBirths = 113,
    }
}

codec! {
    /// Every answer that is a success.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Reply {
        /// No content.
        Nothing = 1,
        /// To `Hello`.
        Welcome(session::Welcome) = 2,
        /// To `Lookup`, `Mkdir`, `Symlink`, `Link`, `Readlink`.
        Entry(node::Entry) = 3,
        /// To `Walk` and `WalkTo`.
        Walked(namespace::Walked) = 4,
        /// To `Getattr`, `Setattr`, `Unlink`, `Allocate`.
        Attr(Attr) = 5,
        /// To `Create`, `Tmpfile`.
        Created(namespace::Created) = 6,
        /// To `Rmdir`.
        Ino(base::Ino) = 7,
        /// To `Readdir`.
        Page(namespace::ReaddirPage) = 8,
        /// To `Open`.
        Opened(file::Opened) = 9,
        /// To `Write`.
        Written(data::Written) = 10,
        /// To `BlockMap`.
        BlockMapped(data::BlockMapped) = 11,
        /// To `SignBlocks`.
        SignedBlocks(data::SignedBlocks) = 25,
        /// To `BlockGet`.
        Data(bytes::Bytes) = 12,
        /// To `Statfs`.
        Statfs(session::Statfs) = 13,
        /// To `Xattrs`: names and values.
        Xattrs(Vec<(bytes::Bytes, bytes::Bytes)>) = 14,
        /// To `Status`.
        Status(admin::Status) = 15,
        /// To `FsckStart` and `Repair`.
        Job(u64) = 16,
        /// To `FsckPoll`.
        Fsck(admin::FsckProgress) = 17,
        /// To `Info`: names and values.
        Lines(Vec<(String, String)>) = 18,
        /// To `FsckNames`: the next names, in order of inode numbers; empty at the end.
        FsckNames(Vec<admin::NamesOf>) = 19,
        /// To `FsckFixes`: the next repairs, in order; empty at the end.
        FsckFixes(Vec<admin::FsckFix>) = 20,
        /// To `FsckInos`: the next inode numbers, in order; empty at the end.
        FsckInos(Vec<admin::InosPage>) = 21,
        /// To `FsckMend`: whether a fault was found and repaired.
        Mended(bool) = 22,
        /// To `Getattr` of a directory that has several partitions.
        Share(node::ShareStat) = 23,
        /// To `FsckQuotas`: all of them, in order.
        FsckQuotas(Vec<admin::QuotaOf>) = 24,
        /// To `Accounts`: the next ones, in order; empty at the end.
        Accounts(Vec<quota::AccountUse>) = 26,
        /// To `DumpStart`, and to the `DumpStep` that takes the moment.
        DumpStarted(admin::DumpStarted) = 80,
        /// To `DumpNext`.
        DumpPage(admin::DumpPage) = 81,
        /// To the `Move` that asks for a plan.
        Plan(Vec<moves::ShardMove>) = 82,
        /// To `LockTest`: a conflicting lock, if there is one.
        Lock(Option<lock::LockFound>) = 30,
        /// To `Rename`.
        Renamed(namespace::Renamed) = 31,
        /// To `Seek`.
        Offset(u64) = 32,
        /// To `Search`.
        Searched(node::Searched) = 33,
        /// To `Watch`.
        Watched(watch::Watched) = 34,
        /// To `Load`.
        Load(observe::Load) = 40,
        /// To `Slow`.
        Slow(observe::SlowLog) = 41,
        /// To `Sessions`.
        Sessions(Vec<observe::SessionDetail>) = 42,
        /// To `Opens`.
        Opens(observe::OpenPage) = 43,
        /// To `Locks`.
        Locks(observe::LockPage) = 44,
        /// To `Standing`.
        Standing(admin::Standing) = 45,
        /// To `Keys`.
        Keys(keys::KeysShown) = 46,
        /// To `SignToken`: the token as text.
        Signed(String) = 47,
        /// To `Recalls`.
        Recalled(delegation::Recalled) = 48,
        /// To `ReserveInos`.
        Inos(delegation::InoRange) = 49,
        /// To `Apply`.
        Applied(delegation::Applied) = 50,
        /// To `Delegate`.
        Delegated(delegation::DelegatedPage) = 51,
        /// To `PeerRead`.
        Values(Vec<Option<bytes::Bytes>>) = 90,
        /// To `Prepare`.
        Vote(peer::Vote) = 91,
        /// To `AskOutcome`.
        Outcome(peer::Outcome) = 92,
        /// To `Join`.
        Joined(peer::Joined) = 93,
        /// To `Heartbeat`.
        Lease(peer::Lease) = 94,
        /// To `Cluster`.
        Cluster(peer::ClusterStatus) = 95,
        /// To `Speculate`.
        Guessed(Vec<peer::Guessed>) = 96,
        /// To `PeerHello` without a proof.
        Challenge(peer::Challenge) = 97,
        /// To `HandoffBegin` and `HandoffPut`.
        Taken(Option<handoff::Tally>) = 98,
        /// To `LayoutLearnt`.
        Layout(base::Layout) = 99,
        /// To `AskBirths`.
        Births(Vec<peer::Birth>) = 100,
        /// To `HurryBirths`.
        Born(Vec<peer::TxnId>) = 101,
        /// To `Count`.
        Counted(quota::Counted) = 102,
        /// To `AskRoom`.
        Room(quota::Room) = 103,
        /// To `GiveRoom`.
        Gave(quota::Gave) = 104,
        /// To `AskOver`.
        Over(Vec<peer::TxnId>) = 105,
        /// To `ShardPull`.
        ShardPage(moves::ShardPage) = 106,
        /// To `Move` with `Loads`.
        Loads(Vec<moves::ShardCounts>) = 107,
    }
}
