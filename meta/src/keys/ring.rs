//! The key ring as a value: which keys sign, which are retired, and which tokens are revoked.
//!
//! The rules of its changes are here, without IO. The ring is bounded: a list of revoked tokens
//! that grew for ever would be sent with leases for ever. A revoked token leaves the list when it
//! has expired anyway, or when no key is left that may have signed it.
//!
//! Invariant: keys and revoked tokens are sorted by their numbers; the newest key is never retired,
//! so there is always one that signs.

use std::time::Duration;

use base::{Time, codec};
use wire::{KeyShown, KeysShown, Revoke, RevokedShown, Secret};

use crate::record::Record;

/// Most keys that are not retired.
pub(crate) const KEYS_MAX: usize = 16;
/// Most revoked tokens at a time.
pub(crate) const REVOKED_MAX: usize = 4096;
/// Time for which a revoked token stays in the list after it has expired: by then the clocks of
/// all servers say so.
const KEPT_AFTER_EXPIRY: Duration = Duration::from_secs(86400);

codec! {
    /// The key ring. Key 0 is the root key: its secret is in the configuration, and is not here.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct KeyRing {
        /// Number of this state of the ring: the number of its changes in the upper half, and a
        /// random one in the lower, as a copy of the ring that was brought back may change in
        /// another way. 0: the ring was never changed.
        pub version: u64,
        /// Number of the newest key, which signs.
        pub newest: u32,
        /// Whether key 0 is retired.
        pub root_retired: bool,
        /// The keys after 0 that are not retired.
        pub keys: Vec<SigningKey>,
        pub revoked: Vec<RevokedToken>,
    }
}

codec! {
    /// A key that signs tokens.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct SigningKey {
        pub number: u32,
        pub secret: Secret,
        pub made: Time,
    }
}

codec! {
    /// A revoked token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct RevokedToken {
        pub id: u64,
        /// Time at which the token expires; `None`: never, or not known.
        pub expires: Option<Time>,
        /// First of the keys that may have signed the token.
        pub key_first: u32,
        /// Last of these keys.
        pub key_last: u32,
    }
}

impl Record for KeyRing {
    fn is_sound(&self) -> bool {
        self.keys.is_sorted_by(|one, next| one.number < next.number)
            && self.keys.iter().all(|key| key.number > 0)
            && match self.keys.last() {
                Some(last) => last.number == self.newest,
                None => self.newest == 0 && !self.root_retired,
            }
            && self.revoked.is_sorted_by(|one, next| one.id < next.id)
    }
}

/// The reason why the ring does not change as it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unchangeable {
    #[error(
        "there are {KEYS_MAX} keys already: retire one that signs no token in use \
         (`pando keys retire`)"
    )]
    KeysMax,
    #[error("there is no key {0}: `pando keys list` shows all")]
    NoKey(u32),
    #[error("key {0} signs new tokens: make another one first (`pando keys rotate`)")]
    Signs(u32),
    #[error(
        "a token without a number cannot be revoked: rotate the keys, and retire the one that has \
         signed it"
    )]
    NoNumber,
    #[error(
        "{REVOKED_MAX} tokens are revoked already: rotate the keys, and retire those that have \
         signed them"
    )]
    RevokedMax,
}

impl KeyRing {
    /// Adds a key, which signs from now on, unless the newest is not `seen` any more.
    pub(crate) fn rotate(
        &mut self,
        seen: u32,
        secret: Secret,
        now: Time,
    ) -> Result<(), Unchangeable> {
        if seen != self.newest {
            return Ok(());
        }
        if self.keys.len() + usize::from(!self.root_retired) >= KEYS_MAX {
            return Err(Unchangeable::KeysMax);
        }
        self.newest = self.newest.checked_add(1).ok_or(Unchangeable::KeysMax)?;
        self.keys.push(SigningKey { number: self.newest, secret, made: now });
        Ok(())
    }

    /// Gives up a key and its secret. Tokens that it has signed need not be in the list of revoked
    /// ones any more.
    pub(crate) fn retire(&mut self, number: u32) -> Result<(), Unchangeable> {
        if number > self.newest {
            return Err(Unchangeable::NoKey(number));
        }
        if number == self.newest {
            return Err(Unchangeable::Signs(number));
        }
        self.root_retired |= number == 0;
        self.keys.retain(|key| key.number != number);
        let mut revoked = std::mem::take(&mut self.revoked);
        revoked.retain(|token| self.is_any_good(token.key_first, token.key_last));
        self.revoked = revoked;
        Ok(())
    }

    /// Revokes a token. Of one that is revoked already the later expiry counts.
    pub(crate) fn revoke(&mut self, token: &Revoke, now: Time) -> Result<(), Unchangeable> {
        if token.id == 0 {
            return Err(Unchangeable::NoNumber);
        }
        let long_ago = Time { sec: now.sec.saturating_sub(seconds(KEPT_AFTER_EXPIRY)), ..now };
        self.revoked.retain(|token| token.expires.is_none_or(|expires| expires > long_ago));
        let (key_first, key_last) = token.key.map_or((0, self.newest), |key| (key, key));
        let new = RevokedToken { id: token.id, expires: token.expires, key_first, key_last };
        match self.revoked.binary_search_by_key(&token.id, |token| token.id) {
            Ok(at) => {
                let known = &mut self.revoked[at];
                known.expires = known.expires.zip(new.expires).map(|(known, new)| known.max(new));
                known.key_first = known.key_first.min(key_first);
                known.key_last = known.key_last.max(key_last);
            }
            Err(_) if self.revoked.len() >= REVOKED_MAX => return Err(Unchangeable::RevokedMax),
            Err(at) => self.revoked.insert(at, new),
        }
        Ok(())
    }

    /// The version after a change.
    pub(crate) fn next_version(&self, random: u64) -> u64 {
        ((self.version >> 32) + 1) << 32 | random & u64::from(u32::MAX)
    }

    /// Whether a ring of this version has changed more often than this one. Rings spread when they
    /// are stable, so this one is an old copy then.
    pub(crate) fn is_older_than(&self, version: u64) -> bool {
        version >> 32 > self.version >> 32
    }

    /// Whether any of these keys is not retired.
    fn is_any_good(&self, first: u32, last: u32) -> bool {
        (first == 0 && !self.root_retired)
            || self.keys.iter().any(|key| (first..=last).contains(&key.number))
    }

    /// Whether a key was retired.
    pub(crate) fn is_retired(&self, number: u32) -> bool {
        number <= self.newest && !self.is_any_good(number, number)
    }

    /// Whether a token was revoked.
    pub(crate) fn is_revoked(&self, id: u64) -> bool {
        self.revoked.binary_search_by_key(&id, |token| token.id).is_ok()
    }

    /// The ring without its secrets; the root key was made at `root_made`.
    pub(crate) fn shown(&self, root_made: Time) -> KeysShown {
        let root = (!self.root_retired).then_some(KeyShown { key: 0, made: root_made });
        let others = self.keys.iter().map(|key| KeyShown { key: key.number, made: key.made });
        let revoked = self.revoked.iter();
        KeysShown {
            newest: self.newest,
            keys: root.into_iter().chain(others).collect(),
            revoked: revoked
                .map(|token| RevokedShown { id: token.id, expires: token.expires })
                .collect(),
        }
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const NOW: Time = Time { sec: 1_000_000, nsec: 0 };

    fn secret() -> Secret {
        Secret(Bytes::from_static(&[7; 32]))
    }

    fn rotated(ring: &mut KeyRing) {
        ring.rotate(ring.newest, secret(), NOW).unwrap();
        assert!(ring.is_sound());
    }

    fn token(id: u64, key: Option<u32>, expires: Option<i64>) -> Revoke {
        Revoke { id, key, expires: expires.map(|sec| Time { sec, nsec: 0 }) }
    }

    #[test]
    fn a_rotation_that_was_made_already_makes_no_other_key() {
        let mut ring = KeyRing::default();
        ring.rotate(0, secret(), NOW).unwrap();
        ring.rotate(0, secret(), NOW).unwrap();
        assert_eq!((ring.newest, ring.keys.len()), (1, 1));
        let shown: Vec<u32> = ring.shown(NOW).keys.iter().map(|key| key.key).collect();
        assert_eq!(shown, [0, 1]);
    }

    #[test]
    fn the_key_that_signs_is_not_retired() {
        let mut ring = KeyRing::default();
        assert_eq!(ring.retire(0), Err(Unchangeable::Signs(0)));
        assert_eq!(ring.retire(1), Err(Unchangeable::NoKey(1)));
        rotated(&mut ring);
        assert_eq!(ring.retire(1), Err(Unchangeable::Signs(1)));
        assert!(!ring.is_retired(0));
        for _again in 0..2 {
            assert_eq!(ring.retire(0), Ok(()));
            assert!(ring.is_retired(0) && !ring.is_retired(1) && ring.is_sound());
        }
        assert!(!ring.is_retired(2), "nobody has made it");
    }

    #[test]
    fn an_old_copy_of_the_ring_is_known_by_its_version() {
        let mut ring = KeyRing { version: 0, ..KeyRing::default() };
        let mut versions = vec![0];
        for random in [u64::MAX, 0, 7] {
            ring.version = ring.next_version(random);
            assert!(versions.iter().all(|old| !ring.is_older_than(*old)));
            versions.push(ring.version);
        }
        assert!(KeyRing::default().is_older_than(ring.version));
        assert!(!ring.is_older_than(ring.version));
    }

    #[test]
    fn there_are_so_many_keys_at_a_time() {
        let mut ring = KeyRing::default();
        while ring.keys.len() + 1 < KEYS_MAX {
            rotated(&mut ring);
        }
        assert_eq!(ring.rotate(ring.newest, secret(), NOW), Err(Unchangeable::KeysMax));
        ring.retire(3).unwrap();
        rotated(&mut ring);
        assert_eq!((ring.newest, ring.is_retired(3)), (16, true));
    }

    #[test]
    fn a_token_is_revoked_until_it_has_expired_anyway() {
        let mut ring = KeyRing::default();
        ring.revoke(&token(7, Some(0), Some(1_000_010)), NOW).unwrap();
        ring.revoke(&token(5, Some(0), None), NOW).unwrap();
        assert_eq!(ring.revoke(&token(0, None, None), NOW), Err(Unchangeable::NoNumber));
        assert!(ring.is_revoked(5) && ring.is_revoked(7) && !ring.is_revoked(6));
        assert!(ring.is_sound());
        // Again, with a later end.
        ring.revoke(&token(7, Some(0), Some(1_000_020)), NOW).unwrap();
        assert_eq!(ring.revoked[1].expires, Some(Time { sec: 1_000_020, nsec: 0 }));
        let day = 24 * 3600;
        for (sec, revoked) in [(1_000_019 + day, true), (1_000_020 + day, false)] {
            ring.revoke(&token(9, None, None), Time { sec, nsec: 0 }).unwrap();
            assert_eq!(ring.is_revoked(7), revoked);
        }
        assert!(ring.is_revoked(5));
    }

    #[test]
    fn a_full_list_of_revoked_tokens_is_emptied_by_retiring_their_keys() {
        let mut ring = KeyRing::default();
        for id in 1..=REVOKED_MAX as u64 {
            ring.revoke(&token(id, (id % 2 == 0).then_some(0), None), NOW).unwrap();
        }
        assert_eq!(ring.revoke(&token(1 << 40, None, None), NOW), Err(Unchangeable::RevokedMax));
        assert_eq!(ring.revoke(&token(1, None, None), NOW), Ok(()));
        rotated(&mut ring);
        ring.revoke(&token(1, Some(1), None), NOW).unwrap();
        ring.retire(0).unwrap();
        let left: Vec<u64> = ring.revoked.iter().map(|token| token.id).collect();
        assert_eq!(left, [1], "key 1 may have signed it");
        assert!(ring.is_sound());
    }
}
