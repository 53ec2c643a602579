//! Tests of the whole system: random operations compared with the model, and whole clusters in one
//! process.
//!
//! The crate's own tests and its program `lab` are the only callers. A failure is replayed from a
//! printed seed.

pub mod check;
pub mod clock;
pub mod load;
pub mod ops;
pub mod power;
pub mod process;
pub mod sim;
