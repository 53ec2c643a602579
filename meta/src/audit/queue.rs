//! The queue between the cores and the thread that writes the log.
//!
//! Each core has a shelf of its own, so cores do not wait for each other. The thread empties all
//! shelves at once, a moment after the first line came, or when a shelf is half full.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use super::Lines;
use crate::log_limit::LogLimit;

/// Most bytes of lines that wait on one shelf.
const SHELF_BYTES_MAX: usize = 4 << 20;
/// Time between two lines of strangers.
const STRANGERS: Duration = Duration::from_millis(100);
/// The longest time that a line waits for others to be written with it. What comes meanwhile should
/// fit into the caches of a processor.
const GATHER: Duration = Duration::from_millis(20);

/// The requests that the log tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditWhat {
    /// Changes that were made.
    pub changes: bool,
    /// Changes that failed, but for refusals.
    pub failures: bool,
    /// Requests of any kind that were not allowed.
    pub refusals: bool,
    /// Sessions that began, were resumed or ended.
    pub sessions: bool,
    /// Acts of administrators.
    pub administration: bool,
    /// Opens of files.
    pub opens: bool,
    /// Everything else that was looked at: look-ups, listings, attributes, reports.
    pub reads: bool,
}

impl AuditWhat {
    /// No request at all.
    pub const NOTHING: AuditWhat = AuditWhat {
        changes: false,
        failures: false,
        refusals: false,
        sessions: false,
        administration: false,
        opens: false,
        reads: false,
    };
    /// Everything.
    pub const ALL: AuditWhat = AuditWhat {
        changes: true,
        failures: true,
        refusals: true,
        sessions: true,
        administration: true,
        opens: true,
        reads: true,
    };
}

impl Default for AuditWhat {
    /// Changes, refusals, sessions and administration.
    fn default() -> AuditWhat {
        AuditWhat {
            changes: true,
            refusals: true,
            sessions: true,
            administration: true,
            ..AuditWhat::NOTHING
        }
    }
}

/// Lines on their way to the log.
pub struct AuditQueue {
    server: u16,
    what: AuditWhat,
    shelves: Vec<Mutex<Shelf>>,
    signal: Mutex<Signal>,
    changed: Condvar,
    lost: AtomicU64,
    strangers: Mutex<LogLimit>,
}

#[derive(Default)]
struct Shelf {
    lines: Lines,
    /// Number of lines that found no room since the shelf was emptied.
    lost: u64,
}

#[derive(Default)]
struct Signal {
    /// Whether there are lines.
    has_lines: bool,
    /// Whether a shelf is half full.
    is_urgent: bool,
    /// Whether no more lines come.
    is_over: bool,
}

/// Lines that were taken from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number of lines.
    pub lines: u64,
    /// Number of lines that found no room.
    pub lost: u64,
    /// Whether no more lines come.
    pub is_last: bool,
}

impl AuditQueue {
    /// An empty queue of a server with so many cores.
    #[must_use]
    pub fn new(server: u16, what: AuditWhat, cores: usize) -> AuditQueue {
        AuditQueue {
            server,
            what,
            shelves: (0..cores.max(1)).map(|_| Mutex::default()).collect(),
            signal: Mutex::default(),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            strangers: Mutex::new(LogLimit::new(STRANGERS)),
        }
    }

    /// The number of the server, which each line has.
    #[must_use]
    pub fn server(&self) -> u16 {
        self.server
    }

    /// The requests that the log tells of.
    #[must_use]
    pub fn what(&self) -> AuditWhat {
        self.what
    }

    /// Number of lines that have found no room since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether a line of somebody without a session is due; then how many were not told since the
    /// last one.
    pub(super) fn stranger_is_due(&self) -> Option<u64> {
        self.strangers.lock().due()
    }

    /// Adds lines of a core, or counts them where there is no room.
    pub(crate) fn push(&self, core: usize, lines: &Lines) {
        if lines.are_none() {
            return;
        }
        let mut shelf = self.shelves[core.min(self.shelves.len() - 1)].lock();
        let (before, after) = (shelf.lines.text.len(), shelf.lines.text.len() + lines.text.len());
        if after > SHELF_BYTES_MAX {
            shelf.lost += lines.count;
            self.lost.fetch_add(lines.count, Ordering::Relaxed);
            return;
        }
        shelf.lines.add(lines);
        drop(shelf);
        let half = SHELF_BYTES_MAX / 2;
        let is_urgent = before < half && after >= half;
        if before == 0 || is_urgent {
            let mut signal = self.signal.lock();
            signal.has_lines = true;
            signal.is_urgent |= is_urgent;
            self.changed.notify_one();
        }
    }

    /// Waits for lines, and appends them to `out`; none after [`AuditQueue::end`], when all are
    /// taken. Those of one core are in their order.
    ///
    /// The caller is a thread of its own, which this blocks.
    pub fn take(&self, out: &mut Vec<u8>) -> Taken {
        let mut signal = self.signal.lock();
        while !signal.has_lines && !signal.is_over {
            self.changed.wait(&mut signal);
        }
        if !signal.is_over && !signal.is_urgent {
            self.changed.wait_while_for(
                &mut signal,
                |signal| !signal.is_over && !signal.is_urgent,
                GATHER,
            );
        }
        // Race: whatever comes from now on is signalled anew, once its shelf is empty.
        (signal.has_lines, signal.is_urgent) = (false, false);
        let mut taken = Taken { lines: 0, lost: 0, is_last: signal.is_over };
        drop(signal);
        for shelf in &self.shelves {
            let mut shelf = shelf.lock();
            out.extend_from_slice(&shelf.lines.text);
            taken.lines += shelf.lines.count;
            taken.lost += std::mem::take(&mut shelf.lost);
            shelf.lines.clear();
        }
        taken
    }

    /// Waits for so long, or until [`AuditQueue::end`]; whether that has come.
    pub fn pause(&self, time: Duration) -> bool {
        let mut signal = self.signal.lock();
        self.changed.wait_while_for(&mut signal, |signal| !signal.is_over, time);
        signal.is_over
    }

    /// Says that no more lines come.
    pub fn end(&self) {
        self.signal.lock().is_over = true;
        self.changed.notify_all();
    }
}
