//! The lock table that all cores of a server share.
//!
//! A core locks what its group of requests changes: a directory (its entries and content record),
//! an inode, or all directory renames at once. It holds the locks until the group's write is done,
//! and never waits for one while it holds any. A core that meets a lock writes its group, which
//! frees its own locks, and only then waits. So nobody waits for a core that waits itself.

use base::{DirId, HashMap, Ino, SessionId};
use parking_lot::{Condvar, Mutex};

const STRIPES: usize = 64;

/// The number of something that can be locked. Two things with one number merely exclude each other
/// needlessly.
pub(crate) type LockId = u64;

/// The lock of directory renames: two of them at once could make a loop.
pub(crate) const DIRECTORY_RENAME: LockId = 1;

/// The lock of the key ring.
pub(crate) const KEY_RING: LockId = 5;

pub(crate) fn dir_lock(dir: DirId) -> LockId {
    let folded = dir.0 ^ (dir.0 >> 64);
    (u64::try_from(folded & u128::from(u64::MAX)).expect("masked") << 1).max(2)
}

pub(crate) fn ino_lock(ino: Ino) -> LockId {
    (ino.0 << 1) | 1
}

/// The lock of those writes of one session that name blocks.
pub(crate) fn session_lock(session: SessionId) -> LockId {
    (session.0 << 1).max(2)
}

/// The lock that guards a key against other cores; `None` for a key that only its owner writes.
pub(crate) fn of_key(key: &[u8]) -> Option<LockId> {
    match key.get(2)? {
        b'N' | b'D' | b'H' => crate::record::key::parse_dir(key).map(dir_lock),
        b'I' | b'B' | b'R' | b'T' | b'h' | b'o' => crate::record::key::parse_ino(key).map(ino_lock),
        _ => None,
    }
}

/// The locks that the cores of a server hold.
pub(crate) struct LockTable {
    /// Whether there are several cores. With one, nobody can be in the way, and locking costs
    /// nothing.
    shared: bool,
    stripes: Vec<Stripe>,
}

#[derive(Default)]
struct Stripe {
    owners: Mutex<HashMap<LockId, usize>>,
    freed: Condvar,
}

impl LockTable {
    pub(crate) fn new(cores: usize) -> LockTable {
        LockTable { shared: cores > 1, stripes: (0..STRIPES).map(|_| Stripe::default()).collect() }
    }

    fn stripe(&self, lock: LockId) -> &Stripe {
        let mixed = lock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.stripes[usize::try_from(mixed).expect("six bits")]
    }

    /// Takes `lock` for `core`. Returns the lock if it was free, `None` if `core` holds it already,
    /// an error if another core does.
    pub(crate) fn try_lock(&self, lock: LockId, core: usize) -> Result<Option<LockId>, LockId> {
        if !self.shared {
            return Ok(None);
        }
        let mut owners = self.stripe(lock).owners.lock();
        match owners.get(&lock) {
            None => {
                owners.insert(lock, core);
                Ok(Some(lock))
            }
            Some(owner) if *owner == core => Ok(None),
            Some(_) => Err(lock),
        }
    }

    /// Frees the locks of a core's group.
    pub(crate) fn unlock_all(&self, locks: &mut Vec<LockId>) {
        for lock in locks.drain(..) {
            let stripe = self.stripe(lock);
            stripe.owners.lock().remove(&lock);
            stripe.freed.notify_all();
        }
    }

    /// Blocks this thread until `lock` is free. The caller holds no lock, and a core that holds one
    /// never waits.
    pub(crate) fn wait(&self, lock: LockId) {
        let stripe = self.stripe(lock);
        let mut owners = stripe.owners.lock();
        while owners.contains_key(&lock) {
            stripe.freed.wait(&mut owners);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_other_cores_out_until_its_group_is_written() {
        let table = LockTable::new(2);
        let mut held = Vec::from_iter(table.try_lock(7, 0).unwrap());
        assert_eq!(table.try_lock(7, 0), Ok(None));
        assert_eq!(table.try_lock(7, 1), Err(7));
        table.unlock_all(&mut held);
        table.wait(7);
        assert_eq!(table.try_lock(7, 1), Ok(Some(7)));
    }

    #[test]
    fn directories_and_inodes_have_locks_of_their_own() {
        assert_ne!(dir_lock(DirId(5)), ino_lock(Ino(5)));
        assert_ne!(ino_lock(Ino(0)), DIRECTORY_RENAME + 1);
        assert!(dir_lock(DirId(0)) > DIRECTORY_RENAME);
    }
}
