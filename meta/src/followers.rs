//! The list of all mechanisms that follow the writes of a core ([`crate::follow`]).

use base::Locality;

use crate::{
    audit, feed, file_locks,
    follow::Followers,
    handoff, invalidation, keys,
    placing::homes,
    quota::sums,
    reclaim::backlog,
    record_cache,
    server::Shared,
    session, settings,
    transact::{self, early_mkdirs},
    unsynced,
};

/// The followers of one core, in the order in which they are told, which is also the order in which
/// they wake tasks.
pub(crate) fn of_core(shared: &Shared, core: usize) -> Followers {
    let Shared { handoffs, quotas, .. } = shared;
    let threshold = shared.options.limits.split_threshold;
    let is_alone = shared.cluster.is_none();
    let mut all: Followers = Vec::new();
    if shared.config.locality == Locality::Hybrid {
        // This one looks at what the record cache has of before the write.
        let (homes, cache) = (shared.homes.clone(), shared.record_cache.clone());
        all.push(Box::new(homes::Counting::new(homes, cache, shared.engine.clone())));
    }
    let usual: Followers = vec![
        Box::new(record_cache::Keeper::new(shared.record_cache.clone())),
        Box::new(handoff::table::Watch::new(handoffs.clone(), shared.bugs)),
        Box::new(transact::ends::Ends::new(shared.early_mkdirs.clone(), shared.prepared.clone())),
        Box::new(early_mkdirs::freed::Noting::new(shared.early_mkdirs.clone())),
        Box::new(session::table::Ends::new(shared.sessions.clone(), shared.file_locks.clone())),
        Box::new(settings::Change::new(shared.settings.clone())),
        Box::new(keys::put_in_force::PutInForce::new(shared.keys.clone())),
        Box::new(sums::Sums::new(quotas.clone(), core)),
    ];
    all.extend(usual);
    if !is_alone {
        all.push(Box::new(handoff::table::Splits::new(handoffs.clone(), threshold)));
    }
    all.push(Box::new(invalidation::Listing::new(shared.invalidations.clone(), is_alone)));
    all.push(Box::new(backlog::Collector::new(shared.backlog.clone())));
    all.push(Box::new(unsynced::Noting::new(shared.unsynced.clone())));
    all.push(Box::new(file_locks::Teller));
    all.push(Box::new(feed::recorder::Recorder::new(
        shared.feed.clone(),
        shared.clock.clone(),
        core,
    )));
    if let Some(audit) = &shared.options.audit {
        all.push(Box::new(audit::teller::Teller::new(audit.queue().clone(), core)));
    }
    all
}

/// Writes a group as a core does, but for its answers.
#[cfg(test)]
pub(crate) fn write(shared: &Shared, group: &mut crate::txn::CommitGroup) {
    let (mut followers, changes) = (of_core(shared, group.core), &mut group.changes);
    followers.iter_mut().for_each(|follower| follower.writing(changes));
    shared.engine.write(changes.take_batch()).expect("the engine is in memory");
    let write = crate::follow::Write { is_done: true, is_halted: false };
    followers.iter_mut().for_each(|follower| follower.written(&mut changes.facts, write));
}
