//! Tokens: who may open a session, as whom, where and until when.
//!
//! A token is text: `pando2.` and the hex of its fields and of their HMAC-SHA-256 under a signing
//! key of the file system. Servers make and check them; a client only carries them, and reads the
//! fingerprint by which it knows the file system's servers. A token is a secret: its holder may do
//! what it says.

use std::fmt::{self, Write as _};

use base::{Cred, Decode, DecodeError, Encode, FsError, Reader, Time, codec, codec::Element};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::ids::IdMapping;

const PREFIX: &str = "pando2.";
/// Prefix of tokens that had no number and named no authority.
const PREFIX_BEFORE: &str = "pando1.";
const MAC_BYTES: usize = 32;

/// SHA-256 of the public key of a certificate authority: of its DER-encoded SubjectPublicKeyInfo
/// (RFC 5280, section 4.1). A client knows the servers of its file system by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Element for Fingerprint {}

impl Encode for Fingerprint {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Fingerprint {
    fn decode(input: &mut Reader<'_>) -> Result<Fingerprint, DecodeError> {
        Ok(Fingerprint(input.take(32)?.try_into().expect("32 bytes were taken")))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

codec! {
    /// The use of a token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Scope {
        /// Sessions: the files, as the rest of the token says.
        Files = 0,
        /// Reading status pages and metrics, and nothing else.
        Pages = 1,
    }
}

/// The rights that a token gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Random number of the token, by which it can be revoked. 0: a token that was never written
    /// to a file.
    pub id: u64,
    /// Number of the key that signs the token.
    pub key: u32,
    /// The use of the token.
    pub scope: Scope,
    /// Absolute path of the session's root, without `.` or `..`; `/` is everything.
    pub path: String,
    /// The only user of the file system that the session may act as; `None`: any user.
    pub uid: Option<u32>,
    /// The groups that the session may act as, when the token is bound to a user.
    pub gids: Vec<u32>,
    /// Whether every change is refused.
    pub read_only: bool,
    /// Time at which the token expires; `None`: never.
    pub expires: Option<Time>,
    /// The authority that certifies the file system's servers; `None`: the token does not say, so
    /// it is good for connections without TLS only.
    pub authority: Option<Fingerprint>,
    /// How the ids of clients become those of the file system; `None`: they are the same. Always
    /// `None` in a token for pages.
    pub ids: Option<IdMapping>,
}

/// The scope's tag of a token for files that has an [`IdMapping`], as its last field. A program
/// that knows of none finds the token malformed, and lets nobody in as somebody else.
const FILES_WITH_IDS: u8 = 2;

impl Element for Token {}

impl Encode for Token {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.key.encode(out);
        let ids = self.ids.as_ref().filter(|_| self.scope == Scope::Files);
        match ids {
            Some(_) => FILES_WITH_IDS.encode(out),
            None => self.scope.encode(out),
        }
        self.path.encode(out);
        self.uid.encode(out);
        self.gids.encode(out);
        self.read_only.encode(out);
        self.expires.encode(out);
        self.authority.encode(out);
        if let Some(ids) = ids {
            ids.encode(out);
        }
    }
}

impl Decode for Token {
    fn decode(input: &mut Reader<'_>) -> Result<Token, DecodeError> {
        let (id, key) = <(u64, u32)>::decode(input)?;
        let has_ids = input.peek() == Some(FILES_WITH_IDS);
        let scope = if has_ids {
            u8::decode(input)?;
            Scope::Files
        } else {
            Scope::decode(input)?
        };
        Ok(Token {
            id,
            key,
            scope,
            path: Decode::decode(input)?,
            uid: Decode::decode(input)?,
            gids: Decode::decode(input)?,
            read_only: Decode::decode(input)?,
            expires: Decode::decode(input)?,
            authority: Decode::decode(input)?,
            ids: if has_ids { Some(IdMapping::decode(input)?) } else { None },
        })
    }
}

/// Reason why text is not a valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text does not have the form of a token.
    #[error("malformed token")]
    Malformed,
    /// The text is a token of a program that made them without numbers.
    #[error("token of an earlier version: `pando token create` makes a new one")]
    Version,
    /// The token was not signed with this file system's key.
    #[error("token of another file system, or altered")]
    Signature,
    /// There is no key yet of the number that the token names.
    #[error("token of another file system, or of a key that this server does not know yet")]
    UnknownKey,
    /// The key that has signed the token is retired.
    #[error("token of a retired key: `pando token create` makes a new one")]
    RetiredKey,
    /// The token was revoked.
    #[error("token revoked")]
    Revoked,
    /// The token has expired.
    #[error("token expired")]
    Expired,
}

/// The signing keys of a file system and its revoked tokens, with which tokens are checked.
pub trait SigningKeys {
    /// Returns the secret of a key.
    ///
    /// # Errors
    /// When the key is retired, or there is none with this number.
    fn secret(&self, key: u32) -> Result<&[u8], TokenError>;

    /// Whether a token was revoked that one of these keys has signed.
    fn is_revoked(&self, token: &Token) -> bool;
}

/// One secret for every key number, with which no token is revoked.
impl SigningKeys for [u8] {
    fn secret(&self, _key: u32) -> Result<&[u8], TokenError> {
        Ok(self)
    }

    fn is_revoked(&self, _token: &Token) -> bool {
        false
    }
}

impl Token {
    /// Returns an administrator's token: every right, any user, no expiry.
    #[must_use]
    pub fn administrator() -> Token {
        Token {
            id: 0,
            key: 0,
            scope: Scope::Files,
            path: "/".into(),
            uid: None,
            gids: Vec::new(),
            read_only: false,
            expires: None,
            authority: None,
            ids: None,
        }
    }

    /// Whether a session with this token may act by handle without presenting tickets: it may see
    /// the whole tree, and its mount checks every step of a walk. Where ids are squashed or mapped,
    /// what a mount's kernel checks means nothing.
    #[must_use]
    pub fn trusted(&self) -> bool {
        let anybody = self.uid.is_none() && self.ids.is_none();
        self.scope == Scope::Files && anybody && self.path == "/"
    }

    /// Whether servers check permissions, whatever the client's kernel has checked.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.uid.is_some() || self.ids.is_some()
    }

    /// Whether a session may be opened with this token.
    #[must_use]
    pub fn opens_sessions(&self) -> bool {
        self.scope == Scope::Files
    }

    /// Whether a session with this token may ask for what administrators ask.
    #[must_use]
    pub fn administers(&self) -> bool {
        self.trusted() && !self.read_only
    }

    /// Whether a session with this token may act as `cred`, as the file system knows it.
    ///
    /// # Errors
    /// `NotPermitted` when not.
    pub fn may_act_as(&self, cred: &Cred) -> Result<(), FsError> {
        let Some(uid) = self.uid else { return Ok(()) };
        let allowed = |gid: &u32| self.gids.contains(gid);
        if cred.uid == uid && allowed(&cred.gid) && cred.groups.iter().all(allowed) {
            Ok(())
        } else {
            Err(FsError::NotPermitted)
        }
    }

    /// Whether the token has expired at `now`.
    #[must_use]
    pub fn expired(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// The token as text, signed with `key`.
    #[must_use]
    pub fn sign(&self, key: &[u8]) -> String {
        let mut bytes = self.to_vec();
        let mac = mac(key, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac);
        let mut text = String::from(PREFIX);
        for byte in bytes {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        }
        text
    }

    /// Reads and checks a token.
    ///
    /// # Errors
    /// When the text is no token, was not signed with the key that it names, or that key is
    /// retired; when the token was revoked, or has expired at `now`.
    pub fn verify(
        text: &str,
        keys: &(impl SigningKeys + ?Sized),
        now: Time,
    ) -> Result<Token, TokenError> {
        let (fields, signature) = split(text)?;
        // The number of the key is among the fields, which nobody vouches for yet.
        let token = Token::from_fields(fields.clone())?;
        let secret = keys.secret(token.key)?;
        mac(secret, &fields).verify_slice(&signature).map_err(|_| TokenError::Signature)?;
        if keys.is_revoked(&token) {
            return Err(TokenError::Revoked);
        }
        if token.expired(now) { Err(TokenError::Expired) } else { Ok(token) }
    }

    /// Reads a token without checking its signature: for people to look at, never to decide by.
    ///
    /// # Errors
    /// When the text is no token.
    pub fn unverified(text: &str) -> Result<Token, TokenError> {
        Token::from_fields(split(text)?.0)
    }

    fn from_fields(fields: Vec<u8>) -> Result<Token, TokenError> {
        Token::from_bytes(&Bytes::from(fields)).map_err(|_: DecodeError| TokenError::Malformed)
    }
}

/// The fields and the signature of a token.
fn split(text: &str) -> Result<(Vec<u8>, Vec<u8>), TokenError> {
    if text.trim().starts_with(PREFIX_BEFORE) {
        return Err(TokenError::Version);
    }
    let hex = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Malformed)?;
    let mut fields = unhex(hex).ok_or(TokenError::Malformed)?;
    let at = fields.len().checked_sub(MAC_BYTES).ok_or(TokenError::Malformed)?;
    let signature = fields.split_off(at);
    Ok((fields, signature))
}

fn mac(key: &[u8], fields: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"pando token 2\0");
    mac.update(fields);
    mac
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ANONYMOUS, IdRange, Squash};

    const KEY: &[u8] = b"secret";
    const NOW: Time = Time { sec: 1000, nsec: 0 };

    fn limited() -> Token {
        Token {
            id: 77,
            key: 1,
            path: "/a".into(),
            uid: Some(7),
            gids: vec![7, 8],
            read_only: true,
            expires: Some(Time { sec: 2000, nsec: 0 }),
            authority: Some(Fingerprint([9; 32])),
            ..Token::administrator()
        }
    }

    fn squashed() -> Token {
        let ids = IdMapping {
            squash: Squash::Root,
            anonymous_uid: ANONYMOUS,
            anonymous_gid: ANONYMOUS,
            uids: vec![IdRange { outside: 1000, inside: 5000, count: 10 }],
            gids: Vec::new(),
        };
        Token { ids: Some(ids), ..Token::administrator() }
    }

    #[test]
    fn a_token_whose_ids_are_squashed_or_mapped_neither_administers_nor_is_trusted() {
        let token = squashed();
        assert!(token.opens_sessions() && token.is_checked());
        assert!(!token.trusted() && !token.administers());
    }

    #[test]
    fn a_signed_token_says_what_it_said() {
        for token in [Token::administrator(), limited(), squashed()] {
            let text = token.sign(KEY);
            assert_eq!(Token::unverified(&text), Ok(token.clone()));
            assert_eq!(Token::verify(&text, KEY, NOW), Ok(token));
        }
    }

    #[test]
    fn a_token_that_was_altered_or_signed_elsewhere_is_refused() {
        for text in [limited().sign(KEY), squashed().sign(KEY)] {
            assert_eq!(Token::verify(&text, &b"other"[..], NOW), Err(TokenError::Signature));
            for at in PREFIX.len()..text.len() {
                let mut altered = text.clone().into_bytes();
                altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
                let altered = String::from_utf8(altered).unwrap();
                assert!(Token::verify(&altered, KEY, NOW).is_err(), "at={at}");
            }
        }
        for text in ["", "pando2.", "pando2.0", "pando2.zz", "pando3.00"] {
            assert_eq!(Token::verify(text, KEY, NOW), Err(TokenError::Malformed));
        }
        assert_eq!(Token::verify("pando1.00", KEY, NOW), Err(TokenError::Version));
    }

    #[test]
    fn an_expired_token_is_refused() {
        let text = limited().sign(KEY);
        let later = Time { sec: 2000, nsec: 0 };
        assert_eq!(Token::verify(&text, KEY, later), Err(TokenError::Expired));
    }

    /// Key 0 is retired, key 1 is good, and there are no more.
    struct TwoKeys(bool);

    impl SigningKeys for TwoKeys {
        fn secret(&self, key: u32) -> Result<&[u8], TokenError> {
            match key {
                0 => Err(TokenError::RetiredKey),
                1 => Ok(KEY),
                _ => Err(TokenError::UnknownKey),
            }
        }

        fn is_revoked(&self, token: &Token) -> bool {
            self.0 && token.id == 77
        }
    }

    #[test]
    fn a_token_is_checked_with_the_key_that_it_names() {
        let of = |key| Token { key, ..limited() }.sign(KEY);
        let verify = |text: &str, keys| Token::verify(text, &keys, NOW).map(|token| token.key);
        assert_eq!(verify(&of(0), TwoKeys(false)), Err(TokenError::RetiredKey));
        assert_eq!(verify(&of(1), TwoKeys(false)), Ok(1));
        assert_eq!(verify(&of(2), TwoKeys(false)), Err(TokenError::UnknownKey));
        assert_eq!(verify(&of(1), TwoKeys(true)), Err(TokenError::Revoked));
    }

    #[test]
    fn a_token_bound_to_a_user_acts_as_no_other() {
        let cred = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: groups.to_vec() };
        assert_eq!(limited().may_act_as(&cred(7, 8, &[7])), Ok(()));
        assert_eq!(limited().may_act_as(&cred(0, 7, &[])), Err(FsError::NotPermitted));
        assert_eq!(limited().may_act_as(&cred(7, 0, &[])), Err(FsError::NotPermitted));
        assert_eq!(limited().may_act_as(&cred(7, 7, &[9])), Err(FsError::NotPermitted));
        assert_eq!(Token::administrator().may_act_as(&Cred::ROOT), Ok(()));
    }
}
