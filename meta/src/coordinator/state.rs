//! The coordinator's state, and the lock around it.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use store::{Batch, Engine};
use tokio::{sync::Notify, time::Instant};
use wire::Term;

use super::{
    ancestry_hints::AncestryHints, balance::Balance, generations::Waiting, graph::Graph,
    leases::Leases, news::News, roster::Roster,
};
use crate::{
    cluster::member::{Member, Served},
    log_limit::LogLimit,
    millis::millis,
    moves::plan::Plan,
    problem::OpenError,
    quota::ledgers::Ledgers,
    record::{Record as _, key},
};

/// Number of versions of the log that are reserved at a time.
pub(super) const VERSIONS_RESERVED: u64 = 1 << 16;

/// The coordinator's part of a server.
pub(crate) struct Coordinator {
    pub(super) state: Mutex<State>,
    /// Renames of directories in flight.
    graph: Mutex<Graph>,
    /// Places where renames have seen directories.
    ancestry_hints: Mutex<AncestryHints>,
    /// Grants of quota to each server.
    pub(crate) ledgers: Ledgers,
    /// Notified when the log changes, or how far a server's list has come.
    pub(super) changed: Notify,
}

pub(super) struct State {
    pub(super) member: Member,
    pub(super) roster: Roster,
    pub(super) leases: Leases,
    /// Processes that wait for a generation.
    pub(super) waiting: Waiting,
    /// Number of this run.
    pub(super) run: u64,
    /// The positions of servers that were stored last, and when.
    pub(super) positions_stored: (Vec<u64>, Instant),
    /// Shards that are to move.
    pub(super) plan: Option<Plan>,
    /// The plan that was committed last in this run.
    pub(super) committed: Option<u64>,
    /// The map of the last move or growth in this run.
    pub(super) news: Option<News>,
    /// How evenly the servers are loaded.
    pub(super) balance: Balance,
    /// Log lines about a key ring that is older here than elsewhere.
    pub(super) rings_behind: LogLimit,
}

/// Shortest pause between two such lines.
const LOG_PERIOD: Duration = Duration::from_secs(60);

impl Coordinator {
    /// Opens the coordinator with the state that the last run stored. Also returns the first
    /// version of the log in this run.
    pub(crate) fn open(
        engine: &dyn Engine,
        member: &Member,
        (lease, alone): (Duration, Duration),
        (run, restored): (u64, bool),
        now: Instant,
    ) -> Result<(Coordinator, u64), OpenError> {
        let roster = engine.get(&key::roster())?.ok_or(OpenError::NotFormatted)?;
        let mut roster = Roster::from_record(&roster)?;
        let first = roster.versions_end;
        let number = roster.generations.begin(run, restored);
        // Leases of the last run may not have ended.
        let longest = lease.max(Duration::from_millis(roster.lease_ms));
        let until = if member.map.servers.is_empty() { now } else { now + longest + longest / 8 };
        roster.versions_end = first + VERSIONS_RESERVED;
        roster.lease_ms = millis(lease);
        let mut leases = Leases::unknown(lease, alone, member.count(), until);
        for server in (0..member.count()).filter(|server| roster.has_left(*server)) {
            leases.leaves(server, now);
        }
        let rings_behind = LogLimit::new(LOG_PERIOD);
        let mut member = member.clone();
        member.last.0 = Served {
            generation: number,
            follows: Term { number, run },
            follows_at: 0,
            unchecked: member.last.0.unchecked || restored,
            refused_at: 0,
        };
        let state = State {
            member,
            roster,
            leases,
            waiting: Waiting::default(),
            run,
            positions_stored: (Vec::new(), now),
            plan: None,
            committed: None,
            news: None,
            balance: Balance::open(engine)?,
            rings_behind,
        };
        state.store(engine)?;
        let state = Mutex::new(state);
        let changed = Notify::new();
        let (graph, ancestry_hints, ledgers) =
            (Mutex::default(), Mutex::default(), Ledgers::default());
        Ok((Coordinator { state, graph, ancestry_hints, ledgers, changed }, first))
    }

    /// The map that counts.
    #[cfg(test)]
    pub(super) fn map(&self) -> base::ClusterMap {
        self.state.lock().member.map.clone()
    }

    /// The generation of the coordinator's server.
    pub(crate) fn term(&self) -> u64 {
        self.state.lock().roster.generations.of(0)
    }

    /// The newest generations of all servers that have one or come before one that has.
    pub(crate) fn generations(&self) -> Vec<u64> {
        self.state.lock().roster.generations.numbers()
    }

    /// The graph of directory renames in flight.
    pub(crate) fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock()
    }

    /// Ancestors of directories, as renames have seen them.
    pub(crate) fn ancestry_hints(&self) -> MutexGuard<'_, AncestryHints> {
        self.ancestry_hints.lock()
    }

    /// Whether all servers but `me` have this version of the accounting roots, or serve nothing
    /// before they do.
    pub(crate) fn all_know_roots(&self, version: u64, me: u16, now: Instant) -> bool {
        self.state.lock().leases.all_know_roots(version, me, now)
    }

    /// Whether `server` is to be called, as there is a new map.
    pub(super) fn calls(&self, server: u16) -> bool {
        self.state.lock().news.as_mut().is_some_and(|news| news.calls(server))
    }

    /// A call of `server` was lost.
    pub(super) fn calls_again(&self, server: u16) {
        if let Some(news) = self.state.lock().news.as_mut() {
            news.calls_again(server);
        }
    }

    /// Whether this server waits until others have a new map.
    pub(super) fn has_news(&self) -> bool {
        self.state.lock().news.is_some()
    }

    /// Whether `server` has asked for a lease within the time of one, or has left.
    pub(super) fn hears_of(&self, server: u16) -> bool {
        let state = self.state.lock();
        state.hears_of(server, Instant::now()) || state.roster.has_left(server)
    }

    /// Version up to which `server` has the list.
    pub(super) fn has(&self, server: u16) -> u64 {
        self.state.lock().leases.has(server)
    }

    /// Notes that `server` has the list up to `version`.
    pub(super) fn acknowledged(&self, server: u16, version: u64) {
        self.state.lock().leases.acknowledged(server, version);
        self.changed.notify_waiters();
    }
}

impl State {
    /// Makes the state stable, before the server serves.
    fn store(&self, engine: &dyn Engine) -> Result<(), store::Error> {
        engine.write(self.to_batch())?;
        engine.sync()
    }

    pub(super) fn to_batch(&self) -> Batch {
        let mut batch = Batch::default();
        batch.put(&key::roster(), &self.roster.to_record());
        batch.put(&key::member(), &self.member.to_record());
        if let Some(told) = self.balance.record() {
            batch.put(&key::balancing(), &told);
        }
        batch
    }

    /// The coordinator, as members keep to it.
    pub(super) fn term(&self) -> Term {
        Term { number: self.roster.generations.of(0), run: self.run }
    }

    /// Whether `server` was heard of within a lease.
    pub(super) fn hears_of(&self, server: u16, now: Instant) -> bool {
        let silent = self.leases.standing(server, now).and_then(|standing| standing.silent);
        silent.is_some_and(|silent| silent < self.lease())
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.roster.lease_ms)
    }

    /// Length of the leases that are given now: 0 before there is a map.
    pub(super) fn lease_ms(&self) -> u64 {
        if self.member.map.servers.is_empty() { 0 } else { self.roster.lease_ms }
    }
}
