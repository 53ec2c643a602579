//! `fsck`: a check of the whole file system on a snapshot, while it is served.
//!
//! An administrator starts a check and follows it; one check runs at a time. It reads a snapshot of
//! the engine, so whatever it finds was true at one moment. On request it also removes blocks that
//! nothing names and that no session can name any more; or it repairs what it found, and checks
//! again, until nothing is left to repair. The walk itself never changes a record, `repair` does.
//!
//! The walk over the records is done off the core. It goes through each shard once, in key order,
//! and looks up what a record points to. It holds in memory: a bit for each inode number in use, a
//! number for each directory, a count for each inode with several names, and some forty bytes for
//! each stored block.
//!
//! A server of a cluster checks its own shards this way, and leaves out what leads to other
//! servers; `across` asks those.

mod across;
mod asked;
mod blocks;
mod dirs;
mod files;
mod fix;
mod hex;
mod inos;
pub(crate) mod jobs;
mod names;
mod packed;
mod paths;
mod quotas;
mod repair;
mod repairs;
mod report;
pub(crate) mod run;
mod shares;
mod sweep;
#[cfg(test)]
mod tests;
mod undecided;

use std::{sync::Arc, time::Duration};

use base::{FsError, HashSet, SessionId, ShardId};
use futures::future::join_all;
use tokio::time::timeout;
use wire::{
    FsckFix, FsckFixes, FsckInos, FsckMend, FsckNames, FsckPoll, FsckProgress, FsckQuotas,
    InosPage, Mend, MendLinks, MendQuota, NamesOf, QuotaOf,
};

use crate::{
    coordinator,
    error::{Fault, Result, describe},
    record::{QuotaId, Usage},
    server::{Hold, Shared},
    txn::{Caller, Txn},
};
use blocks::Listing;
use fix::Fix;
use jobs::Job;
use report::Report;
use sweep::Sweep;

pub(crate) use repair::rescue;

/// Maximum number of checks in one job: after each repair the check begins anew. A repair may
/// uncover more: one level of a tree at a time, at worst.
const ROUNDS_MAX: u32 = 1000;

/// Maximum time that a check waits at its begin for transactions in progress.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// Purpose of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Find what is wrong; with `gc`, also remove blocks that nothing names.
    Find { gc: bool },
    /// Repair it as well; with `discard_lost`, also where that gives up lost contents.
    Repair { gc: bool, discard_lost: bool },
    /// Only remove blocks that nothing names.
    Collect,
}

impl Aim {
    fn gc(self) -> bool {
        match self {
            Aim::Find { gc } | Aim::Repair { gc, .. } => gc,
            Aim::Collect => true,
        }
    }
}

/// A check that was accepted; it is done by [`Check::run`].
pub(crate) struct Check {
    pub(crate) number: u64,
    shared: Arc<Shared>,
    aim: Aim,
    report: Arc<Report>,
}

/// Accepts a check, unless one is running. On a cluster a check finds, and changes nothing: the
/// client asks for repairs when all servers are checked ([`mend`]), and for blocks to be removed
/// after that.
pub(crate) fn start(shared: &Arc<Shared>, aim: Aim) -> Result<Check> {
    let aim = match (aim, &shared.cluster) {
        (aim, None) | (aim @ (Aim::Find { gc: false } | Aim::Collect), Some(_)) => aim,
        (Aim::Find { gc: true }, Some(_)) => Aim::Collect,
        (Aim::Repair { .. }, Some(_)) => return Err(FsError::NotSupported.into()),
    };
    if aim == Aim::Collect && !has_blocks_of_its_own(shared) {
        let text =
            "the block store may be that of other servers too, which name what this one does not";
        return Err(Fault::Refused(text.into()));
    }
    if aim.gc() && shared.options.hold() == Hold::Everything {
        let text = "blocks that this server does not name are held: in a restored copy until `pando \
                    backup final`, as the original may have stored them, and elsewhere until it is \
                    known which bases of the backup may name them (`pando status`)";
        return Err(Fault::Refused(text.into()));
    }
    let mut latest = shared.jobs.latest.lock();
    if latest.as_ref().is_some_and(|job| !job.report.is_done()) {
        return Err(FsError::Busy.into());
    }
    let number = latest.as_ref().map_or(1, |job| job.number + 1);
    let report = Arc::new(Report::new(shared.engine.stats().keys_estimated));
    *latest = Some(Job { number, report: report.clone() });
    Ok(Check { number, shared: shared.clone(), aim, report })
}

/// Whether no other server stores blocks in the same place. Without a scheme they are in the
/// server's own data directory.
fn has_blocks_of_its_own(shared: &Shared) -> bool {
    shared.cluster.is_none() || !shared.config.blocks.contains("://")
}

/// Progress of a check; `cancel` ends it.
pub(crate) fn poll(shared: &Shared, req: FsckPoll) -> Result<FsckProgress> {
    let latest = shared.jobs.latest.lock();
    let job = latest.as_ref().filter(|job| job.number == req.job).ok_or(FsError::NotFound)?;
    if req.cancel && !job.report.is_done() {
        job.report.cancel();
    }
    Ok(job.report.progress())
}

/// A page of inodes that may have several names, as found by a check that is done.
pub(crate) fn names(shared: &Shared, req: FsckNames) -> Result<Vec<NamesOf>> {
    Ok(done(shared, req.job)?.names_after(req.after))
}

/// A page of the repairs that a check knows.
pub(crate) fn fixes(shared: &Shared, req: FsckFixes) -> Result<Vec<FsckFix>> {
    Ok(done(shared, req.job)?.fixes_from(req.turn, req.from))
}

/// Usage of quotas, as found by a check.
pub(crate) fn quotas(shared: &Shared, req: FsckQuotas) -> Result<Vec<QuotaOf>> {
    Ok(done(shared, req.job)?.quotas())
}

/// Some pages of the inode numbers in use, as found by a check.
pub(crate) fn inos(shared: &Shared, req: FsckInos) -> Result<Vec<InosPage>> {
    Ok(done(shared, req.job)?.inos_from(req.from))
}

/// Report of a check that is done.
fn done(shared: &Shared, number: u64) -> Result<Arc<Report>> {
    let latest = shared.jobs.latest.lock();
    let job = latest.as_ref().filter(|job| job.number == number).ok_or(FsError::NotFound)?;
    if !job.report.is_done() {
        return Err(FsError::Busy.into());
    }
    Ok(job.report.clone())
}

/// Looks again at a finding of a check of a cluster; `true` if it was wrong, and is right now.
pub(crate) fn mend(txn: &mut Txn<'_>, req: &FsckMend) -> Result<bool> {
    txn.asks_anywhere();
    let fix = match &req.mend {
        Mend::Found(packed) => packed::unpack(packed)?,
        Mend::Links(MendLinks { ino, found, counted, changed }) => {
            Fix::Links { ino: *ino, found: *found, nlink: *counted, changed: Some(*changed) }
        }
        Mend::Quota(MendQuota { root, lacks: (entries, bytes) }) => {
            Fix::Usage(QuotaId(*root), Usage { bytes: *bytes, entries: *entries })
        }
    };
    // Race: another check may find this before it is repaired, and then it would be repaired twice.
    // So each run of the request asks which check is the latest.
    let me = txn.shared.cluster.as_ref().map_or(0, |cluster| usize::from(cluster.me));
    let latest = txn.shared.jobs.latest.lock().as_ref().map(|job| job.number);
    if latest.is_none() || req.jobs.get(me).copied() != latest {
        return Err(Fault::Refused("another check has begun, or the server was restarted".into()));
    }
    // The server repairs with its own rights, whichever client asks.
    txn.caller = Caller::SERVER;
    repair::mend(txn, &fix, req.discard_lost)
}

impl Drop for Check {
    fn drop(&mut self) {
        if !self.report.is_done() {
            // The core ends in the middle of the check, so the walk must stop.
            self.report.cancel();
            self.report.finish();
        }
    }
}

/// Waits for transactions in progress, so that what an earlier repair has committed elsewhere is
/// here.
async fn settle(shared: &Shared) {
    let under_way = shared.prepared.all();
    let ended = join_all(under_way.iter().map(|txn| shared.prepared.until_free(*txn)));
    // A transaction that stays for longer is a finding itself.
    let _ = timeout(SETTLES_WITHIN, ended).await;
}

impl Check {
    /// Runs the check, from the first record to the last block.
    pub(crate) async fn run(self) {
        let has_ended = self.rounds().await;
        if has_ended && self.aim != Aim::Collect && !self.report.is_cancelled() {
            self.is_checked();
        }
        self.report.finish();
    }

    /// Notes that the data of a server that began with an old copy are checked.
    fn is_checked(&self) {
        let Some(cluster) = &self.shared.cluster else { return };
        if cluster.own.is_checked() {
            let stored = cluster.store_served(&self.shared);
            let stored = stored.and_then(|()| coordinator::store_checked(&self.shared));
            if let Err(problem) = stored {
                self.shared.halt(problem);
            }
        }
    }

    /// Returns whether the check came to its end.
    async fn rounds(&self) -> bool {
        for _ in 0..ROUNDS_MAX {
            match self.check().await {
                Err(error) => {
                    self.report.find(format!("the check could not go on: {error}"));
                    return false;
                }
                Ok(false) => return true,
                Ok(true) => self.report.begin_again(),
            }
        }
        self.report.find("there is always more to repair".into());
        false
    }

    /// Checks once; `true` if it repaired anything, so that another check is needed.
    async fn check(&self) -> std::result::Result<bool, String> {
        let shared = &self.shared;
        settle(shared).await;
        // The order matters. A block was there before its session ended, and all that the session
        // did was there before the snapshot. So a block that was listed, whose session had ended,
        // and that the snapshot does not name, will never be named.
        let listing = Listing::of(&shared.blocks, &self.report).await?;
        let alive = self.alive();
        if self.aim == Aim::Collect {
            // In a cluster a session is in the server's table until all that it did here is
            // written.
            return listing.collect_alone(shared, &self.report, &alive).await.map(|()| false);
        }
        let snapshot = shared.engine.snapshot();

        let (config, report) = (shared.config.clone(), self.report.clone());
        let owned = shared.cluster.as_ref().map(|cluster| {
            (0..config.shards).map(|shard| cluster.owns(ShardId(shard))).collect::<Vec<bool>>()
        });
        let swept = shared.options.offload.run(move || {
            let mut sweep = Sweep::new(snapshot.as_ref(), &config, &report, listing, owned);
            sweep.run().map(|()| {
                report.set_names(sweep.names());
                report.set_quotas(sweep.quotas());
                report.set_inos(sweep.inos());
                sweep.blocks
            })
        });
        let listing = swept.await.map_err(|error| describe(&error))?;
        if self.report.is_cancelled() {
            return Err("it was cancelled".into());
        }
        let missing = listing.missing(shared, &self.report).await;
        if !missing.is_empty() {
            let names = paths::of(shared, &self.report, blocks::inodes(&missing)).await?;
            blocks::tell(missing, &names, &self.report);
        }
        if let Some(cluster) = &shared.cluster {
            across::check(shared, cluster, &self.report).await?;
            // Other servers may have put blocks into the store, and name them.
            if !has_blocks_of_its_own(shared) {
                return Ok(false);
            }
        }
        if let Aim::Repair { discard_lost, .. } = self.aim
            && self.mend(discard_lost).await
        {
            return Ok(true);
        }
        listing.collect(shared, &self.report, &alive, self.aim.gc()).await?;
        Ok(false)
    }

    /// Sessions that may still name what they have stored.
    fn alive(&self) -> HashSet<SessionId> {
        let mut alive: HashSet<SessionId> = self.shared.sessions.lock().keys().copied().collect();
        alive.insert(SessionId(self.shared.incarnation));
        alive
    }

    /// Repairs findings; `true` if any was repaired. Repairs of the first turn come first: they may
    /// bring other things back to their places. Then everything is checked anew.
    async fn mend(&self, discard_lost: bool) -> bool {
        let mut found = self.report.take_fixes();
        found.sort_by_key(|(fix, _)| fix.turn());
        let mut turn = None;
        for (fix, lines) in found {
            if self.report.is_cancelled() || turn.is_some_and(|turn| turn < fix.turn()) {
                break;
            }
            let its = fix.turn();
            if self.shared.jobs.repairs.mend(fix, discard_lost).await {
                self.report.repaired(lines);
                turn = Some(its);
            }
        }
        turn.is_some()
    }
}
