//! The trace: each request and group, as events of the crate `tracing`.
//!
//! `observe::core` emits the events as answers leave. A listener subscribes to the target (`pando
//! serve --trace`, in `cli`). Without a listener the trace costs a comparison for each group. Times
//! are nanoseconds since the server started. `now` is the time of the event itself, so that the
//! listener can place the others on its own clock.

use tracing::Level;

use super::{Nanos, Note, Written, name_of};

/// The target of all events.
const TARGET: &str = "pando::trace";

/// Whether there is a listener.
pub(super) fn is_on() -> bool {
    tracing::enabled!(target: TARGET, Level::TRACE)
}

/// Emits the event of a group that was answered.
pub(super) fn group(core: usize, notes: &[Note], at: Written, now: Nanos) {
    let Some(first) = notes.first() else { return };
    tracing::trace!(
        target: TARGET,
        core,
        requests = notes.len(),
        begun = first.begun.0,
        executed = at.executed.0,
        written = at.written.0,
        now = now.0,
        "group"
    );
}

/// Emits the event of a request that was answered. `last` is what it waited for after its group was
/// written, if anything.
pub(super) fn request(core: usize, note: &Note, at: Written, last: &str, now: Nanos) {
    tracing::trace!(
        target: TARGET,
        op = name_of(note.kind),
        session = %note.session,
        request = note.call,
        outcome = note.verdict.name(),
        core,
        arrived = note.arrived.0,
        begun = note.begun.0,
        ended = note.ended.0,
        executed = at.executed.0,
        written = at.written.0,
        answered = at.answered.0,
        last,
        now = now.0,
        "request"
    );
}
