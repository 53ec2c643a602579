//! Where directories are, as far as removals on a file system of several servers had to ask.
//!
//! What is thrown away gets its path along, and whoever removes something within the trash removes it for good. On one server
//! the directories above are read each time. Here they are other servers', so what was read is kept: until the directory is
//! moved, which every server is told of (`invalidation`). A removal does not stand on it: a directory above may be moved
//! while something below is removed, and then either path is right.

use base::{DirId, EntryName, HashMap, Ino};
use parking_lot::Mutex;

use crate::{invalidation::Invalidations, record::Content};

/// So many directories are kept at most, some 200 bytes each.
const LINKS_MAX: usize = 1 << 16;

/// The way up from a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Up {
    pub(super) parent: DirId,
    pub(super) parent_ino: Ino,
    pub(super) parent_home: DirId,
    pub(super) name: Option<EntryName>,
}

impl Up {
    pub(super) fn of(content: &Content) -> Up {
        Up {
            parent: content.parent,
            parent_ino: content.parent_ino,
            parent_home: content.parent_home,
            name: content.name.clone(),
        }
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
    pub(super) fn get(&self, dir: DirId, ino: Ino, moved: &Invalidations) -> Option<Up> {
        let mut inner = self.0.lock();
        inner.follow(moved);
        inner.ups.get(&dir).filter(|(of, _)| *of == ino).map(|(_, up)| up.clone())
    }

    /// Keeps what was read when the list of moves had come to `version`, unless it is further now.
    pub(super) fn learn(
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
    use super::*;

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
}
