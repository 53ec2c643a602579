//! Records that change while shards are copied ahead of a move.
//!
//! A server that shards are to leave serves while most of their records are copied. It notes the
//! keys of those that change meanwhile, in numbered rounds, and hands out what is under them then:
//! again and again, and for the last time when it has stopped. So changes wait for the last round
//! only.
//!
//! Always true: a record of the shards that differs from what was handed out is noted, or nothing
//! is known of the copy and it is made again. A key is noted before the change is visible, and no
//! change is under way when the notes begin.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::ShardId;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use store::{
    Batch, Engine, EngineStats, Op, Result, Snapshot,
    kv::{KeyRange, Visit},
};
use tokio::time::Instant;

use crate::{
    bugs::{Bug, Planted},
    record::key::{self, Zone},
};

/// Bytes of keys after which a copy is given up.
const BYTES_MAX: usize = 64 << 20;
/// A copy is given up when nobody has led its plan for so long.
pub(super) const QUIET_MAX: Duration = Duration::from_secs(60);

/// The copies ahead that are made of shards of this server.
#[derive(Default)]
pub(crate) struct Ahead {
    /// A write holds it shared from before its keys are noted until it is visible.
    copies: RwLock<Vec<Mutex<Copy>>>,
    /// Rounds that have begun, of all copies: no number is used twice.
    rounds: AtomicU64,
}

/// A copy that one server makes for one plan.
struct Copy {
    plan: u64,
    shards: Vec<ShardId>,
    /// The round in which it has begun, and the present one.
    first: u64,
    round: u64,
    /// Keys that have changed, with the round in which they did last.
    changed: BTreeMap<Box<[u8]>, u64>,
    bytes: usize,
    led: Instant,
}

impl Ahead {
    /// A copy begins: changes are noted from now on, in its first round. One that began before for
    /// the same plan is void: the request may be an old one that was late.
    pub(super) fn begin(&self, plan: u64, shards: &[ShardId]) {
        let mut copies = self.copies.write();
        copies.retain_mut(|copy| {
            let copy = copy.get_mut();
            copy.plan == plan && copy.shards != shards
        });
        let round = self.next();
        copies.push(Mutex::new(Copy {
            plan,
            shards: shards.to_vec(),
            first: round,
            round,
            changed: BTreeMap::new(),
            bytes: 0,
            led: Instant::now(),
        }));
    }

    fn next(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Somebody still leads this plan.
    pub(super) fn is_led(&self, plan: u64) {
        for copy in &*self.copies.read() {
            let mut copy = copy.lock();
            if copy.plan == plan {
                copy.led = Instant::now();
            }
        }
    }

    /// The present round of a copy; `None` if nothing is known of it.
    pub(super) fn round(&self, plan: u64, shards: &[ShardId]) -> Option<u64> {
        self.of(plan, shards, |copy| copy.round)
    }

    /// The next round begins: what changed before round `since` was taken. Returns the number of the
    /// round; `None` if nothing is known of the copy.
    pub(super) fn next_round(&self, plan: u64, shards: &[ShardId], since: u64) -> Option<u64> {
        // Race: what is noted so far must be visible to who reads it in this round.
        let mut copies = self.copies.write();
        let mut all = copies.iter_mut().map(Mutex::get_mut);
        let copy = all.find(|copy| copy.plan == plan && copy.shards == shards)?;
        if since < copy.first {
            return None;
        }
        copy.changed.retain(|_, round| *round >= since);
        copy.bytes = copy.changed.keys().map(|key| key.len()).sum();
        copy.round = self.next();
        Some(copy.round)
    }

    /// Some keys from `from` on, in their order, that have changed in round `since` or later, and the
    /// number of the present round.
    pub(super) fn changed(
        &self,
        (plan, shards): (u64, &[ShardId]),
        since: u64,
        (from, most): (&[u8], usize),
    ) -> Option<(Vec<Bytes>, u64)> {
        self.of(plan, shards, |copy| {
            let after = copy.changed.range(Box::from(from)..).filter(|(_, round)| **round >= since);
            let keys = after.take(most).map(|(key, _)| Bytes::copy_from_slice(key));
            (since >= copy.first).then(|| (keys.collect(), copy.round))
        })?
    }

    /// Whether a copy is made for this plan.
    pub(super) fn has_plan(&self, plan: u64) -> bool {
        self.copies.read().iter().any(|copy| copy.lock().plan == plan)
    }

    fn of<T>(&self, plan: u64, shards: &[ShardId], then: impl FnOnce(&mut Copy) -> T) -> Option<T> {
        let copies = self.copies.read();
        let mut all = copies.iter().map(|copy| copy.lock());
        let mut copy = all.find(|copy| copy.plan == plan && copy.shards == shards)?;
        Some(then(&mut copy))
    }

    /// Notes the keys of a batch. Returns whether some copy is to be given up.
    fn note(copies: &[Mutex<Copy>], batch: &Batch, engine: &dyn Engine) -> Result<bool> {
        let mut is_over = false;
        for copy in copies {
            let mut copy = copy.lock();
            for op in batch.ops() {
                match op {
                    Op::Put { key, .. } | Op::Delete { key } => copy.note(key),
                    // Others that were in the range before are noted since they went.
                    Op::DeleteRange { from, to } => engine.scan(from, to, &mut |key, _| {
                        copy.note(key);
                        ControlFlow::Continue(())
                    })?,
                }
            }
            is_over |= copy.bytes > BYTES_MAX || copy.led.elapsed() > QUIET_MAX;
        }
        Ok(is_over)
    }

    fn give_up(&self) {
        let mut copies = self.copies.write();
        copies.retain_mut(|copy| {
            let copy = copy.get_mut();
            copy.bytes <= BYTES_MAX && copy.led.elapsed() <= QUIET_MAX
        });
        tracing::info!(left = copies.len(), "a copy of shards that was made ahead is given up");
    }
}

impl Copy {
    fn note(&mut self, key: &[u8]) {
        let Some((Zone::Users, shard)) = key::zone(key) else { return };
        if self.shards.binary_search(&shard).is_err() {
            return;
        }
        if let Some(round) = self.changed.get_mut(key) {
            *round = self.round;
        } else {
            self.bytes += key.len();
            self.changed.insert(key.into(), self.round);
        }
    }
}

/// An engine that notes what changes while shards are copied ahead.
pub(crate) struct NotingEngine {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) bugs: Planted,
}

impl Engine for NotingEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.engine.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.engine.multi_get(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        self.engine.scan(from, to, visit)
    }

    fn write(&self, batch: Batch) -> Result<()> {
        let copies = self.ahead.copies.read();
        if copies.is_empty() || self.bugs.has(Bug::AheadNotNoted) {
            return self.engine.write(batch);
        }
        let is_over = Ahead::note(&copies, &batch, self.engine.as_ref())?;
        let written = self.engine.write(batch);
        drop(copies);
        if is_over {
            self.ahead.give_up();
        }
        written
    }

    fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        // A server that serves ingests nothing.
        self.ahead.copies.write().clear();
        self.engine.ingest(run)
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.engine.snapshot()
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        self.engine.checkpoint(to)
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        self.engine.sizes(ranges)
    }

    fn position(&self) -> u64 {
        self.engine.position()
    }

    fn unwritten_bytes(&self) -> u64 {
        self.engine.unwritten_bytes()
    }

    fn write_out(&self) -> Result<()> {
        self.engine.write_out()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

#[cfg(test)]
mod tests {
    use store::MemoryEngine;

    use super::*;

    fn key_of(shard: u16, name: &str) -> Vec<u8> {
        [&key::shard(ShardId(shard))[..], b"N", name.as_bytes()].concat()
    }

    fn put(engine: &NotingEngine, key: &[u8]) {
        let mut batch = Batch::default();
        batch.put(key, b"value");
        engine.write(batch).unwrap();
    }

    fn engine() -> NotingEngine {
        let (engine, ahead) = (Arc::new(MemoryEngine::default()), Arc::default());
        NotingEngine { engine, ahead, bugs: Planted::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_round_has_what_has_changed_in_it_and_while_the_one_before_was_read() {
        let engine = engine();
        let (ahead, shards) = (&engine.ahead, [ShardId(1), ShardId(4)]);
        let changed = |since| {
            let changed = ahead.changed((7, &shards), since, (&[], 10));
            changed.map(|(keys, round)| (keys.len(), round))
        };
        put(&engine, &key_of(1, "before"));
        assert_eq!((changed(1), ahead.next_round(7, &shards, 1)), (None, None));
        ahead.begin(7, &shards);
        for (shard, name) in [(1, "a"), (4, "b"), (4, "b"), (2, "other shard")] {
            put(&engine, &key_of(shard, name));
        }
        put(&engine, &key::elsewhere());
        assert_eq!(ahead.next_round(7, &shards, 1), Some(2));
        assert_eq!(changed(1), Some((2, 2)));
        // While that round is read.
        put(&engine, &key_of(1, "a"));
        put(&engine, &key_of(1, "c"));
        assert_eq!(ahead.next_round(7, &shards, 2), Some(3));
        assert_eq!(changed(2), Some((2, 3)));
        assert_eq!(ahead.next_round(7, &shards, 3), Some(4));
        assert_eq!(changed(3), Some((0, 4)));
        // Pages begin where the one before has ended.
        put(&engine, &key_of(1, "a"));
        put(&engine, &key_of(4, "b"));
        let (first, _) = ahead.changed((7, &shards), 3, (&[], 1)).unwrap();
        assert_eq!(first, [key_of(1, "a")]);
        let (second, _) = ahead.changed((7, &shards), 3, (&key_of(1, "aa"), 9)).unwrap();
        assert_eq!(second, [key_of(4, "b")]);
        // A late request begins the copy once more: it is known of the one before that it is void.
        ahead.begin(7, &shards);
        assert_eq!((ahead.round(7, &shards), ahead.next_round(7, &shards, 4)), (Some(5), None));
        assert_eq!(changed(4), None);
        // Another plan.
        assert!(ahead.has_plan(7) && !ahead.has_plan(8));
        ahead.begin(8, &[ShardId(4)]);
        assert_eq!((ahead.round(7, &shards), ahead.round(8, &[ShardId(4)])), (None, Some(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_that_goes_is_noted_key_by_key() {
        let engine = engine();
        let shards = [ShardId(1)];
        for name in ["a", "b", "c"] {
            put(&engine, &key_of(1, name));
        }
        engine.ahead.begin(7, &shards);
        let mut batch = Batch::default();
        batch.delete_range(&key_of(1, "a"), &key_of(1, "c"));
        engine.write(batch).unwrap();
        let (keys, _) = engine.ahead.changed((7, &shards), 1, (&[], 10)).unwrap();
        assert_eq!(keys, [key_of(1, "a"), key_of(1, "b")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_nobody_leads_any_more_is_given_up() {
        let engine = engine();
        let shards = [ShardId(1)];
        engine.ahead.begin(7, &shards);
        put(&engine, &key_of(1, "a"));
        for _ in 0..3 {
            tokio::time::advance(QUIET_MAX - Duration::from_secs(1)).await;
            engine.ahead.is_led(7);
            engine.ahead.is_led(8);
            put(&engine, &key_of(1, "a"));
            assert!(engine.ahead.has_plan(7));
        }
        tokio::time::advance(QUIET_MAX + Duration::from_secs(1)).await;
        engine.ahead.is_led(8);
        put(&engine, &key_of(1, "b"));
        assert!(!engine.ahead.has_plan(7));
    }
}
