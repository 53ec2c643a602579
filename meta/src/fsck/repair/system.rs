//! Records of the server itself, and of quotas. The server also has most of them in memory.

use base::{Ino, ShardId};
use wire::{Decide, TxnId};

use super::{drop_record, sound};
use crate::{
    coordinator::balance::Balancing,
    delegations::DelegationRecord,
    error::Result,
    feed::{FeedState, Logged},
    handoff::HandoffRecord,
    keys::ring::KeyRing,
    reclaim::notes::Garbage,
    record::{
        Accounts, Config, Content, Key, Lived, QuotaId, QuotaRecord, SessionRecord, Settings, Tail,
        Usage,
        key::{self, UsagePart},
        system::Reserved,
    },
    transact::participant,
    txn::Txn,
};

/// Repairs a shard's counter, or a note of work.
pub(super) fn work(txn: &mut Txn<'_>, shard: ShardId, key: &Key) -> Result<bool> {
    let is_right = match (key[2], key.len()) {
        (b'C', 5) => {
            let end = txn.shared.inos.end(shard);
            let stored: Option<Reserved> = sound(txn, key)?;
            if stored.is_some_and(|stored| stored.end >= end) {
                return Ok(false);
            }
            txn.put(key.clone(), &Reserved { end });
            return Ok(true);
        }
        (b'G', 21) => {
            if sound::<Garbage>(txn, key)?.is_some() {
                return Ok(false);
            }
            txn.put(key.clone(), &Garbage::default());
            return Ok(true);
        }
        (b'H', 23) => sound::<HandoffRecord>(txn, key)?.is_some(),
        (b'T', 13) => sound::<Tail>(txn, key)?.is_some(),
        (b'V', 29) => sound::<Content>(txn, key)?.is_some(),
        // Other notes that cannot be read, and unknown records.
        _ => false,
    };
    if is_right { Ok(false) } else { drop_record(txn, key) }
}

/// Repairs a record of the server itself.
pub(super) fn record(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    match (key[2], key.len()) {
        (b'A', 13) => quota(txn, key),
        // Records of shards that move.
        (b'V', _) => Ok(false),
        (b'F', 3) => {
            if sound::<Config>(txn, key)?.is_some() {
                return Ok(false);
            }
            txn.put(key.clone(), &txn.shared.config.clone());
            Ok(true)
        }
        (b'O', 3) => {
            if sound::<Settings>(txn, key)?.is_some() {
                return Ok(false);
            }
            txn.put(key.clone(), &txn.shared.settings());
            Ok(true)
        }
        (b'K', 3) => {
            if sound::<KeyRing>(txn, key)?.is_some() {
                return Ok(false);
            }
            txn.put(key.clone(), &txn.key_ring());
            Ok(true)
        }
        (b'L', 19) => {
            if sound::<DelegationRecord>(txn, key)?.is_some() {
                return Ok(false);
            }
            // Since the server has started the directory is not held: the holder is not known.
            txn.delete(key.clone());
            Ok(true)
        }
        (b'M', 4) if *key == key::lived() => {
            if sound::<Lived>(txn, key)?.is_some() {
                return Ok(false);
            }
            // Things in the trash then stay for as long as if they had come now.
            txn.delete(key.clone());
            Ok(true)
        }
        (b'M', 4) if *key == key::balancing() => {
            if sound::<Balancing>(txn, key)?.is_some() {
                return Ok(false);
            }
            txn.delete(key.clone());
            Ok(true)
        }
        // No other record has the same contents. No server opens without a readable one.
        (b'M', 3 | 4) | (b'P' | b'X' | b'E', 21) => Ok(false),
        (b'S', 11) => session(txn, key),
        (b'W', 3) if sound::<FeedState>(txn, key)?.is_some() => Ok(false),
        (b'W', 11) if sound::<Logged>(txn, key)?.is_some() => Ok(false),
        // Stored answers that no client can ask for or that cannot be read, and unknown records.
        _ => drop_record(txn, key),
    }
}

fn session(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    if sound::<SessionRecord>(txn, key)?.is_some() {
        return Ok(false);
    }
    let Some(session) = key::parse_session(key).and_then(|id| txn.shared.session(id)) else {
        return drop_record(txn, key);
    };
    let (secret, client) = (session.secret, session.client.clone());
    let opened = txn.now;
    txn.put(key.clone(), &SessionRecord { secret, client, opened });
    Ok(true)
}

/// Repairs an accounting root, or a core's charges to it.
fn quota(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    let Some((id, part)) = key::parse_usage(key) else { return drop_record(txn, key) };
    match part {
        UsagePart::Root => {
            if sound::<QuotaRecord>(txn, key)?.is_some() {
                return Ok(false);
            }
            let Some(seen) = txn.shared.quotas.get(id) else { return drop_record(txn, key) };
            txn.put_quota(id, &seen.record);
        }
        UsagePart::Core(core) => {
            if sound::<Usage>(txn, key)?.is_some() {
                return Ok(false);
            }
            match txn.shared.quotas.charged(id, core) {
                Some(usage) => txn.put(key.clone(), &usage),
                None => return drop_record(txn, key),
            }
        }
    }
    Ok(true)
}

/// Corrects the charges of a quota by the difference found.
pub(super) fn usage(txn: &mut Txn<'_>, id: QuotaId, usage: Usage) -> bool {
    let known =
        id.is_owners() || txn.shared.cluster.is_some() || txn.shared.quotas.get(id).is_some();
    txn.charge_freely(Accounts::root(id), usage);
    known
}

/// Removes charges of cores to a quota that does not exist.
pub(super) fn forget(txn: &mut Txn<'_>, id: QuotaId) -> Result<bool> {
    if txn.shared.quotas.get(id).is_some() {
        return Ok(false);
    }
    let prefix = key::usage(id, UsagePart::Root);
    let found = txn.scan_prefix(&prefix[..prefix.len() - 2], usize::MAX)?;
    let any = !found.is_empty();
    for (key, _) in found {
        drop_record(txn, &key)?;
    }
    Ok(any)
}

/// Ends a transaction that is prepared here, as its initiator has said.
pub(super) fn decide(txn: &mut Txn<'_>, id: TxnId, commit: bool) -> Result<bool> {
    let there = txn.get_bytes(&key::prepared(id))?.is_some();
    txn.be_part_of(id);
    participant::decide(txn, &Decide { txn: id, commit })?;
    Ok(there)
}

/// Reserves a number that is in use, and all before it. If the number cannot be reserved, its owner
/// gets another one.
pub(super) fn reserve(txn: &mut Txn<'_>, ino: Ino, at: &Key) -> Result<bool> {
    if let Some(end) = txn.shared.inos.raise(ino) {
        txn.put(key::counter(ino.shard()), &Reserved { end });
        return Ok(true);
    }
    match at.get(2) {
        Some(b'N') => super::names::renumber(txn, at),
        Some(b'D') => super::dirs::renumber(txn, at),
        Some(_) | None => Ok(false),
    }
}
