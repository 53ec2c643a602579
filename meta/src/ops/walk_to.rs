//! `walk_to`: look up a path at the server of the directory where it ends.
//!
//! The client predicts which directory that is. This server checks the way to it with what it keeps
//! of the directories above (`paths`), and reads of other servers what it lacks, all at once. Where
//! it does not find the path so, it says nothing of it: the client walks.
//!
//! Cost: a look-up, and one in memory for each name; one round of reads, for directories that no
//! request has led through here since they were moved or their permissions changed.
//! Paper: Duplex §III-A, with the permissions at the server of the target.

use base::{EntryName, FsError, Predicted};
use wire::{DirRef, Entry, Guess, Retry, WalkTo, Walked};

use super::lookup::{NAMES_MAX, find};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    paths::{At, prove::Known},
    record::{Access, Content, ContentState, Key},
    server::Counters,
    txn::Txn,
};

/// Most directories above one that is lacking whose records are read with it. Of a longer path the
/// others are read one after the other.
const AHEAD_MAX: usize = 64;

pub(crate) fn run(txn: &mut Txn<'_>, req: &WalkTo) -> Result<Walked> {
    if req.names.is_empty() {
        return Err(FsError::Invalid.into());
    }
    if req.names.len() > NAMES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    txn.check_dir_ticket(&req.from)?;
    let walked = match end(txn, &req.end)?.filter(|_| hears(txn)) {
        // The lease may have ended meanwhile.
        Some(end) => walk(txn, req, &end)?.filter(|_| hears(txn)),
        None => None,
    };
    let counters = &txn.shared.counters;
    Counters::add(if walked.is_some() { &counters.fast_paths } else { &counters.slow_paths });
    Ok(walked.unwrap_or(Walked { entries: Vec::new(), error: None }))
}

/// Whether this server hears of whatever is moved before it is.
fn hears(txn: &Txn<'_>) -> bool {
    let ignored = txn.shared.bugs.has(Bug::LeaseIgnored);
    txn.shared.cluster.as_ref().is_some_and(|cluster| cluster.has_lease() || ignored)
}

/// The directory that the client predicts, if this server has the partition that was asked for.
fn end(txn: &Txn<'_>, guess: &Guess) -> Result<Option<DirRef>> {
    let Guess { dir: id, home, partition, .. } = *guess;
    if partition >= txn.shared.config.shards || !txn.has_shard(txn.shard_of(home, partition)) {
        return Ok(None);
    }
    let content = txn.get_content(&txn.share_key(home, id, partition))?;
    let is_meant =
        content.filter(|content| content.state == ContentState::Live && content.home == home);
    Ok(is_meant.map(|content| txn.dir_ref(id, content.ino, home)))
}

/// The directories of the path, and what its last name is. `None`: this server does not know.
fn walk(txn: &Txn<'_>, req: &WalkTo, end: &DirRef) -> Result<Option<Walked>> {
    let Some(way) = way(txn, req, end)? else { return Ok(None) };
    let entries: Vec<Entry> = way.iter().map(|access| txn.show_access(access)).collect();
    let mut walked = Walked { entries, error: None };
    let Some(last) = &req.end.name else { return Ok(Some(walked)) };
    match txn.dir_for(end, last).and_then(|dir| find(txn, dir, last)) {
        Ok(entry) => walked.entries.push(entry),
        Err(Fault::Answer(error)) => walked.error = Some(error),
        // Another partition has the name: the client goes on there.
        Err(Fault::Retry(Retry::StaleLayout(_))) => {}
        Err(Fault::Retry(Retry::StaleDir)) => return Ok(None),
        Err(fault) => return Err(fault),
    }
    Ok(Some(walked))
}

/// The directories of the path, if it is so and the caller may walk it.
fn way(txn: &Txn<'_>, req: &WalkTo, end: &DirRef) -> Result<Option<Vec<Access>>> {
    let (paths, moved) = (&txn.shared.paths, &txn.shared.invalidations);
    let checks = txn.checks() && !txn.shared.bugs.has(Bug::FastPathUnchecked);
    let cred = checks.then_some(txn.caller.cred);
    let end = At { id: end.id, ino: end.ino, home: end.home };
    let mut before = None;
    loop {
        let (lacks, depth) = match paths.prove(&req.from, &req.names, end, cred, moved) {
            Known::Granted(way) => return Ok(Some(way)),
            Known::No => return Ok(None),
            Known::Lacks(at, depth) => (at, depth),
        };
        // One that is lacking still was moved while it was read.
        if before.replace(lacks) == Some(lacks) || !learn(txn, req, lacks, depth)? {
            return Ok(None);
        }
    }
}

/// Learns of a directory on the path, to which `depth` names lead. `false`: it is not there, or
/// nobody says so soon.
fn learn(txn: &Txn<'_>, req: &WalkTo, at: At, depth: usize) -> Result<bool> {
    let key = txn.content_key(at.home, at.id);
    if !txn.is_here(&key) {
        txn.wants_confirmed();
        txn.means(&key, at.ino);
        // The directories above are read with it, where they are as the names predict.
        let above = above(txn, &req.from, &req.names[..depth.saturating_sub(1)]);
        let keys: Vec<_> = [key.clone()].into_iter().chain(above).collect();
        txn.want_if_told(&keys).inspect_err(|fault| {
            if matches!(fault, Fault::Remote) {
                Counters::add(&txn.shared.counters.fast_path_reads);
            }
        })?;
        if txn.is_silent_about(&key) {
            return Ok(false);
        }
    } else if !txn.is_confirmed(&key) {
        return Ok(false);
    }
    let (content, version) = txn.glance(&key)?;
    let is_meant = |content: &Content| content.ino == at.ino && content.state == ContentState::Live;
    let Some(content) = content.filter(is_meant) else { return Ok(false) };
    let late = txn.shared.bugs.has(Bug::DirLearntLate);
    let version = if late { txn.shared.invalidations.version() } else { version };
    txn.learn_way(at, &content, version);
    Ok(true)
}

/// The keys of the records of `top`, and of the directories to which the names lead as predicted,
/// without those of which something is known.
fn above(txn: &Txn<'_>, top: &DirRef, names: &[EntryName]) -> Vec<Key> {
    let (hash, locality) = (txn.shared.config.hash_key, txn.shared.config.locality);
    let top = Predicted::known(top.id, top.home);
    let below = names.iter().scan(top, |at, name| {
        *at = at.child(locality, &hash, name);
        Some(*at)
    });
    let all: Vec<_> = std::iter::once(top).chain(below.take(AHEAD_MAX)).collect();
    let unknown = all.into_iter().filter(|at| !txn.shared.paths.knows(at.id));
    unknown.map(|at| txn.content_key(at.home, at.id)).collect()
}
