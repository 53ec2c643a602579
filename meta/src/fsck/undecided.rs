//! Transactions that stay prepared on a server of a cluster, and hold others up.
//!
//! `across` begins with these transactions, since reads of what they hold would wait. A transaction
//! in progress ends in milliseconds, and one left by a crash ends when its initiator is asked. So a
//! transaction that stays for seconds will stay until somebody ends it. A repair ends it only as
//! its initiator says. If the initiator says nothing, the transaction stays, and stays a finding.

use std::{ops::ControlFlow, time::Duration};

use wire::{AskOutcome, Outcome, Reply, Request, TxnId};

use super::{across::Across, fix::Fix};
use crate::{error::describe, record::key};

/// Number of searches for prepared transactions.
const LOOKS: u32 = 12;
/// Pause between two searches.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of transactions that are reported.
const TOLD_MAX: usize = 10_000;

impl Across<'_> {
    /// Finds transactions that stay prepared, and asks how they ended.
    pub(super) async fn undecided(&self) -> Result<(), String> {
        let mut left = self.prepared()?;
        for _ in 0..LOOKS {
            if left.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
            let now = self.prepared()?;
            left.retain(|txn| now.binary_search(txn).is_ok());
        }
        for txn in left {
            let TxnId { server, run, number } = txn;
            let what = format!("transaction {number} of run {run:x} of server {server}");
            if !self.cluster.others().any(|other| other == server) {
                self.report
                    .find(format!("{what} stays prepared, and no other server can have begun it"));
                continue;
            }
            let request = Request::AskOutcome(AskOutcome { txn, of: server });
            let (said, commit) = match self.request(server, request).await? {
                Reply::Outcome(Outcome::Committed) => ("committed", Some(true)),
                Reply::Outcome(Outcome::Aborted) => ("aborted", Some(false)),
                _ => ("under way", None),
            };
            let line = format!("{what} stays prepared, which says that it is {said}");
            match commit {
                Some(commit) => self.report.find_to_fix(line, Fix::Decide(txn, commit)),
                None => self.report.find(line),
            }
        }
        Ok(())
    }

    /// Transactions that are prepared here now, in order.
    fn prepared(&self) -> Result<Vec<TxnId>, String> {
        let prefix = key::own(b'P');
        let mut found = Vec::new();
        let visit = &mut |key: &[u8], _: &[u8]| {
            found.extend(key::parse_transaction(key));
            if found.len() < TOLD_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let scanned = self.shared.engine.scan(&prefix, &key::end_of(&prefix), visit);
        scanned.map_err(|error| describe(&error))?;
        found.sort_unstable();
        Ok(found)
    }
}
