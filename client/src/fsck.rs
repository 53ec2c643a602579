//! A check of a whole file system, on all of its servers together.
//!
//! `pando fsck` and the simulation start it and follow it. Each server checks what it has, and what leads from there to the others.
//! What no server can see alone is compared here: how many names an inode counts against how many all servers have. It goes
//! through their lists side by side, a page of each at a time.
//!
//! The servers are not looked at in one moment. So where numbers differ, everything is checked once more, and only what is as
//! wrong as before, and has not changed meanwhile, is wrong.

use std::collections::VecDeque;

use base::{Ino, Time};
use futures::future::{join_all, try_join_all};
use wire::{FsckNames, FsckPoll, FsckProgress, FsckStart, NamesOf, Reply, Request};

use crate::{Client, Result, client::unexpected};

/// So many inodes with wrong counts are looked at again.
const SUSPECTS_MAX: usize = 10_000;

/// A check that runs on all servers.
pub struct Fsck {
    /// Its number at each server.
    jobs: Vec<u64>,
    /// What was wrong the first time.
    suspects: Option<Vec<Suspect>>,
}

/// An inode that has more or fewer names than it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suspect {
    ino: Ino,
    counted: u32,
    found: u32,
    changed: Time,
}

/// What a server says of inodes with several names, in order.
struct List {
    job: u64,
    read: VecDeque<NamesOf>,
    after: Ino,
    end: bool,
}

impl Client {
    /// Starts a check on all servers. For administrators.
    ///
    /// # Errors
    /// `Busy` when one is running; `NotPermitted` when the token does not administer.
    pub async fn fsck_start_everywhere(&self) -> Result<Fsck> {
        Ok(Fsck { jobs: self.start_all().await?, suspects: None })
    }

    async fn start_all(&self) -> Result<Vec<u64>> {
        let started = (0..self.servers()).map(|server| async move {
            let request = Request::FsckStart(FsckStart { gc: false });
            match self.ask_server(server, request).await? {
                Reply::Job(job) => Ok(job),
                _ => Err(unexpected()),
            }
        });
        let started = join_all(started).await;
        if started.iter().any(Result::is_err) {
            let begun = (0..).zip(&started).filter_map(|(server, job)| {
                Some(self.poll_server(server, *job.as_ref().ok()?, true))
            });
            join_all(begun).await;
        }
        started.into_iter().collect()
    }

    async fn poll_server(&self, server: u16, job: u64, cancel: bool) -> Result<FsckProgress> {
        let request = Request::FsckPoll(FsckPoll { job, cancel });
        match self.ask_server(server, request).await? {
            Reply::Fsck(progress) => Ok(progress),
            _ => Err(unexpected()),
        }
    }

    async fn names_page(&self, server: u16, list: &mut List) -> Result<()> {
        let request = Request::FsckNames(FsckNames { job: list.job, after: list.after });
        let Reply::FsckNames(names) = self.ask_server(server, request).await? else {
            return Err(unexpected());
        };
        list.end = names.is_empty();
        list.after = names.last().map_or(list.after, |last| last.ino);
        list.read = names.into();
        Ok(())
    }
}

impl Fsck {
    /// How far it is, all servers taken together; `cancel` ends it. It goes on only when it is asked.
    ///
    /// # Errors
    /// `NotFound` when a server does not know of it any more: it was started anew.
    pub async fn poll(&mut self, client: &Client, cancel: bool) -> Result<FsckProgress> {
        let all =
            (0..).zip(&self.jobs).map(|(server, job)| client.poll_server(server, *job, cancel));
        let all = try_join_all(all).await?;
        let several = all.len() > 1;
        let mut sum = together(all);
        if !several || cancel || !sum.done {
            return Ok(sum);
        }
        let wrong = self.wrong_names(client).await?;
        let Some(before) = self.suspects.take() else {
            if !wrong.is_empty() {
                self.suspects = Some(wrong);
                self.jobs = client.start_all().await?;
                sum.done = false;
            }
            return Ok(sum);
        };
        for wrong in wrong.into_iter().filter(|wrong| before.contains(wrong)) {
            let Suspect { ino, counted, found, .. } = wrong;
            sum.findings.push(format!(
                "inode {ino} counts {counted} names, but all servers together have {found}"
            ));
            sum.findings_total += 1;
        }
        // Whoever asks once more gets the same.
        self.suspects = Some(before);
        Ok(sum)
    }

    /// Goes through the lists of all servers side by side.
    async fn wrong_names(&self, client: &Client) -> Result<Vec<Suspect>> {
        let list = |job: &u64| List { job: *job, read: VecDeque::new(), after: Ino(0), end: false };
        let mut lists: Vec<List> = self.jobs.iter().map(list).collect();
        let mut wrong = Vec::new();
        while wrong.len() < SUSPECTS_MAX {
            for (server, list) in (0..).zip(&mut lists) {
                if list.read.is_empty() && !list.end {
                    client.names_page(server, list).await?;
                }
            }
            let next =
                lists.iter().filter_map(|list| list.read.front()).map(|names| names.ino).min();
            let Some(ino) = next else { break };
            let (mut found, mut counts) = (0u32, None);
            for list in &mut lists {
                if let Some(names) = list.read.pop_front_if(|names| names.ino == ino) {
                    found = found.saturating_add(names.found);
                    counts = counts.or(names.counted);
                }
            }
            // One that is not there was found by the server that has the name.
            if let Some((counted, changed)) = counts.filter(|(counted, _)| *counted != found) {
                wrong.push(Suspect { ino, counted, found, changed });
            }
        }
        Ok(wrong)
    }
}

/// What several servers say.
fn together(all: Vec<FsckProgress>) -> FsckProgress {
    let several = all.len() > 1;
    let mut sum = FsckProgress {
        done: true,
        records: 0,
        records_estimated: 0,
        counts: Vec::new(),
        findings: Vec::new(),
        findings_total: 0,
    };
    for (server, one) in all.into_iter().enumerate() {
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
        sum.findings.extend(
            one.findings
                .into_iter()
                .map(|line| if several { format!("server {server}: {line}") } else { line }),
        );
    }
    sum
}
