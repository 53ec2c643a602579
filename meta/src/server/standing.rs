//! The standing of a server: whether clients should be sent to it, and what is wrong. The status
//! page, `/readyz`, `/metrics` and `pando status` show this text and nothing else.
//!
//! A server is ready when it can answer new clients. So it is not while it has no lease, although
//! it may go on for clients that are there. A full disk is a problem of a server that is ready:
//! reads and removals are the way back.

use std::time::Duration;

use super::Shared;
use crate::{
    cluster::Cluster, coordinator, millis::millis, space_guard::Level, transact::PATIENCE,
};

impl Shared {
    /// The standing of this server.
    pub(crate) fn standing(&self) -> wire::Standing {
        let cluster = self.cluster.as_ref();
        let mut problems = match cluster {
            Some(it) if !it.coordinates() => {
                let unchecked = it.own.is_unchecked().then(|| coordinator::unchecked(it.me));
                self.doubts(it).into_iter().chain(unchecked).collect()
            }
            Some(_) | None => coordinator::status(self).map_or_else(|_| vec![], |it| it.problems),
        };
        let unready = self.unready(&problems);
        if let Some(why) = unready.clone().filter(|why| !problems.contains(why)) {
            problems.insert(0, why);
        }
        if self.space_guard.level() != Level::Enough {
            problems.push("writes are refused: the disk is nearly full".to_owned());
        }
        if let Some(why) = self.block_store.problem() {
            problems.push(format!("the block store does not work: {why}"));
        }
        problems.extend(self.options.backup.as_ref().and_then(|backup| backup.problem()));
        problems.extend(self.options.journal.as_ref().and_then(|journal| journal.problem()));
        problems.extend(self.options.audit.as_ref().and_then(|audit| audit.problem()));
        let time = |of: fn(&Cluster) -> Duration| cluster.map_or(0, |cluster| millis(of(cluster)));
        let coordinator = cluster.filter(|it| !it.coordinates()).and_then(|it| it.address(0));
        wire::Standing {
            name: self.config.name.clone(),
            server: cluster.map_or(0, |cluster| cluster.me),
            servers: cluster.map_or(1, Cluster::members),
            heard: coordinator::heard(self),
            coordinator: coordinator.unwrap_or_default(),
            uptime_ms: millis(self.started.elapsed()),
            lease_ms: time(Cluster::lease_left),
            without_lease_ms: cluster.and_then(Cluster::without_lease).map(millis),
            alone_ms: time(Cluster::alone_left),
            ready: unready.is_none(),
            unready: unready.unwrap_or_default(),
            problems,
        }
    }

    /// The reason why clients should not be sent here, if any. `problems` are those of the cluster.
    fn unready(&self, problems: &[String]) -> Option<String> {
        if let Some(problem) = &*self.halted.borrow() {
            return Some(problem.to_string());
        }
        if self.may_be_replaced() {
            return Some("the lease of the journal has ended: another server may serve".to_owned());
        }
        let cluster = self.cluster.as_ref()?;
        let without = cluster.without_lease()?;
        if cluster.coordinates() {
            let incomplete = problems.iter().find(|problem| problem.starts_with("nothing is"));
            return Some(incomplete.cloned().unwrap_or_else(|| "no lease yet".to_owned()));
        }
        if let Some(left) = cluster.own.waits() {
            return Some(format!(
                "the process that served this directory before, in another place, may still serve \
                 for {} s: waiting for that. If its machine is off, start this one with `pando \
                 serve --replace`",
                left.as_secs() + 1
            ));
        }
        let coordinator = cluster.address(0).unwrap_or_else(|| "an unknown address".to_owned());
        let since = if cluster.had_lease() { "no lease for" } else { "no lease since the start," };
        let why = if cluster.coordinator_answers() {
            "waits until all servers are there"
        } else {
            "does not answer"
        };
        let seconds = without.as_secs();
        let mut said = format!("{since} {seconds} s: the coordinator at {coordinator} {why}");
        let alone = cluster.alone_left();
        if !alone.is_zero() {
            let seconds = alone.as_secs();
            said += &format!("; what mounts have open is served for {seconds} s more");
        }
        Some(said)
    }

    /// The transactions in doubt at a server that does not coordinate; the coordinator tells the
    /// rest.
    fn doubts(&self, cluster: &Cluster) -> Option<String> {
        let doubt = self.prepared.in_doubt(cluster.me, PATIENCE)?;
        Some(format!(
            "transactions in doubt here: {}, the oldest for {} s; waiting for server {}",
            doubt.count,
            doubt.oldest_ms / 1000,
            doubt.server
        ))
    }
}
