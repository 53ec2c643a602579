//! Paths within a region: the keys of its table.

use std::{fmt, sync::Arc};

use base::EntryName;

/// A path from the region's directory: names with `/` between them, and nothing for the directory
/// itself. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<[u8]>);

impl Path {
    /// The region's own directory.
    #[must_use]
    pub fn root() -> Path {
        Path(Arc::new([]))
    }

    /// A path that nothing has, for what is between two places.
    pub(crate) fn aside() -> Path {
        Path(Arc::new([0]))
    }

    /// The path of `name` in this directory.
    #[must_use]
    pub fn child(&self, name: &EntryName) -> Path {
        let (above, name) = (&self.0, name.as_bytes());
        if above.is_empty() {
            return Path(name.into());
        }
        let mut bytes = Vec::with_capacity(above.len() + 1 + name.len());
        bytes.extend_from_slice(above);
        bytes.push(b'/');
        bytes.extend_from_slice(name);
        Path(bytes.into())
    }

    /// The directory above, and the name in it; `None` of the region's own directory.
    #[must_use]
    pub fn split(&self) -> Option<(Path, EntryName)> {
        if self.0.is_empty() || *self == Path::aside() {
            return None;
        }
        let (above, name) = match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (&[][..], &self.0[..]),
        };
        Some((Path(above.into()), EntryName::new(name).expect("paths are made of names")))
    }

    /// Whether this is `above`, or lies below it.
    #[must_use]
    pub fn is_within(&self, above: &Path) -> bool {
        let rest = self.0.strip_prefix(&above.0[..]);
        above.0.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// The path that this one has after `from` was moved to `to`. It must be within `from`.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn moved(&self, from: &Path, to: &Path) -> Path {
        let rest = self.0.strip_prefix(&from.0[..]).expect("within what is moved");
        Path([&to.0[..], rest].concat().into())
    }

    /// The least path that can be below this one, but for itself.
    pub(crate) fn first_within(&self) -> Path {
        if self.0.is_empty() {
            Path(Arc::new([]))
        } else {
            Path([&self.0[..], b"/"].concat().into())
        }
    }

    /// The bytes, without a `/` at the beginning.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many names the path has.
    #[must_use]
    pub fn depth(&self) -> usize {
        if self.0.is_empty() { 0 } else { 1 + self.0.iter().filter(|byte| **byte == b'/').count() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str(".") } else { self.0.escape_ascii().fmt(f) }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        let names = text.split('/').filter(|name| !name.is_empty());
        names.fold(Path::root(), |above, name| {
            above.child(&EntryName::new(name.as_bytes()).unwrap())
        })
    }

    #[test]
    fn a_path_is_split_into_what_it_was_made_of() {
        let (above, name) = path("a/b/c").split().unwrap();
        assert_eq!((above, name.as_bytes()), (path("a/b"), &b"c"[..]));
        assert_eq!(path("a").split().unwrap().0, Path::root());
        assert_eq!(Path::root().split(), None);
        assert_eq!((path("a/b/c").depth(), Path::root().depth()), (3, 0));
    }

    #[test]
    fn a_name_that_only_begins_alike_is_not_within() {
        assert!(path("a/b").is_within(&path("a")) && path("a").is_within(&path("a")));
        assert!(path("a/b").is_within(&Path::root()) && Path::root().is_within(&Path::root()));
        assert!(!path("ab").is_within(&path("a")) && !path("a").is_within(&path("a/b")));
    }

    #[test]
    fn what_lies_below_moves_along() {
        assert_eq!(path("a/b/c").moved(&path("a/b"), &path("x")), path("x/c"));
        assert_eq!(path("a").moved(&path("a"), &path("y/z")), path("y/z"));
    }
}
