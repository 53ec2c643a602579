//! Directories that lines of the audit log have named, as a core remembers them.

use std::rc::Rc;

use base::{DirId, HashMap, Ino};

use super::Text;

/// Most directories that a core remembers, and most bytes of their fields.
const DIRS_MAX: usize = 4096;
const BYTES_MAX: usize = 4 << 20;

/// A directory as lines name it.
pub(super) struct Dir {
    ino: Ino,
    /// The path, if it is known.
    pub(super) path: Option<Vec<u8>>,
    /// The fields of a line that say the path and the inode number.
    pub(super) fields: Vec<u8>,
}

impl Dir {
    pub(super) fn new(ino: Ino, path: Option<Vec<u8>>) -> Dir {
        let mut fields = Vec::new();
        let mut text = Text(&mut fields);
        if let Some(path) = &path {
            text.bytes("dir", path);
        }
        text.number("dir_ino", ino.0);
        Dir { ino, path, fields }
    }
}

/// Directories, as of a version of the list of moves: any move makes the core forget them all.
#[derive(Default)]
pub(super) struct Dirs {
    version: u64,
    known: HashMap<DirId, Rc<Dir>>,
    bytes: usize,
}

impl Dirs {
    /// A directory that is remembered.
    pub(super) fn find(&mut self, version: u64, id: DirId, ino: Ino) -> Option<Rc<Dir>> {
        if self.version != version || self.known.len() >= DIRS_MAX || self.bytes >= BYTES_MAX {
            self.known.clear();
            self.bytes = 0;
            self.version = version;
        }
        self.known.get(&id).filter(|dir| dir.ino == ino).cloned()
    }

    /// Remembers a directory, of the version that was asked for last.
    pub(super) fn insert(&mut self, id: DirId, dir: Rc<Dir>) {
        self.bytes += dir.fields.len();
        self.known.insert(id, dir);
    }
}
