//! Tests of whole systems in memory: several servers and their clients in one thread, where time
//! passes at once and the tests decide what goes wrong (`lab::sim`).
//!
//! All of them are one program, so that the code of the servers and of the worlds is compiled for
//! them once. Tests with processes, mounts and real time are programs of their own (`crash`,
//! `one_dead`, `power`): a simulation beside them would slow down what they time.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]
#![expect(clippy::print_stdout, reason = "counts and durations are a part of the result")]

mod alone;
mod calm;
mod collisions;
mod damaged;
mod doubt;
mod dumps;
mod early_mkdirs;
mod fast_paths;
mod fsck;
mod full;
mod generations;
mod handoff;
mod handoffs;
mod hybrid;
mod model;
mod moves;
mod partitions;
mod quotas;
mod requests;
mod revocations;
mod shown;
mod simulation;
mod steps;
mod subtrees;
mod trash;
