//! Moving shards from one server to others, which the client of an administrator leads.
//!
//! All servers pause as for a dump ([`DumpStep`](crate::DumpStep)), the servers that shards leave
//! stop serving, those that get them pull what is stored, and the coordinator's next map says whose
//! they are. Each server then begins anew with that map. Until the coordinator has stored it, a
//! start of any server that takes part makes the plan void, so that nothing has moved.

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
    /// Asks a server that has stopped for records of shards that leave it, and for what a server
    /// needs to know of the sessions that may come after them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardPull {
        /// Number of the plan.
        pub plan: u64,
        /// The shards, ascending.
        pub shards: Vec<ShardId>,
        /// Key at which the page begins: [`ShardPage::next`] of the page before, empty for the
        /// first.
        pub from: Bytes,
    }
}

codec! {
    /// Records that move.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardPage {
        /// Keys and values as stored, ascending.
        pub records: Vec<(Bytes, Bytes)>,
        /// Blocks that these name, and how long each is, where each server has blocks of its own.
        pub blocks: Vec<(BlockId, u32)>,
        /// Key at which the next page begins; `None` after the last.
        pub next: Option<Bytes>,
    }
}

codec! {
    /// Asks a server that has stopped for a block that a [`ShardPage`] has named.
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
