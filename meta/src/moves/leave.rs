//! How a server that has no shards leaves the cluster.
//!
//! All servers pause as for a move, so no transaction stands on one of this server's decisions. What
//! is left here is what it has charged to quotas: the coordinator takes it over. Both have stopped
//! then, so nothing is charged twice or not at all.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use wire::{Reply, Request, ShardPull};

use crate::{
    cluster::Cluster,
    coordinator::{
        self,
        link::Link,
        moves::{has_shards, take_charges},
    },
    error::{Fault, Result},
    millis::millis,
    record::{
        QuotaId, Record as _, Usage,
        key::{self, UsagePart},
    },
    server::Shared,
};

/// Whether a server may leave, asked of itself and of the coordinator. Returns the time in
/// milliseconds after which it may.
pub(super) fn may(shared: &Shared, plan: u64, server: u16) -> Result<u64> {
    let Some(cluster) = &shared.cluster else { return Ok(0) };
    if cluster.coordinates() {
        return coordinator::moves::leave(shared, plan, server).map(|()| 0);
    }
    if cluster.me != server {
        return Err(Fault::Refused(format!("this is server {}", cluster.me)));
    }
    stays(shared, cluster).map(millis)
}

/// The time for which this server, which has no shards, stays.
///
/// Race: an answer may have been lost with the connection on which it was to come, before shards
/// left. The client asks this server for it, and nobody else knows. So it stays until the lease of
/// each session that there was has ended, or its client has come again.
fn stays(shared: &Shared, cluster: &Cluster) -> Result<Duration> {
    if cluster.map().shards.contains(&cluster.me) {
        return Err(has_shards(cluster.me));
    }
    // A server begins anew when its last shard leaves.
    Ok(shared.options.lease.saturating_sub(shared.started.elapsed()))
}

/// Whether what this server has charged to quotas may be taken over, as it leaves now.
pub(super) fn may_be_taken_over(shared: &Shared) -> Result<()> {
    let Some(cluster) = &shared.cluster else { return Ok(()) };
    if stays(shared, cluster)?.is_zero() {
        return Ok(());
    }
    Err(Fault::Refused("the server has had shards a moment ago: try again".into()))
}

/// Takes over what a server has charged to quotas that leaves. Returns the number of records.
pub(super) async fn charges(shared: &Shared, plan: u64, server: u16) -> Result<u64> {
    let Some(cluster) = shared.cluster.as_ref().filter(|_| shared.moves.is_stopped_for(plan))
    else {
        return Err(Fault::Refused("the coordinator has not stopped for this plan".into()));
    };
    let lost = || Fault::Refused(format!("server {server}, which leaves, does not answer"));
    let mut link = Link::new(shared, cluster, server);
    let mut charges: BTreeMap<QuotaId, Usage> = BTreeMap::new();
    let (mut from, mut records) = (Bytes::new(), 0);
    loop {
        let pull = ShardPull { plan, shards: Vec::new(), from, since: None };
        let Ok(Reply::ShardPage(page)) = link.ask(Request::ShardPull(pull)).await else {
            return Err(lost());
        };
        for (at, value) in &page.records {
            let Some((root, UsagePart::Core(_))) = key::parse_usage(at) else {
                return Err(Fault::Refused("not what a server has charged to quotas".into()));
            };
            let sum = charges.entry(root).or_default();
            *sum = sum.plus(Usage::from_record(value)?);
            records += 1;
        }
        shared.moves.records.store(records, Ordering::Relaxed);
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    take_charges(shared, (plan, server), charges)?;
    Ok(records)
}
