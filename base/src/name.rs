//! Names of directory entries: any bytes but `/` and NUL, 1 to 255 of them, and neither `.` nor
//! `..`.

use std::{borrow::Borrow, fmt};

use smallvec::SmallVec;

use crate::{
    codec::{Decode, DecodeError, Element, Encode, Reader},
    error::FsError,
    limits::NAME_BYTES_MAX,
};

/// A checked name. Short names need no allocation.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName(SmallVec<[u8; 24]>);

/// Why bytes are not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, `.` or `..`, or a slash or NUL inside.
    #[error("not a name")]
    Invalid,
    /// More than 255 bytes.
    #[error("name too long")]
    TooLong,
}

impl From<NameError> for FsError {
    fn from(error: NameError) -> FsError {
        match error {
            NameError::Invalid => FsError::Invalid,
            NameError::TooLong => FsError::NameTooLong,
        }
    }
}

impl EntryName {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// When they cannot name an entry.
    pub fn new(bytes: &[u8]) -> Result<EntryName, NameError> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let reserved = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if reserved || bytes.iter().any(|byte| *byte == b'/' || *byte == 0) {
            return Err(NameError::Invalid);
        }
        Ok(EntryName(SmallVec::from_slice(bytes)))
    }

    /// The name's bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Clone for EntryName {
    /// Copies the bytes at once, which `SmallVec::clone` does one by one.
    fn clone(&self) -> EntryName {
        EntryName(SmallVec::from_slice(&self.0))
    }
}

/// A name is found in a map by its bytes, whose hash and order are the name's.
impl Borrow<[u8]> for EntryName {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_ascii(), f)
    }
}

impl fmt::Debug for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Element for EntryName {}

impl Encode for EntryName {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Decode for EntryName {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = usize::from(u16::decode(input)?);
        EntryName::new(input.take(len)?).map_err(|_| DecodeError::Invalid("name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_any_byte_but_slash_and_nul() {
        let bytes: Vec<u8> = (1..=255u8).filter(|byte| *byte != b'/').collect();
        assert_eq!(EntryName::new(&bytes).unwrap().as_bytes(), bytes);
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(EntryName::new(bad), Err(NameError::Invalid));
        }
    }

    #[test]
    fn a_name_of_256_bytes_is_too_long() {
        assert!(EntryName::new(&[b'x'; 255]).is_ok());
        assert_eq!(EntryName::new(&[b'x'; 256]), Err(NameError::TooLong));
    }
}
