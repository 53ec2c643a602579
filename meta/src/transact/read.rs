//! Reads of the initiator at other servers, which can hold records of a directory that moves.
//!
//! A held record is invisible to others until the transaction has ended, so that its move can be
//! announced while it is prepared. A transaction that holds records waits for no other: where one
//! is in the way, nothing is held.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{DirId, HashSet};
use bytes::Bytes;
use futures::future::join_all;
use tokio::time::timeout;
use wire::{Decide, Hold, PeerRead, Reply, Request, Retry, TxnId};

use super::participant;
use crate::{
    Core,
    cluster::Cluster,
    dump::pauses::UnderWay,
    error::{Fault, Result},
    peer::Unanswered,
    record::{Key, key},
    txn::{Remote, remote::Plan},
};

/// Most records in one request: its answer fits in a frame.
const READ_KEYS_MAX: usize = 256;
/// Longest wait for records that an operation can do without. Their server answers by then, or is
/// silent.
const SPARED_AFTER: Duration = participant::READ_WITHIN;

/// Reads the records that the latest run lacked, each where it is. Records of a silent server that
/// the operation can do without are given up soon.
pub(super) async fn read(core: &Core, cluster: &Cluster, remote: &mut Remote) -> Result<()> {
    let reads = reads_of(remote.missing(), |key| cluster.server_of_key(key))?;
    let moved = core.inner.shared.invalidations.version();
    let (confirmed, session) = (remote.wants_confirmed, remote.session);
    let asked: Vec<_> = reads
        .into_iter()
        .map(|(server, keys)| {
            let inos = remote.meant(&keys);
            let (keys_asked, hold) = (keys.clone(), None);
            let request =
                Request::PeerRead(PeerRead { keys: keys_asked, inos, hold, confirmed, session });
            let answer = core.inner.peers.ask(server, &request);
            let spared = remote.spares(&keys);
            async move {
                let answer = match spared {
                    true => timeout(SPARED_AFTER, answer).await.unwrap_or(Err(Unanswered::Lost)),
                    false => answer.await,
                };
                (keys, answer, spared)
            }
        })
        .collect();
    for (keys, answer, spared) in join_all(asked).await {
        if spared && answer == Err(Unanswered::Lost) {
            keys.iter().for_each(|key| remote.goes_without(Key::from_slice(key)));
            continue;
        }
        let values = values_of(answer)?.ok_or(Fault::Retry(Retry::Busy))?;
        learn(remote, &keys, values, moved);
    }
    Ok(())
}

/// Reads the records that the latest run lacked, and holds some, so that others do not see them.
/// `None`: something was in the way.
pub(super) async fn read_and_hold<'a>(
    core: &Core,
    cluster: &Cluster,
    remote: &mut Remote,
    under_way: UnderWay<'a>,
) -> Result<Option<Held<'a>>> {
    let keys: HashSet<Key> = remote.held().iter().cloned().collect();
    let (first, others): (Vec<Key>, Vec<Key>) =
        remote.missing().iter().cloned().partition(|key| keys.contains(key));
    let reads = reads_of(&[first, others].concat(), |key| cluster.server_of_key(key))?;
    let held_of = |part: &[Bytes]| {
        let held = part.iter().take_while(|key| keys.contains(&key[..])).count();
        u16::try_from(held).expect("no request has so many keys")
    };
    let servers = reads.iter().filter(|(_, part)| held_of(part) > 0).map(|(server, _)| *server);
    let held = Held {
        _under_way: under_way,
        core: core.clone(),
        txn: cluster.next_txn(),
        servers: servers.clone().collect(),
        untold: servers.collect(),
        keys: keys.clone(),
    };
    core.inner.shared.initiated.begin(held.txn);
    let moved = core.inner.shared.invalidations.version();
    let session = remote.session;
    let asked = reads.into_iter().map(|(server, part)| {
        let hold = Some(Hold { txn: held.txn, keys: held_of(&part) });
        let inos = remote.meant(&part);
        let (keys, confirmed) = (part.clone(), false);
        let request = Request::PeerRead(PeerRead { keys, inos, hold, confirmed, session });
        let answer = core.inner.peers.ask(server, &request);
        async move { (part, answer.await) }
    });
    let asked: Vec<_> = asked.collect();
    let mut is_held = true;
    for (part, answer) in join_all(asked).await {
        match values_of(answer)? {
            Some(values) => learn(remote, &part, values, moved),
            None => is_held = false,
        }
    }
    Ok(is_held.then_some(held))
}

/// The values that a server has read; `None`: something was in the way.
fn values_of(answer: std::result::Result<Reply, Unanswered>) -> Result<Option<Vec<Option<Bytes>>>> {
    match answer {
        Ok(Reply::Values(values)) => Ok(Some(values)),
        Ok(Reply::Vote(_)) => Ok(None),
        Err(Unanswered::Failed(error)) => Err(error.into()),
        Ok(_) => Err(Fault::Retry(Retry::Busy)),
        // The client asks again, for as long as it takes.
        Err(Unanswered::Lost) => Err(Fault::Retry(Retry::Away)),
    }
}

fn learn(remote: &mut Remote, keys: &[Bytes], values: Vec<Option<Bytes>>, moved: u64) {
    for (key, value) in keys.iter().zip(values) {
        remote.learn(Key::from_slice(key), value, moved);
    }
}

/// Whether walks see this record of directories that move.
pub(super) fn is_walked(key: &[u8], moves: &[DirId]) -> bool {
    key::is_name(key) || key::parse_dir(key).is_some_and(|dir| moves.contains(&dir))
}

/// Records of other servers that nobody sees until the transaction for which they are held has
/// ended.
pub(super) struct Held<'a> {
    core: Core,
    pub(super) txn: TxnId,
    pub(super) servers: BTreeSet<u16>,
    /// The servers that are told of the end when this is dropped.
    pub(super) untold: BTreeSet<u16>,
    keys: HashSet<Key>,
    _under_way: UnderWay<'a>,
}

impl Held<'_> {
    /// Whether all records are held that others are to write and that walks see.
    pub(super) fn has_all(&self, plan: &Plan, moves: &[DirId]) -> bool {
        let written = plan.values().flat_map(|part| &part.writes).map(participant::key_of);
        written.filter(|key| is_walked(key, moves)).all(|key| self.keys.contains(&key[..]))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.core.inner.shared.initiated.end(self.txn);
        let decide = Request::Decide(Decide { txn: self.txn, commit: false });
        for server in &self.untold {
            // The request is queued now, so that it precedes all later ones. A server that misses
            // it asks.
            drop(self.core.inner.peers.ask(*server, &decide));
        }
    }
}

/// The keys to ask of each server, with no request too large.
fn reads_of(
    keys: &[Key],
    server_of: impl Fn(&Key) -> Option<u16>,
) -> Result<Vec<(u16, Vec<Bytes>)>> {
    let mut by_server = BTreeMap::<u16, Vec<Bytes>>::new();
    for key in keys {
        let server = server_of(key).ok_or(Fault::Retry(Retry::Busy))?;
        by_server.entry(server).or_default().push(Bytes::copy_from_slice(key));
    }
    let mut reads = Vec::new();
    for (server, keys) in by_server {
        reads.extend(keys.chunks(READ_KEYS_MAX).map(|keys| (server, keys.to_vec())));
    }
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_records_are_read_with_several_requests_to_each_server() {
        let keys: Vec<Key> = (0..600_u32).map(|n| Key::from_slice(&n.to_be_bytes())).collect();
        let reads = reads_of(&keys, |key| Some(u16::from(key[3] % 2))).unwrap();
        let sizes: Vec<_> = reads.iter().map(|(server, keys)| (*server, keys.len())).collect();
        assert_eq!(sizes, [(0, 256), (0, 44), (1, 256), (1, 44)]);
        let mut read: Vec<_> = reads.into_iter().flat_map(|(_, keys)| keys).collect();
        read.sort_unstable();
        assert!(read.iter().map(|key| &key[..]).eq(keys.iter().map(|key| &key[..])));
        assert!(reads_of(&keys, |_| None).is_err());
    }
}
