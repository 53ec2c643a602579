//! Floors that nothing could beat on this machine: the parts of an operation that are not ours,
//! each by itself.
//!
//! `pando bench floor` calls it. The floors start the threads that they measure, and end them.

pub mod echo;
pub mod engine;
pub mod memcached;
pub mod null;

use serde::{Deserialize, Serialize};

/// Result of one floor, as `--json` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloorRow {
    /// Name of the floor.
    pub floor: String,
    /// Operations done.
    pub ops: u64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// Half of the operations took no longer, in microseconds, where each was timed.
    pub p50_us: Option<f64>,
    /// CPU time of the side that asks, for an operation, where there is one.
    pub client_cpu_us_per_op: Option<f64>,
    /// CPU time of the side that answers, for an operation.
    pub server_cpu_us_per_op: Option<f64>,
}
