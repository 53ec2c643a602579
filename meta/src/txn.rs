//! One operation's reads and writes.
//!
//! A transaction sees what is stored, what its group has not written yet, and what it wrote itself. Its own
//! writes join the group when the operation succeeds, and vanish when it does not; the group is one engine
//! write. All shards of this server are in one store, so an operation over several shards is in one batch.
//!
//! Invariant: whatever an operation changes, it has locked first and read after that.

mod dirs;
mod files;
mod group;
mod quota;
mod xattrs;

use std::ops::ControlFlow;

use base::{Cred, FsError, Ino, Seq, ShardId, Time};
use bytes::Bytes;

pub(crate) use dirs::{Dir, Steps, show_inode};
pub(crate) use files::{Located, Node, Place};
pub(crate) use group::Group;

use crate::{
    error::{Fault, Result},
    file_locks::LetIn,
    lock::LockId,
    record::{Content, Key, Record, key, system::StoredAnswer},
    server::Shared,
    session::{Session, Standing},
};
use group::Found;

/// Who a transaction acts for.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) cred: &'a Cred,
    /// `None` is the server itself, in the background.
    pub(crate) session: Option<&'a Session>,
    pub(crate) standing: Standing,
}

impl Caller<'static> {
    /// The server itself.
    pub(crate) const SERVER: Caller<'static> =
        Caller { cred: &Cred::ROOT, session: None, standing: Standing::SERVER };
}

impl Caller<'_> {
    /// Whose its opens are, see [`Standing::opener`].
    pub(crate) fn opener(&self) -> u32 {
        self.standing.opener(self.cred.uid)
    }
}

/// One operation's view and its pending writes.
pub(crate) struct Txn<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) caller: Caller<'a>,
    pub(crate) now: Time,
    group: &'a mut Group,
    charges: quota::Charges<'a>,
    /// Directories that were moved or changed permissions: told to clients when the group is written.
    pub(crate) events: Vec<base::DirId>,
    /// Inodes to look at when the group is written: orphans nobody has open, contents without an inode.
    pub(crate) reclaim: Vec<Ino>,
    /// Notes of blocks that it names.
    pub(crate) unsynced: Vec<Key>,
    /// Who waited for a lock that is free now: told when the group is written.
    pub(crate) let_in: LetIn,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        group: &'a mut Group,
        caller: Caller<'a>,
        now: Time,
    ) -> Self {
        group.begin();
        let (events, reclaim, unsynced) = (Vec::new(), Vec::new(), Vec::new());
        let let_in = LetIn::default();
        let charges = quota::Charges::new(&shared.quotas);
        Txn { shared, caller, now, group, charges, events, reclaim, unsynced, let_in }
    }

    /// Joins the group; what was not committed vanishes.
    pub(crate) fn commit(self) {
        self.group.commit();
        self.group.charge(self.charges.keep());
        self.group.after.events.extend(self.events);
        self.group.after.reclaim.extend(self.reclaim);
        self.group.after.unsynced.extend(self.unsynced);
        self.group.after.let_in.extend(self.let_in);
    }

    /// Room for the bytes of an answer, empty; to be given back to the group.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        self.group.take_scratch()
    }

    /// Takes a lock until the group is written. `true` when it was free until now, so that what was read before
    /// may have changed.
    pub(crate) fn lock(&mut self, lock: LockId) -> Result<bool> {
        match self.shared.locks.try_lock(lock, self.group.core) {
            Ok(taken) => {
                self.group.locks.extend(taken);
                Ok(taken.is_some())
            }
            Err(lock) => Err(Fault::Locked(lock)),
        }
    }

    /// The bytes under `key` as this operation sees them.
    pub(crate) fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.group.find(key) {
            Some(Found::Bytes(bytes)) => Ok(Some(Bytes::copy_from_slice(bytes))),
            Some(Found::Dir(content)) => Ok(Some(content.to_record())),
            Some(Found::Deleted) => Ok(None),
            None if key::is_name(key) => {
                Ok(self.shared.hot.get(key, || self.shared.engine.get(key))?)
            }
            None => Ok(self.shared.engine.get(key)?),
        }
    }

    /// The record under `key`.
    pub(crate) fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.get_bytes(key)?.map(|bytes| Ok(R::from_record(&bytes)?)).transpose()
    }

    /// The content record under `key`.
    pub(crate) fn get_content(&self, key: &[u8]) -> Result<Option<Content>> {
        match self.group.find(key) {
            Some(Found::Dir(content)) => Ok(Some(content.clone())),
            Some(Found::Bytes(_) | Found::Deleted) | None => self.get(key),
        }
    }

    /// Stores a record.
    pub(crate) fn put(&mut self, key: Key, record: &impl Record) {
        self.group.put(key, |out| record.encode_record(out));
    }

    /// Stores a record's bytes as they were stored elsewhere.
    pub(crate) fn put_stored(&mut self, key: Key, value: &[u8]) {
        self.group.put(key, |out| out.extend_from_slice(value));
    }

    /// Stores an answer that is bytes already.
    pub(crate) fn put_answer(&mut self, key: Key, seq: Seq, answer: &[u8]) {
        self.group.put_answer(&key, |out| StoredAnswer::encode_record(seq, answer, out));
    }

    /// Removes a record.
    pub(crate) fn delete(&mut self, key: Key) {
        self.group.delete(key);
    }

    /// Removes everything under a prefix, however much it is, with one change; reads nothing but whether there is
    /// anything.
    pub(crate) fn delete_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        let to = key::end_of(prefix);
        let mut any = false;
        self.scan_unwritten(prefix, &to, &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        })?;
        if any {
            self.group.delete_range(Key::from_slice(prefix), Key::from_slice(&to));
        }
        Ok(())
    }

    /// Visits stored keys in a range. What the group has not written yet would be missed, so it must have
    /// nothing there.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        assert!(!self.group.is_pending(), "an operation scans before it writes");
        self.scan_unwritten(from, to, visit)
    }

    /// As [`Txn::scan`], of a range in which the operation has written nothing.
    fn scan_unwritten(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        if self.group.changes_in(from, to) {
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

    /// The chunks of a file from `first` on, as they are stored, at most `max` of them.
    pub(crate) fn scan_chunks(
        &self,
        ino: Ino,
        first: u32,
        max: usize,
    ) -> Result<Vec<(u32, Bytes)>> {
        let mut found = Vec::new();
        let end = key::end_of(&key::chunks(ino));
        self.scan(&key::chunk(ino, first), &end, &mut |key, value| {
            let chunk = key::parse_chunk(key);
            found.extend(chunk.map(|(_, chunk)| (chunk, Bytes::copy_from_slice(value))));
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
        self.caller.standing.checks
    }

    /// Whether what the caller writes may not keep its set-id bits. Where the kernel checks, the client says it.
    pub(crate) fn loses_set_id(&self) -> bool {
        self.checks() && !self.caller.cred.is_root()
    }

    /// The ticket that lets this session use what it was shown.
    pub(crate) fn ticket(&self, parts: &[u64]) -> u64 {
        match self.caller.session {
            Some(session) if !self.caller.standing.trusted => session.ticket(parts),
            _ => 0,
        }
    }

    /// Refuses what this session was not shown.
    pub(crate) fn check_ticket(&self, parts: &[u64], ticket: u64) -> Result<()> {
        match self.caller.session {
            Some(session) if !self.caller.standing.trusted && session.ticket(parts) != ticket => {
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
