//! The invalidation list: which directories were moved or changed permissions, in order.
//!
//! Clients cache what they resolved and are not told of changes. A request that stands on a cached
//! path carries the version it was resolved at and the directories of the path. It is refused when
//! something newer in the list has to do with one of them (InfiniFS §3.4, lazy invalidation). The
//! list is bounded: a client that is half of it behind is refused, too, and told of all that it has
//! missed. A client that is behind the list's start drops its whole cache.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base::{DirId, HashMap};
use parking_lot::Mutex;
use wire::{CacheEvents, Stand, way_mark};

use crate::{
    changes::Facts,
    follow::{Follower, Write},
};

const EVENTS_MAX: usize = 10_000;
/// A client that has missed more events than this is told of them, even if none is on its path: it
/// must hear of them while the list has them.
const MISSED_MAX: u64 = EVENTS_MAX as u64 / 2;
/// Longest path that is compared, in directories, which bounds the work. Any event makes a longer
/// one stale.
const WAY_MAX: usize = 1024;

/// The list. Its first version is drawn at start, so that no version of an earlier run is current.
/// In a cluster the coordinator gives the versions, and the lists of all servers are equal as far
/// as they have come. There, version 0 means that the list has not begun.
pub(crate) struct Invalidations {
    version: AtomicU64,
    /// All that was executed under an earlier version than this is written.
    settled: AtomicU64,
    events: Mutex<Events>,
}

/// The events of the list.
#[derive(Default)]
struct Events {
    /// The events that led to the present version, oldest first.
    dirs: VecDeque<DirId>,
    /// The version of the last event of each directory, by the directory's mark.
    latest: HashMap<u32, u64>,
}

impl Events {
    /// Adds the event that leads to `version`.
    fn push(&mut self, dir: DirId, version: u64) {
        self.dirs.push_back(dir);
        self.latest.insert(way_mark(dir), version);
        if self.dirs.len() > EVENTS_MAX
            && let Some(oldest) = self.dirs.pop_front()
        {
            let led_to = version - EVENTS_MAX as u64;
            let mark = way_mark(oldest);
            if self.latest.get(&mark) == Some(&led_to) {
                self.latest.remove(&mark);
            }
        }
    }

    /// Whether any event in the list after the request's version is on the request's path.
    fn touch(&self, stand: &Stand) -> bool {
        stand.way.iter().any(|mark| self.latest.get(mark).is_some_and(|at| *at > stand.version))
    }

    /// The events after `version`; a reset when the list does not have them.
    fn since(&self, version: u64, now: u64) -> CacheEvents {
        let missed = now.checked_sub(version).and_then(|missed| usize::try_from(missed).ok());
        match missed {
            Some(missed) if missed <= self.dirs.len() => CacheEvents {
                version: now,
                reset: false,
                dirs: self.dirs.iter().skip(self.dirs.len() - missed).copied().collect(),
            },
            Some(_) | None => CacheEvents { version: now, reset: true, dirs: Vec::new() },
        }
    }
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

    /// The latest version known to be settled: no core has anything unwritten that was checked
    /// under an earlier version.
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Notes that all is written that was checked under an earlier version than this.
    pub(crate) fn settle(&self, version: u64) {
        self.settled.fetch_max(version, Ordering::AcqRel);
    }

    /// Number of events in the list.
    pub(crate) fn len(&self) -> usize {
        self.events.lock().dirs.len()
    }

    /// Adds events; called before the operation that caused them is answered.
    pub(crate) fn add(&self, dirs: &[DirId]) {
        if dirs.is_empty() {
            return;
        }
        let mut events = self.events.lock();
        self.append(&mut events, self.version(), dirs);
    }

    /// Adds the events that come after version `after`.
    fn append(&self, events: &mut Events, after: u64, dirs: &[DirId]) {
        for (dir, version) in dirs.iter().zip(after + 1..) {
            events.push(*dir, version);
        }
        self.version.store(after + dirs.len() as u64, Ordering::Release);
    }

    /// Takes in events that another server has given the versions after `after`; `false` when some
    /// before them are missing. Events that are here already are not added again.
    pub(crate) fn take_in(&self, after: u64, dirs: &[DirId]) -> bool {
        let mut events = self.events.lock();
        let now = self.version();
        if now == 0 || now < after {
            return false;
        }
        let known = usize::try_from(now - after).unwrap_or(usize::MAX);
        self.append(&mut events, now, dirs.get(known..).unwrap_or_default());
        true
    }

    /// Begins the list anew at `version`, with the events that led to it, unless the list has come
    /// so far already. A client at a version before these events drops its whole cache.
    pub(crate) fn begin_anew(&self, version: u64, dirs: &[DirId]) {
        let mut events = self.events.lock();
        if self.version() < version {
            *events = Events::default();
            self.append(&mut events, version - dirs.len() as u64, dirs);
        }
    }

    /// All events of the list, for a server whose list has not begun (InfiniFS §4.2).
    pub(crate) fn all(&self) -> CacheEvents {
        let events = self.events.lock();
        CacheEvents {
            version: self.version(),
            reset: true,
            dirs: events.dirs.iter().copied().collect(),
        }
    }

    /// Whether the events after `version` are not in the list any more: the list has begun anew, or
    /// too many have come since.
    pub(crate) fn began_anew_since(&self, version: u64) -> bool {
        self.since(version).is_some_and(|events| events.reset)
    }

    /// The events after `version`; `None` when there are none.
    pub(crate) fn since(&self, version: u64) -> Option<CacheEvents> {
        if version == self.version() {
            return None;
        }
        let events = self.events.lock();
        Some(events.since(version, self.version()))
    }

    /// The events that make a request stale. `None` while the request is current: its path is known
    /// and short enough, none of the events is on it, and few have come since. Otherwise all events
    /// since its version.
    pub(crate) fn outdates(&self, stand: &Stand) -> Option<CacheEvents> {
        if stand.version == self.version() {
            return None;
        }
        let events = self.events.lock();
        let now = self.version();
        let is_heard = now
            .checked_sub(stand.version)
            .is_some_and(|missed| missed <= MISSED_MAX.min(events.dirs.len() as u64));
        let is_compared = (1..=WAY_MAX).contains(&stand.way.len());
        let stays = is_heard && is_compared && !events.touch(stand);
        (!stays).then(|| events.since(stand.version, now))
    }
}

/// Lists the directories that a core's groups have moved.
pub(crate) struct Listing {
    list: Arc<Invalidations>,
    /// Whether this is the only server. In a cluster the coordinator has announced these events
    /// before anything was written.
    is_alone: bool,
}

impl Listing {
    pub(crate) fn new(list: Arc<Invalidations>, is_alone: bool) -> Listing {
        Listing { list, is_alone }
    }
}

impl Follower for Listing {
    fn answered(&mut self, facts: &mut Facts, _write: Write) {
        if self.is_alone {
            self.list.add(&facts.moved);
        }
        facts.moved.clear();
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

    fn stand(version: u64, dirs: &[u128]) -> Stand {
        Stand { version, held: None, way: dirs.iter().map(|dir| way_mark(DirId(*dir))).collect() }
    }

    #[test]
    fn a_request_is_outdated_by_what_happened_on_its_way_since() {
        let list = Invalidations::new(100);
        list.add(&[DirId(7), DirId(8)]);
        assert_eq!(list.outdates(&stand(102, &[7, 8])), None);
        assert_eq!(list.outdates(&stand(100, &[1, 2, 9])), None);
        assert_eq!(list.outdates(&stand(101, &[1, 7])), None, "it was before");
        let events = list.outdates(&stand(101, &[1, 8])).unwrap();
        assert_eq!((events.version, events.dirs), (102, vec![DirId(8)]));
        let events = list.outdates(&stand(100, &[7])).unwrap();
        assert_eq!((events.version, events.dirs), (102, vec![DirId(7), DirId(8)]));
        assert!(list.outdates(&stand(101, &[])).is_some(), "its way is not known");
        assert_eq!(list.outdates(&stand(101, &[1; 1024])), None);
        assert!(list.outdates(&stand(101, &[1; 1025])).is_some(), "its way is very long");
        assert!(list.outdates(&stand(99, &[1])).unwrap().reset, "what it missed is not known");
        assert!(list.outdates(&stand(103, &[1])).unwrap().reset, "it is of another run");
        list.add(&[DirId(7)]);
        assert!(list.outdates(&stand(102, &[7])).is_some(), "it has happened again");
    }

    #[test]
    fn who_is_far_behind_is_told_before_the_list_has_forgotten() {
        let list = Invalidations::new(100);
        list.add(&[DirId(7)]);
        let missed = usize::try_from(MISSED_MAX).unwrap();
        list.add(&vec![DirId(8); missed - 1]);
        assert_eq!(list.outdates(&stand(100, &[1])), None);
        list.add(&[DirId(8)]);
        let events = list.outdates(&stand(100, &[1])).unwrap();
        assert_eq!((events.reset, events.dirs.len()), (false, missed + 1));
        // Events are forgotten with all that is known of them.
        list.add(&vec![DirId(9); EVENTS_MAX - missed - 1]);
        assert!(list.outdates(&stand(100, &[1])).is_some_and(|events| !events.reset));
        list.add(&[DirId(9)]);
        assert!(list.outdates(&stand(100, &[1])).unwrap().reset);
        assert_eq!(list.events.lock().latest.len(), 2);
    }

    #[test]
    fn a_list_that_is_filled_by_another_has_no_gaps_and_nothing_twice() {
        let list = Invalidations::new(0);
        assert!(!list.take_in(0, &[DirId(1)]), "it has not begun");
        list.begin_anew(100, &[]);
        assert!(list.take_in(100, &[DirId(1), DirId(2)]));
        assert!(list.take_in(100, &[DirId(1), DirId(2), DirId(3)]));
        assert!(list.take_in(100, &[DirId(1)]));
        assert!(!list.take_in(104, &[DirId(5)]));
        assert_eq!(list.since(100).unwrap().dirs, [DirId(1), DirId(2), DirId(3)]);
        assert_eq!(list.version(), 103);
    }

    #[test]
    fn a_list_that_begins_with_all_of_another_tells_the_same() {
        let (list, other) = (Invalidations::new(100), Invalidations::new(0));
        list.add(&[DirId(7), DirId(8)]);
        let all = list.all();
        other.begin_anew(all.version, &all.dirs);
        for version in 99..=103 {
            assert_eq!(other.since(version), list.since(version), "{version}");
        }
        assert_eq!(other.outdates(&stand(100, &[9])), None);
        assert!(other.outdates(&stand(100, &[8])).is_some());
    }

    #[test]
    fn a_list_that_begins_anew_tells_everybody_to_drop_everything_and_never_goes_back() {
        let list = Invalidations::new(0);
        list.begin_anew(100, &[]);
        assert!(list.take_in(100, &[DirId(1)]));
        list.begin_anew(101, &[]);
        assert_eq!(list.since(100).unwrap().dirs, [DirId(1)]);
        assert!(!list.began_anew_since(101) && !list.began_anew_since(100));
        list.begin_anew(500, &[]);
        assert!(list.began_anew_since(101));
        assert!(list.since(101).unwrap().reset);
        list.begin_anew(400, &[]);
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
