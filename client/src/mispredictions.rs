//! Wrong predictions of directory ids, kept so that they are not made again.
//!
//! `walk_to` asks for directories that were not found where they were predicted a moment ago.
//!
//! `guess` fills and asks this table in a client without a cache. With one, the cache knows the true
//! ids. The oldest entries go first.

use std::{collections::VecDeque, hash::Hash, time::Duration};

use base::{DirId, EntryName, HashMap, HashSet, Level};
use tokio::time::Instant;
use wire::DirRef;

/// Maximum number of wrong predictions that are kept.
const LEARNT_MAX: usize = 4096;

/// Names whose directories have another id than predicted, which a client needs that has no cache, or
/// where directories of a parent are at several levels; and the levels of other parents.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    true_ids: Latest<(DirId, EntryName), (DirId, DirId)>,
    /// Levels at which directories were found, by the directory above them, where they were predicted
    /// at others.
    levels: Latest<DirId, Level>,
}

/// A bounded number of values: those whose keys came last.
#[derive(Debug)]
struct Latest<K, V> {
    values: HashMap<K, V>,
    /// The keys, in the order in which they came.
    order: VecDeque<K>,
}

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Latest { values: HashMap::default(), order: VecDeque::new() }
    }
}

impl<K: Eq + Hash + Clone, V> Latest<K, V> {
    fn insert(&mut self, key: K, value: V) {
        if self.values.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > LEARNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

impl Learnt {
    /// The id and home of the directory `name` in `parent`, if that is not as predicted.
    pub(crate) fn get(&self, parent: DirId, name: &EntryName) -> Option<(DirId, DirId)> {
        self.true_ids.values.get(&(parent, name.clone())).copied()
    }

    /// Keeps the id and home that a directory has in place of the predicted ones.
    pub(crate) fn learn(&mut self, parent: DirId, name: &EntryName, found: &DirRef) {
        self.true_ids.insert((parent, name.clone()), (found.id, found.home));
    }

    /// The level at which directories in `parent` were found, if that is not as predicted.
    pub(crate) fn level_below(&self, parent: DirId) -> Option<Level> {
        self.levels.values.get(&parent).copied()
    }

    /// Keeps the level at which a directory in `parent` was found.
    pub(crate) fn learn_level(&mut self, parent: DirId, level: Level) {
        self.levels.insert(parent, level);
    }
}

/// Time for which a directory that was not found so is looked for otherwise.
const SLOW_FOR: Duration = Duration::from_secs(1);
/// Most of such directories.
const SLOW_MAX: usize = 1024;

/// Directories, by their predicted ids, to which no path was found at their servers a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    dirs: HashSet<DirId>,
    /// In the order in which they were noted.
    since: VecDeque<(Instant, DirId)>,
}

impl Slow {
    pub(crate) fn note(&mut self, dir: DirId) {
        if self.dirs.insert(dir) {
            self.since.push_back((Instant::now(), dir));
        }
    }

    pub(crate) fn has(&mut self, dir: DirId) -> bool {
        while let Some((since, oldest)) = self.since.front()
            && (since.elapsed() >= SLOW_FOR || self.since.len() > SLOW_MAX)
        {
            self.dirs.remove(oldest);
            self.since.pop_front();
        }
        self.dirs.contains(&dir)
    }
}

#[cfg(test)]
mod tests {
    use base::Ino;

    use super::*;

    #[test]
    fn what_was_learnt_first_is_forgotten_first() {
        let name = EntryName::new(b"a").unwrap();
        let found = DirRef { id: DirId(7), ino: Ino(8), home: DirId(9), ticket: 0 };
        let mut learnt = Learnt::default();
        let last = LEARNT_MAX as u128;
        (0..=last).for_each(|parent| learnt.learn(DirId(parent), &name, &found));
        assert_eq!(learnt.get(DirId(0), &name), None);
        assert_eq!(learnt.get(DirId(last), &name), Some((DirId(7), DirId(9))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_is_looked_for_otherwise_for_a_second() {
        let mut slow = Slow::default();
        slow.note(DirId(1));
        tokio::time::advance(SLOW_FOR / 2).await;
        slow.note(DirId(2));
        slow.note(DirId(1));
        assert!(slow.has(DirId(1)) && slow.has(DirId(2)) && !slow.has(DirId(3)));
        tokio::time::advance(SLOW_FOR / 2).await;
        assert!(!slow.has(DirId(1)) && slow.has(DirId(2)));
        (0..=2 * SLOW_MAX as u128).for_each(|dir| slow.note(DirId(dir)));
        assert!(!slow.has(DirId(0)) && slow.since.len() <= SLOW_MAX);
        assert_eq!(slow.since.len(), slow.dirs.len());
    }
}
