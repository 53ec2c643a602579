//! What a check has found so far; those who ask see it while it runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use wire::FsckProgress;

/// So many findings are kept in words; the rest is counted.
const FINDINGS_MAX: usize = 1000;
/// A finding in words has at most so many characters.
const FINDING_CHARS_MAX: usize = 1000;

/// Counts and findings.
#[derive(Default)]
pub(super) struct Report {
    cancelled: AtomicBool,
    done: AtomicBool,
    records: AtomicU64,
    records_estimated: u64,
    findings: Mutex<Findings>,
    pub(super) files: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) orphans: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) blocks_unreferenced: AtomicU64,
    pub(super) blocks_removed: AtomicU64,
}

#[derive(Default)]
struct Findings {
    lines: Vec<String>,
    total: u64,
}

impl Report {
    pub(super) fn new(records_estimated: u64) -> Report {
        Report { records_estimated, ..Report::default() }
    }

    /// Something is wrong.
    pub(super) fn find(&self, mut line: String) {
        let mut findings = self.findings.lock();
        findings.total += 1;
        if findings.lines.len() < FINDINGS_MAX {
            if let Some((end, _)) = line.char_indices().nth(FINDING_CHARS_MAX) {
                line.truncate(end);
                line.push('…');
            }
            tracing::warn!(finding = line, "fsck");
            findings.lines.push(line);
        }
    }

    /// One more record was looked at; `false` when it is enough.
    pub(super) fn goes_on(&self) -> bool {
        self.records.fetch_add(1, Ordering::Relaxed);
        !self.is_cancelled()
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// For those who asked.
    pub(super) fn progress(&self) -> FsckProgress {
        let done = self.is_done();
        let findings = self.findings.lock();
        let counts = [
            ("files", &self.files),
            ("directories", &self.directories),
            ("orphans", &self.orphans),
            ("blocks", &self.blocks),
            ("blocks_unreferenced", &self.blocks_unreferenced),
            ("blocks_removed", &self.blocks_removed),
        ];
        let named =
            |(name, count): (&str, &AtomicU64)| (name.to_owned(), count.load(Ordering::Relaxed));
        FsckProgress {
            done,
            records: self.records.load(Ordering::Relaxed),
            records_estimated: self.records_estimated,
            counts: counts.into_iter().map(named).collect(),
            findings: findings.lines.clone(),
            findings_total: findings.total,
        }
    }
}
