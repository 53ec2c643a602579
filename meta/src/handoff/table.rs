//! The handoffs of a running server, in memory.
//!
//! Moving names that a write has changed are noted here ([`Watch`]), and so are partitions that a
//! write makes too large or too small ([`Splits`]). `core` asks how long a request has to wait that
//! changes a moving name. While no handoff is under way that is one look at a number. `steps` and
//! `take` keep the state of their handoffs here.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{DirId, HashMap, HashSet, Moving, Placement, ShardId};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use wire::{Request, TxnId};

use super::target::Target;
use crate::{
    bugs::{Bug, Planted},
    changes::{Changes, Facts},
    follow::{Follower, Write},
    record::{Key, key, key::Part},
};

/// Number of partitions remembered; beyond it, writes queue no further ones.
const KNOWN_MAX: usize = 65_536;

/// A partition of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Partition {
    pub(crate) shard: ShardId,
    pub(crate) dir: DirId,
    pub(crate) number: u16,
}

impl Partition {
    /// Partition `number` of a directory that is placed by `home`.
    pub(crate) fn of(home: DirId, dir: DirId, number: u16, placement: Placement) -> Partition {
        Partition { shard: placement.shard_of(home, number), dir, number }
    }

    /// Key of the partition's content record.
    pub(crate) fn share(self) -> Key {
        key::content(self.shard, self.dir, self.number, Part::Main)
    }

    /// Returns the partition whose content record has this key.
    pub(super) fn of_share(at: &[u8]) -> Option<Partition> {
        let (dir, (number, _)) = key::parse_dir(at).zip(key::parse_share(at))?;
        Some(Partition { shard: key::shard_of(at), dir, number })
    }

    /// Key of the partition's [`HandoffRecord`](super::HandoffRecord).
    pub(crate) fn handoff(self) -> Key {
        key::handoff(self.shard, self.dir, self.number)
    }
}

/// The table.
#[derive(Default)]
pub(crate) struct Handoffs {
    /// Number of handoffs that this server gives, the length of `given`.
    count: AtomicUsize,
    given: Mutex<HashMap<TxnId, Given>>,
    received: Mutex<BTreeMap<Partition, Received>>,
    wanted: Mutex<Wanted>,
    pub(super) wake: Notify,
    /// Notified when somebody asks for a partition that is being looked at.
    told: Notify,
}

/// Names that are about to move away.
struct Given {
    dir: DirId,
    /// Prefix of the keys of all names of the directory's partition.
    names: Key,
    moving: Moving,
    /// Keys of moving names that have changed and were not sent since.
    changed: HashSet<Key>,
    /// Wait that is imposed on each request that changes the directory.
    slow: Duration,
}

/// A handoff that this server receives.
pub(super) struct Received {
    pub(super) state: Target,
    /// When the source was last heard.
    pub(super) heard: Instant,
    /// Whether the source has given the handoff up.
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
    /// The partition waits to be looked at.
    Waits,
    /// The partition is being looked at. `written`: a write has made it too large or too small
    /// meanwhile; `told`: somebody has asked for it meanwhile.
    Seen { written: bool, told: bool },
}

impl Handoffs {
    /// Whether any names are about to move away from here.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether this transaction is that of a handoff, as far as this server knows.
    pub(crate) fn is_of(&self, txn: TxnId) -> bool {
        let comes = || self.received(|all| all.values().any(|of| of.state.what.txn == txn));
        self.given.lock().contains_key(&txn) || comes()
    }

    /// Whether the name with this key is about to move away.
    pub(crate) fn moves(&self, key: &Key) -> bool {
        self.any() && self.given.lock().values().any(|given| given.has(key))
    }

    /// Returns the changed keys that are about to move away. The caller notes them with
    /// [`Handoffs::changed`] once they are written.
    fn moving<'a>(&self, changed: impl Iterator<Item = &'a Key>) -> Vec<(TxnId, Key)> {
        let given = self.given.lock();
        let mut moving = Vec::new();
        for key in changed.filter(|key| key::is_name(key)) {
            for (txn, _) in given.iter().filter(|(_, given)| given.has(key)) {
                moving.push((*txn, key.clone()));
            }
        }
        moving
    }

    /// Notes moving names whose changes are written.
    fn changed(&self, moving: Vec<(TxnId, Key)>) {
        let mut given = self.given.lock();
        for (txn, key) in moving {
            if let Some(given) = given.get_mut(&txn) {
                given.changed.insert(key);
            }
        }
    }

    /// Returns how long a request waits before it is executed. Requests wait that change a
    /// directory whose changes come faster than they can be sent.
    pub(crate) fn slows(&self, request: &Request) -> Option<Duration> {
        let about = request.kind().about.filter(|_| request.mutates())?;
        let (dir, given) = (about.id, self.given.lock());
        let slow = given.values().filter(|given| given.dir == dir).map(|given| given.slow).max()?;
        (!slow.is_zero()).then_some(slow)
    }

    /// Begins to note changes of these names.
    pub(super) fn watch(&self, txn: TxnId, of: Partition, moving: Moving) {
        let (names, dir) = (key::names(of.shard, of.dir), of.dir);
        let (changed, slow) = (HashSet::default(), Duration::ZERO);
        let given = Given { dir, names, moving, changed, slow };
        if self.given.lock().insert(txn, given).is_none() {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes at most `max` keys of names that have changed. From now on each writer waits for
    /// `slow`.
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

    /// Ends the noting of changes: the handoff is over.
    pub(super) fn unwatch(&self, txn: TxnId) {
        if self.given.lock().remove(&txn).is_some() {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Calls `act` with the handoffs that are being received.
    pub(super) fn received<T>(
        &self,
        act: impl FnOnce(&mut BTreeMap<Partition, Received>) -> T,
    ) -> T {
        act(&mut self.received.lock())
    }

    /// Notes that the source has given this handoff up, and returns the partition that was to
    /// receive it.
    pub(super) fn is_given_up(&self, id: TxnId) -> Option<Partition> {
        let mut received = self.received.lock();
        let mut all = received.iter_mut();
        let (at, found) = all.find(|(_, received)| received.state.what.txn == id)?;
        found.is_over = true;
        Some(*at)
    }

    /// Forgets the handoff being received whose record has this key: its names have come. Other
    /// keys do nothing.
    pub(crate) fn has_come(&self, key: &[u8]) {
        if let Some((dir, number)) = key::parse_handoff(key).filter(|_| key.get(2) == Some(&b'H')) {
            let at = Partition { shard: key::shard_of(key), dir, number };
            self.received.lock().remove(&at);
        }
    }

    /// Queues partitions that are too large or too small, named by the keys of their content
    /// records.
    pub(super) fn want(&self, shares: impl Iterator<Item = Key>) {
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

    /// Queues a partition, whatever was found before.
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

    /// Takes the next partition from the queue. The caller then looks at it.
    pub(super) fn next(&self) -> Option<Partition> {
        let mut wanted = self.wanted.lock();
        let at = wanted.waiting.pop_front()?;
        wanted.known.insert(at, Want::Seen { written: false, told: false });
        Some(at)
    }

    /// Waits for `pause`, or until somebody asks for the partition, which is being looked at.
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
        // The pause may end either way.
        let _ = tokio::time::timeout(pause, asked).await;
    }

    /// The caller has looked at the partition. `again` queues it once more; so does a request or a
    /// write that came meanwhile.
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

/// Notes changes of moving names while a core writes them.
pub(crate) struct Watch {
    handoffs: Arc<Handoffs>,
    bugs: Planted,
    moving: Option<Vec<(TxnId, Key)>>,
}

impl Watch {
    pub(crate) fn new(handoffs: Arc<Handoffs>, bugs: Planted) -> Watch {
        Watch { handoffs, bugs, moving: None }
    }
}

impl Follower for Watch {
    fn writing(&mut self, changes: &mut Changes) {
        let moving = || self.handoffs.moving(changes.records().map(|(key, _)| key));
        self.moving = self.handoffs.any().then(moving);
    }

    /// Reports the changes before the locks are free: a handoff that freezes these names then knows
    /// all.
    fn written(&mut self, _facts: &mut Facts, _write: Write) {
        let moving = self.moving.take().filter(|_| !self.bugs.has(Bug::ChangesForgotten));
        moving.into_iter().for_each(|moving| self.handoffs.changed(moving));
    }
}

/// Queues partitions that a write of a core makes too large or too small.
pub(crate) struct Splits {
    handoffs: Arc<Handoffs>,
    threshold: u64,
    /// The keys of content records of partitions that may have names to give away.
    out_of_bounds: Vec<Key>,
}

impl Splits {
    pub(crate) fn new(handoffs: Arc<Handoffs>, threshold: u64) -> Splits {
        Splits { handoffs, threshold, out_of_bounds: Vec::new() }
    }
}

impl Follower for Splits {
    fn writing(&mut self, changes: &mut Changes) {
        for (key, content) in changes.dirs() {
            let number = || key::parse_share(key).map_or(0, |(number, _)| number);
            if content.is_out_of_bounds(number, self.threshold) {
                self.out_of_bounds.push(key.clone());
            }
        }
    }

    fn answered(&mut self, _facts: &mut Facts, write: Write) {
        if !write.is_halted {
            self.handoffs.want(self.out_of_bounds.drain(..));
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
