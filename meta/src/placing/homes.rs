//! Sizes of homes, counted in memory: whether directories that are made in one start subtrees of
//! their own.
//!
//! Counted are the masters of directories that this server has, with the entries of their own
//! partition. Each write of a content record is compared with what it replaces, whoever makes it. After
//! a start the counts begin with what the sweep of all content records finds ([`Homes::found`]); what
//! changes before the sweep has come by may count twice. Nothing but the place of new directories
//! stands on them.
//!
//! Cost: for each directory that a group changes, a look into the record cache; for each home one
//! update of a map. Nothing without hybrid placement.

use std::{convert::Infallible, sync::Arc};

use base::{DirId, HashMap};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Engine;

use crate::{
    changes::{Changes, Facts, Found},
    follow::{Follower, Write},
    record::{Content, Record as _, key, key::Part},
    record_cache::RecordCache,
};

/// The end of the key of a directory's own content record.
const MASTER: Option<(u16, u8)> = Some((0, Part::Main as u8));

/// Most homes that are counted: some 20 MB. Of those beyond nothing is known, and they stay whole.
const HOMES_MAX: usize = 1 << 18;

/// A number of directories and of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    pub(crate) dirs: i64,
    pub(crate) entries: i64,
}

impl Size {
    /// The size that a directory adds to its home.
    fn of(master: &Content) -> Size {
        Size { dirs: 1, entries: i64::try_from(master.entries).unwrap_or(i64::MAX) }
    }

    fn minus(self, other: Size) -> Size {
        Size { dirs: self.dirs - other.dirs, entries: self.entries - other.entries }
    }

    fn plus(self, other: Size) -> Size {
        Size { dirs: self.dirs + other.dirs, entries: self.entries + other.entries }
    }
}

/// Sizes from which a home is full, until it has half of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HomeLimits {
    /// Number of directories.
    pub dirs: u32,
    /// Number of entries.
    pub entries: u32,
}

impl HomeLimits {
    /// The limits unless others are given.
    pub const DEFAULT: HomeLimits = HomeLimits { dirs: 512, entries: 65_536 };
}

#[derive(Debug, Default)]
struct Home {
    size: Size,
    is_full: bool,
}

/// The homes of which this server has something.
#[derive(Debug)]
pub(crate) struct Homes {
    limits: HomeLimits,
    counted: Mutex<HashMap<DirId, Home>>,
}

impl Homes {
    pub(crate) fn new(limits: HomeLimits) -> Homes {
        Homes { limits, counted: Mutex::default() }
    }

    /// Whether a home is full.
    pub(crate) fn is_full(&self, home: DirId) -> bool {
        self.counted.lock().get(&home).is_some_and(|home| home.is_full)
    }

    /// The size of a home.
    pub(crate) fn size(&self, home: DirId) -> Size {
        self.counted.lock().get(&home).map(|home| home.size).unwrap_or_default()
    }

    /// Counts a directory that the sweep after a start has found.
    pub(crate) fn found(&self, master: &Content) {
        self.add(std::iter::once((master.home, Size::of(master))));
    }

    fn add(&self, changes: impl Iterator<Item = (DirId, Size)>) {
        let HomeLimits { dirs, entries } = self.limits;
        let mut counted = self.counted.lock();
        for (id, by) in changes {
            if counted.len() >= HOMES_MAX && !counted.contains_key(&id) {
                continue;
            }
            let home = counted.entry(id).or_default();
            home.size = home.size.plus(by);
            let Size { dirs: has_dirs, entries: has_entries } = home.size;
            let is_at = |part| {
                has_dirs >= i64::from(dirs) / part || has_entries >= i64::from(entries) / part
            };
            home.is_full = is_at(1) || home.is_full && is_at(2);
            if has_dirs <= 0 && has_entries <= 0 {
                counted.remove(&id);
            }
        }
    }
}

/// Counts what the groups of a core change: each content record of a master beside what it was.
pub(crate) struct Counting {
    homes: Arc<Homes>,
    cache: Arc<RecordCache>,
    engine: Arc<dyn Engine>,
    /// Changes by the group under way.
    changed: HashMap<DirId, Size>,
}

impl Counting {
    pub(crate) fn new(
        homes: Arc<Homes>,
        cache: Arc<RecordCache>,
        engine: Arc<dyn Engine>,
    ) -> Counting {
        Counting { homes, cache, engine, changed: HashMap::default() }
    }

    /// A record as it is before the write.
    fn before(&self, key: &[u8]) -> Option<Content> {
        let read = || {
            let bytes = self.engine.get(key).ok().flatten();
            Ok::<_, Infallible>(bytes.and_then(|bytes| Content::from_record(&bytes).ok()))
        };
        self.cache.dir(key, read).ok().flatten()
    }

    fn add(&mut self, home: DirId, by: Size) {
        if by != Size::default() {
            let size = self.changed.entry(home).or_default();
            *size = size.plus(by);
        }
    }
}

impl Follower for Counting {
    fn writing(&mut self, changes: &mut Changes) {
        self.changed.clear();
        for (key, _) in changes.contents().filter(|(key, _)| key::parse_share(key) == MASTER) {
            let was = self.before(key);
            let is = match changes.find(key) {
                Some(Found::Dir(content)) => Some((content.home, Size::of(content))),
                Some(Found::Bytes(bytes)) => Content::from_record(&Bytes::copy_from_slice(bytes))
                    .ok()
                    .map(|content| (content.home, Size::of(&content))),
                Some(Found::Deleted) | None => None,
            };
            let was = was.map(|content| (content.home, Size::of(&content)));
            match (was, is) {
                (Some((home, was)), Some((at, is))) if home == at => self.add(home, is.minus(was)),
                (was, is) => {
                    was.into_iter()
                        .for_each(|(home, was)| self.add(home, Size::default().minus(was)));
                    is.into_iter().for_each(|(home, is)| self.add(home, is));
                }
            }
        }
    }

    fn written(&mut self, _facts: &mut Facts, write: Write) {
        if write.is_done && !self.changed.is_empty() {
            self.homes.add(self.changed.drain());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: DirId = DirId(77);

    fn with(homes: &Homes, dirs: i64, entries: i64) -> bool {
        homes.add([(HOME, Size { dirs, entries })].into_iter());
        homes.is_full(HOME)
    }

    #[test]
    fn a_home_is_full_from_its_limit_until_half_of_it() {
        let homes = Homes::new(HomeLimits { dirs: 4, entries: 100 });
        assert!(!with(&homes, 3, 99));
        assert!(with(&homes, 1, 0), "four directories");
        assert!(with(&homes, -1, 0), "three are not half of four");
        assert!(with(&homes, -2, 0), "many entries are left");
        assert!(!with(&homes, 0, -60));
        assert!(with(&homes, 0, 61), "entries alone");
        assert_eq!(homes.size(HOME), Size { dirs: 1, entries: 100 });
        assert!(!with(&homes, -1, -100));
        assert!(homes.counted.lock().is_empty(), "forgotten");
        assert!(!homes.is_full(DirId(78)));
    }
}
