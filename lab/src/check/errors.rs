//! "A bad request, a full disk, a lost peer gets a clear error, never a panic, a hang or a
//! half-done change."
//!
//! Hangs are found by the clock of the world, half-done changes by the other checks. Panics and
//! lines of the log that ask for a person are in the trace.

use anyhow::bail;

use crate::sim::trace::Trace;

/// Checks that nothing happened that should not have.
///
/// # Errors
/// When something did.
pub fn check(trace: &Trace) -> anyhow::Result<()> {
    match trace.problems().first() {
        None => Ok(()),
        Some(problem) => bail!("{problem}"),
    }
}
