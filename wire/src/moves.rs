//! Moving shards from one server to others, which the client of an administrator leads.
//!
//! Servers that get shards copy most of their records while they are served. Then all servers pause
//! as for a dump ([`DumpStep`](crate::DumpStep)), the servers that shards leave stop serving, those
//! that get them pull what has changed since, and the coordinator's next map says whose
//! they are. Each server then begins anew with that map. Until the coordinator has stored it, a
//! start of any server that takes part makes the plan void, so that nothing has moved.
//!
//! A server that has no shards leaves in the same way: it and the coordinator stop, the coordinator
//! takes over what it has charged to quotas, and the next map has it no more.

use base::{BlockId, ShardId, codec};
use bytes::Bytes;

/// Number of a plan that is only shown, and not kept.
pub const NO_PLAN: u64 = 0;

codec! {
    /// A step of a move.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MoveStep {
        /// Number of the plan, drawn by the client that leads.
        pub plan: u64,
        /// The step to take.
        pub stage: MoveStage,
    }
}

codec! {
    /// The steps of a move, in their order.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MoveStage {
        /// To the coordinator: decide which shards move, so that these servers have none, and the
        /// others equally many. Answer: [`ShardMove`]s; no plan is kept if there are none.
        Plan(Vec<u16>) = 1,
        /// To a server that shards leave, which holds back changes for this plan: stop serving.
        /// Answer: nothing, when everything is on stable storage.
        Stop = 2,
        /// To a server that gets shards: pull them from one that has stopped. Answer: the number of
        /// records, when they are on stable storage.
        Take(ShardsFrom) = 3,
        /// To the coordinator: the shards belong to those that have taken them from now on. Answer:
        /// nothing, when that is on stable storage; refused when the plan is void.
        Commit = 4,
        /// To a server that has stopped: begin anew. Answer: nothing.
        Over = 5,
        /// To a server that gets shards, before [`MoveStage::Stop`]: pull them from one that still
        /// serves, or what has changed since it did. Answer: the number of records so far, when
        /// they are on stable storage.
        Ahead(ShardsFrom) = 6,
        /// To a server that gets shards or gives some, while they are copied ahead: somebody still
        /// leads this. Answer: the number of records that it has copied for the pull that goes on.
        Copied = 7,
        /// To any server: the requests for each shard since the server began, and how much is
        /// stored of it. Answer: [`ShardCounts`].
        Loads = 8,
        /// To the coordinator, instead of [`MoveStage::Plan`]: exactly these shards move. Answer:
        /// the same; refused when one is not where it should be, or a server would both give and
        /// get some.
        Adopt(Vec<ShardMove>) = 9,
        /// To a server that has no shards: it is to leave the cluster. Answer: the time in
        /// milliseconds after which it may, as clients ask it again for answers that were lost.
        /// Then to the coordinator, instead of [`MoveStage::Plan`]: this server is to leave.
        /// Answer: 0; refused when it has shards.
        Leave(u16) = 10,
        /// To the coordinator, which has stopped as that server has: take over what it has charged
        /// to quotas. Answer: the number of records, which are kept until the commit.
        Charges(u16) = 11,
        /// To the coordinator: what it does about the load of shards from now on. Answer: nothing,
        /// when that is on stable storage.
        Mode(BalanceMode) = 12,
        /// To the coordinator, from who has looked at the load of shards for it: the outcome.
        /// Answer: nothing.
        Looked(BalanceLook) = 13,
        /// To any server: whether it is part of a move that somebody leads, of a dump or of a
        /// check, so that no other move should begin. Answer: 1 if so, else 0.
        Busy = 14,
    }
}

codec! {
    /// Shards that a server is to get, and the one that has them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardsFrom {
        /// Number of the server that has them.
        pub server: u16,
        /// The shards, ascending.
        pub shards: Vec<ShardId>,
    }
}

codec! {
    /// A shard that moves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardMove {
        /// The shard.
        pub shard: ShardId,
        /// Number of the server that has it.
        pub from: u16,
        /// Number of the server that gets it.
        pub to: u16,
    }
}

codec! {
    /// The load of a shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardCounts {
        /// The shard.
        pub shard: ShardId,
        /// Number of requests since the server began.
        pub requests: u64,
        /// Bytes of its records in tables, estimated.
        pub bytes: u64,
    }
}

codec! {
    /// Whether the coordinator looks at the load of shards, and what it does then.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BalanceMode {
        /// There are no looks.
        Off = 0,
        /// The coordinator says which shards should move.
        Advise = 1,
        /// The coordinator has them moved.
        On = 2,
    }
}

codec! {
    /// The outcome of a look at the load of shards.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BalanceLook {
        /// The largest number of requests of a server, in thousandths of the mean; 0: there were
        /// too few.
        pub requests: u32,
        /// The largest part of what is stored that a server has, in thousandths of the mean.
        pub stored: u32,
        /// The shards that should move, or that have moved.
        pub moves: Vec<ShardMove>,
        /// Whether they have moved.
        pub moved: bool,
        /// The reason why there are none, or no more, in words for people.
        pub because: String,
    }
}

codec! {
    /// The balance of a cluster, as its coordinator knows it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BalanceStatus {
        /// The present mode.
        pub mode: BalanceMode,
        /// The last look since it began to serve.
        pub look: Option<BalanceLook>,
        /// Milliseconds since that look.
        pub ago_ms: u64,
        /// Numbers of servers that were drained, and get no shards by load.
        pub drained: Vec<u16>,
    }
}

codec! {
    /// Asks a server for records of shards that leave it, and, when it has stopped, for what a
    /// server needs to know of the sessions that may come after them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardPull {
        /// Number of the plan.
        pub plan: u64,
        /// The shards, ascending. None: what the server has charged to quotas.
        pub shards: Vec<ShardId>,
        /// Key at which the page begins: [`ShardPage::next`] of the page before, empty for the
        /// first.
        pub from: Bytes,
        /// `None`: all records, of a server that has stopped. 0: those of users, of one that serves.
        /// Else the records that have changed since such a pull, in this round or later.
        pub since: Option<u64>,
    }
}

codec! {
    /// Records that move.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct ShardPage {
        /// Keys and values as stored, ascending.
        pub records: Vec<(Bytes, Bytes)>,
        /// Blocks that these name, and how long each is, where each server has blocks of its own.
        pub blocks: Vec<(BlockId, u32)>,
        /// Key at which the next page begins; `None` after the last.
        pub next: Option<Bytes>,
        /// Keys under which there is nothing any more, ascending.
        pub gone: Vec<Bytes>,
        /// Number of the present round of changes, if the records were pulled ahead.
        pub round: u64,
    }
}

codec! {
    /// Asks a server for a block that a [`ShardPage`] has named.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardBlock {
        /// Number of the plan.
        pub plan: u64,
        /// The block.
        pub block: BlockId,
        /// Length of the block.
        pub bytes: u32,
    }
}
