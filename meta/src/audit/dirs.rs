//! Paths of directories that lines of the audit log have named, as a core remembers them.

use std::rc::Rc;

use base::{DirId, HashMap, Ino};

/// Most paths that a core keeps.
const DIRS_MAX: usize = 4096;

/// A path; `None`: not known.
pub(super) type Path = Option<Rc<[u8]>>;

/// Paths, as of a version of the list of moves: any move makes the core forget them all.
#[derive(Default)]
pub(super) struct Dirs {
    version: u64,
    known: HashMap<DirId, (Ino, Path)>,
}

impl Dirs {
    /// The path that is remembered of a directory, if any.
    pub(super) fn find(&mut self, version: u64, dir: DirId, ino: Ino) -> Option<Path> {
        if self.version != version || self.known.len() >= DIRS_MAX {
            self.known.clear();
            self.version = version;
        }
        let (of, path) = self.known.get(&dir)?;
        (*of == ino).then(|| path.clone())
    }

    /// Remembers a path, of the version that was asked for last.
    pub(super) fn insert(&mut self, dir: DirId, ino: Ino, path: Path) {
        self.known.insert(dir, (ino, path));
    }
}
