//! Locks of both families, and those who wait for one.
//!
//! Invariant: no two owners hold ranges that overlap unless both are shared, and the ranges of one
//! owner never overlap. flock is the same with one range, the whole file.

use std::{collections::BTreeMap, pin::pin};

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::LockAsk;
use crate::{
    reply::Reply,
    types::{FileLock, LockKind, LockOwner, LockType, NodeId},
};

#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<BTreeMap<(NodeId, LockKind), Vec<Held>>>,
    released: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    owner: LockOwner,
    lock: FileLock,
}

impl Locks {
    /// A lock that is in the way.
    pub(super) fn conflict(&self, ask: &LockAsk) -> Option<FileLock> {
        self.held.lock().get(&(ask.node, ask.kind)).and_then(|held| in_the_way(held, ask))
    }

    /// Takes, changes or releases; fails with the lock that is in the way.
    pub(super) fn set(&self, ask: &LockAsk) -> Result<(), FileLock> {
        let release = ask.lock.kind == LockType::Unlock;
        {
            let mut held = self.held.lock();
            let held = held.entry((ask.node, ask.kind)).or_default();
            if !release && let Some(conflict) = in_the_way(held, ask) {
                return Err(conflict);
            }
            cut(held, ask);
            if !release {
                held.push(Held { owner: ask.owner, lock: ask.lock });
            }
        }
        // A change from exclusive to shared may let others in, too.
        self.released.notify_waiters();
        Ok(())
    }

    /// Releases all that an owner holds of a node.
    pub(super) fn release(&self, node: NodeId, kind: LockKind, owner: LockOwner) {
        let mut held = self.held.lock();
        if let Some(of_node) = held.get_mut(&(node, kind)) {
            of_node.retain(|held| held.owner != owner);
            if of_node.is_empty() {
                held.remove(&(node, kind));
            }
            self.released.notify_waiters();
        }
    }

    /// Takes the lock as soon as it is free, and answers; or EINTR when a signal comes first.
    pub(super) async fn wait(&self, ask: &LockAsk, reply: Reply) {
        loop {
            let mut released = pin!(self.released.notified());
            // Another thread may release between the look and the wait.
            released.as_mut().enable();
            if self.set(ask).is_ok() {
                return reply.ok();
            }
            tokio::select! {
                biased;
                () = reply.interrupted() => return reply.error(Errno::INTR),
                () = released => {}
            }
        }
    }
}

/// The first lock of others that does not let this one be taken.
fn in_the_way(held: &[Held], ask: &LockAsk) -> Option<FileLock> {
    let shared = |kind| kind == LockType::Read;
    let in_the_way = |held: &&Held| {
        held.owner != ask.owner
            && overlap(&held.lock, &ask.lock)
            && !(shared(held.lock.kind) && shared(ask.lock.kind))
    };
    held.iter().find(in_the_way).map(|held| held.lock)
}

fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start <= b.end && b.start <= a.end
}

/// Takes the asked range out of what its owner holds; what sticks out on either side stays.
fn cut(held: &mut Vec<Held>, ask: &LockAsk) {
    let (ours, others): (Vec<Held>, Vec<Held>) =
        held.iter().partition(|held| held.owner == ask.owner && overlap(&held.lock, &ask.lock));
    *held = others;
    for Held { owner, lock } in ours {
        if lock.start < ask.lock.start {
            held.push(Held { owner, lock: FileLock { end: ask.lock.start - 1, ..lock } });
        }
        if lock.end > ask.lock.end {
            held.push(Held { owner, lock: FileLock { start: ask.lock.end + 1, ..lock } });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(owner: u64, start: u64, end: u64, kind: LockType) -> LockAsk {
        LockAsk {
            node: NodeId(2),
            kind: LockKind::Posix,
            owner: LockOwner(owner),
            lock: FileLock { start, end, kind, pid: 1 },
        }
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends_locked() {
        let locks = Locks::default();
        locks.set(&ask(1, 0, 99, LockType::Write)).unwrap();
        locks.set(&ask(1, 40, 59, LockType::Unlock)).unwrap();

        assert!(locks.conflict(&ask(2, 40, 59, LockType::Write)).is_none());
        assert_eq!(locks.conflict(&ask(2, 0, 45, LockType::Read)).unwrap().end, 39);
        assert_eq!(locks.conflict(&ask(2, 50, 60, LockType::Read)).unwrap().start, 60);
    }

    #[test]
    fn shared_locks_share_and_families_do_not_meet() {
        let locks = Locks::default();
        locks.set(&ask(1, 0, 9, LockType::Read)).unwrap();
        locks.set(&ask(2, 0, 9, LockType::Read)).unwrap();
        assert!(locks.set(&ask(1, 0, 9, LockType::Write)).is_err());

        let flock = LockAsk { kind: LockKind::Flock, ..ask(3, 0, 9, LockType::Write) };
        assert!(locks.set(&flock).is_ok());
    }
}
