//! A check of a whole file system, on all of its servers together.
//!
//! `pando fsck` starts it and follows it. Each server checks what it has, and what leads from there
//! to the others. What no server can see alone is compared here (`sides`): how many names an inode
//! counts against how many all servers have, what is charged to quotas against what there is, and
//! which inode numbers more than one uses. When all servers are done, what they know to repair is
//! repaired (`mend`), a thing at a time, and everything is checked again, until nothing is left
//! that can be.
//!
//! The servers are not looked at in one moment. So where numbers differ, everything is checked once
//! more, and only what is as wrong as before, and has not changed meanwhile, is wrong.
//!
//! Blocks that nothing names are removed at the end, if that is asked. A block is where the inode
//! is whose contents it has, and nothing of another server names it: so each server removes those
//! of its own store, by itself.
//!
//! It holds findings and repairs in pages, never what was checked. A server that is gone ends the
//! check (`present`).

mod mend;
mod present;
mod sides;

use futures::future::{join_all, try_join_all};
use wire::{FsckFixes, FsckPoll, FsckProgress, FsckStart, Reply, Request};

use crate::{Client, Error, Result, error::unexpected};
use mend::{Repairs, Round, TURN_LAST};
use sides::Suspects;

/// Names of the servers' counts of blocks that nothing names.
const UNREFERENCED: &str = "blocks_unreferenced";
const REMOVED: &str = "blocks_removed";

/// A check that runs on all servers.
pub struct Fsck {
    jobs: Jobs,
    /// Suspects of the first check.
    suspects: Option<Box<Suspects>>,
    /// The repairs, if the check is to repair.
    repairs: Option<Repairs>,
    /// Whether blocks that nothing names are to be removed.
    gc: bool,
    state: State,
}

/// Numbers of the job, by server; `None`: that one has left.
struct Jobs(Vec<Option<u64>>);

impl Jobs {
    /// The servers that take part, with the number of the job at each.
    fn all(&self) -> impl Iterator<Item = (u16, u64)> + Clone + '_ {
        (0..).zip(&self.0).filter_map(|(server, job)| Some((server, (*job)?)))
    }

    /// The first server from this number on that takes part.
    fn from(&self, server: u16) -> Option<(u16, u64)> {
        self.all().find(|(at, _)| *at >= server)
    }

    fn are_several(&self) -> bool {
        self.all().nth(1).is_some()
    }

    /// The numbers in the form of [`wire::FsckMend`]. No job has the number 0.
    fn to_wire(&self) -> Vec<u64> {
        self.0.iter().map(|job| job.unwrap_or(0)).collect()
    }
}

enum State {
    /// Servers are checking.
    Checking,
    /// All of them are done, and what they have found is repaired.
    Mending(Box<Round>),
    /// This was found, and blocks that nothing names are being removed.
    Collecting(FsckProgress),
    Done(FsckProgress),
}

impl Client {
    /// Starts a check on all servers; with `gc` they remove blocks at the end that nothing names.
    /// For administrators.
    ///
    /// # Errors
    /// `Busy` when one is running; `NotPermitted` when the token does not administer;
    /// [`Error::Silent`] when a server does not answer for 15 seconds.
    pub async fn fsck_start_everywhere(&self, gc: bool) -> Result<Fsck> {
        let jobs = self.start_all(false).await?;
        Ok(Fsck { jobs, suspects: None, repairs: None, gc, state: State::Checking })
    }

    /// Starts a check on all servers that repairs what it finds; with `discard_lost` also where
    /// contents cannot be had any more. For administrators.
    ///
    /// # Errors
    /// As [`Client::fsck_start_everywhere`].
    pub async fn repair_start_everywhere(&self, gc: bool, discard_lost: bool) -> Result<Fsck> {
        let repairs = Some(Repairs::new(discard_lost));
        Ok(Fsck { repairs, ..self.fsck_start_everywhere(gc).await? })
    }

    async fn start_all(&self, gc: bool) -> Result<Jobs> {
        let members = self.members();
        let started = members.iter().map(|server| async move {
            let request = Request::FsckStart(FsckStart { gc });
            match self.unless_gone(self.ask_server(*server, request)).await? {
                Reply::Job(job) => Ok(job),
                _ => Err(unexpected()),
            }
        });
        let started = join_all(started).await;
        if started.iter().any(Result::is_err) {
            let begun = members.iter().zip(&started).filter_map(|(server, job)| {
                Some(self.poll_server(*server, *job.as_ref().ok()?, true))
            });
            join_all(begun).await;
        }
        let mut jobs = vec![None; usize::from(self.servers())];
        for (server, job) in members.into_iter().zip(started) {
            if let Some(at) = jobs.get_mut(usize::from(server)) {
                *at = Some(job?);
            }
        }
        Ok(Jobs(jobs))
    }

    async fn poll_server(&self, server: u16, job: u64, cancel: bool) -> Result<FsckProgress> {
        let request = Request::FsckPoll(FsckPoll { job, cancel });
        match self.ask_server(server, request).await? {
            Reply::Fsck(progress) => Ok(progress),
            _ => Err(unexpected()),
        }
    }
}

impl Fsck {
    /// How far it is, all servers taken together; `cancel` ends it. It goes on only when it is
    /// asked.
    ///
    /// # Errors
    /// `NotFound` when a server does not know of it any more: it was started anew.
    /// [`Error::Silent`] when nothing was heard of a server for 15 seconds; the check has ended
    /// then.
    pub async fn poll(&mut self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let polled = client.unless_gone(Box::pin(self.go_on(client, cancel))).await;
        if let Err(Error::Silent(..)) = &polled {
            self.give_up(client).await;
        }
        polled
    }

    /// Returns, when the check is done, every finding that can be repaired, in words: also those
    /// beyond the findings in its progress, of which each server reports the first only.
    ///
    /// # Errors
    /// As [`Fsck::poll`].
    pub async fn findings(&self, client: &Client) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (server, job) in self.jobs.all() {
            for turn in 0..=TURN_LAST {
                let mut from = 0;
                loop {
                    let fixes = mend::fixes(client, server, FsckFixes { job, turn, from });
                    let fixes = client.unless_gone(fixes).await?;
                    let Some(last) = fixes.last() else { break };
                    from = last.number.saturating_add(1);
                    lines.extend(fixes.into_iter().flat_map(|fix| fix.lines).map(|line| {
                        if self.jobs.are_several() { of_server(server, line) } else { line }
                    }));
                }
            }
        }
        Ok(lines)
    }

    async fn go_on(&mut self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let mut progress = match &mut self.state {
            State::Done(progress) => return Ok(progress.clone()),
            State::Checking => self.check(client, cancel).await?,
            State::Mending(round) if cancel => round.found.clone(),
            State::Mending(_) => self.mend(client).await?,
            State::Collecting(_) => self.collected(client, cancel).await?,
        };
        if progress.done && !cancel && std::mem::take(&mut self.gc) {
            self.jobs = client.start_all(true).await?;
            progress.done = false;
            self.state = State::Collecting(progress.clone());
        }
        let done = progress.done;
        if let Some(repairs) = &self.repairs {
            repairs.tell(&mut progress);
        }
        if done {
            self.state = State::Done(progress.clone());
        }
        Ok(progress)
    }

    /// Returns the findings, with the counts of blocks that nothing names.
    async fn collected(&mut self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let collected = self.poll_all(client, cancel).await?;
        let State::Collecting(found) = &self.state else { return Err(unexpected()) };
        let mut sum = FsckProgress { done: collected.done, ..found.clone() };
        for (name, count) in collected.counts {
            if name == UNREFERENCED || name == REMOVED {
                set(&mut sum.counts, name, count);
            }
        }
        sum.findings_total += collected.findings_total;
        sum.findings.extend(collected.findings);
        Ok(sum)
    }

    async fn poll_all(&self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let all = self.jobs.all().map(|(server, job)| client.poll_server(server, job, cancel));
        let servers = self.jobs.all().map(|(server, _)| server);
        Ok(together(servers.zip(try_join_all(all).await?).collect()))
    }

    async fn check(&mut self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let mut sum = self.poll_all(client, cancel).await?;
        if cancel || !sum.done || !self.jobs.are_several() {
            return Ok(sum);
        }
        let wrong = sides::compare(client, &self.jobs).await?;
        let mut across = Suspects::default();
        match self.suspects.take() {
            None if !wrong.is_empty() => {
                self.suspects = Some(Box::new(wrong));
                self.jobs = client.start_all(false).await?;
                sum.done = false;
                return Ok(sum);
            }
            None => {}
            Some(before) => {
                let confirmed = wrong.also_in(&before);
                let lines = confirmed.lines();
                sum.findings_total += u64::try_from(lines.len()).unwrap_or(u64::MAX);
                sum.findings.extend(lines);
                across = confirmed;
            }
        }
        if self.repairs.as_ref().is_some_and(Repairs::may_go_on) && sum.findings_total > 0 {
            sum.done = false;
            self.state = State::Mending(Box::new(Round::new(sum.clone(), across)));
        }
        Ok(sum)
    }

    /// Repairs some of what was found.
    async fn mend(&mut self, client: &Client) -> Result<FsckProgress> {
        let (State::Mending(round), Some(repairs)) = (&mut self.state, &mut self.repairs) else {
            return Err(unexpected());
        };
        if !round.go_on(client, &self.jobs, repairs).await? {
            return Ok(round.found.clone());
        }
        if !round.has_mended() {
            return Ok(round.end());
        }
        let found = round.found.clone();
        repairs.look_again();
        self.jobs = client.start_all(false).await?;
        self.state = State::Checking;
        Ok(found)
    }
}

/// Returns the sum of several servers' progress.
fn together(all: Vec<(u16, FsckProgress)>) -> FsckProgress {
    let several = all.len() > 1;
    let mut sum = FsckProgress {
        done: true,
        records: 0,
        records_estimated: 0,
        counts: Vec::new(),
        findings: Vec::new(),
        findings_total: 0,
    };
    for (server, one) in all {
        sum.done &= one.done;
        sum.records += one.records;
        sum.records_estimated += one.records_estimated;
        sum.findings_total += one.findings_total;
        for (name, count) in one.counts {
            match sum.counts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known += count,
                None => sum.counts.push((name, count)),
            }
        }
        let named = |line| if several { of_server(server, line) } else { line };
        sum.findings.extend(one.findings.into_iter().map(named));
    }
    sum
}

fn set(counts: &mut Vec<(String, u64)>, name: String, count: u64) {
    match counts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = count,
        None => counts.push((name, count)),
    }
}

/// A finding with the server that has found it.
fn of_server(server: u16, line: String) -> String {
    format!("server {server}: {line}")
}
