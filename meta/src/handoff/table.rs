//! What a server knows of handoffs while it runs.
//!
//! `core` notes here which moving names a write has changed, and asks how long who changes one has
//! to wait; while no handoff is under way that is one look at a number. `steps` and `take` keep
//! what they are about.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base::{DirId, HashMap, HashSet, Moving, ShardId, placement::shard_of};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::{Request, TxnId};

use super::target::Target;
use crate::record::{Key, key, key::Part};

/// So many partitions are remembered that need not ask to give.
const KNOWN_MAX: usize = 65_536;

/// A partition of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Partition {
    pub(crate) shard: ShardId,
    pub(crate) dir: DirId,
    pub(crate) number: u16,
}

impl Partition {
    /// A partition of a directory that is placed by `home`.
    pub(crate) fn of(home: DirId, dir: DirId, number: u16, shards: u16) -> Partition {
        Partition { shard: shard_of(home, number, shards), dir, number }
    }

    /// The key of its content record.
    pub(crate) fn share(self) -> Key {
        key::content(self.shard, self.dir, self.number, Part::Main)
    }

    /// Whose content record has this key.
    pub(super) fn of_share(at: &[u8]) -> Option<Partition> {
        let (dir, (number, _)) = key::parse_dir(at).zip(key::parse_share(at))?;
        Some(Partition { shard: key::shard_of(at), dir, number })
    }

    /// The key of what it must not forget of a handoff.
    pub(crate) fn handoff(self) -> Key {
        key::handoff(self.shard, self.dir, self.number)
    }
}

/// The table.
#[derive(Default)]
pub(crate) struct Handoffs {
    /// How many are given.
    count: AtomicUsize,
    given: Mutex<HashMap<TxnId, Given>>,
    received: Mutex<BTreeMap<Partition, Received>>,
    wanted: Mutex<Wanted>,
    pub(super) wake: Notify,
    /// A partition that is being looked at was asked for.
    told: Notify,
}

/// Names that are about to move away.
struct Given {
    dir: DirId,
    /// What the keys of all names of the directory begin with.
    names: Key,
    moving: Moving,
    /// Those that have changed, and were not sent since.
    changed: HashSet<Key>,
    /// How long whoever changes the directory waits first.
    slow: Duration,
}

/// Names that come.
pub(super) struct Received {
    pub(super) target: Target,
    /// When anything was heard of it.
    pub(super) heard: Instant,
    /// Its source has given it up.
    pub(super) is_over: bool,
}

/// Partitions that may have names to give.
#[derive(Default)]
struct Wanted {
    waiting: VecDeque<Partition>,
    known: HashMap<Partition, Want>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// It is to be looked at.
    Waits,
    /// It is; whether it was written meanwhile, and whether somebody has asked for it.
    Seen { written: bool, told: bool },
}

impl Handoffs {
    /// Whether any names are about to move away from here.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether this transaction is a handoff's, as far as is known here.
    pub(crate) fn is_of(&self, txn: TxnId) -> bool {
        let comes = || self.received(|all| all.values().any(|of| of.target.what.txn == txn));
        self.given.lock().contains_key(&txn) || comes()
    }

    /// Whether the name with this key is about to move away.
    pub(crate) fn moves(&self, key: &Key) -> bool {
        self.any() && self.given.lock().values().any(|given| given.has(key))
    }

    /// Those of the changed keys that are about to move away, to be noted when they are written.
    pub(crate) fn moving<'a>(&self, changed: impl Iterator<Item = &'a Key>) -> Vec<(TxnId, Key)> {
        let given = self.given.lock();
        let mut moving = Vec::new();
        for key in changed.filter(|key| key::is_name(key)) {
            for (txn, _) in given.iter().filter(|(_, given)| given.has(key)) {
                moving.push((*txn, key.clone()));
            }
        }
        moving
    }

    /// They are written.
    pub(crate) fn changed(&self, moving: Vec<(TxnId, Key)>) {
        let mut given = self.given.lock();
        for (txn, key) in moving {
            if let Some(given) = given.get_mut(&txn) {
                given.changed.insert(key);
            }
        }
    }

    /// How long a request waits before: it changes a directory whose changes come faster than they
    /// can be sent.
    pub(crate) fn slows(&self, request: &Request) -> Option<Duration> {
        let about = request.kind().about.filter(|_| request.mutates())?;
        let (dir, given) = (about.id, self.given.lock());
        let slow = given.values().filter(|given| given.dir == dir).map(|given| given.slow).max()?;
        (!slow.is_zero()).then_some(slow)
    }

    /// From now on changes of these names are noted.
    pub(super) fn watch(&self, txn: TxnId, of: Partition, moving: Moving) {
        let (names, dir) = (key::names(of.shard, of.dir), of.dir);
        let (changed, slow) = (HashSet::default(), Duration::ZERO);
        let given = Given { dir, names, moving, changed, slow };
        if self.given.lock().insert(txn, given).is_none() {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// At most so many of the names that have changed; they are not noted any more.
    pub(super) fn take_changed(&self, txn: TxnId, max: usize, slow: Duration) -> Vec<Key> {
        let mut given = self.given.lock();
        let Some(given) = given.get_mut(&txn) else { return Vec::new() };
        given.slow = slow;
        let mut taken: Vec<Key> = given.changed.iter().take(max).cloned().collect();
        taken.iter().for_each(|key| {
            given.changed.remove(key);
        });
        taken.sort_unstable();
        taken
    }

    /// It is over.
    pub(super) fn unwatch(&self, txn: TxnId) {
        if self.given.lock().remove(&txn).is_some() {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Acts on what is being received.
    pub(super) fn received<T>(
        &self,
        act: impl FnOnce(&mut BTreeMap<Partition, Received>) -> T,
    ) -> T {
        act(&mut self.received.lock())
    }

    /// The partition whose handoff this is, which will not happen: nobody waits for anything of it
    /// any more.
    pub(super) fn is_given_up(&self, id: TxnId) -> Option<Partition> {
        let mut received = self.received.lock();
        let mut all = received.iter_mut();
        let (at, found) = all.find(|(_, received)| received.target.what.txn == id)?;
        found.is_over = true;
        Some(*at)
    }

    /// What a handoff's record was about, if this is the key of one, has come.
    pub(crate) fn has_come(&self, key: &[u8]) {
        if let Some((dir, number)) = key::parse_handoff(key).filter(|_| key.get(2) == Some(&b'H')) {
            let at = Partition { shard: key::shard_of(key), dir, number };
            self.received.lock().remove(&at);
        }
    }

    /// These partitions, by the keys of their content records, are too large or too small.
    pub(crate) fn want(&self, shares: impl Iterator<Item = Key>) {
        for at in shares.filter_map(|key| Partition::of_share(&key)) {
            let mut wanted = self.wanted.lock();
            let is_full = wanted.known.len() >= KNOWN_MAX;
            match wanted.known.get_mut(&at) {
                Some(Want::Waits) => {}
                Some(Want::Seen { written, .. }) => *written = true,
                None if is_full => {}
                None => {
                    wanted.waits(at);
                    self.wake.notify_one();
                }
            }
        }
    }

    /// A partition is to be looked at, whatever was found before.
    pub(super) fn again(&self, at: Partition) {
        let mut wanted = self.wanted.lock();
        match wanted.known.get_mut(&at) {
            Some(Want::Waits) => {}
            Some(Want::Seen { told, .. }) => {
                *told = true;
                self.told.notify_waiters();
            }
            None => {
                wanted.waits(at);
                self.wake.notify_one();
            }
        }
    }

    /// The next to look at, which is up to the caller now.
    pub(super) fn next(&self) -> Option<Partition> {
        let mut wanted = self.wanted.lock();
        let at = wanted.waiting.pop_front()?;
        wanted.known.insert(at, Want::Seen { written: false, told: false });
        Some(at)
    }

    /// Waits for so long, or until somebody asks for the partition, which is being looked at.
    pub(super) async fn pause(&self, at: Partition, pause: Duration) {
        let asked = async {
            loop {
                let told = self.told.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                let known = self.wanted.lock().known.get(&at).copied();
                if matches!(known, Some(Want::Seen { told: true, .. })) {
                    return;
                }
                told.await;
            }
        };
        // Both ends are good.
        let _ = tokio::time::timeout(pause, asked).await;
    }

    /// It was looked at; whether that is to be done once more.
    pub(super) fn done(&self, at: Partition, again: bool) {
        let mut wanted = self.wanted.lock();
        let asked = matches!(
            wanted.known.get(&at),
            Some(Want::Seen { written: true, .. } | Want::Seen { told: true, .. })
        );
        if again || asked {
            wanted.waits(at);
            self.wake.notify_one();
        } else {
            wanted.known.remove(&at);
        }
    }
}

impl Wanted {
    fn waits(&mut self, at: Partition) {
        self.known.insert(at, Want::Waits);
        self.waiting.push_back(at);
    }
}

impl Given {
    fn has(&self, key: &[u8]) -> bool {
        let moves = || key::parse_moving(key).is_some_and(|pos| self.moving.contains(pos));
        key.starts_with(&self.names) && moves()
    }
}
