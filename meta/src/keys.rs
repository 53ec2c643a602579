//! Signing keys and revoked tokens, as all cores of a server see them.
//!
//! The coordinator changes the key ring, or the only server ([`crate::ops::keys`]). Other servers
//! get it with a lease, as they get the settings, and store it. `ops::hello` and `ops::observe`
//! check tokens with the ring in force, and [`crate::session`] checks at each request whether the
//! ring has changed since the session's token was checked.
//!
//! The root key, number 0, is in the configuration of the file system. Tickets of sessions and
//! proofs of servers are made with it, too, and for these it stays good when it is retired.
//!
//! Never: a secret in a log. Two servers that differ in their rings differ by a heartbeat at most,
//! while both reach the coordinator.

pub(crate) mod put_in_force;
pub(crate) mod ring;

use std::{
    collections::hash_map::Entry,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::HashMap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use wire::{Secret, SigningKeys, Token, TokenError};

use self::ring::KeyRing;
use crate::bugs::{Bug, Planted};

/// A key ring with the secret of the root key.
pub(crate) struct WholeRing {
    pub(crate) ring: KeyRing,
    root: Secret,
}

impl WholeRing {
    /// The newest key, which signs: its number and its secret.
    pub(crate) fn newest(&self) -> (u32, Secret) {
        match self.ring.keys.last() {
            Some(key) => (key.number, key.secret.clone()),
            None => (0, self.root.clone()),
        }
    }
}

impl SigningKeys for WholeRing {
    fn secret(&self, key: u32) -> Result<&[u8], TokenError> {
        if self.ring.is_retired(key) {
            return Err(TokenError::RetiredKey);
        }
        if key == 0 {
            return Ok(&self.root.0);
        }
        let found = self.ring.keys.iter().find(|known| known.number == key);
        found.map(|known| &known.secret.0[..]).ok_or(TokenError::UnknownKey)
    }

    fn is_revoked(&self, token: &Token) -> bool {
        self.ring.is_revoked(token.id)
    }
}

/// The key ring in force. The caller of a change stores it.
pub(crate) struct Keys {
    ring: watch::Sender<Arc<WholeRing>>,
    /// Number of changes since the start, and 1.
    changes: AtomicU64,
    /// Numbers of keys that are not known and that clients have named, and since when.
    unknown: Mutex<HashMap<u32, Instant>>,
    bugs: Planted,
}

/// Most unknown keys that are remembered.
const UNKNOWN_MAX: usize = 64;

impl Keys {
    pub(crate) fn new(root: Bytes, ring: KeyRing, bugs: Planted) -> Keys {
        let whole = WholeRing { ring, root: Secret(root) };
        let ring = watch::Sender::new(Arc::new(whole));
        Keys { ring, changes: AtomicU64::new(1), unknown: Mutex::default(), bugs }
    }

    pub(crate) fn get(&self) -> Arc<WholeRing> {
        self.ring.borrow().clone()
    }

    /// Puts another ring into force: at once, for every session of this server.
    pub(crate) fn set(&self, ring: KeyRing) {
        let root = self.ring.borrow().root.clone();
        self.ring.send_replace(Arc::new(WholeRing { ring, root }));
        if !self.bugs.has(Bug::RingUnseen) {
            // Race: whoever sees the new number finds the new ring.
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Number of changes since the start, never 0: a session whose token was checked at another
    /// number must have it checked again.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether a token that was good when its session was opened is good no more.
    pub(crate) fn check(&self, token: &Token) -> Result<(), TokenError> {
        let ring = self.ring.borrow();
        ring.secret(token.key)?;
        if ring.is_revoked(token) { Err(TokenError::Revoked) } else { Ok(()) }
    }

    /// Whether a key that is not known may come with the next lease: it was named for the first
    /// time less than `lease` ago. Anybody can name any number, so only so many are remembered.
    pub(crate) fn may_come(&self, key: u32, lease: Duration) -> bool {
        let mut unknown = self.unknown.lock();
        unknown.retain(|_, since| since.elapsed() < 10 * lease);
        let is_full = unknown.len() >= UNKNOWN_MAX;
        match unknown.entry(key) {
            Entry::Occupied(since) => since.get().elapsed() < lease,
            Entry::Vacant(_) if is_full => false,
            Entry::Vacant(new) => {
                new.insert(Instant::now());
                true
            }
        }
    }

    /// Tells of each change from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<WholeRing>> {
        self.ring.subscribe()
    }
}
