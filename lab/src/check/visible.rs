//! "An operation that was answered is visible to every later operation, on every client", and: "No
//! client reads or changes what its permissions and its token do not allow."
//!
//! Clients that take turns see one namespace, as if there were one client. What any of them finds
//! by a path follows from the answers that any of them got before, whatever is in their caches.
//! This is a model of that namespace, by paths, and of what a user may see of it.

use std::collections::BTreeMap;

use base::{FsError, Ino};

/// The mode of a directory that everybody may walk through.
pub const OPEN: u32 = 0o755;
/// The mode of a directory that only the superuser may walk through.
pub const CLOSED: u32 = 0o700;

/// The thing that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The inode number.
    pub ino: Ino,
    /// The mode of a directory; `None` for a file.
    pub mode: Option<u32>,
}

/// The namespace below a directory, keyed by paths such as `a`, `a/b`, `a/b/c`.
#[derive(Debug, Clone, Default)]
pub struct Paths {
    nodes: BTreeMap<String, Node>,
}

impl Paths {
    /// Returns the node that a user finds at a path.
    ///
    /// # Errors
    /// The first obstacle on the way: a closed directory, or a missing name.
    pub fn find(&self, path: &str, superuser: bool) -> Result<Node, FsError> {
        for (at, _) in path.match_indices('/') {
            let node = self.nodes.get(&path[..at]).ok_or(FsError::NotFound)?;
            match node.mode {
                None => return Err(FsError::NotDirectory),
                Some(CLOSED) if !superuser => return Err(FsError::Denied),
                Some(_) => {}
            }
        }
        self.nodes.get(path).copied().ok_or(FsError::NotFound)
    }

    /// Adds a node.
    pub fn make(&mut self, path: &str, node: Node) {
        self.nodes.insert(path.to_owned(), node);
    }

    /// Removes a node.
    pub fn remove(&mut self, path: &str) {
        self.nodes.remove(path);
    }

    /// Moves a node with everything below it.
    pub fn rename(&mut self, from: &str, to: &str) {
        let moved: Vec<String> = self.at_and_below(from).map(str::to_owned).collect();
        for path in moved {
            let node = self.nodes.remove(&path).expect("just found");
            self.nodes.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }

    /// Sets the mode of a directory.
    pub fn chmod(&mut self, path: &str, mode: u32) {
        if let Some(node) = self.nodes.get_mut(path) {
            node.mode = Some(mode);
        }
    }

    /// Whether there is something below a path.
    #[must_use]
    pub fn has_below(&self, path: &str) -> bool {
        self.at_and_below(path).nth(1).is_some()
    }

    /// All paths: of directories, or of files.
    #[must_use]
    pub fn all(&self, directories: bool) -> Vec<&str> {
        let wanted = self.nodes.iter().filter(|(_, node)| node.mode.is_some() == directories);
        wanted.map(|(path, _)| path.as_str()).collect()
    }

    fn at_and_below<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let below = move |other: &&str| {
            other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.nodes.keys().map(String::as_str).filter(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_moves_with_all_below_it() {
        let mut paths = Paths::default();
        let dir = |ino| Node { ino: Ino(ino), mode: Some(OPEN) };
        paths.make("a", dir(1));
        paths.make("a/b", dir(2));
        paths.make("ab", dir(3));
        paths.rename("a", "c");
        assert_eq!(paths.all(true), ["ab", "c", "c/b"]);
        assert!(paths.has_below("c") && !paths.has_below("c/b"));
        paths.chmod("c", CLOSED);
        assert_eq!(paths.find("c/b", false), Err(FsError::Denied));
        assert_eq!(paths.find("c/b", true), Ok(dir(2)));
        assert_eq!(paths.find("a/b", true), Err(FsError::NotFound));
    }
}
