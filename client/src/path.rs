//! Paths as POSIX reads them: what to do, step by step. Pure values; `resolve` takes the steps.
//!
//! POSIX: a path that ends in a slash, or in `.`, names a directory; symbolic links are read the
//! same way.

use base::{EntryName, FsError, NameError, limits::PATH_BYTES_MAX};
use smallvec::SmallVec;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Down to an entry.
    Down(EntryName),
    /// Up to the parent (`..`); the root is its own.
    Up,
    /// Down to a name that nothing can have.
    TooLong,
}

/// How a path ends, beyond its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathEnd {
    /// The path ends with the step itself.
    Plain,
    /// The path ends with a slash: it names a directory.
    Slash,
    /// The path ends with `.`.
    Dot,
}

/// A path, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Steps {
    /// The next step last, so that taking one is cheap.
    pub(crate) left: SmallVec<[Step; 8]>,
    pub(crate) absolute: bool,
    pub(crate) tail: PathEnd,
}

impl Steps {
    /// Reads a path.
    pub(crate) fn parse(path: &[u8]) -> Result<Steps, FsError> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if path.contains(&0) {
            return Err(FsError::Invalid);
        }
        let mut left = SmallVec::new();
        for part in path.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => left.push(Step::Up),
                part => left.push(match EntryName::new(part) {
                    Ok(name) => Step::Down(name),
                    Err(NameError::TooLong | NameError::Invalid) => Step::TooLong,
                }),
            }
        }
        left.reverse();
        let tail = match path {
            [.., b'/'] => PathEnd::Slash,
            [b'.'] | [.., b'/', b'.'] => PathEnd::Dot,
            _ => PathEnd::Plain,
        };
        Ok(Steps { left, absolute: path[0] == b'/', tail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(name: &str) -> Step {
        Step::Down(EntryName::new(name.as_bytes()).unwrap())
    }

    #[test]
    fn a_path_is_read_as_posix_reads_it() {
        let steps = Steps::parse(b"//a/./b/../c").unwrap();
        assert_eq!(steps.left[..], [down("c"), Step::Up, down("b"), down("a")]);
        assert_eq!((steps.absolute, steps.tail), (true, PathEnd::Plain));
        assert_eq!(Steps::parse(b"a/").unwrap().tail, PathEnd::Slash);
        assert_eq!(Steps::parse(b"a/.").unwrap().tail, PathEnd::Dot);
        assert_eq!(Steps::parse(b"a.").unwrap().tail, PathEnd::Plain);
        assert_eq!(Steps::parse(b"/").unwrap().left[..], []);
    }

    #[test]
    fn what_is_no_path_is_refused() {
        assert_eq!(Steps::parse(b""), Err(FsError::NotFound));
        assert_eq!(Steps::parse(b"a\0b"), Err(FsError::Invalid));
        assert_eq!(Steps::parse(&[b'a'; 4096]), Err(FsError::NameTooLong));
        assert!(Steps::parse(&[b'a'; 4095]).is_ok());
        assert_eq!(Steps::parse(&[b'a'; 256]).unwrap().left[..], [Step::TooLong]);
    }
}
