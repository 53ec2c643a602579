//! Findings and counts of a check; clients read them while it runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{HashMap, Ino};
use parking_lot::Mutex;
use wire::{FsckFix, FsckProgress, InosPage, NamesOf, QuotaOf};

use super::{fix::Fix, inos::InoSet, packed::pack};

/// Number of findings that are kept in words; the rest is only counted.
const FINDINGS_MAX: usize = 1000;
/// Number of repairs that are done before the next check.
const FIXES_MAX: usize = 100_000;
/// Number of inodes in a page for a client.
const NAMES_PAGE: usize = 1000;
/// Number of repairs in a page for a client.
const FIXES_PAGE: usize = 100;
/// Number of pages of inode numbers in an answer to a client.
const INO_PAGES: usize = 32;
/// Maximum length of a finding, in characters.
const FINDING_CHARS_MAX: usize = 1000;

/// Finding of a check that was cancelled before its end.
const CANCELLED: &str = "the check could not go on: it was cancelled";

/// Counts and findings of a check.
#[derive(Default)]
pub(super) struct Report {
    cancelled: AtomicBool,
    done: AtomicBool,
    records: AtomicU64,
    records_estimated: u64,
    findings: Mutex<Findings>,
    /// On a server of a cluster: inodes that may have several names, in order.
    names: Mutex<Vec<NamesOf>>,
    quotas: Mutex<Vec<QuotaOf>>,
    /// On a server of a cluster: inode numbers in use.
    inos: Mutex<InoSet>,
    pub(super) files: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) orphans: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) blocks_unreferenced: AtomicU64,
    pub(super) blocks_removed: AtomicU64,
    repaired: AtomicU64,
}

#[derive(Default)]
struct Findings {
    lines: Vec<String>,
    total: u64,
    /// Repairs of the findings, in the order in which they were found.
    fixes: Vec<(Fix, Vec<String>)>,
    places: HashMap<Fix, usize>,
    repaired: Vec<String>,
}

impl Report {
    pub(super) fn new(records_estimated: u64) -> Report {
        Report { records_estimated, ..Report::default() }
    }

    /// Adds a finding. A cancelled check has read only some records, so it finds nothing any more.
    pub(super) fn find(&self, mut line: String) {
        if self.is_cancelled() {
            return;
        }
        let mut findings = self.findings.lock();
        findings.total += 1;
        if findings.lines.len() < FINDINGS_MAX {
            shorten(&mut line);
            tracing::warn!(finding = line, "fsck");
            findings.lines.push(line);
        }
    }

    /// Adds a finding that may be repaired.
    pub(super) fn find_to_fix(&self, mut line: String, fix: Fix) {
        if self.is_cancelled() {
            return;
        }
        self.find(line.clone());
        shorten(&mut line);
        let mut findings = self.findings.lock();
        let Findings { fixes, places, .. } = &mut *findings;
        if let Some(place) = places.get(&fix) {
            fixes[*place].1.push(line);
        } else if fixes.len() < FIXES_MAX {
            places.insert(fix.clone(), fixes.len());
            fixes.push((fix, vec![line]));
        }
    }

    /// Takes the repairs, each with its findings.
    pub(super) fn take_fixes(&self) -> Vec<(Fix, Vec<String>)> {
        let mut findings = self.findings.lock();
        findings.places.clear();
        std::mem::take(&mut findings.fixes)
    }

    /// Notes that these findings are repaired.
    pub(super) fn repaired(&self, lines: Vec<String>) {
        let mut findings = self.findings.lock();
        for line in lines {
            Report::count(&self.repaired);
            tracing::warn!(repaired = line, "fsck");
            if findings.repaired.len() < FINDINGS_MAX {
                findings.repaired.push(line);
            }
        }
    }

    /// Sets the inodes that may have several names, in order.
    pub(super) fn set_names(&self, names: Vec<NamesOf>) {
        *self.names.lock() = names;
    }

    /// A page of these inodes, after `after`.
    pub(super) fn names_after(&self, after: Ino) -> Vec<NamesOf> {
        let names = self.names.lock();
        let from = names.partition_point(|names| names.ino <= after);
        names[from..].iter().take(NAMES_PAGE).copied().collect()
    }

    /// Sets the usage found of quotas, in order.
    pub(super) fn set_quotas(&self, quotas: Vec<QuotaOf>) {
        *self.quotas.lock() = quotas;
    }

    /// The usage found of quotas.
    pub(super) fn quotas(&self) -> Vec<QuotaOf> {
        self.quotas.lock().clone()
    }

    /// A page of the repairs of a turn.
    pub(super) fn fixes_from(&self, turn: u8, from: u32) -> Vec<FsckFix> {
        let findings = self.findings.lock();
        let numbered = (0u32..).zip(&findings.fixes).filter(|(number, _)| *number >= from);
        let its = numbered.filter(|(_, (fix, _))| fix.turn() == turn);
        let packed = its.filter_map(|(number, (fix, lines))| {
            Some(FsckFix { number, fix: pack(fix)?, lines: lines.clone() })
        });
        packed.take(FIXES_PAGE).collect()
    }

    /// Sets the inode numbers in use.
    pub(super) fn set_inos(&self, inos: InoSet) {
        *self.inos.lock() = inos;
    }

    /// Some pages of the inode numbers in use.
    pub(super) fn inos_from(&self, page: u64) -> Vec<InosPage> {
        self.inos.lock().pages_from(page, INO_PAGES)
    }

    /// Counts everything anew, after a repair.
    pub(super) fn begin_again(&self) {
        let mut findings = self.findings.lock();
        let repaired = std::mem::take(&mut findings.repaired);
        *findings = Findings { repaired, ..Findings::default() };
        let counts = [&self.files, &self.directories, &self.orphans, &self.blocks];
        for count in counts.into_iter().chain([&self.blocks_unreferenced, &self.records]) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a record; `false` when the check must end.
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

    pub(super) fn count_all(counter: &AtomicU64, more: usize) {
        counter.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Progress for clients. The cancellation of a check appears among its findings, and in no log.
    pub(super) fn progress(&self) -> FsckProgress {
        let done = self.is_done();
        let cut_off = (done && self.is_cancelled()).then(|| CANCELLED.to_owned());
        let findings = self.findings.lock();
        let counts = [
            ("files", &self.files),
            ("directories", &self.directories),
            ("orphans", &self.orphans),
            ("blocks", &self.blocks),
            ("blocks_unreferenced", &self.blocks_unreferenced),
            ("blocks_removed", &self.blocks_removed),
            ("repaired", &self.repaired),
        ];
        let named =
            |(name, count): (&str, &AtomicU64)| (name.to_owned(), count.load(Ordering::Relaxed));
        let repaired = findings.repaired.iter().map(|line| format!("repaired: {line}"));
        FsckProgress {
            done,
            records: self.records.load(Ordering::Relaxed),
            records_estimated: self.records_estimated,
            counts: counts.into_iter().map(named).collect(),
            findings_total: findings.total + u64::from(cut_off.is_some()),
            findings: repaired.chain(findings.lines.iter().cloned()).chain(cut_off).collect(),
        }
    }
}

fn shorten(line: &mut String) {
    if let Some((end, _)) = line.char_indices().nth(FINDING_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
}
