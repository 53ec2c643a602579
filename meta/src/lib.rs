//! The metadata server.
//!
//! [`format()`] makes a file system in an empty engine; [`Server::open`] serves one; each core runs
//! [`Core::run`] and is handed connections. It is called by `cli`, and by `lab` in a simulated
//! world; it opens no socket or file, reads no clock and starts no thread of its own.
//!
//! One request goes in a straight line: `serve` (bytes to messages) → `core` (a group of requests,
//! one engine write) → `driver` (stored answer, session, limits) → `ops::*` (read, check, write) →
//! `txn`.

mod assembly;
pub mod audit;
mod background;
mod block_store;
mod brought;
mod bugs;
mod changes;
mod cluster;
mod compact;
mod coordinator;
mod core;
mod data;
mod deferred_truncations;
mod delegations;
mod driver;
pub mod dump;
mod error;
mod feed;
mod file_locks;
mod follow;
mod followers;
mod format;
mod founding;
mod fsck;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gate;
mod handoff;
mod incoming;
mod invalidation;
mod keys;
mod lag;
mod layouts;
mod lock;
mod log_limit;
mod millis;
mod moves;
mod observe;
mod opens;
mod ops;
mod paths;
mod peer;
mod permissions;
mod placing;
mod problem;
mod quota;
mod recent;
mod reclaim;
mod record;
mod record_cache;
mod refusals;
mod remote_hints;
mod serve;
mod server;
mod session;
mod settings;
mod space_guard;
mod step;
mod sync;
mod tokens;
mod transact;
mod trash;
mod txn;
mod unheard;
mod unnamed;
mod unsynced;
mod upgrade;
mod wait;

pub use assembly::Server;
pub use block_store::try_blocks;
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use cluster::{ClusterOptions, Place, Word};
pub use core::Core;
#[cfg(feature = "bugs")]
pub use format::shorten_ids;
pub use format::{Belonging, FormatError, FormatOptions, format, format_joined};
pub use founding::found_cluster;
pub use placing::homes::HomeLimits;
pub use problem::{OpenError, Problem, Then};
pub use server::{
    Audit, Backup, Beside, Durability, Hold, Journal, Limits, MemoryBudget, Offload, Process,
    ServerOptions, Space,
};
pub use space_guard::FreeBytes;
pub use unsynced::kept;
