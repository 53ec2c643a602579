//! Names of buckets and objects, as paths. Pure values.
//!
//! Each component of a key is the name of an entry, so a key that would name another bucket, the
//! staging directory or nothing at all is refused before the file system hears of it.

use base::{EntryName, NameError};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::error::invalid;

/// Name of the directory of a bucket where uploads are until they are whole.
pub(crate) const STAGING: &str = ".pando-s3";
/// The longest key in bytes, as in S3.
const KEY_BYTES_MAX: usize = 1024;

/// A key of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// Directories on the way, the first below the bucket.
    pub(crate) parents: Vec<EntryName>,
    /// Name of the file or directory.
    pub(crate) name: EntryName,
    /// Whether the key ends with a slash: the object is a directory.
    pub(crate) directory: bool,
}

impl Key {
    /// Reads a key.
    pub(crate) fn parse(text: &str) -> S3Result<Key> {
        if text.len() > KEY_BYTES_MAX {
            return Err(S3ErrorCode::KeyTooLongError.into());
        }
        let (path, directory) = match text.strip_suffix('/') {
            Some(path) => (path, true),
            None => (text, false),
        };
        let mut names = path.split('/').map(component).collect::<S3Result<Vec<_>>>()?;
        if path.split('/').next() == Some(STAGING) {
            return Err(invalid("keys below .pando-s3/ are the gateway's own"));
        }
        let name = names.pop().ok_or_else(|| invalid("a key has a name"))?;
        Ok(Key { parents: names, name, directory })
    }

    /// All components.
    pub(crate) fn names(&self) -> Vec<&EntryName> {
        self.parents.iter().chain([&self.name]).collect()
    }
}

fn component(text: &str) -> S3Result<EntryName> {
    if text.is_empty() {
        return Err(invalid("a key must not begin with a slash or have two slashes in a row"));
    }
    if text == "." || text == ".." {
        return Err(invalid("a component of a key must not be . or .."));
    }
    EntryName::new(text.as_bytes()).map_err(|error| match error {
        NameError::TooLong => S3Error::with_message(
            S3ErrorCode::KeyTooLongError,
            "a component of a key has at most 255 bytes",
        ),
        NameError::Invalid => invalid("a key must not have a NUL"),
    })
}

/// Whether a directory below the root is a bucket: its name is one that S3 allows.
pub(crate) fn is_bucket(name: &str) -> bool {
    s3s::path::check_bucket_name(name)
}

/// The entry of a bucket in the root.
pub(crate) fn bucket(name: &str) -> S3Result<EntryName> {
    if !is_bucket(name) {
        return Err(S3ErrorCode::InvalidBucketName.into());
    }
    EntryName::new(name.as_bytes()).map_err(|_| S3ErrorCode::InvalidBucketName.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(key: &str) -> S3ErrorCode {
        Key::parse(key).unwrap_err().code().clone()
    }

    #[test]
    fn a_key_is_a_path_below_the_bucket() {
        let key = Key::parse("a/b c/d").unwrap();
        let parents: Vec<_> = key.parents.iter().map(EntryName::as_bytes).collect();
        assert_eq!(parents, [&b"a"[..], b"b c"]);
        assert_eq!((key.name.as_bytes(), key.directory), (&b"d"[..], false));
        let key = Key::parse("a/b/").unwrap();
        assert_eq!((key.name.as_bytes(), key.directory), (&b"b"[..], true));
    }

    #[test]
    fn a_key_that_would_leave_its_bucket_is_refused() {
        let keys =
            ["", "/", "/a", "a//b", "a//", "..", "../a", "a/../b", "a/..", "./a", "a/.", "a\0b"];
        for key in keys {
            assert_eq!(code(key), S3ErrorCode::InvalidArgument, "{key:?}");
        }
        for key in [".pando-s3", ".pando-s3/", ".pando-s3/uploads/x"] {
            assert_eq!(code(key), S3ErrorCode::InvalidArgument, "{key:?}");
        }
        assert!(Key::parse("a/.pando-s3").is_ok());
        assert!(Key::parse("...").is_ok());
    }

    #[test]
    fn a_component_has_at_most_255_bytes() {
        assert!(Key::parse(&"a".repeat(255)).is_ok());
        assert_eq!(code(&"a".repeat(256)), S3ErrorCode::KeyTooLongError);
        assert_eq!(code(&"a/".repeat(600)), S3ErrorCode::KeyTooLongError);
    }

    #[test]
    fn hidden_directories_are_no_buckets() {
        for name in [".trash", "..", ".", "", "a", "A_B", "a/b"] {
            assert!(!is_bucket(name), "{name}");
        }
        assert!(is_bucket("bucket") && is_bucket("a.b-c"));
    }
}
