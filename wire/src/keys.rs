//! Messages of administrators about signing keys and revoked tokens.
//!
//! The coordinator answers them, or the only server. No message here has a secret, but for the
//! token that [`SignToken`] asks for. [`Secret`] is for those that have.

use std::fmt;

use base::{Decode, DecodeError, Encode, Reader, Time, codec, codec::Element};
use bytes::Bytes;

use crate::Token;

/// Bytes that no log may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Bytes);

impl Element for Secret {}

impl Encode for Secret {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for Secret {
    fn decode(input: &mut Reader<'_>) -> Result<Secret, DecodeError> {
        Bytes::decode(input).map(Secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

codec! {
    /// Looks at the signing keys and the revoked tokens, or changes them. Answer: [`KeysShown`],
    /// when the change is stable. A change that was made already is fine, so a client may repeat
    /// each of these.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum KeysChange {
        /// No change.
        Show = 0,
        /// Make a new key, which signs from now on. The number is that of the newest key that the
        /// administrator has seen; if there is a newer one, nothing changes.
        Rotate(u32) = 1,
        /// Give a key up, by its number: no token that it has signed is good any more.
        Retire(u32) = 2,
        /// Revoke a token.
        Revoke(Revoke) = 3,
    }
}

codec! {
    /// Revokes the token with a number.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Revoke {
        /// Number of the token, not 0.
        pub id: u64,
        /// The key that has signed the token; `None`: not known.
        pub key: Option<u32>,
        /// Time at which the token expires; `None`: never, or not known.
        pub expires: Option<Time>,
    }
}

codec! {
    /// The signing keys and the revoked tokens of a file system, without secrets.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct KeysShown {
        /// Number of the newest key, which signs. Keys have the numbers from 0 to this one.
        pub newest: u32,
        /// The keys that are not retired, in order of their numbers.
        pub keys: Vec<KeyShown>,
        /// The revoked tokens, in order of their numbers.
        pub revoked: Vec<RevokedShown>,
    }
}

codec! {
    /// A signing key, without its secret.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct KeyShown {
        /// Number of the key.
        pub key: u32,
        /// Time at which the key was made.
        pub made: Time,
    }
}

codec! {
    /// A revoked token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RevokedShown {
        /// Number of the token.
        pub id: u64,
        /// Time at which the token expires; `None`: never, or not known.
        pub expires: Option<Time>,
    }
}

codec! {
    /// Asks for a token, signed with the newest key. Answer: [`Reply::Signed`](crate::Reply).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SignToken {
        /// The token. Its number must not be 0; the number of its key does not count.
        pub token: Token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret(Bytes::from_static(b"hidden"))), "Secret");
    }
}
