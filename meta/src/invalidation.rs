//! The invalidation list: which directories were moved or changed permissions, in order.
//!
//! Clients cache what they resolved and are not told of changes; a request that stands on a cached path
//! carries the version it was resolved at, and is refused when the list has something newer (InfiniFS §3.4,
//! lazy invalidation). The list is bounded; who is behind its start drops the whole cache.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use base::DirId;
use parking_lot::Mutex;
use wire::CacheEvents;

const EVENTS_MAX: usize = 10_000;

/// The list. Its first version is drawn at start, so that no version of an earlier run is current. In a cluster the
/// coordinator gives the versions, and the lists of all servers are the same as far as they have come; there, 0 means
/// that it has not begun.
pub(crate) struct Invalidations {
    version: AtomicU64,
    /// What was executed under an earlier version than this is written.
    settled: AtomicU64,
    /// The events that led to the present version, oldest first.
    events: Mutex<VecDeque<DirId>>,
}

impl Invalidations {
    pub(crate) fn new(version: u64) -> Invalidations {
        let (settled, events) = (AtomicU64::new(version), Mutex::default());
        Invalidations { version: AtomicU64::new(version), settled, events }
    }

    /// The present version.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The latest version of which it is known that no core has anything unwritten that was checked under an earlier one.
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// What was checked under an earlier version than this is written.
    pub(crate) fn settle(&self, version: u64) {
        self.settled.fetch_max(version, Ordering::AcqRel);
    }

    /// How many events are kept.
    pub(crate) fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Adds events; called before the operation that caused them is answered.
    pub(crate) fn add(&self, dirs: &[DirId]) {
        if dirs.is_empty() {
            return;
        }
        let mut events = self.events.lock();
        events.extend(dirs);
        while events.len() > EVENTS_MAX {
            events.pop_front();
        }
        self.version.fetch_add(dirs.len() as u64, Ordering::AcqRel);
    }

    /// Takes in events that another server has given the versions after `after`; `false` when some before them are
    /// missing. Those that are here already are not added again.
    pub(crate) fn take_in(&self, after: u64, dirs: &[DirId]) -> bool {
        let mut events = self.events.lock();
        let now = self.version();
        if now == 0 || now < after {
            return false;
        }
        let known = usize::try_from(now - after).unwrap_or(usize::MAX);
        let new = dirs.get(known..).unwrap_or_default();
        events.extend(new);
        while events.len() > EVENTS_MAX {
            events.pop_front();
        }
        self.version.fetch_add(new.len() as u64, Ordering::AcqRel);
        true
    }

    /// Begins anew at `version`, unless the list is there already: who knows an earlier one drops everything.
    pub(crate) fn begin_anew(&self, version: u64) {
        let mut events = self.events.lock();
        if self.version() < version {
            events.clear();
            self.version.store(version, Ordering::Release);
        }
    }

    /// Whether it has begun anew since it had come to `version`, or so much has come that it is as if it had.
    pub(crate) fn began_anew_since(&self, version: u64) -> bool {
        self.since(version).is_some_and(|events| events.reset)
    }

    /// What happened since `version`; `None` when nothing did.
    pub(crate) fn since(&self, version: u64) -> Option<CacheEvents> {
        if version == self.version() {
            return None;
        }
        let events = self.events.lock();
        let now = self.version();
        let missed = now.checked_sub(version).and_then(|missed| usize::try_from(missed).ok());
        match missed {
            Some(missed) if missed <= events.len() => Some(CacheEvents {
                version: now,
                reset: false,
                dirs: events.iter().skip(events.len() - missed).copied().collect(),
            }),
            Some(_) | None => Some(CacheEvents { version: now, reset: true, dirs: Vec::new() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_exactly_what_it_missed() {
        let list = Invalidations::new(100);
        assert_eq!(list.since(100), None);
        list.add(&[DirId(7), DirId(8)]);
        list.add(&[DirId(9)]);
        let events = list.since(101).unwrap();
        assert_eq!((events.version, events.reset), (103, false));
        assert_eq!(events.dirs, [DirId(8), DirId(9)]);
    }

    #[test]
    fn a_list_that_is_filled_by_another_has_no_gaps_and_nothing_twice() {
        let list = Invalidations::new(0);
        assert!(!list.take_in(0, &[DirId(1)]), "it has not begun");
        list.begin_anew(100);
        assert!(list.take_in(100, &[DirId(1), DirId(2)]));
        assert!(list.take_in(100, &[DirId(1), DirId(2), DirId(3)]));
        assert!(list.take_in(100, &[DirId(1)]));
        assert!(!list.take_in(104, &[DirId(5)]));
        assert_eq!(list.since(100).unwrap().dirs, [DirId(1), DirId(2), DirId(3)]);
        assert_eq!(list.version(), 103);
    }

    #[test]
    fn a_list_that_begins_anew_tells_everybody_to_drop_everything_and_never_goes_back() {
        let list = Invalidations::new(0);
        list.begin_anew(100);
        assert!(list.take_in(100, &[DirId(1)]));
        list.begin_anew(101);
        assert_eq!(list.since(100).unwrap().dirs, [DirId(1)]);
        assert!(!list.began_anew_since(101) && !list.began_anew_since(100));
        list.begin_anew(500);
        assert!(list.began_anew_since(101));
        assert!(list.since(101).unwrap().reset);
        list.begin_anew(400);
        assert_eq!(list.version(), 500);
    }

    #[test]
    fn a_client_of_another_run_or_far_behind_drops_everything() {
        let list = Invalidations::new(100);
        assert!(list.since(99).unwrap().reset);
        assert!(list.since(101).unwrap().reset);
        list.add(&vec![DirId(1); EVENTS_MAX + 1]);
        assert!(list.since(100).unwrap().reset);
    }
}
