//! The ways up from directories, and who may search them, as far as they were needed.
//!
//! A session whose token names a directory may use only directories below it, whatever goes to the
//! trash takes its path along, and a path can be looked up at the server of its last directory
//! alone (`ops::walk_to`). All need the directories above, which may be other servers'. So what was
//! read of a directory is kept until it is moved or its permissions change; every server is told of
//! that (`invalidation`) before it happens. A move costs a new look at the directories that it
//! moved, and nothing for any other.
//!
//! A directory is known by its id and its inode number: a directory that is removed, and made again
//! at the same place, has the same id, and nobody is told. What is below names its parent by both.
//!
//! Always true: a way that is kept was read at a known version of the list of moves. Nobody reads
//! the old place of a directory that an event of the list has moved: a reader that does not see the
//! new place waits for the end of the move.
//!
//! A directory above may be on a server that is away, and then its way up cannot be read. So a way
//! that is kept and used stays, however much else is learnt.
//!
//! No transaction stands on a way: a directory above may be moved while something below is done,
//! and then either result is right.

pub(crate) mod prove;
pub(crate) mod steps;

use std::mem;

use base::{DirId, EntryName, FsError, HashMap, Ino, SearchClass};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use self::steps::Steps;
use crate::{invalidation::Invalidations, record::Content};

/// Most directories that are kept, some 200 bytes each, and more with an ACL.
const LINKS_MAX: usize = 1 << 16;

/// The way up from a directory, and what its parent knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Up {
    pub(crate) parent: DirId,
    pub(crate) parent_ino: Ino,
    pub(crate) parent_home: DirId,
    pub(crate) name: Option<EntryName>,
    /// The users who may search the directory.
    pub(crate) class: SearchClass,
    /// The mode as attributes show it.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Up {
    pub(crate) fn of(content: &Content) -> Up {
        Up {
            parent: content.parent,
            parent_ino: content.parent_ino,
            parent_home: content.parent_home,
            name: content.name.clone(),
            class: content.search_class(),
            mode: content.xattrs.shown_mode(content.mode),
            uid: content.uid,
            gid: content.gid,
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
    /// The directory, whatever its home.
    pub(crate) fn key(&self) -> (DirId, Ino) {
        (self.id, self.ino)
    }

    /// Whether this is the directory `top`.
    pub(crate) fn is(&self, top: (DirId, Ino)) -> bool {
        (self.id, self.ino) == top
    }

    /// The directory above.
    pub(crate) fn above(up: &Up) -> At {
        At { id: up.parent, ino: up.parent_ino, home: up.parent_home }
    }
}

/// The ways that this server keeps. Cores look at them at the same time.
#[derive(Default)]
pub(crate) struct Paths(RwLock<Inner>);

type Ups = HashMap<DirId, (Ino, Up)>;

#[derive(Default)]
struct Inner {
    version: u64,
    /// Ways that were learnt or used lately.
    young: Ups,
    /// Older ways, which are forgotten next.
    old: Ups,
}

impl Inner {
    /// Forgets directories that have been moved since.
    fn follow(&mut self, moved: &Invalidations) {
        let Some(news) = moved.since(self.version) else { return };
        for ups in [&mut self.young, &mut self.old] {
            if news.reset {
                ups.clear();
            } else {
                news.dirs.iter().for_each(|dir| drop(ups.remove(dir)));
            }
        }
        self.version = news.version;
    }

    /// The way up from a directory, and whether it is forgotten soon unless it is used.
    fn find(&self, dir: DirId, ino: Ino) -> Option<(&Up, bool)> {
        let young = self.young.get(&dir).map(|found| (found, false));
        let (of, is_old) = young.or_else(|| self.old.get(&dir).map(|found| (found, true)))?;
        (of.0 == ino).then_some((&of.1, is_old))
    }

    fn insert(&mut self, dir: DirId, up: (Ino, Up)) {
        if self.young.len() >= LINKS_MAX / 2 {
            self.old = mem::take(&mut self.young);
        }
        self.old.remove(&dir);
        self.young.insert(dir, up);
    }

    /// Keeps the way of a directory that was used.
    fn keep(&mut self, dir: DirId) {
        if let Some(up) = self.old.remove(&dir) {
            self.insert(dir, up);
        }
    }
}

impl Paths {
    fn read(&self, moved: &Invalidations) -> RwLockReadGuard<'_, Inner> {
        let inner = self.0.read();
        if inner.version == moved.version() {
            return inner;
        }
        drop(inner);
        let mut inner = self.0.write();
        inner.follow(moved);
        RwLockWriteGuard::downgrade(inner)
    }

    /// The way up from a directory, if it is known.
    pub(crate) fn get(&self, dir: DirId, ino: Ino, moved: &Invalidations) -> Option<Up> {
        self.read(moved).find(dir, ino).map(|(up, _)| up.clone())
    }

    /// How far up from a directory the way is known, up to `top` or the root. `steps` counts them.
    pub(crate) fn climb(
        &self,
        from: At,
        top: (DirId, Ino),
        steps: &mut Steps,
        moved: &Invalidations,
    ) -> Result<At, FsError> {
        let inner = self.read(moved);
        let (mut at, mut used) = (from, Vec::new());
        while !at.is(top) && at.id != DirId::ROOT {
            let Some((up, is_old)) = inner.find(at.id, at.ino) else { break };
            used.extend(is_old.then_some(at.id));
            at = At::above(up);
            steps.step(at.id)?;
        }
        drop(inner);
        self.keep(used);
        Ok(at)
    }

    /// Keeps the ways of directories that were used.
    fn keep(&self, used: Vec<DirId>) {
        if !used.is_empty() {
            let mut inner = self.0.write();
            used.into_iter().for_each(|dir| inner.keep(dir));
        }
    }

    /// Whether anything is known of a directory of this id.
    pub(crate) fn knows(&self, dir: DirId) -> bool {
        let inner = self.0.read();
        inner.young.contains_key(&dir) || inner.old.contains_key(&dir)
    }

    /// Keeps a way that was read at `version` of the list of moves, unless the directory has been
    /// moved since.
    pub(crate) fn learn(
        &self,
        (dir, ino, up): (DirId, Ino, Up),
        version: u64,
        moved: &Invalidations,
    ) {
        let mut inner = self.0.write();
        inner.follow(moved);
        let is_moved =
            moved.since(version).is_some_and(|news| news.reset || news.dirs.contains(&dir));
        if !is_moved {
            inner.insert(dir, (ino, up));
        }
    }
}

#[cfg(test)]
mod tests {
    use base::FsError;

    use super::*;

    fn up(parent: u128) -> Up {
        let name = EntryName::new(b"x").unwrap();
        Up {
            parent: DirId(parent),
            parent_ino: Ino(1),
            parent_home: DirId(1),
            name: Some(name),
            class: SearchClass::All,
            mode: 0o755,
            uid: 0,
            gid: 0,
        }
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
        // The way was read before the directory was moved.
        paths.learn((DirId(500), Ino(9), up(400)), 7, &moved);
        assert_eq!(paths.get(DirId(500), Ino(9), &moved), None);
        // Other directories may be moved all the time.
        moved.add(&[DirId(600)]);
        paths.learn((DirId(500), Ino(9), up(402)), 8, &moved);
        assert_eq!(paths.get(DirId(500), Ino(9), &moved), Some(up(402)));
        moved.begin_anew(100, &[]);
        assert_eq!(paths.get(DirId(501), Ino(9), &moved), None);
        paths.learn((DirId(501), Ino(9), up(400)), 9, &moved);
        assert_eq!(paths.get(DirId(501), Ino(9), &moved), None);
    }

    #[test]
    fn a_way_that_is_used_stays_known_whatever_else_is_learnt() {
        let (paths, moved) = (Paths::default(), Invalidations::new(7));
        for dir in 501..=510 {
            paths.learn((DirId(dir), Ino(1), up(dir - 1)), 7, &moved);
        }
        let from = At { id: DirId(510), ino: Ino(1), home: DirId(1) };
        for dir in 0..4 * LINKS_MAX as u128 {
            paths.learn((DirId(1000 + dir), Ino(1), up(400)), 7, &moved);
            if dir % 1000 == 0 {
                let at = paths.climb(from, (DirId(500), Ino(1)), &mut Steps::from(from.id), &moved);
                assert_eq!(at.unwrap().id, DirId(500), "after {dir}");
            }
        }
        let inner = paths.0.read();
        assert!(inner.young.len() + inner.old.len() <= LINKS_MAX);
        assert!(inner.find(DirId(1000), Ino(1)).is_none(), "nobody has used it");
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
        // The tree is damaged: two directories are above each other.
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
        let is_refused = |climbed| matches!(climbed, Err(FsError::NameTooLong));
        assert!(is_refused(climb(&mut steps)));
        assert!(is_refused(climb(&mut Steps::bounded(from.id, 99))));
    }
}
