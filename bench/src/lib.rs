//! Workloads that are timed.
//!
//! `cli` calls it, with a thread for each rank: [`Rank::run`] does that rank's part of a [`Plan`] on a
//! [`Target`] and returns what it took; [`summarize`] puts the ranks together. It starts no thread, prints
//! nothing, and removes what it made, unless an operation fails.
//!
//! Always true: a phase begins when all ranks have ended the one before; an operation that fails ends the
//! run of all ranks, and no number comes of it.

mod plan;
mod rank;
mod summary;
mod target;

pub use plan::{Phase, Plan};
pub use rank::{Meeting, Rank, Timing};
pub use summary::{Summary, summarize};
pub use target::{Error, Target};
