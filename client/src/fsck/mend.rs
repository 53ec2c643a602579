//! Repairing what the servers of a cluster have found: one thing after the other, in the order of
//! their turns.
//!
//! `fsck` calls it between two checks. Each repair is a request as any other: its server looks
//! again, and changes what is still wrong in one transaction, with other servers where it must. So
//! this may end anywhere. A server that has begun another check since refuses. When anything of one
//! turn was repaired, the rest waits for the next check, which sees what follows from it.

use std::collections::VecDeque;

use base::{Cred, HashMap, Ino};
use wire::{FsckFix, FsckFixes, FsckMend, FsckProgress, Mend, MendLinks, Reply, Request};

use super::{
    Jobs, of_server,
    sides::{Links, Suspects, quota_line},
};
use crate::{Client, Error, Result, error::unexpected, route::Route};

/// Maximum number of checks after a repair, which may uncover more faults: one level of a tree at a
/// time, at worst.
const ROUNDS_MAX: u32 = 1000;
/// Number of repairs before the caller hears of them.
const MENDED_AT_ONCE: usize = 256;
/// Number of repairs that are described in words; the rest is counted.
const REPAIRED_MAX: usize = 1000;
/// The last turn.
pub(super) const TURN_LAST: u8 = 3;

/// The repairs of all rounds.
pub(super) struct Repairs {
    discard_lost: bool,
    rounds: u32,
    lines: Vec<String>,
    total: u64,
}

impl Repairs {
    pub(super) fn new(discard_lost: bool) -> Repairs {
        Repairs { discard_lost, rounds: 0, lines: Vec::new(), total: 0 }
    }

    /// Whether there is another round.
    pub(super) fn may_go_on(&self) -> bool {
        self.rounds < ROUNDS_MAX
    }

    /// Everything is checked again.
    pub(super) fn look_again(&mut self) {
        self.rounds += 1;
    }

    fn add(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.total += 1;
            if self.lines.len() < REPAIRED_MAX {
                self.lines.push(format!("repaired: {line}"));
            }
        }
    }

    /// Says what was repaired before what is wrong.
    pub(super) fn tell(&self, progress: &mut FsckProgress) {
        progress.findings.splice(..0, self.lines.iter().cloned());
        match progress.counts.iter_mut().find(|(name, _)| name == "repaired") {
            Some((_, count)) => *count += self.total,
            None => progress.counts.push(("repaired".to_owned(), self.total)),
        }
    }
}

/// The repairs after one check.
pub(super) struct Round {
    /// Findings of that check.
    pub(super) found: FsckProgress,
    across: Suspects,
    /// The present turn, its server, and that server's next repair; and the repairs read ahead.
    turn: u8,
    server: u16,
    from: u32,
    read: VecDeque<FsckFix>,
    /// Whether anything of this turn was repaired.
    mended: bool,
    /// Reasons why findings were not repaired, by finding.
    reasons: HashMap<String, String>,
}

impl Round {
    pub(super) fn new(found: FsckProgress, across: Suspects) -> Round {
        let (read, reasons) = (VecDeque::new(), HashMap::default());
        Round { found, across, turn: 0, server: 0, from: 0, read, mended: false, reasons }
    }

    /// Whether anything was repaired.
    pub(super) fn has_mended(&self) -> bool {
        self.mended
    }

    /// Repairs some more; whether that was all of this round.
    pub(super) async fn go_on(
        &mut self,
        client: &Client,
        jobs: &Jobs,
        repairs: &mut Repairs,
    ) -> Result<bool> {
        let discard_lost = repairs.discard_lost;
        for _ in 0..MENDED_AT_ONCE {
            let server = self.server;
            if let Some(fix) = self.read.pop_front() {
                let lines = fix.lines.into_iter().map(|line| of_server(server, line)).collect();
                let (route, mend) = (Route::Server(server), Mend::Found(fix.fix));
                let request = FsckMend { mend, discard_lost, jobs: jobs.to_wire() };
                self.mend(client, repairs, route, request, lines).await?;
            } else if let Some((server, job)) = jobs.from(server) {
                let request = FsckFixes { job, turn: self.turn, from: self.from };
                let fixes = fixes(client, server, request).await?;
                match fixes.last() {
                    Some(last) => {
                        (self.server, self.from) = (server, last.number.saturating_add(1))
                    }
                    None => (self.server, self.from) = (server + 1, 0),
                }
                self.read = fixes.into();
            } else if let Some(links) = self.across.links.pop_if(|_| self.turn == TURN_LAST) {
                let Links { ino, counted, found, changed } = links;
                let mend = Mend::Links(MendLinks { ino, found, counted, changed });
                let request = FsckMend { mend, discard_lost, jobs: jobs.to_wire() };
                self.mend(client, repairs, of(ino), request, vec![links.line()]).await?;
            } else if let Some(quota) = self.across.quotas.pop_if(|_| self.turn == TURN_LAST) {
                let mend = Mend::Quota(quota);
                let request = FsckMend { mend, discard_lost, jobs: jobs.to_wire() };
                let lines = vec![quota_line(&quota)];
                self.mend(client, repairs, Route::Server(0), request, lines).await?;
            } else if self.mended || self.turn == TURN_LAST {
                return Ok(true);
            } else {
                (self.turn, self.server, self.from) = (self.turn + 1, 0, 0);
            }
        }
        Ok(false)
    }

    async fn mend(
        &mut self,
        client: &Client,
        repairs: &mut Repairs,
        route: Route,
        request: FsckMend,
        lines: Vec<String>,
    ) -> Result<()> {
        let reason = match client.core.ask(&Cred::ROOT, route, Request::FsckMend(request)).await {
            Ok(done) => match done.reply {
                Reply::Mended(true) => {
                    self.mended = true;
                    repairs.add(lines);
                    return Ok(());
                }
                Reply::Mended(false) => return Ok(()),
                _ => return Err(unexpected()),
            },
            Err(Error::Refused(reason)) => reason,
            Err(Error::Fs(error)) => error.to_string(),
            Err(error) => return Err(error),
        };
        self.reasons.extend(lines.into_iter().map(|line| (line, reason.clone())));
        Ok(())
    }

    /// Returns what is still wrong, and why.
    pub(super) fn end(&mut self) -> FsckProgress {
        for line in &mut self.found.findings {
            if let Some(reason) = self.reasons.get(line) {
                *line += &format!(" (not repaired: {reason})");
            }
        }
        self.found.done = true;
        self.found.clone()
    }
}

/// A page of what a server knows to repair.
pub(super) async fn fixes(client: &Client, server: u16, page: FsckFixes) -> Result<Vec<FsckFix>> {
    match client.ask_server(server, Request::FsckFixes(page)).await? {
        Reply::FsckFixes(fixes) => Ok(fixes),
        _ => Err(unexpected()),
    }
}

/// Returns the route to the server of an inode's shard of birth.
fn of(ino: Ino) -> Route {
    Route::Shard(ino.shard())
}
