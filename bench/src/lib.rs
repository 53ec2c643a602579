//! Workloads that are timed.
//!
//! `cli` calls it. [`run`] goes through the phases of a [`Plan`] with a [`Crew`] of workers, which
//! are threads or processes of the caller; each worker is a [`Worker`] that does every [`Step`] for
//! its ranks. [`summarize`] puts the iterations together. [`floor`] measures what nothing could
//! beat, and [`report`] puts the results of several runs together. A [`figure::Figure`] is what an
//! experiment measured, [`Delayed`] a network for it.
//!
//! It prints nothing and starts no process; only floors start threads, which end with them.
//!
//! Always true: a phase begins when all ranks have ended the one before; an operation that fails
//! ends the run of all ranks, and no number comes of it; what a run made is removed at its end,
//! whatever the end.

pub mod apps;
pub mod balance;
mod clock;
mod delay;
pub mod division;
mod draws;
pub mod figure;
pub mod floor;
mod plan;
pub mod probes;
pub mod report;
mod run;
pub mod scale;
mod summary;
mod target;
mod worker;

pub use clock::{monotonic, process_cpu, thread_cpu};
pub use delay::Delayed;
pub use plan::{Phase, Plan, Step, Work};
pub use run::{Crew, Measured, Meter, Usage, run};
pub use summary::{Row, Summary, median, percentile, summarize};
pub use target::{Error, Target};
pub use worker::{Timing, Worker};
