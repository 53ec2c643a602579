//! The trace: what became of each request and group, as events of the crate `tracing`.
//!
//! `observe::core` tells it as answers leave, and whoever wants a trace listens to the target (`pando serve --trace`,
//! in `cli`). Without a listener it costs a comparison for each group. Times are nanoseconds since the server
//! started; `now` is when the event was made, so that the listener can place them on its own clock.

use tracing::Level;

use super::{Nanos, Note, Written, name_of};

/// What listeners look for.
const TARGET: &str = "pando::trace";

/// Whether anybody listens.
pub(super) fn is_on() -> bool {
    tracing::enabled!(target: TARGET, Level::TRACE)
}

/// A group was answered.
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

/// A request was answered. After its group was written it waited for `last`, if for anything.
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
