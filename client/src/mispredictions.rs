//! Wrong predictions of directory ids, kept so that they are not made again.
//!
//! `guess` fills and asks this table in a client without a cache. With one, the cache knows the true
//! ids. The oldest entries go first.

use std::collections::VecDeque;

use base::{DirId, EntryName, HashMap};
use wire::DirRef;

/// Maximum number of wrong predictions that are kept.
const LEARNT_MAX: usize = 4096;

/// Names whose directories have another id than predicted. Only a client without a cache needs it.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    true_ids: HashMap<(DirId, EntryName), (DirId, DirId)>,
    /// In the order in which they were learnt.
    order: VecDeque<(DirId, EntryName)>,
}

impl Learnt {
    /// The id and home of the directory `name` in `parent`, if that is not as predicted.
    pub(crate) fn get(&self, parent: DirId, name: &EntryName) -> Option<(DirId, DirId)> {
        self.true_ids.get(&(parent, name.clone())).copied()
    }

    /// Keeps the id and home that a directory has in place of the predicted ones.
    pub(crate) fn learn(&mut self, parent: DirId, name: &EntryName, found: &DirRef) {
        let key = (parent, name.clone());
        if self.true_ids.insert(key.clone(), (found.id, found.home)).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > LEARNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.true_ids.remove(&oldest);
        }
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
}
