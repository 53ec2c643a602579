//! One operation's reads and writes.
//!
//! A transaction sees what is stored, what its group has not written yet, and what it wrote itself. Its own
//! writes join the group when the operation succeeds, and vanish when it does not; the group is one engine
//! write. All shards of this server are in one store, so an operation over several shards is in one batch.
//!
//! Invariant: whatever an operation changes, it has locked first and read after that.

mod dirs;
mod files;
mod xattrs;

use std::{ops::ControlFlow, sync::Arc};

use base::{Cred, FsError, HashMap, Ino, Seq, ShardId, Time};
use bytes::Bytes;
use store::Batch;

pub(crate) use dirs::{Dir, Steps, show_inode};
pub(crate) use files::{Located, Node, Place};

use crate::{
    error::{Fault, Result},
    lock::LockId,
    record::{Key, Record, key},
    server::Shared,
    session::Session,
};

/// What one core has executed since its last write.
pub(crate) struct Group {
    pub(crate) core: usize,
    overlay: HashMap<Key, Option<Bytes>>,
    batch: Batch,
    pub(crate) locks: Vec<LockId>,
}

impl Group {
    pub(crate) fn new(core: usize) -> Group {
        Group { core, overlay: HashMap::default(), batch: Batch::default(), locks: Vec::new() }
    }

    /// The batch to write; the group is empty afterwards but holds its locks until it is told.
    pub(crate) fn take_batch(&mut self) -> Batch {
        self.overlay.clear();
        std::mem::take(&mut self.batch)
    }

    /// About how many bytes the write will have.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    fn put(&mut self, key: Key, value: Option<Bytes>) {
        match &value {
            Some(value) => self.batch.put(&key, value),
            None => self.batch.delete(&key),
        }
        self.overlay.insert(key, value);
    }
}

/// Who a transaction acts for.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) cred: &'a Cred,
    /// `None` is the server itself, in the background.
    pub(crate) session: Option<&'a Session>,
}

/// One operation's view and its pending writes.
pub(crate) struct Txn<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) caller: Caller<'a>,
    pub(crate) now: Time,
    group: &'a mut Group,
    writes: Vec<(Key, Option<Bytes>)>,
    /// Directories that were moved or changed permissions: told to clients when the group is written.
    pub(crate) events: Vec<base::DirId>,
    /// Inodes to look at when the group is written: orphans nobody has open, contents without an inode.
    pub(crate) reclaim: Vec<Ino>,
    /// Notes of blocks that it names.
    pub(crate) unsynced: Vec<Key>,
}

/// What a successful operation leaves to be done when its group is written.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) events: Vec<base::DirId>,
    pub(crate) reclaim: Vec<Ino>,
    /// Answers to remember. Not before the write: on another core an echo would get one that may be lost.
    pub(crate) answers: Vec<(Arc<Session>, Seq, Bytes)>,
    /// Notes of blocks that the batch names.
    pub(crate) unsynced: Vec<Key>,
    /// The answer tells of a change, so with strict durability it waits for stable storage.
    pub(crate) tells_of_change: bool,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        group: &'a mut Group,
        caller: Caller<'a>,
        now: Time,
    ) -> Self {
        let (events, reclaim, unsynced) = (Vec::new(), Vec::new(), Vec::new());
        Txn { shared, caller, now, group, writes: Vec::new(), events, reclaim, unsynced }
    }

    /// Joins the group.
    pub(crate) fn commit(self) -> After {
        let tells_of_change = !self.writes.is_empty();
        for (key, value) in self.writes {
            self.group.put(key, value);
        }
        let Txn { events, reclaim, unsynced, .. } = self;
        After { events, reclaim, answers: Vec::new(), unsynced, tells_of_change }
    }

    /// Takes a lock until the group is written.
    pub(crate) fn lock(&mut self, lock: LockId) -> Result<()> {
        match self.shared.locks.try_lock(lock, self.group.core) {
            Ok(taken) => {
                self.group.locks.extend(taken);
                Ok(())
            }
            Err(lock) => Err(Fault::Locked(lock)),
        }
    }

    /// The bytes under `key` as this operation sees them.
    pub(crate) fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some((_, value)) = self.writes.iter().rev().find(|(written, _)| written[..] == *key)
        {
            return Ok(value.clone());
        }
        if let Some(value) = self.group.overlay.get(key) {
            return Ok(value.clone());
        }
        Ok(self.shared.engine.get(key)?)
    }

    /// The record under `key`.
    pub(crate) fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.get_bytes(key)?.map(|bytes| Ok(R::from_record(&bytes)?)).transpose()
    }

    /// Stores a record.
    pub(crate) fn put(&mut self, key: Key, record: &impl Record) {
        self.writes.push((key, Some(record.to_record())));
    }

    /// Removes a record.
    pub(crate) fn delete(&mut self, key: Key) {
        self.writes.push((key, None));
    }

    /// Visits stored keys in a range. What the group has not written yet would be missed, so it must have
    /// nothing there.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        assert!(self.writes.is_empty(), "an operation scans before it writes");
        if self.group.overlay.keys().any(|key| &key[..] >= from && &key[..] < to) {
            return Err(Fault::WriteFirst);
        }
        Ok(self.shared.engine.scan(from, to, visit)?)
    }

    /// Everything under a prefix, at most `max` records.
    pub(crate) fn scan_prefix(&self, prefix: &[u8], max: usize) -> Result<Vec<(Key, Bytes)>> {
        let mut found = Vec::new();
        self.scan(prefix, &key::end_of(prefix), &mut |key, value| {
            found.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
            if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    }

    /// A new inode number, born on `shard`.
    pub(crate) fn new_ino(&mut self, shard: ShardId) -> Result<Ino> {
        self.shared.inos.next(shard, self.shared.engine.as_ref())
    }

    /// Whether permissions are the server's to check for this caller.
    pub(crate) fn checks(&self) -> bool {
        self.caller.session.is_some_and(Session::checks_permissions)
    }

    /// Whether what the caller writes may not keep its set-id bits. Where the kernel checks, the client says it.
    pub(crate) fn loses_set_id(&self) -> bool {
        self.checks() && !self.caller.cred.is_root()
    }

    /// The ticket that lets this session use what it was shown.
    pub(crate) fn ticket(&self, parts: &[u64]) -> u64 {
        match self.caller.session {
            Some(session) if !session.trusted() => session.ticket(parts),
            _ => 0,
        }
    }

    /// Refuses what this session was not shown.
    pub(crate) fn check_ticket(&self, parts: &[u64], ticket: u64) -> Result<()> {
        match self.caller.session {
            Some(session) if !session.trusted() && session.ticket(parts) != ticket => {
                Err(FsError::Denied.into())
            }
            _ => Ok(()),
        }
    }
}

/// A 128-bit number as parts of a ticket.
pub(crate) fn halves(value: u128) -> [u64; 2] {
    let low = u64::try_from(value & u128::from(u64::MAX)).expect("masked");
    [u64::try_from(value >> 64).expect("64 bits are left"), low]
}
