//! Requests of administrators. They need a token for the whole tree that is not read-only or bound
//! to a user.

use base::{Ino, Time, codec};
use bytes::Bytes;

codec! {
    /// The state of a server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Status {
        /// Name of the file system.
        pub name: String,
        /// Unique id of the file system.
        pub uuid: u128,
        /// Version of the program.
        pub version: String,
        /// Seconds since the server started.
        pub uptime_seconds: u64,
        /// Number of shards that the server has.
        pub shards: u16,
        /// `relaxed` or `strict`.
        pub durability: String,
        /// Milliseconds after which an answered operation is on stable storage.
        pub commit_interval_ms: u64,
        /// Where the server stores blocks.
        pub blocks: String,
        /// Open sessions: number, client, seconds since it was last heard of, files it has open.
        pub sessions: Vec<SessionStatus>,
        /// Named counters since the start, such as `create` or `duplicates_suppressed`.
        pub counters: Vec<(String, u64)>,
        /// Bytes of metadata on disk.
        pub store_bytes: u64,
        /// Records of metadata, estimated: what was overwritten and removed lately is among them.
        pub store_records: u64,
        /// Resources that the server's process uses.
        pub process: ProcessStatus,
    }
}

codec! {
    /// Resources of its machine that a server's process uses.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ProcessStatus {
        /// Process id on its machine.
        pub id: u32,
        /// CPU time since the process began, in the program and in the kernel, in microseconds.
        pub cpu_micros: u64,
        /// Resident memory of the process, in bytes.
        pub resident_bytes: u64,
    }
}

codec! {
    /// One session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionStatus {
        /// Id of the session.
        pub session: base::SessionId,
        /// Name of the client, as the client gave it.
        pub client: String,
        /// Seconds since the server last heard of the session.
        pub idle_seconds: u64,
        /// Number of files that the session has open.
        pub open_files: u64,
    }
}

codec! {
    /// Starts a check of the whole file system on a snapshot. Answer: the job's number (`u64`);
    /// `Busy` while another runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckStart {
        /// Whether to remove blocks that nothing refers to and whose session has ended.
        pub gc: bool,
    }
}

codec! {
    /// Starts a check that repairs what it finds, and checks again until it can repair nothing
    /// more. Answer as of [`FsckStart`]. Findings then begin with `repaired: `, or are not
    /// repaired.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Repair {
        /// Whether to remove unused blocks, as in [`FsckStart`].
        pub gc: bool,
        /// Whether to give up contents that cannot be read any more: reads return zeros in their
        /// place.
        pub discard_lost: bool,
    }
}

codec! {
    /// Asks how far a check is. Answer: [`FsckProgress`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckPoll {
        /// Number of the job.
        pub job: u64,
        /// Whether to end the job.
        pub cancel: bool,
    }
}

codec! {
    /// Asks a server of a cluster for inodes that may have several names, as found by a finished
    /// check. Answer: a list of [`NamesOf`]; `NotFound` when there is no such check, `Busy` while
    /// it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckNames {
        /// Number of the job.
        pub job: u64,
        /// Return only inodes after this one.
        pub after: Ino,
    }
}

codec! {
    /// Names of an inode on one server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct NamesOf {
        /// Number of the inode.
        pub ino: Ino,
        /// Number of its names on this server.
        pub found: u32,
        /// On the server that has the inode: its count of names, and its change time (ctime).
        pub counted: Option<(u32, Time)>,
    }
}

codec! {
    /// Asks a server of a cluster for the repairs that a finished check proposes. Answer: a list of
    /// [`FsckFix`], in order of their numbers; `NotFound` when there is no such check, `Busy` while
    /// it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckFixes {
        /// Number of the job.
        pub job: u64,
        /// Return only repairs of this turn.
        pub turn: u8,
        /// Number of the first repair to return.
        pub from: u32,
    }
}

codec! {
    /// A repair that a check proposes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckFix {
        /// Number of the repair.
        pub number: u32,
        /// The repair itself, for [`Mend::Found`].
        pub fix: Bytes,
        /// The faults that it repairs, in words.
        pub lines: Vec<String>,
    }
}

codec! {
    /// Asks a server of a cluster for the inode numbers that a finished check has found in use.
    /// Answer: a list of [`InosPage`]; `NotFound` when there is no such check, `Busy` while it
    /// runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckInos {
        /// Number of the job.
        pub job: u64,
        /// Number of the first page to return.
        pub from: u64,
    }
}

codec! {
    /// Asks a server of a cluster what a finished check has found of quotas. Answer: a list of
    /// [`QuotaOf`]; `NotFound` when there is no such check, `Busy` while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckQuotas {
        /// Number of the job.
        pub job: u64,
    }
}

codec! {
    /// An accounting root as one server has it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct QuotaOf {
        /// Inode number of the root's directory.
        pub root: Ino,
        /// Entries and bytes that the server has charged to the root.
        pub charged: (i64, i64),
        /// Entries and bytes of the server's records below the root.
        pub found: (i64, i64),
    }
}

codec! {
    /// A page of inode numbers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct InosPage {
        /// Number of the page: all pages are equally long.
        pub page: u64,
        /// One bit for each number, the lowest bit of the first byte first.
        pub bits: Bytes,
    }
}

codec! {
    /// Checks a finding again, over all servers that it concerns, and repairs it if it is still
    /// wrong. Answer: whether it was repaired.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckMend {
        /// The finding.
        pub mend: Mend,
        /// Whether to give up contents that cannot be read any more.
        pub discard_lost: bool,
        /// Number of the check that found it, for each server. A server that has begun another
        /// check since refuses: the later check may have found the same.
        pub jobs: Vec<u64>,
    }
}

codec! {
    /// A finding to check again.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Mend {
        /// A server's own finding: [`FsckFix::fix`].
        Found(Bytes) = 1,
        /// The link count of an inode.
        Links(MendLinks) = 2,
        /// The charge of a quota.
        Quota(MendQuota) = 3,
    }
}

codec! {
    /// An accounting root whose charges of all servers together differ from their records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MendQuota {
        /// Inode number of the root's directory.
        pub root: Ino,
        /// Entries and bytes to charge in addition.
        pub lacks: (i64, i64),
    }
}

codec! {
    /// An inode whose link count differs from the number of its names.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MendLinks {
        /// Number of the inode.
        pub ino: Ino,
        /// Number of names on all servers together.
        pub found: u32,
        /// Link count of the inode.
        pub counted: u32,
        /// The inode's `ctime` at the check: every change of its names changes that, too.
        pub changed: Time,
    }
}

codec! {
    /// A check, running or done.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckProgress {
        /// Whether the check has ended.
        pub done: bool,
        /// Records checked so far.
        pub records: u64,
        /// Estimated number of records.
        pub records_estimated: u64,
        /// Named counts: `files`, `directories`, `blocks`, `blocks_removed`, `repaired`.
        pub counts: Vec<(String, u64)>,
        /// Findings, a line each, at most a thousand of them.
        pub findings: Vec<String>,
        /// Number of faults that were not repaired.
        pub findings_total: u64,
    }
}

codec! {
    /// Asks where a node is stored, for `pando info`. Answer: lines of (name, value).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Info {
        /// The node to describe.
        pub node: crate::NodeRef,
    }
}

codec! {
    /// Asks for the next page of a dump. Answer: [`DumpPage`]; `NotFound` when the dump was
    /// forgotten.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpNext {
        /// Number of the dump.
        pub dump: u64,
        /// Key at which the page begins: [`DumpPage::next`] of the page before, empty for the
        /// first.
        pub from: Bytes,
        /// Whether to forget the dump, because no more pages are needed.
        pub end: bool,
    }
}

codec! {
    /// A dump that was started.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpStarted {
        /// Number of the dump.
        pub dump: u64,
        /// First bytes of the dump, as written.
        pub header: Bytes,
        /// Estimated number of records.
        pub records_estimated: u64,
    }
}

codec! {
    /// A step of a dump of several servers. All of them take each step before any takes the next.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DumpStep {
        /// Number of the dump, drawn by the client that makes it.
        pub dump: u64,
        /// The step to take.
        pub stage: DumpStage,
    }
}

codec! {
    /// The steps of a dump of several servers, in their order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DumpStage {
        /// Finish the moves of names between partitions that are under way, and begin no more.
        /// Answer: nothing; `Busy` when another dump is made.
        Gather = 1,
        /// Hold back changes from now on. Answer: nothing, when no transaction is under way that
        /// was begun here.
        Pause = 2,
        /// Wait until all transactions of others are applied here. Answer: nothing.
        Settle = 3,
        /// Take the snapshot. Answer: [`DumpStarted`].
        Take = 4,
        /// Let changes continue. Answer: nothing, if changes have waited until now; refused if not.
        Resume = 5,
    }
}

codec! {
    /// Asks how the server stands. The request needs no session, only an administrator's token; a
    /// server that may not serve now answers, too. Answer: [`Standing`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AskStanding {
        /// The token, as text (see [`crate::token`]).
        pub token: String,
    }
}

codec! {
    /// State of a server among those of its file system, and its problems.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Standing {
        /// Name of the file system.
        pub name: String,
        /// Number of the server; 0 is the coordinator, or the only one.
        pub server: u16,
        /// Number of servers that the file system was formatted for.
        pub servers: u16,
        /// Number of servers that the coordinator has heard of within a lease. `None`: this server
        /// is another one.
        pub heard: Option<u16>,
        /// Address at which this server looks for the coordinator. Empty: this server is the
        /// coordinator or the only one, or does not know.
        pub coordinator: String,
        /// Milliseconds since the server started.
        pub uptime_ms: u64,
        /// Milliseconds left of the lease; 0: there is none.
        pub lease_ms: u64,
        /// Milliseconds since the lease ended, or since the start. `None`: there is a lease, or no
        /// need of one.
        pub without_lease_ms: Option<u64>,
        /// Milliseconds for which the server, without a lease, still serves requests that stand on
        /// no cached path.
        pub alone_ms: u64,
        /// Whether clients should be sent to this server.
        pub ready: bool,
        /// Reason why the server is not ready, in words; empty when it is.
        pub unready: String,
        /// All problems, `unready` included, a line each.
        pub problems: Vec<String>,
    }
}

codec! {
    /// A page of a dump.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpPage {
        /// Keys and values, ascending.
        pub records: Vec<(Bytes, Bytes)>,
        /// Blocks that these records name, each with its length in bytes.
        pub blocks: Vec<(base::BlockId, u32)>,
        /// Key at which the next page begins; `None` after the last.
        pub next: Option<Bytes>,
    }
}
