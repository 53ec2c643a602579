//! Requests of administrators. They need a token for the whole tree that is not read-only or bound to a user.

use base::{Ino, Time, codec};
use bytes::Bytes;

codec! {
    /// What a server is doing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Status {
        /// The file system's name.
        pub name: String,
        /// Its unique id.
        pub uuid: u128,
        /// The program's version.
        pub version: String,
        /// Seconds since the server started.
        pub uptime_seconds: u64,
        /// How many shards it serves.
        pub shards: u16,
        /// `relaxed` or `strict`.
        pub durability: String,
        /// Milliseconds after which an answered operation is on stable storage.
        pub commit_interval_ms: u64,
        /// Where blocks are.
        pub blocks: String,
        /// Open sessions: number, client, seconds since it was last heard of, files it has open.
        pub sessions: Vec<SessionStatus>,
        /// Named counters since the start, such as `create` or `duplicates_suppressed`.
        pub counters: Vec<(String, u64)>,
        /// Bytes of metadata on disk.
        pub store_bytes: u64,
        /// Records of metadata, estimated: what was overwritten and removed lately is among them.
        pub store_records: u64,
        /// What the server's process uses.
        pub process: ProcessStatus,
    }
}

codec! {
    /// What a server's process uses of its machine.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ProcessStatus {
        /// Its number on its machine.
        pub id: u32,
        /// CPU time since it began, in the program and in the kernel, in microseconds.
        pub cpu_micros: u64,
        /// Bytes of memory that it occupies.
        pub resident_bytes: u64,
    }
}

codec! {
    /// One session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionStatus {
        /// Its id.
        pub session: base::SessionId,
        /// Who it is, as it said itself.
        pub client: String,
        /// Seconds since it was last heard of.
        pub idle_seconds: u64,
        /// How many files it has open.
        pub open_files: u64,
    }
}

codec! {
    /// Start a check of the whole file system on a snapshot. Answer: the job's number (`u64`); `Busy` when one runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckStart {
        /// Remove blocks that nothing refers to and whose session has ended.
        pub gc: bool,
    }
}

codec! {
    /// Start a check that repairs what it finds, and checks again until nothing is left that it can repair. Answer
    /// as of [`FsckStart`]; findings then begin with `repaired: ` or are still so.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Repair {
        /// As in [`FsckStart`].
        pub gc: bool,
        /// Give up contents that cannot be read any more: zeros are read in their place.
        pub discard_lost: bool,
    }
}

codec! {
    /// How far is the check? Answer: [`FsckProgress`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckPoll {
        /// The job.
        pub job: u64,
        /// End it.
        pub cancel: bool,
    }
}

codec! {
    /// What a check that is done has found of inodes that may have several names, on a server of a cluster. Answer: a list
    /// of [`NamesOf`]; `NotFound` when there is no such check, `Busy` while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckNames {
        /// The job.
        pub job: u64,
        /// Only of inodes after this one.
        pub after: Ino,
    }
}

codec! {
    /// Names of an inode on one server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct NamesOf {
        /// The inode.
        pub ino: Ino,
        /// How many names the server has.
        pub found: u32,
        /// Where the inode itself is: how many names it counts, and when it changed last (its ctime).
        pub counted: Option<(u32, Time)>,
    }
}

codec! {
    /// What a check that is done knows to repair, on a server of a cluster. Answer: a list of [`FsckFix`], in order of their
    /// numbers; `NotFound` when there is no such check, `Busy` while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckFixes {
        /// The job.
        pub job: u64,
        /// Only those of this turn.
        pub turn: u8,
        /// From this number on.
        pub from: u32,
    }
}

codec! {
    /// Something to repair.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckFix {
        /// Its number.
        pub number: u32,
        /// What it is, for [`Mend::Found`].
        pub fix: Bytes,
        /// What is wrong there, in words.
        pub lines: Vec<String>,
    }
}

codec! {
    /// Which inode numbers a check that is done has found in use, on a server of a cluster. Answer: a list of [`InosPage`];
    /// `NotFound` when there is no such check, `Busy` while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckInos {
        /// The job.
        pub job: u64,
        /// From this page on.
        pub from: u64,
    }
}

codec! {
    /// What a check that is done has found of quotas, on a server of a cluster. Answer: a list of [`QuotaOf`]; `NotFound` when
    /// there is no such check, `Busy` while it runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsckQuotas {
        /// The job.
        pub job: u64,
    }
}

codec! {
    /// An accounting root as one server has it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct QuotaOf {
        /// The inode number of its directory.
        pub root: Ino,
        /// What the server has charged to it: entries and bytes.
        pub charged: (i64, i64),
        /// What its records are charged to it.
        pub found: (i64, i64),
    }
}

codec! {
    /// A page of inode numbers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct InosPage {
        /// Which one: all pages are equally long.
        pub page: u64,
        /// A bit for each number, the lowest bit of the first byte first.
        pub bits: Bytes,
    }
}

codec! {
    /// Looks at something again that a check has found, over all servers that it concerns, and repairs it if it is still
    /// wrong. Answer: whether it was repaired.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckMend {
        /// What.
        pub mend: Mend,
        /// Give up contents that cannot be read any more.
        pub discard_lost: bool,
        /// The check that found it, of each server. A server that has begun another one since refuses: that one may have
        /// found the same.
        pub jobs: Vec<u64>,
    }
}

codec! {
    /// What to look at again.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Mend {
        /// What a server has found: [`FsckFix::fix`].
        Found(Bytes) = 1,
        /// Names of an inode.
        Links(MendLinks) = 2,
        /// What is charged to a quota.
        Quota(MendQuota) = 3,
    }
}

codec! {
    /// An accounting root to which all servers together have charged something else than their records say.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MendQuota {
        /// The inode number of its directory.
        pub root: Ino,
        /// What is to be charged besides: entries and bytes.
        pub lacks: (i64, i64),
    }
}

codec! {
    /// An inode that counts other names than it has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MendLinks {
        /// The inode.
        pub ino: Ino,
        /// How many names all servers together had.
        pub found: u32,
        /// How many it counted.
        pub counted: u32,
        /// Its `ctime` then: every change of its names changes that, too.
        pub changed: Time,
    }
}

codec! {
    /// A check, running or done.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsckProgress {
        /// It has ended.
        pub done: bool,
        /// Records checked so far.
        pub records: u64,
        /// About how many there are.
        pub records_estimated: u64,
        /// Named counts: `files`, `directories`, `blocks`, `blocks_removed`, `repaired`.
        pub counts: Vec<(String, u64)>,
        /// What is wrong, a line each, at most a thousand of them.
        pub findings: Vec<String>,
        /// How many things are wrong, and were not repaired.
        pub findings_total: u64,
    }
}

codec! {
    /// Where something is, for `pando info`. Answer: lines of (name, value).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Info {
        /// What to tell about.
        pub node: crate::NodeRef,
    }
}

codec! {
    /// The next page of a dump. Answer: [`DumpPage`]; `NotFound` when the dump was forgotten.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpNext {
        /// The dump.
        pub dump: u64,
        /// Where the page begins: as the page before says, empty for the first.
        pub from: Bytes,
        /// There is no need for more: forget the dump.
        pub end: bool,
    }
}

codec! {
    /// A dump that was started.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpStarted {
        /// Its number.
        pub dump: u64,
        /// What it begins with, as it is written.
        pub header: Bytes,
        /// About how many records there are.
        pub records_estimated: u64,
    }
}

codec! {
    /// A step of a dump of several servers. All of them take each step before any takes the next.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DumpStep {
        /// The dump: whoever makes it has drawn the number.
        pub dump: u64,
        /// Which step.
        pub stage: DumpStage,
    }
}

codec! {
    /// The steps of a dump of several servers, in their order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DumpStage {
        /// Names that are moving between partitions arrive, and no more begin to. Answer: nothing; `Busy` when another dump
        /// is made.
        Gather = 1,
        /// Changes wait from now on. Answer: nothing, when no transaction is under way that was begun here.
        Pause = 2,
        /// Answer: nothing, when all transactions of others are applied here.
        Settle = 3,
        /// Take the moment. Answer: [`DumpStarted`].
        Take = 4,
        /// Go on. Answer: nothing, if changes have waited until now; refused if not.
        Resume = 5,
    }
}

codec! {
    /// How does the server stand? It is asked without a session, with an administrator's token, and answered also by a
    /// server that may not serve now. Answer: [`Standing`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AskStanding {
        /// The token, as text (see [`crate::token`]).
        pub token: String,
    }
}

codec! {
    /// How a server stands among those of its file system, and what is wrong.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Standing {
        /// The file system's name.
        pub name: String,
        /// The server's number; 0 is the coordinator, or the only one.
        pub server: u16,
        /// Number of servers that the file system was formatted for.
        pub servers: u16,
        /// Number of servers that the coordinator has heard of within a lease. `None`: this server is another one.
        pub heard: Option<u16>,
        /// Where this server looks for the coordinator. Empty: it is the coordinator, the only one, or does not know.
        pub coordinator: String,
        /// Milliseconds since the server started.
        pub uptime_ms: u64,
        /// Milliseconds that are left of the lease; 0: there is none.
        pub lease_ms: u64,
        /// Milliseconds since the lease ended, or since the start. `None`: there is a lease, or no need of one.
        pub without_lease_ms: Option<u64>,
        /// Milliseconds for which the server still serves, without a lease, what stands on no cached path.
        pub alone_ms: u64,
        /// Clients should be sent there.
        pub ready: bool,
        /// Why not, in words; empty when the server is ready.
        pub unready: String,
        /// Everything that is wrong, `unready` included, a line each.
        pub problems: Vec<String>,
    }
}

codec! {
    /// A page of a dump.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DumpPage {
        /// Keys and values, ascending.
        pub records: Vec<(Bytes, Bytes)>,
        /// Blocks that these name, and how long each is.
        pub blocks: Vec<(base::BlockId, u32)>,
        /// Where the next page begins; `None` after the last.
        pub next: Option<Bytes>,
    }
}
