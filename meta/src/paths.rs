//! The ways up from directories, as far as somebody had to know them.
//!
//! Of a session whose token names a directory each directory that it names must be below that, and what is thrown away gets
//! its path along. The directories above may be other servers', so what was read is kept: until the directory is moved,
//! which every server is told of (`invalidation`) before it has happened. So a move costs one look at those that it moved,
//! and nothing where it moved others.
//!
//! Always true: what is kept was read when the list of moves had come to where it was, and of a directory that an event of
//! the list has moved nobody reads the old place: who does not see the new one waits for the move to end.
//!
//! Nobody stands on it: a directory above may be moved while something below is done, and then either is right.

use base::{DirId, EntryName, HashMap, Ino};
use parking_lot::Mutex;

use crate::{error::Result, invalidation::Invalidations, record::Content, txn::Steps};

/// So many directories are kept at most, some 200 bytes each.
const LINKS_MAX: usize = 1 << 16;

/// The way up from a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Up {
    pub(crate) parent: DirId,
    pub(crate) parent_ino: Ino,
    pub(crate) parent_home: DirId,
    pub(crate) name: Option<EntryName>,
}

impl Up {
    pub(crate) fn of(content: &Content) -> Up {
        Up {
            parent: content.parent,
            parent_ino: content.parent_ino,
            parent_home: content.parent_home,
            name: content.name.clone(),
        }
    }
}

/// A directory on the way up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) id: DirId,
    pub(crate) ino: Ino,
    pub(crate) home: DirId,
}

impl At {
    /// Whether it is this one.
    pub(crate) fn is(&self, top: (DirId, Ino)) -> bool {
        (self.id, self.ino) == top
    }

    /// That above a directory.
    pub(crate) fn above(up: &Up) -> At {
        At { id: up.parent, ino: up.parent_ino, home: up.parent_home }
    }
}

/// What is kept.
#[derive(Default)]
pub(crate) struct Paths(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    version: u64,
    ups: HashMap<DirId, (Ino, Up)>,
}

impl Inner {
    /// Forgets what has been moved since.
    fn follow(&mut self, moved: &Invalidations) {
        let Some(news) = moved.since(self.version) else { return };
        if news.reset {
            self.ups.clear();
        } else {
            news.dirs.iter().for_each(|dir| drop(self.ups.remove(dir)));
        }
        self.version = news.version;
    }
}

impl Paths {
    /// The way up from a directory, if it is known.
    pub(crate) fn get(&self, dir: DirId, ino: Ino, moved: &Invalidations) -> Option<Up> {
        let mut inner = self.0.lock();
        inner.follow(moved);
        inner.ups.get(&dir).filter(|(of, _)| *of == ino).map(|(_, up)| up.clone())
    }

    /// How far up from a directory the way is known, up to `top` or the root; `steps` are taken.
    pub(crate) fn climb(
        &self,
        from: At,
        top: (DirId, Ino),
        steps: &mut Steps,
        moved: &Invalidations,
    ) -> Result<At> {
        let mut inner = self.0.lock();
        inner.follow(moved);
        let mut at = from;
        while !at.is(top) && at.id != DirId::ROOT {
            let Some((_, up)) = inner.ups.get(&at.id).filter(|(of, _)| *of == at.ino) else {
                break;
            };
            at = At::above(up);
            steps.step(at.id)?;
        }
        Ok(at)
    }

    /// Keeps what was read when the list of moves had come to `version`, unless it is further now.
    pub(crate) fn learn(
        &self,
        (dir, ino, up): (DirId, Ino, Up),
        version: u64,
        moved: &Invalidations,
    ) {
        let mut inner = self.0.lock();
        inner.follow(moved);
        if inner.version != version {
            return;
        }
        if inner.ups.len() >= LINKS_MAX {
            inner.ups.clear();
        }
        inner.ups.insert(dir, (ino, up));
    }
}

#[cfg(test)]
mod tests {
    use base::FsError;

    use super::*;
    use crate::error::Fault;

    fn up(parent: u128) -> Up {
        let name = EntryName::new(b"x").unwrap();
        Up { parent: DirId(parent), parent_ino: Ino(1), parent_home: DirId(1), name: Some(name) }
    }

    #[test]
    fn what_is_moved_is_forgotten_and_nothing_else() {
        let (paths, moved) = (Paths::default(), Invalidations::new(7));
        for dir in [500, 501] {
            paths.learn((DirId(dir), Ino(9), up(400)), 7, &moved);
        }
        assert_eq!(paths.get(DirId(500), Ino(9), &moved), Some(up(400)));
        assert_eq!(paths.get(DirId(500), Ino(8), &moved), None, "another one of the same id");
        moved.add(&[DirId(500)]);
        assert_eq!(paths.get(DirId(500), Ino(9), &moved), None);
        assert_eq!(paths.get(DirId(501), Ino(9), &moved), Some(up(400)));
        // It was read before it was moved.
        paths.learn((DirId(500), Ino(9), up(400)), 7, &moved);
        assert_eq!(paths.get(DirId(500), Ino(9), &moved), None);
        moved.begin_anew(100);
        assert_eq!(paths.get(DirId(501), Ino(9), &moved), None);
    }

    #[test]
    fn a_way_is_climbed_to_its_top_or_as_far_as_it_is_known() {
        let (paths, moved) = (Paths::default(), Invalidations::new(7));
        let at = |id: u128, ino| At { id: DirId(id), ino: Ino(ino), home: DirId(1) };
        let climb = |from: At, top| {
            paths.climb(from, (DirId(top), Ino(1)), &mut Steps::from(from.id), &moved)
        };
        let reach = |from, top| climb(from, top).unwrap();
        paths.learn((DirId(502), Ino(9), up(501)), 7, &moved);
        paths.learn((DirId(501), Ino(1), up(500)), 7, &moved);
        assert_eq!(reach(at(502, 9), 501), at(501, 1));
        assert_eq!(reach(at(502, 9), 400), at(500, 1), "nobody knows what is above");
        assert_eq!(reach(at(502, 8), 501), at(502, 8), "another one of the same id");
        moved.add(&[DirId(501)]);
        assert_eq!(reach(at(502, 9), 400), at(501, 1), "it was moved");
        // In a damaged tree.
        paths.learn((DirId(501), Ino(1), up(502)), 8, &moved);
        paths.learn((DirId(502), Ino(1), up(501)), 8, &moved);
        assert!(climb(at(501, 1), 400).is_err());
    }

    #[test]
    fn a_way_is_climbed_for_so_many_steps_and_no_more() {
        let (paths, moved) = (Paths::default(), Invalidations::new(7));
        for dir in 501..=600 {
            paths.learn((DirId(dir), Ino(1), up(dir - 1)), 7, &moved);
        }
        let from = At { id: DirId(600), ino: Ino(1), home: DirId(1) };
        let climb = |steps: &mut Steps| paths.climb(from, (DirId(500), Ino(1)), steps, &moved);
        let mut steps = Steps::bounded(from.id, 100);
        assert_eq!(climb(&mut steps).unwrap().id, DirId(500));
        let is_refused = |climbed| matches!(climbed, Err(Fault::Answer(FsError::NameTooLong)));
        assert!(is_refused(climb(&mut steps)));
        assert!(is_refused(climb(&mut Steps::bounded(from.id, 99))));
    }
}
