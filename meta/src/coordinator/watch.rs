//! Logs changes of leases: that this server has lost its own and has it again, and, at the
//! coordinator, which servers are silent, are back, or are missing from the start.
//!
//! `run` looks each time it has asked for a lease. Always true: whatever was logged as gone is
//! logged when it is back.

use std::time::Duration;

use tokio::time::Instant;

use super::Coordinator;
use crate::{
    cluster::Cluster,
    server::{Counters, Shared},
};

/// A server that has no lease so long after its start says so. A cluster that is being started
/// takes less.
const FIRST_LEASE_WITHIN: Duration = Duration::from_secs(5);

/// The state that was logged last.
#[derive(Default)]
pub(super) struct Watch {
    had: bool,
    /// Whether the lack of a lease was logged, and its return was not yet.
    lacking: bool,
    /// The message about an incomplete cluster that was logged last.
    missing: Option<String>,
    /// Numbers of the servers that were logged as silent.
    silent: Vec<u16>,
}

impl Watch {
    /// Logs what has changed since the last look.
    pub(super) fn look(&mut self, shared: &Shared, cluster: &Cluster) {
        match &cluster.coordinator {
            Some(coordinator) => {
                self.look_at_missing(cluster, coordinator);
                self.look_at_lease(shared, cluster);
                self.look_at_others(cluster, coordinator);
            }
            None => self.look_at_lease(shared, cluster),
        }
    }

    fn look_at_lease(&mut self, shared: &Shared, cluster: &Cluster) {
        let (has, had) = (cluster.has_lease(), self.had);
        self.had = has;
        if has && std::mem::take(&mut self.lacking) {
            tracing::warn!("the coordinator has given a lease: serving again");
        } else if has && !had {
            tracing::info!("the coordinator has given a lease: serving");
        } else if had && !has {
            Counters::add(&shared.counters.leases_ended);
            self.lacking = true;
            tracing::warn!(
                alone = ?cluster.options.alone,
                "the lease has ended: operations on cached paths wait for the coordinator, and all \
                 others once the time `alone` is over"
            );
        } else if !has && !self.lacking && self.is_late(cluster) {
            self.lacking = true;
            let coordinator = cluster.address(0).unwrap_or_default();
            let answers = cluster.coordinator_answers();
            tracing::warn!(coordinator, answers, "no lease since the start: nothing is served");
        }
    }

    fn look_at_missing(&mut self, cluster: &Cluster, coordinator: &Coordinator) {
        let missing = {
            let state = coordinator.state.lock();
            state.roster.missing(cluster.servers).filter(|_| state.member.map.servers.is_empty())
        };
        if missing.is_some() && missing != self.missing && self.is_late(cluster) {
            tracing::warn!("{}", missing.as_deref().unwrap_or_default());
            // This message also says that there is no lease.
            self.lacking = true;
            self.missing = missing;
        }
    }

    fn look_at_others(&mut self, cluster: &Cluster, coordinator: &Coordinator) {
        let state = coordinator.state.lock();
        if state.member.map.servers.is_empty() {
            return;
        }
        let now = Instant::now();
        for server in state.member.map.members() {
            let address = &state.member.map.servers[usize::from(server)];
            let Some(standing) = state.leases.standing(server, now) else { continue };
            let at = self.silent.iter().position(|other| *other == server);
            match at {
                None if standing.overdue && server != cluster.me => {
                    let for_s = standing.silent.map(|silent| silent.as_secs());
                    tracing::warn!(
                        server,
                        address,
                        for_s,
                        "nothing is heard of a server: what is on it waits until it is back"
                    );
                    self.silent.push(server);
                }
                Some(at) if !standing.overdue => {
                    tracing::warn!(server, address, "a server that was silent is back");
                    self.silent.remove(at);
                }
                Some(_) | None => {}
            }
        }
    }

    /// Whether a lease should have been there by now.
    fn is_late(&self, cluster: &Cluster) -> bool {
        cluster.without_lease().is_some_and(|time| time >= FIRST_LEASE_WITHIN)
    }
}
