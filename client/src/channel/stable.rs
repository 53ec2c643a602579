//! Answered changes that a power cut of their server may still take.
//!
//! The channel counts the changes that have succeeded. Changes are stable for certain when a sync
//! that was asked for after them is answered; a caller that asks for all to be stable counts these
//! alone. They are taken to be when the run of the server that answered them is heard of a good
//! while after its commit interval: it has begun a sync by itself within that interval, which a
//! slow disk may not have ended. A server that is silent after its answers tells neither.

use std::time::Duration;

use base::{HashMap, Ino};
use tokio::time::Instant;

/// A sync that begins at the end of the commit interval is taken to have ended so long after it.
const SYNC_TAKES_MAX: Duration = Duration::from_secs(1);

/// The changes of one channel.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Changes that succeeded, and how many of them are stable.
    answered: u64,
    stable: u64,
    /// How many of them a sync has made stable.
    synced: u64,
    /// Changes up to this count were answered by earlier runs of the server: only a sync says that
    /// they are stable.
    of_earlier_runs: u64,
    /// Changes up to this count were answered at this time, or before.
    mark: Option<(u64, Instant)>,
    /// The commit interval of the server; `None`: only a sync says what is stable.
    commit_interval: Option<Duration>,
    /// Files and directories that the server has changed together with other servers: the last such
    /// change of each that is not known to be stable.
    shared: HashMap<Ino, u64>,
    /// The highest count of [`crate::contents::Files::stamp`] up to which the server has all that
    /// this client did stable.
    stamp: u64,
}

impl Changes {
    /// A change has succeeded.
    pub(super) fn succeeded(&mut self) {
        self.answered += 1;
    }

    /// A connection was opened: to `another` run of the server, or to the same one again.
    pub(super) fn connected(&mut self, another: bool, commit_interval: Option<Duration>) {
        self.commit_interval = commit_interval;
        if another {
            self.of_earlier_runs = self.answered;
            self.mark = None;
        }
    }

    /// The server is heard of, after all changes that are counted so far. The time is asked for
    /// only if it matters.
    pub(super) fn heard(&mut self, now: impl FnOnce() -> Instant) {
        let Some(interval) = self.commit_interval else { return };
        if self.answered == self.stable || self.stable < self.of_earlier_runs {
            return;
        }
        let now = now();
        let (count, at) = *self.mark.get_or_insert((self.answered, now));
        if now.duration_since(at) >= interval + SYNC_TAKES_MAX {
            self.are_stable(count);
            self.mark = (self.answered > self.stable).then_some((self.answered, now));
        }
    }

    /// How many changes have succeeded, if no sync has made all of them stable.
    pub(super) fn unsynced(&self) -> Option<u64> {
        (self.answered > self.synced).then_some(self.answered)
    }

    /// Whether some changes that have succeeded are not taken to be stable.
    pub(super) fn any_unstable(&self) -> bool {
        self.answered > self.stable
    }

    /// A sync has made changes up to this count stable.
    pub(super) fn are_synced(&mut self, count: u64) {
        self.synced = self.synced.max(count);
        self.are_stable(count);
    }

    fn are_stable(&mut self, count: u64) {
        if count <= self.stable {
            return;
        }
        self.stable = count;
        self.mark = self.mark.filter(|(marked, _)| *marked > count);
        if !self.shared.is_empty() {
            self.shared.retain(|_, last| *last > count);
        }
    }

    /// The last change that was counted, or one before it, is about these together with other
    /// servers.
    pub(super) fn share(&mut self, inos: &[Ino]) {
        if self.answered > self.stable {
            self.shared.extend(inos.iter().map(|ino| (*ino, self.answered)));
        }
    }

    /// Whether something of these was changed together with other servers, and is not known to be
    /// stable.
    pub(super) fn shares(&self, inos: &[Ino]) -> bool {
        !self.shared.is_empty() && inos.iter().any(|ino| self.shared.contains_key(ino))
    }

    /// All that this client did before `stamp` is stable here.
    pub(super) fn is_stable_to(&mut self, stamp: u64) {
        self.stamp = self.stamp.max(stamp);
    }

    /// See [`Changes::is_stable_to`].
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(2);

    fn after_a_change() -> Changes {
        let mut changes = Changes::default();
        changes.connected(true, Some(INTERVAL));
        changes.succeeded();
        changes
    }

    #[test]
    fn changes_are_stable_when_their_server_is_heard_of_long_after_them() {
        let now = Instant::now();
        let mut changes = after_a_change();
        changes.heard(|| now);
        changes.succeeded();
        changes.heard(|| now + INTERVAL);
        assert!(changes.any_unstable());
        changes.heard(|| now + LONG);
        assert!(changes.any_unstable(), "the second one was counted from then");
        changes.heard(|| now + LONG + LONG);
        assert!(!changes.any_unstable());
        assert_eq!(changes.unsynced(), Some(2), "no sync has said so");
        changes.are_synced(2);
        assert_eq!(changes.unsynced(), None);
    }

    #[test]
    fn only_a_sync_tells_of_changes_that_an_earlier_run_has_answered() {
        let now = Instant::now();
        let mut changes = after_a_change();
        changes.connected(true, Some(INTERVAL));
        changes.heard(|| now);
        changes.heard(|| now + LONG);
        assert!(changes.any_unstable());
        changes.are_synced(1);
        changes.succeeded();
        changes.heard(|| now + LONG);
        changes.heard(|| now + LONG + LONG);
        assert!(!changes.any_unstable());
    }

    #[test]
    fn what_is_shared_with_other_servers_is_so_until_it_is_stable() {
        let mut changes = after_a_change();
        changes.share(&[Ino(7)]);
        assert!(changes.shares(&[Ino(1), Ino(7)]) && !changes.shares(&[Ino(1)]));
        changes.are_synced(1);
        assert!(!changes.shares(&[Ino(7)]));
    }
}
