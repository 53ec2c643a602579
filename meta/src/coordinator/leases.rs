//! The lease of each server, and how far its invalidation list has come. Pure; times come in.
//!
//! A server that has a lease may answer from what clients have cached. So nothing that they cached
//! may change before the server knows of it, or its lease has ended. The server counts its lease
//! from when it asked. The coordinator counts from when it answered, which is later, and adds a
//! margin for clocks that do not run equally fast.

use std::time::Duration;

use tokio::time::Instant;
use wire::InDoubt;

/// The state that the coordinator keeps about one server.
#[derive(Debug, Clone)]
struct Holder {
    /// Time at which the server's lease has ended for certain.
    until: Instant,
    /// Version of the server's invalidation list, as far as the coordinator knows.
    has: u64,
    /// When the server was last heard of in this run of the coordinator.
    heard: Option<Instant>,
    version: u64,
    requests: u64,
    /// Version of the accounting roots that the server has.
    roots: u64,
    in_doubt: Option<InDoubt>,
    strict: bool,
    /// Number of the latest run in which the server said that it had lost something.
    lost_in: Option<u64>,
    /// The run that was answered last, and when.
    answered: Option<(u64, Instant)>,
    /// Whether the server's directory is an old copy that no check has looked at yet.
    unchecked: bool,
    /// Whether the server has left the cluster.
    has_left: bool,
}

/// The state that a server reports with its heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) version: u64,
    pub(crate) requests: u64,
    pub(crate) roots: u64,
    pub(crate) in_doubt: Option<InDoubt>,
    /// Whether the server answers only when an operation is on stable storage.
    pub(crate) strict: bool,
    /// Whether the server's directory is an old copy that no check has looked at yet.
    pub(crate) unchecked: bool,
}

/// The state of a server's lease, to be shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) left: Duration,
    /// Whether the lease has ended for certain, even one that an earlier run of the coordinator
    /// gave, and nothing was heard of the server for as long.
    pub(crate) overdue: bool,
    pub(crate) silent: Option<Duration>,
    pub(crate) version: u64,
    pub(crate) requests: u64,
    pub(crate) in_doubt: Option<InDoubt>,
    /// Whether the server answers only when an operation is on stable storage.
    pub(crate) strict: bool,
    /// Whether the server's directory is an old copy that no check has looked at yet.
    pub(crate) unchecked: bool,
}

/// The leases of all servers.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    lease: Duration,
    /// How long servers go on without a lease.
    alone: Duration,
    holders: Vec<Holder>,
}

impl Leases {
    /// The leases after a start of the coordinator: each of the `servers` may hold one until
    /// `until`.
    pub(crate) fn unknown(
        lease: Duration,
        alone: Duration,
        servers: u16,
        until: Instant,
    ) -> Leases {
        let holder = Holder {
            until,
            has: 0,
            heard: None,
            version: 0,
            requests: 0,
            roots: 0,
            in_doubt: None,
            strict: false,
            lost_in: None,
            answered: None,
            unchecked: false,
            has_left: false,
        };
        Leases { lease, alone, holders: vec![holder; usize::from(servers)] }
    }

    /// Takes in a heartbeat that came at `now`. With `grant` the server has a lease from now on,
    /// and takes in all events so far before it uses the lease.
    pub(crate) fn beat(&mut self, server: u16, now: Instant, beat: Beat, grant: bool) {
        let ends = now + self.lease + self.margin();
        let Some(holder) = self.holders.get_mut(usize::from(server)) else { return };
        holder.heard = Some(now);
        holder.version = beat.version;
        holder.requests = beat.requests;
        holder.roots = beat.roots;
        holder.in_doubt = beat.in_doubt;
        holder.strict = beat.strict;
        holder.unchecked = beat.unchecked;
        holder.has = holder.has.max(beat.version);
        if grant {
            holder.until = holder.until.max(ends);
        }
    }

    /// The process of a server that was answered last.
    pub(crate) fn run_of(&self, server: u16) -> Option<u64> {
        self.holders.get(usize::from(server))?.answered.map(|(run, _)| run)
    }

    /// When the server was last heard of, and the moment at which its lease has ended for certain.
    pub(crate) fn known(&self, server: u16) -> (Option<Instant>, Instant) {
        let holder = &self.holders[usize::from(server)];
        (holder.heard, holder.until)
    }

    /// Notes an answer to a run of a server; returns the time since the answer before, zero for the
    /// first one.
    pub(crate) fn answers(&mut self, server: u16, run: u64, now: Instant) -> Duration {
        let Some(holder) = self.holders.get_mut(usize::from(server)) else { return Duration::ZERO };
        let before = holder.answered.replace((run, now)).filter(|(known, _)| *known == run);
        before.map_or(Duration::ZERO, |(_, before)| now.saturating_duration_since(before))
    }

    /// Ends the lease of a server, which has stopped.
    pub(crate) fn end(&mut self, server: u16, now: Instant) {
        if let Some(holder) = self.holders.get_mut(usize::from(server)) {
            holder.until = holder.until.min(now);
        }
    }

    /// The server has left: it has no lease, and nobody waits for it.
    pub(crate) fn leaves(&mut self, server: u16, now: Instant) {
        self.end(server, now);
        if let Some(holder) = self.holders.get_mut(usize::from(server)) {
            holder.has_left = true;
        }
    }

    /// Whether the server says for the first time in this `run` that it has lost something.
    pub(crate) fn is_first_loss(&mut self, server: u16, run: u64) -> bool {
        let Some(holder) = self.holders.get_mut(usize::from(server)) else { return false };
        holder.lost_in.replace(run) != Some(run)
    }

    fn margin(&self) -> Duration {
        self.lease / 8
    }

    /// Notes that the list of a server has come to `version`.
    pub(crate) fn acknowledged(&mut self, server: u16, version: u64) {
        if let Some(holder) = self.holders.get_mut(usize::from(server)) {
            holder.has = holder.has.max(version);
        }
    }

    /// Version up to which a server has the list.
    pub(crate) fn has(&self, server: u16) -> u64 {
        self.holders.get(usize::from(server)).map_or(0, |holder| holder.has)
    }

    /// When the present leases end; their holders may not yet know of what is announced now.
    pub(crate) fn ends(&self) -> Vec<Instant> {
        self.holders.iter().map(|holder| holder.until).collect()
    }

    /// The next of the moments `ends` at which the lease of a server without `version` ends; `None`
    /// when no such lease is left to wait for. Leases that were given after `ends` was taken came
    /// with `version`.
    pub(crate) fn wait_until(
        &self,
        version: u64,
        ends: &[Instant],
        now: Instant,
    ) -> Option<Instant> {
        let lacking = self.holders.iter().zip(ends).filter(|(holder, _)| holder.has < version);
        lacking.map(|(_, ends)| *ends).filter(|ends| *ends > now).min()
    }

    /// Whether all servers but `me` have this version of the accounting roots, or serve nothing any
    /// more: the version comes with the next lease. A server without a lease goes on for a while,
    /// and charges without knowing of a new limit.
    pub(crate) fn all_know_roots(&self, version: u64, me: u16, now: Instant) -> bool {
        let alone = self.alone + self.alone / 8;
        let mut others = (0..).zip(&self.holders).filter(|(server, _)| *server != me);
        others.all(|(_, holder)| {
            holder.has_left || holder.roots == version || holder.until + alone <= now
        })
    }

    /// The state of a server's lease at `now`.
    pub(crate) fn standing(&self, server: u16, now: Instant) -> Option<Standing> {
        let holder = self.holders.get(usize::from(server))?;
        let left = match holder.heard {
            Some(_) => holder.until.saturating_duration_since(now).saturating_sub(self.margin()),
            // Another run of the coordinator gave the lease, if any did.
            None => Duration::ZERO,
        };
        let silent = holder.heard.map(|heard| now.saturating_duration_since(heard));
        let (version, requests) = (holder.version.max(holder.has), holder.requests);
        // Transactions in doubt are shown only while the server has a lease: a server that has died
        // since is told the outcomes when it is back.
        let in_doubt = holder.in_doubt.filter(|_| !left.is_zero());
        let overdue = holder.until <= now && silent.is_none_or(|silent| silent >= self.lease);
        let Holder { strict, unchecked, .. } = *holder;
        Some(Standing { left, overdue, silent, version, requests, in_doubt, strict, unchecked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(8);
    const MARGIN: Duration = Duration::from_secs(1);
    const ALONE: Duration = Duration::from_secs(80);

    fn beat(version: u64) -> Beat {
        Beat { version, requests: 0, roots: 0, in_doubt: None, strict: false, unchecked: false }
    }

    #[test]
    fn who_acknowledged_is_not_waited_for() {
        let now = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 2, now);
        leases.beat(0, now, beat(5), true);
        leases.beat(1, now, beat(5), true);
        let ends = leases.ends();
        leases.acknowledged(0, 6);
        assert_eq!(leases.wait_until(6, &ends, now), Some(now + LEASE + MARGIN));
        leases.acknowledged(1, 6);
        assert_eq!(leases.wait_until(6, &ends, now), None);
    }

    #[test]
    fn who_is_silent_is_waited_for_until_its_lease_has_ended_for_certain() {
        let now = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 1, now);
        leases.beat(0, now, beat(5), true);
        let ends = leases.ends();
        assert_eq!(leases.wait_until(6, &ends, now + LEASE), Some(now + LEASE + MARGIN));
        assert_eq!(leases.wait_until(6, &ends, now + LEASE + MARGIN), None);
    }

    #[test]
    fn a_lease_that_was_given_later_is_not_waited_for() {
        let now = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 1, now);
        leases.beat(0, now, beat(5), true);
        let ends = leases.ends();
        leases.beat(0, now + LEASE, beat(5), true);
        assert_eq!(leases.wait_until(6, &ends, now + LEASE + MARGIN), None);
        assert!(leases.wait_until(7, &leases.ends(), now + LEASE + MARGIN).is_some());
    }

    #[test]
    fn after_a_restart_everybody_is_taken_to_have_a_lease() {
        let now = Instant::now();
        let leases = Leases::unknown(LEASE, ALONE, 3, now + LEASE);
        assert_eq!(leases.wait_until(1, &leases.ends(), now), Some(now + LEASE));
        assert_eq!(leases.wait_until(1, &leases.ends(), now + LEASE), None);
        assert_eq!(leases.standing(1, now).unwrap().left, Duration::ZERO);
    }

    #[test]
    fn roots_are_known_to_who_has_said_so_or_may_not_serve() {
        let began = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 3, began);
        let now = began + ALONE + ALONE / 8;
        assert!(!leases.all_know_roots(7, 0, began + ALONE));
        assert!(leases.all_know_roots(7, 0, now));
        leases.beat(1, now, Beat { roots: 7, ..beat(5) }, true);
        leases.beat(2, now, Beat { roots: 6, ..beat(5) }, true);
        assert!(!leases.all_know_roots(7, 0, now + LEASE + MARGIN + ALONE));
        assert!(leases.all_know_roots(7, 0, now + LEASE + MARGIN + ALONE + ALONE / 8));
        leases.beat(2, now, Beat { roots: 7, ..beat(5) }, true);
        assert!(leases.all_know_roots(7, 0, now));
        assert!(!leases.all_know_roots(8, 0, now));
    }

    #[test]
    fn nobody_waits_for_a_server_that_has_left() {
        let now = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 2, now + LEASE);
        leases.leaves(1, now);
        leases.beat(0, now, Beat { roots: 7, ..beat(5) }, true);
        assert!(leases.all_know_roots(7, 0, now));
        leases.acknowledged(0, 6);
        assert_eq!(leases.wait_until(6, &leases.ends(), now), None);
    }

    #[test]
    fn being_heard_of_without_a_grant_is_no_lease() {
        let now = Instant::now();
        let mut leases = Leases::unknown(LEASE, ALONE, 1, now);
        leases.beat(0, now, beat(0), false);
        assert_eq!(leases.wait_until(1, &leases.ends(), now), None);
    }
}
