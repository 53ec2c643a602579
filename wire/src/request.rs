//! The envelope: what every request and every reply carries, and the list of all of them.

use base::{
    Cred, Decode as _, DecodeError, DirId, Encode as _, Epoch, FsError, Reader, Seq, ShardId, codec,
};

use crate::{
    admin, data, file,
    frame::{self, FrameError},
    handoff, lock, namespace, node, observe, peer, quota, session,
    stand::Stand,
};

codec! {
    /// What goes before every request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RequestHeader {
        /// The client's number for this call on this connection; the reply carries it back.
        pub call: u64,
        /// The shard that the request is addressed to.
        pub shard: ShardId,
        /// The cluster map by which it was addressed.
        pub epoch: Epoch,
        /// Number of a mutating request within its session; 0 for one that changes nothing.
        pub seq: Seq,
        /// The lowest number still unanswered: stored answers before it may be forgotten.
        pub unanswered: Seq,
        /// What the client has cached of the path that led to the request.
        pub stand: Stand,
        /// Who asks.
        pub cred: Cred,
    }
}

codec! {
    /// What goes before every answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ReplyHeader {
        /// The call this answers.
        pub call: u64,
        /// Version of the server's invalidation list. A client drops replies to look-ups that are older than
        /// its own version.
        pub cache_version: u64,
    }
}

impl RequestHeader {
    /// Of a request that is part of no session and stands on nothing that is cached, about nothing of a shard.
    #[must_use]
    pub fn bare(call: u64) -> RequestHeader {
        RequestHeader {
            call,
            shard: ShardId(0),
            epoch: Epoch(0),
            seq: Seq(0),
            unanswered: Seq(1),
            stand: Stand::NONE,
            cred: Cred::default(),
        }
    }

    /// Appends the frame of a request; one that is too long to send is not appended, and the answer is `false`.
    #[must_use]
    pub fn put(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        frame::try_put_frame(out, |out| {
            self.encode(out);
            request.encode(out);
        })
    }
}

impl ReplyHeader {
    /// What is in the frame of an answer.
    ///
    /// # Errors
    /// When it is something else, or more.
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
        /// Nothing happened. Ask again, where and when the reason says.
        Retry(Retry) = 3,
        /// The server stops serving; it may have happened. Ask again, with the same number.
        Halted = 4,
        /// The server will not serve this: the token, the protocol or the request is wrong, in these words.
        /// Nothing happened.
        Refused(String) = 5,
    }
}

codec! {
    /// Why a request must be asked again.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Retry {
        /// The connection has no session, or it ended: say [`session::Hello`] again.
        NoSession = 1,
        /// Something conflicting is going on, or the grace period after a restart is: wait a little.
        Busy = 2,
        /// The shard is served elsewhere: this is the newer map.
        Moved(base::ClusterMap) = 3,
        /// Directories on cached paths changed: drop them and resolve again.
        StaleCache(CacheEvents) = 4,
        /// The directory is not, or no longer, what (id, ino) says: resolve its path again.
        StaleDir = 5,
        /// Only the coordinator does this: send it to the server of shard 0, addressed to that shard.
        Coordinate = 6,
        /// The inode is in its slot: send it to the inode's shard of birth, with this ticket in place of that of the
        /// file's directory.
        AtBirth(u64) = 7,
        /// The partition that was asked has not, or no longer, what the request is about. The number is finished; learn
        /// how the directory is divided, and send it to the partition that has it.
        StaleLayout(node::LayoutNews) = 8,
        /// The server may not serve this now, because it does not hear from the coordinator, or it needs another server
        /// that it does not reach. Nothing happened. Ask again, but less often than when the server is busy: this may last.
        Away = 9,
    }
}

codec! {
    /// What changed since the version that a request stood on.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct CacheEvents {
        /// The server's version now.
        pub version: u64,
        /// The list no longer reaches back so far: drop everything.
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

        /// Look up a name.
        Lookup(namespace::Lookup) = 10,
        /// Look up several, one in the other.
        Walk(namespace::Walk) = 11,
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

        /// Open a file.
        Open(file::Open) = 30,
        /// Close files.
        Release(file::Release) = 31,
        /// New contents.
        Write(data::Write) = 32,
        /// Where contents are.
        BlockMap(data::BlockMap) = 33,
        /// Store a block.
        BlockPut(data::BlockPut) = 34,
        /// Read a block.
        BlockGet(data::BlockGet) = 35,
        /// `fallocate`.
        Allocate(data::Allocate) = 36,
        /// `SEEK_DATA`, `SEEK_HOLE`.
        Seek(data::Seek) = 37,
        /// Blocks that will not be named.
        BlockDrop(data::BlockDrop) = 38,
        /// Addresses of blocks in a shared store.
        SignBlocks(data::SignBlocks) = 39,

        /// `setxattr`.
        Setxattr(node::SetXattr) = 40,
        /// All extended attributes of a node.
        Xattrs(namespace::Getattr) = 41,
        /// `removexattr`.
        Removexattr(node::Removexattr) = 42,

        /// What the server is doing.
        Status = 50,
        /// Start a check.
        FsckStart(admin::FsckStart) = 51,
        /// Follow a check.
        FsckPoll(admin::FsckPoll) = 52,
        /// Where something is.
        Info(admin::Info) = 53,
        /// Start a check that repairs.
        Repair(admin::Repair) = 54,
        /// How many names a check has found.
        FsckNames(admin::FsckNames) = 55,
        /// What a check knows to repair.
        FsckFixes(admin::FsckFixes) = 56,
        /// Which inode numbers it has found in use.
        FsckInos(admin::FsckInos) = 57,
        /// Repair something that it has found.
        FsckMend(admin::FsckMend) = 58,
        /// What it has found of quotas.
        FsckQuotas(admin::FsckQuotas) = 59,

        /// Take, change or give back a lock.
        Lock(lock::Lock) = 60,
        /// What is in the way of a lock.
        LockTest(lock::LockTest) = 61,
        /// Wait no longer for a lock.
        LockCancel(lock::LockCancel) = 62,
        /// Claim locks after a restart.
        LockClaim(lock::LockClaim) = 63,
        /// Where time goes, who asks for what.
        Load = 70,
        /// What took long.
        Slow(observe::SlowQuery) = 71,
        /// The sessions.
        Sessions = 72,
        /// What is open.
        Opens(observe::OpensQuery) = 73,
        /// End a session.
        Evict(observe::Evict) = 74,
        /// Locks that are held or waited for.
        Locks(observe::LocksQuery) = 75,
        /// How the server stands, asked without a session.
        Standing(admin::AskStanding) = 76,
        /// Start a copy of all records, as of now. Answer: [`admin::DumpStarted`]; `Busy` when one is made.
        DumpStart = 80,
        /// Go on with it.
        DumpNext(admin::DumpNext) = 81,
        /// Take a step of a dump of all servers.
        DumpStep(admin::DumpStep) = 82,

        /// A server comes to another. Answer: nothing.
        PeerHello(peer::PeerHello) = 90,
        /// Read records for a transaction.
        PeerRead(peer::PeerRead) = 91,
        /// Prepare a transaction.
        Prepare(peer::Prepare) = 92,
        /// The outcome of a transaction.
        Decide(peer::Decide) = 93,
        /// Ask for it.
        AskOutcome(peer::AskOutcome) = 94,
        /// Become a server of the cluster.
        Join(peer::Join) = 95,
        /// Keep being one.
        Heartbeat(peer::Heartbeat) = 96,
        /// Take in what is about to change.
        Announce(peer::Announce) = 97,
        /// The cluster, as its coordinator sees it.
        Cluster = 98,
        /// Look-ups in directories whose ids were predicted.
        Speculate(peer::Speculate) = 99,
        /// Begin to take names of a directory.
        HandoffBegin(handoff::HandoffBegin) = 100,
        /// Take them.
        HandoffPut(handoff::HandoffPut) = 101,
        /// Learn how a directory is divided.
        LayoutLearnt(handoff::LayoutLearnt) = 102,
        /// Directories are born.
        Born(peer::Born) = 103,
        /// A server that has started asks which. Whatever else was about to be born here comes to nothing.
        AskBirths = 104,
        /// Somebody waits for directories.
        HurryBirths(peer::HurryBirths) = 105,
        /// Have records count for another accounting root.
        Count(quota::Count) = 106,
        /// Ask the coordinator for room below an accounting root.
        AskRoom(quota::AskRoom) = 107,
        /// Give back what is allowed there and not used.
        GiveRoom(quota::GiveRoom) = 108,
        /// Ask which transactions nobody needs to remember any more.
        AskOver(peer::AskOver) = 109,
    }
}

codec! {
    /// Every answer that is a success.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Reply {
        /// Nothing to say.
        Nothing = 1,
        /// To `Hello`.
        Welcome(session::Welcome) = 2,
        /// To `Lookup`, `Mkdir`, `Symlink`, `Link`, `Readlink`.
        Entry(node::Entry) = 3,
        /// To `Walk`.
        Walked(namespace::Walked) = 4,
        /// To `Getattr`, `Setattr`, `Unlink`, `Allocate`.
        Attr(base::Attr) = 5,
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
        /// To `FsckNames`: what comes next, in order of inode numbers; nothing at the end.
        FsckNames(Vec<admin::NamesOf>) = 19,
        /// To `FsckFixes`: what comes next, in order; nothing at the end.
        FsckFixes(Vec<admin::FsckFix>) = 20,
        /// To `FsckInos`: what comes next, in order; nothing at the end.
        FsckInos(Vec<admin::InosPage>) = 21,
        /// To `FsckMend`: whether it was wrong, and is right now.
        Mended(bool) = 22,
        /// To `Getattr` of a directory that has several partitions.
        Share(node::ShareStat) = 23,
        /// To `FsckQuotas`: all of them, in order.
        FsckQuotas(Vec<admin::QuotaOf>) = 24,
        /// To `DumpStart`, and to the `DumpStep` that takes the moment.
        DumpStarted(admin::DumpStarted) = 80,
        /// To `DumpNext`.
        DumpPage(admin::DumpPage) = 81,
        /// To `LockTest`: what is in the way, if anything is.
        Lock(Option<lock::LockFound>) = 30,
        /// To `Rename`.
        Renamed(namespace::Renamed) = 31,
        /// To `Seek`.
        Offset(u64) = 32,
        /// To `Search`.
        Searched(node::Searched) = 33,
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
        Challenge(u128) = 97,
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
    }
}
