//! The keys file: which access keys there are, and the token of each.
//!
//! One line for each key: `ACCESS_KEY SECRET_KEY TOKEN_FILE [ro]`. Empty lines and lines that begin
//! with `#` say nothing. A token file is relative to the keys file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// A line of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyLine {
    /// The public half of the key.
    pub access_key: String,
    /// The secret half; requests are signed with it.
    pub secret_key: String,
    /// File with the token.
    pub token_file: PathBuf,
    /// Whether the gateway refuses changes by this key.
    pub read_only: bool,
}

/// Why a keys file cannot be used. No message has a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// A line is none.
    #[error("line {0} is not ACCESS_KEY SECRET_KEY TOKEN_FILE [ro]")]
    Line(usize),
    /// An access key is there twice.
    #[error("line {0} has an access key that an earlier line has, too")]
    Twice(usize),
    /// A secret key is too short to be one.
    #[error("line {0} has a secret key of less than {SECRET_BYTES_MIN} characters")]
    Weak(usize),
    /// There is no line.
    #[error("the file has no keys")]
    Empty,
}

/// The shortest secret key.
const SECRET_BYTES_MIN: usize = 8;

/// Reads the text of a keys file that lies in `folder`.
///
/// # Errors
/// When a line is none, or there is none.
pub fn parse(text: &str, folder: &Path) -> Result<Vec<KeyLine>, KeysError> {
    let mut lines = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let (access_key, secret_key, token, read_only) = match words[..] {
            [access, secret, token] => (access, secret, token, false),
            [access, secret, token, "ro"] => (access, secret, token, true),
            _ => return Err(KeysError::Line(number)),
        };
        if secret_key.len() < SECRET_BYTES_MIN {
            return Err(KeysError::Weak(number));
        }
        if !seen.insert(access_key) {
            return Err(KeysError::Twice(number));
        }
        lines.push(KeyLine {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            token_file: folder.join(token),
            read_only,
        });
    }
    if lines.is_empty() { Err(KeysError::Empty) } else { Ok(lines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<KeyLine>, KeysError> {
        parse(text, Path::new("/etc/pando"))
    }

    #[test]
    fn a_line_is_a_key() {
        let lines = read("# keys\n\nalice secret-of-alice alice.token\nbob secret-of-bob /b ro\n");
        let [alice, bob] = &lines.unwrap_or_default()[..] else { panic!("two lines") };
        assert_eq!((alice.access_key.as_str(), alice.read_only), ("alice", false));
        assert_eq!(alice.token_file, Path::new("/etc/pando/alice.token"));
        assert_eq!((bob.token_file.as_path(), bob.read_only), (Path::new("/b"), true));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        assert_eq!(read("").err(), Some(KeysError::Empty));
        assert_eq!(read("a b-secret").err(), Some(KeysError::Line(1)));
        assert_eq!(read("a secret-of-a t rw").err(), Some(KeysError::Line(1)));
        assert_eq!(read("#\na short t").err(), Some(KeysError::Weak(2)));
        assert_eq!(read("a secret-of-a t\na secret-of-b t").err(), Some(KeysError::Twice(2)));
    }
}
