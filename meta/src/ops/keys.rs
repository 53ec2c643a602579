//! `keys` and `sign_token`: requests of administrators about signing keys and revoked tokens.
//!
//! Cost: no read; one write of the ring where it changes. The answer waits until that is stable: a
//! power cut must not make a token good again of which an administrator was told that it is not,
//! nor end the tokens of a new key.
//! POSIX: none. EPERM without an administrator's token.

use bytes::Bytes;
use wire::{KeysChange, KeysShown, Secret, SignToken, Token};

use crate::{
    error::{Fault, Result},
    keys::ring::KeyRing,
    lock::KEY_RING,
    record::key,
    txn::Txn,
};

/// Shows the ring, or changes it. In a cluster the coordinator does it.
pub(crate) fn run(txn: &mut Txn<'_>, change: &KeysChange) -> Result<KeysShown> {
    txn.is_coordinators()?;
    txn.lock(KEY_RING)?;
    let before = txn.key_ring();
    let (mut ring, now) = (before.clone(), txn.now);
    let changed = match change {
        KeysChange::Show => Ok(()),
        KeysChange::Rotate(seen) => ring.rotate(*seen, draw(txn), now),
        KeysChange::Retire(number) => ring.retire(*number),
        KeysChange::Revoke(token) => ring.revoke(token, now),
    };
    changed.map_err(|error| Fault::Refused(error.to_string()))?;
    if ring != before {
        log(change, &ring, by(txn));
        ring.version = before.next_version(txn.shared.random.next());
        txn.put(key::key_ring(), &ring);
        txn.facts.keys = Some(Box::new(ring.clone()));
    }
    Ok(ring.shown(txn.shared.config.created))
}

/// Signs a token with the newest key. In a cluster the coordinator does it, as a new key is in
/// force there first. No token outlives the one by which it was made.
pub(crate) fn sign(txn: &mut Txn<'_>, req: &SignToken) -> Result<String> {
    txn.is_coordinators()?;
    if req.token.id == 0 {
        return Err(Fault::Refused("a token needs a number, by which it can be revoked".into()));
    }
    let own = txn.caller.session.and_then(|session| session.token());
    let end = own.as_ref().and_then(|own| own.expires);
    if end.is_some_and(|end| req.token.expires.is_none_or(|expires| expires > end)) {
        let reason = "the new token would outlast the one that asks for it: give --expires";
        return Err(Fault::Refused(reason.into()));
    }
    txn.lock(KEY_RING)?;
    let ring = txn.key_ring();
    let (key, secret) = match ring.keys.last() {
        Some(newest) => (newest.number, newest.secret.clone()),
        None => (0, Secret(txn.shared.config.signing_key.clone())),
    };
    let token = Token { key, ..req.token.clone() };
    let Token { id, path, uid, read_only, expires, scope, .. } = &token;
    let (id, by) = (shown(*id), by(txn));
    tracing::info!(id, by, key, path, uid, read_only, ?expires, ?scope, "signed a token");
    Ok(token.sign(&secret.0))
}

/// A token's number, as `pando token` prints it.
fn shown(id: u64) -> String {
    format!("{id:016x}")
}

/// A new secret of 32 bytes.
fn draw(txn: &Txn<'_>) -> Secret {
    let words = std::array::from_fn::<_, 4, _>(|_| txn.shared.random.next().to_le_bytes());
    Secret(Bytes::copy_from_slice(words.as_flattened()))
}

/// Number of the token that the caller has come with.
fn by(txn: &Txn<'_>) -> String {
    let own = txn.caller.session.and_then(|session| session.token());
    own.map_or_else(String::new, |own| shown(own.id))
}

fn log(change: &KeysChange, ring: &KeyRing, by: String) {
    match change {
        KeysChange::Show => {}
        KeysChange::Rotate(_) => tracing::warn!(by, key = ring.newest, "a new key signs tokens"),
        KeysChange::Retire(key) => tracing::warn!(by, key, "a signing key is retired"),
        KeysChange::Revoke(token) => tracing::warn!(by, id = shown(token.id), "a token is revoked"),
    }
}
