//! A bounded map that forgets its oldest entries: for hints, which nothing relies on.

use std::{collections::VecDeque, hash::Hash};

use base::HashMap;

/// The entries that were learnt last.
pub(crate) struct Recent<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
    max: usize,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    /// A map of `max` entries at most.
    pub(crate) fn new(max: usize) -> Recent<K, V> {
        Recent { map: HashMap::default(), order: VecDeque::new(), max }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Adds an entry that is not there yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.map.insert(key.clone(), value);
        self.order.push_back(key);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }

    /// Forgets an entry.
    pub(crate) fn remove(&mut self, key: &K) {
        if self.map.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_takes_no_room() {
        let mut recent = Recent::new(3);
        for key in 0..3 {
            recent.insert(key, key);
        }
        recent.remove(&1);
        recent.remove(&1);
        recent.insert(1, 7);
        assert_eq!((recent.len(), recent.order.len()), (3, 3));
        recent.insert(4, 4);
        assert_eq!((recent.len(), recent.order.len()), (3, 3));
        assert_eq!(
            [0, 1, 2, 4].map(|key| recent.get(&key).copied()),
            [None, Some(7), Some(2), Some(4)]
        );
    }
}
