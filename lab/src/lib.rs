//! Tests of the whole system: random operations compared with the model, and whole clusters in one process.
//!
//! Its own tests are the only callers. What it finds is replayed from a printed seed.

pub mod clock;
pub mod ops;
