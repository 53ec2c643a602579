//! The counts of all cores, added up for readers.

use std::time::Duration;

use base::{HashMap, SessionId, Tagged as _};
use wire::{BalanceLook, Distribution, Load, Operation, Request};

use super::{
    CoreCounts, Histogram, KINDS, Stages, Subject,
    core::{KindCounts, Outcomes},
    name_of, phases,
    sketch::Rates,
};
use crate::{
    cluster::Cluster, coordinator, server::Shared, space_guard::Level, transact::PATIENCE,
};

/// Number of busy sessions and directories that are reported.
const BUSY_TOLD: usize = 32;

const _: () = {
    let mut at = 0;
    while at < Request::VARIANTS.len() {
        assert!((Request::VARIANTS[at].0 as usize) < KINDS, "every kind has its counts");
        at += 1;
    }
};

/// Pairs of names and values.
pub(crate) fn named<const N: usize>(names: [&str; N], values: [u64; N]) -> Vec<(String, u64)> {
    names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value)).collect()
}

/// The load of the server, without the busiest sessions and directories.
pub(crate) fn load(shared: &Shared) -> Load {
    let cores = &shared.observed.cores;
    let sum = |of: fn(&CoreCounts) -> u64| cores.iter().map(of).sum::<u64>();
    let received = sum(|core| core.received_bytes.get());
    let sent = sum(|core| core.sent_bytes.get());
    let (granted, refused) = shared.file_locks.counted();
    let names = ["received_bytes", "sent_bytes", "locks_granted", "locks_refused"];
    let counters = named(names, [received, sent, granted, refused]);
    let mut distributions = vec![
        ("group_requests".to_owned(), total(cores, |core| &core.group_requests)),
        ("group_bytes".to_owned(), total(cores, |core| &core.group_bytes)),
        ("write_nanos".to_owned(), total(cores, |core| &core.writes)),
        ("sync_nanos".to_owned(), {
            let mut syncs = Distribution::default();
            shared.observed.syncs.add_to(&mut syncs);
            syncs
        }),
        ("lock_wait_nanos".to_owned(), shared.file_locks.waits()),
        ("handoff_frozen_nanos".to_owned(), {
            let mut frozen = Distribution::default();
            shared.observed.frozen.add_to(&mut frozen);
            frozen
        }),
        ("handoff_wait_nanos".to_owned(), total(cores, |core| &core.handoff_waits)),
    ];
    let transactions: Vec<_> = cores.iter().map(|core| &core.transactions).collect();
    distributions.extend(phases::distributions(&transactions));
    Load {
        at_us: shared.observed.now().0 / 1000,
        operations: Request::VARIANTS
            .iter()
            .filter_map(|(tag, _)| operation(cores, *tag))
            .collect(),
        distributions,
        gauges: gauges(shared),
        counters,
        busy_sessions: Vec::new(),
        busy_directories: Vec::new(),
    }
}

fn total<const UNIT: u64>(
    cores: &[CoreCounts],
    of: fn(&CoreCounts) -> &Histogram<UNIT>,
) -> Distribution {
    let mut total = Distribution::default();
    cores.iter().for_each(|core| of(core).add_to(&mut total));
    total
}

/// Counts of one kind of request; `None` if there was none.
fn operation(cores: &[CoreCounts], kind: u8) -> Option<Operation> {
    let counts: Vec<&KindCounts> =
        cores.iter().map(|core| &core.kinds[usize::from(kind)]).collect();
    let sum = |of: &dyn Fn(&KindCounts) -> u64| counts.iter().map(|counts| of(counts)).sum::<u64>();
    let outcomes =
        Outcomes::list(&counts.iter().map(|counts| &counts.outcomes).collect::<Vec<_>>());
    let stages: [u64; Stages::NAMES.len()] =
        std::array::from_fn(|at| sum(&|counts| counts.stages[at].get()));
    let mut latency = Distribution::default();
    counts.iter().for_each(|counts| counts.latency.add_to(&mut latency));
    outcomes.iter().any(|(_, count)| *count > 0).then(|| Operation {
        name: name_of(kind),
        outcomes,
        latency,
        stages: named(Stages::NAMES, stages),
    })
}

fn gauges(shared: &Shared) -> Vec<(String, u64)> {
    let observed = &shared.observed;
    let sum = |of: fn(&CoreCounts) -> u64| observed.cores.iter().map(of).sum::<u64>();
    let engine = shared.engine.stats();
    let memory = shared.options.limits.memory;
    let (bytes, bytes_free) = (shared.options.space)();
    let (reclaim, orphans) = shared.backlog.lengths();
    let (files_locked, held, waiting) = shared.file_locks.totals();
    let me = shared.cluster.as_ref().map_or(0, |cluster| cluster.me);
    let in_doubt = shared.prepared.in_doubt(me, PATIENCE);
    let doubtful = in_doubt.map_or(0, |in_doubt| in_doubt.count);
    let oldest = in_doubt.map_or(0, |in_doubt| in_doubt.oldest_ms.saturating_mul(1_000_000));
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let cluster = shared.cluster.as_ref();
    let expected = cluster.map_or(1, Cluster::members);
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let gauges = [
        ("cores", count(observed.cores.len())),
        ("connections", sum(|core| core.connections.get())),
        ("queued_requests", sum(|core| core.queued.get())),
        ("busy_nanos", observed.busiest()),
        ("sync_waiters", count(shared.sync.waiters())),
        ("transactions_in_doubt", doubtful),
        ("transaction_in_doubt_oldest_nanos", oldest),
        ("births_unconfirmed", count(shared.prepared.unconfirmed().len())),
        ("reclaim_queue", count(reclaim)),
        ("orphans_open", count(orphans)),
        ("compact_queue", count(shared.compact.len())),
        ("invalidation_events", count(shared.invalidations.len())),
        ("open_inodes", count(shared.opens.inodes())),
        ("files_locked", count(files_locked)),
        ("locks_held", count(held)),
        ("locks_waiting", count(waiting)),
        ("sessions_unclaimed", count(shared.opens.unclaimed())),
        ("sessions_max", count(shared.options.limits.sessions_max)),
        ("writable", u64::from(shared.space_guard.level() == Level::Enough)),
        ("block_store", u64::from(shared.block_store.problem().is_none())),
        ("lease", u64::from(cluster.is_none_or(Cluster::has_lease))),
        ("lease_left_nanos", nanos(cluster.map_or(Duration::ZERO, Cluster::lease_left))),
        ("coordinator", u64::from(cluster.is_none_or(Cluster::coordinates))),
        ("servers_expected", u64::from(expected)),
        ("alone", u64::from(cluster.is_some_and(|it| !it.has_lease() && it.serves_alone()))),
        ("slow_operations", observed.slow.after(u64::MAX).1),
        ("slow_threshold_nanos", observed.slow_nanos()),
        ("space_bytes", bytes),
        ("space_free_bytes", bytes_free),
        ("memory_budget_bytes", memory.process),
        ("memory_rest_bytes_max", memory.rest()),
        ("record_cache_bytes", shared.record_cache.bytes()),
        ("record_cache_bytes_max", memory.record_cache),
        ("store_memtable_bytes_max", memory.memtables),
        ("store_block_cache_bytes_max", memory.block_cache),
        ("store_memtable_bytes", engine.memtable_bytes),
        ("store_block_cache_bytes", engine.block_cache_bytes),
        ("store_table_reader_bytes", engine.table_reader_bytes),
        ("store_compaction_pending_bytes", engine.compaction_pending_bytes),
    ];
    let mut gauges: Vec<_> =
        gauges.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    if let Some(backup) = &shared.options.backup {
        gauges.extend(backup.gauges().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    if let Some(journal) = &shared.options.journal {
        gauges.extend(journal.gauges().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    if let Some(audit) = &shared.options.audit {
        gauges.extend(audit.gauges().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    // Only the coordinator knows how many servers it has heard of.
    if let Some(heard) = coordinator::heard(shared) {
        gauges.push(("servers_heard".to_owned(), u64::from(heard)));
        gauges.push(("servers_silent".to_owned(), u64::from(expected.saturating_sub(heard))));
        let look = coordinator::looks::last(shared);
        let of = |part: fn(&BalanceLook) -> u64| look.as_ref().map_or(0, part);
        let advised = |look: &BalanceLook| if look.moved { 0 } else { count(look.moves.len()) };
        let advised = look.as_ref().map_or(0, advised);
        gauges.push(("balance_requests_thousandths".to_owned(), of(|it| u64::from(it.requests))));
        gauges.push(("balance_stored_thousandths".to_owned(), of(|it| u64::from(it.stored))));
        gauges.push(("balance_moves_advised".to_owned(), advised));
    }
    gauges
}

/// Rates of sessions and directories, in thousandths of a request per second, the busiest first.
pub(crate) fn busy(shared: &Shared) -> (Rates<SessionId>, Rates<Subject>) {
    let now = shared.observed.now();
    let (mut sessions, mut subjects) = (HashMap::default(), HashMap::default());
    for core in &shared.observed.cores {
        let (of_sessions, of_subjects) = core.busy.lock().rates(now);
        for (session, rate) in of_sessions {
            *sessions.entry(session).or_insert(0) += rate;
        }
        for (subject, rate) in of_subjects {
            *subjects.entry(subject).or_insert(0) += rate;
        }
    }
    (busiest(sessions), busiest(subjects))
}

fn busiest<K: Ord + Copy>(rates: HashMap<K, u64>) -> Rates<K> {
    let mut rates: Rates<K> = rates.into_iter().collect();
    rates.sort_unstable_by_key(|(key, rate)| (std::cmp::Reverse(*rate), *key));
    rates.truncate(BUSY_TOLD);
    rates
}
