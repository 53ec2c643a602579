//! Data directories and dumps of before the three zones of keys (`record::key`) are brought up to
//! date.
//!
//! Up to on-disk version 11 every key began with a shard: notes of work lay between the records of
//! users, what belongs to the server lay in shard 0, stored answers lay with the shard of their
//! request, and every server had the counters of all shards. The values are the same.
//!
//! Invariant: the records move in one batch, so a directory is of the one kind or of the other.

use std::ops::ControlFlow;

use base::{HashKey, HashMap, IdHash, Locality, Seq, ShardId, Time, codec};
use bytes::Bytes;
use store::{Batch, Engine};

use crate::{
    OpenError,
    cluster::member::Member,
    coordinator::roster::dealt,
    record::{Config, Key, Record, key, system::StoredAnswers},
};

codec! {
    /// A configuration of before: without lanes, and with a key of two halves.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct OldConfig {
        pub name: String,
        pub uuid: u128,
        pub shards: u16,
        pub k0: u64,
        pub k1: u64,
        pub locality: Locality,
        pub inline_bytes_max: u32,
        pub blocks: String,
        pub signing_key: Bytes,
        pub created: Time,
    }
}

impl Record for OldConfig {}

impl From<OldConfig> for Config {
    fn from(old: OldConfig) -> Config {
        Config {
            name: old.name,
            uuid: old.uuid,
            shards: old.shards,
            lanes: 1,
            hash_key: HashKey { k0: old.k0, k1: old.k1, ids: IdHash::Sip },
            locality: old.locality,
            inline_bytes_max: old.inline_bytes_max,
            blocks: old.blocks,
            signing_key: old.signing_key,
            created: old.created,
        }
    }
}

/// Kinds of records that have moved into the zone of work, and those that are the server's.
const MOVED: &[u8] = b"CRTGUHVSQFOKMPXEWAL";

/// A key as it is today, of one of a kind that has moved.
///
/// # Panics
/// When `old` is shorter than its shard and its kind.
pub(crate) fn moved(old: &[u8]) -> Key {
    let (shard, kind) = (key::shard_of(old), old[2]);
    let mut key = match kind {
        b'C' | b'R' | b'T' | b'G' | b'U' | b'H' | b'V' => key::work(shard, kind),
        _ => key::own(kind),
    };
    key.extend_from_slice(&old[3..]);
    key
}

/// Whether a key of before belongs elsewhere today.
pub(crate) fn has_moved(old: &[u8]) -> bool {
    old.get(2).is_some_and(|kind| MOVED.contains(kind))
}

/// Brings what an engine holds up to date. Does nothing if it is, or is empty.
///
/// # Errors
/// When a record is damaged without which it is not known what belongs where, or the engine fails.
pub(crate) fn bring_up_to_date(engine: &dyn Engine) -> Result<(), OpenError> {
    let old = |kind| key::kind(ShardId(0), kind);
    let Some(config) = engine.get(&old(b'F'))? else { return Ok(()) };
    let config = Config::from(OldConfig::from_record(&config)?);
    let shards = config.shards;
    let member = engine.get(&old(b'M'))?;
    let member = member.map(|member| Member::from_record(&member)).transpose()?;
    let mut batch = Batch::new();
    let mut answers: HashMap<Key, (Seq, Bytes)> = HashMap::default();
    for shard in (0..shards).map(ShardId) {
        let is_here = member.as_ref().is_none_or(|me| dealt(shard, me.servers) == me.server);
        for kind in MOVED {
            let prefix = key::kind(shard, *kind);
            engine.scan(&prefix, &key::end_of(&prefix), &mut |at, value| {
                batch.delete(at);
                let to = moved(at);
                match kind {
                    // Only the owner has the counter of a shard.
                    b'C' if !is_here => {}
                    // Of the answers in one slot, one on each shard, the newest counts.
                    b'Q' => {
                        let value = Bytes::copy_from_slice(value);
                        let stored = StoredAnswers::from_record(&value);
                        let seq = stored.map_or(Seq(0), |stored| stored.newest());
                        if answers.get(&to).is_none_or(|(known, _)| *known <= seq) {
                            answers.insert(to, (seq, value));
                        }
                    }
                    _ => batch.put(&to, value),
                }
                ControlFlow::Continue(())
            })?;
        }
    }
    let mut answers: Vec<_> = answers.into_iter().collect();
    answers.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    for (at, (_, answer)) in answers {
        batch.put(&at, &answer);
    }
    batch.put(&key::config(), &config.to_record());
    engine.write(batch)?;
    engine.sync()?;
    tracing::info!("what was stored by an earlier program is brought up to date");
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::SessionId;
    use store::MemoryEngine;

    use super::*;
    use crate::record::system::Reserved;

    #[test]
    fn every_kind_that_has_moved_is_where_it_is_looked_for() {
        let shard = ShardId(5);
        let ino = base::Ino::new(shard, 9);
        let old = |kind, rest: &[u8]| {
            let mut key = key::kind(shard, kind);
            key.extend_from_slice(rest);
            key
        };
        assert_eq!(moved(&old(b'R', &ino.0.to_be_bytes())), key::reclaim(ino));
        assert_eq!(moved(&old(b'C', b"")), key::counter(shard));
        assert_eq!(moved(&key::kind(ShardId(0), b'F')), key::config());
        let session = SessionId(7);
        let answer = old(b'Q', &[&session.0.to_be_bytes()[..], &[0, 3]].concat());
        assert_eq!(moved(&answer), key::answer(session, 3));
        assert!(MOVED.iter().all(|kind| has_moved(&old(*kind, b""))));
        assert!(b"NDIB".iter().all(|kind| !has_moved(&old(*kind, b""))));
    }

    #[test]
    fn all_that_a_server_of_a_cluster_had_is_where_it_is_looked_for() {
        let engine = MemoryEngine::new();
        let mut batch = Batch::new();
        let old = |shard, kind, rest: &[u8]| {
            let mut key = key::kind(ShardId(shard), kind);
            key.extend_from_slice(rest);
            key
        };
        let config = OldConfig {
            name: "old".into(),
            uuid: 7,
            shards: 4,
            k0: 1,
            k1: 2,
            locality: Locality::Directory,
            inline_bytes_max: 4096,
            blocks: "server".into(),
            signing_key: Bytes::from_static(b"key"),
            created: Time::default(),
        };
        batch.put(&old(0, b'F', b""), &config.to_record());
        batch.put(&old(0, b'M', b""), &Member::new(1, 2, 9).to_record());
        for shard in 0..4 {
            let end = 100 + u64::from(shard);
            batch.put(&old(shard, b'C', b""), &Reserved { end }.to_record());
        }
        let (session, ino) = (SessionId(7), base::Ino::new(ShardId(3), 9));
        let slot = [&session.0.to_be_bytes()[..], &[0, 3]].concat();
        for (shard, seq) in [(1, 9), (3, 4099 + 9), (2, 9)] {
            let answer = StoredAnswers { settled: Seq(0), answers: vec![(Seq(seq), Bytes::new())] };
            batch.put(&old(shard, b'Q', &slot), &answer.to_record());
        }
        batch.put(&old(3, b'R', &ino.0.to_be_bytes()), b"note");
        let name = old(3, b'N', b"a name");
        batch.put(&name, b"stays");
        engine.write(batch).unwrap();
        for _ in 0..2 {
            bring_up_to_date(&engine).unwrap();
            let get = |key: &[u8]| engine.get(key).unwrap();
            let config = Config::from_record(&get(&key::config()).unwrap()).unwrap();
            let hash_key = HashKey { k0: 1, k1: 2, ids: IdHash::Sip };
            assert_eq!((config.shards, config.lanes, config.hash_key), (4, 1, hash_key));
            let end = |shard| {
                let counter = get(&key::counter(ShardId(shard)))?;
                Some(Reserved::from_record(&counter).unwrap().end)
            };
            assert_eq!([0, 1, 2, 3].map(end), [None, Some(101), None, Some(103)]);
            let answer = StoredAnswers::from_record(&get(&key::answer(session, 3)).unwrap());
            assert_eq!(answer.unwrap().newest(), Seq(4099 + 9));
            assert_eq!(get(&key::reclaim(ino)).as_deref(), Some(&b"note"[..]));
            assert!(get(&key::member()).is_some() && get(&name).is_some());
            let mut left = Vec::new();
            let users = key::works(0);
            let visit = &mut |key: &[u8], _: &[u8]| {
                left.push(key.to_vec());
                ControlFlow::Continue(())
            };
            engine.scan(&[], &users, visit).unwrap();
            assert_eq!(left, [name.to_vec()]);
        }
    }

    #[test]
    fn an_engine_without_a_file_system_stays_as_it_is() {
        let engine = MemoryEngine::new();
        bring_up_to_date(&engine).unwrap();
        assert!(engine.get(&key::config()).unwrap().is_none());
    }
}
