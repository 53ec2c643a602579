//! The audit log: who has done what.
//!
//! The hooks in `driver`, `core` and `ops` call [`note`] with what was executed. [`line`] makes a
//! line of JSON of it. Lines of changes are facts of their group, so they are told once and only
//! when the group is written ([`teller`]); all others are told at once. What is told goes to the
//! [`AuditQueue`], from which a thread of the server's process takes it and writes it to a file.
//!
//! Never: an operation waits for the log, or fails because of it. Lines that find no room in the
//! queue are counted, and the log says how many are lost.
//!
//! Cost: a line is made of some 300 bytes in a buffer that each core keeps, without allocations.
//! Each group takes one lock of its core's own, and no line reads a clock. The thread is woken for
//! the first line after a pause, so 50 times a second at most.

mod class;
mod dirs;
mod line;
pub(crate) mod note;
mod paths;
mod queue;
pub(crate) mod teller;

#[cfg(test)]
mod tests;

use base::Time;

use self::{dirs::Dirs, line::Moment};
pub use self::{
    line::{Text, moment},
    queue::{AuditQueue, AuditWhat, Taken},
};

/// Lines of JSON, each with its newline.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: Vec<u8>,
    count: u64,
}

impl Lines {
    pub(crate) fn are_none(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn add(&mut self, others: &Lines) {
        self.text.extend_from_slice(&others.text);
        self.count += others.count;
    }

    fn clear(&mut self) {
        self.text.clear();
        self.count = 0;
    }
}

/// The memory of one core for its lines.
#[derive(Default)]
pub(crate) struct Memory {
    /// Paths of directories that lines have named.
    dirs: Dirs,
    /// The latest moment, as text.
    moment: Moment,
    /// The time at which the core has begun to execute what it executes now.
    pub(crate) now: Time,
}
