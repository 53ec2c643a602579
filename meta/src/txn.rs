//! One operation's reads and writes.
//!
//! A transaction sees stored records, records that its group has not written yet, and its own
//! writes. Its writes join the group when the operation succeeds, and vanish when it does not; the
//! group is one engine write. All shards of this server are in one store, so an operation over
//! several shards is in one batch.
//!
//! Invariant: an operation has locked everything that it changes, and read it after that.

pub(crate) mod birthplace;
mod dirs;
mod files;
mod find;
mod group;
mod quota;
pub(crate) mod remote;
pub(crate) mod removal;
pub(crate) mod sessions;
mod shares;
mod within;
pub(crate) mod written;
mod xattrs;

use std::{
    cell::{Cell, RefCell},
    ops::ControlFlow,
    sync::Arc,
};

use base::{Attr, BlockId, Cred, DirId, FsError, Ino, Seq, SessionId, ShardId, Time};
use bytes::Bytes;
use parking_lot::MutexGuard;
use store::Batch;
use tokio::time::Instant;
use wire::{Held, Retry, TxnId};

pub(crate) use crate::record::located::{Located, Place};
pub(crate) use dirs::{Dir, show_inode};
pub(crate) use files::Node;
pub(crate) use group::{CommitGroup, GROUP_BYTES_MAX, Promise, Unwritten};
pub(crate) use remote::Remote;
pub(crate) use shares::unshown;

use crate::{
    audit,
    brought::Brought,
    bugs::Bug,
    changes::{Facts, Found},
    coordinator::ancestry_hints::AncestryHints,
    delegations::Granting,
    error::{Fault, Result},
    keys::ring::KeyRing,
    lock::{self, LockId},
    quota::grant::GrantState,
    record::{Content, Key, Record, Settings, key, key::Part},
    server::Shared,
    session::{Session, Standing},
    transact::locks::{Doubt, Want},
};
use group::Alone;

/// Greatest age of a change that a client has made in a directory that it holds.
const AGE_SECS_MAX: i64 = 60;

/// Stores a reservation of inode numbers, before any of them is used.
pub(crate) fn store_stable(shared: &Shared, batch: Batch) -> Result<()> {
    shared.engine.write(batch)?;
    shared.make_stable().map_err(Fault::Halt)
}

/// The user, session and rights that a transaction acts for.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) cred: &'a Cred,
    /// The session; `None` for the server itself, in the background.
    pub(crate) session: Option<&'a Session>,
    pub(crate) standing: Standing,
    /// The coordinator's answer about room below quotas, if it was asked.
    pub(crate) grant_state: GrantState,
}

impl Caller<'static> {
    /// The server itself.
    pub(crate) const SERVER: Caller<'static> = Caller {
        cred: &Cred::ROOT,
        session: None,
        standing: Standing::SERVER,
        grant_state: GrantState::MayNotAsk,
    };
}

impl Caller<'_> {
    /// The opener that the caller's opens belong to, see [`Standing::opener`].
    pub(crate) fn opener(&self) -> u32 {
        self.standing.opener(self.cred.uid)
    }
}

/// One operation's view and its pending writes.
pub(crate) struct Txn<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) caller: Caller<'a>,
    pub(crate) now: Time,
    group: &'a mut CommitGroup,
    charges: quota::Charges<'a>,
    /// Facts that the operation states besides records.
    pub(crate) facts: Facts,
    /// Blocks of the session that the operation names.
    pub(crate) named: Vec<BlockId>,
    /// The records known of other servers; `None` until any are needed.
    remote: RefCell<Option<Box<Remote>>>,
    /// The transaction over several servers that this is a part of: its own prepared keys are not
    /// in the way.
    own: Option<TxnId>,
    /// The session whose directories need not be recalled, besides the caller's.
    keeps_held: Option<SessionId>,
    /// Whether this ends a transaction that is prepared here.
    ends_prepared: bool,
    /// The shard that the request is addressed to: it says which partition of a directory is meant.
    asked: Option<ShardId>,
    /// Whether it is addressed to the server, whatever shards that has.
    is_to_server: bool,
    /// Whether inodes of other servers are read from here, instead of sending the request there.
    follows: bool,
    /// Since when the request has waited for transactions of others.
    waited_since: Option<Instant>,
    /// State of the blocks that the request brings.
    pub(crate) brought: Brought,
    /// The delegation that the request stands on, or asks for.
    pub(crate) held: Option<Held>,
    /// The delegation that the operation grants.
    pub(crate) granting: Option<Granting>,
    /// A prepared transaction that stands on a record which this one has written.
    conflict: Cell<Option<Doubt>>,
    /// Directories as the operation leaves them, for a mount, see [`wire::Noted`].
    dirs: Vec<Attr>,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        group: &'a mut CommitGroup,
        caller: Caller<'a>,
        now: Time,
    ) -> Self {
        group.begin();
        let charges = quota::Charges::new(&shared.quotas);
        Txn {
            shared,
            caller,
            now,
            group,
            charges,
            facts: Facts::default(),
            named: Vec::new(),
            remote: RefCell::new(None),
            own: None,
            keeps_held: None,
            ends_prepared: false,
            asked: None,
            is_to_server: false,
            follows: false,
            waited_since: None,
            brought: Brought::default(),
            held: None,
            granting: None,
            conflict: Cell::new(None),
            dirs: Vec::new(),
        }
    }

    /// Goes on with the knowledge of other servers from earlier runs of the operation.
    pub(crate) fn knowing(mut self, remote: Box<Remote>, own: Option<TxnId>) -> Self {
        self.now = remote.now.unwrap_or(self.now);
        self.remote = RefCell::new(Some(remote));
        self.own = own;
        self
    }

    /// Notes the shard that the request is addressed to, or that it is to the server.
    pub(crate) fn asked_of(mut self, shard: ShardId) -> Self {
        self.is_to_server = shard == ShardId::SERVER;
        self.asked = Some(shard).filter(|_| !self.is_to_server);
        self
    }

    /// Notes since when the request has waited for transactions of others.
    pub(crate) fn waited(mut self, since: Option<Instant>) -> Self {
        self.waited_since = since;
        self
    }

    /// Whether the request has waited for so long.
    pub(crate) fn has_waited(&self, time: std::time::Duration) -> bool {
        self.waited_since.is_some_and(|since| since.elapsed() >= time)
    }

    /// Notes the delegation that the request stands on. A change is made at the time at which the
    /// client has made it.
    pub(crate) fn stands_on(mut self, held: Option<Held>) -> Self {
        let Some(held) = held else { return self };
        self.held = Some(held);
        if let (Some(_), Some(at)) = (held.dir, held.at) {
            let earliest = Time { sec: self.now.sec - AGE_SECS_MAX, ..self.now };
            self.now = at.clamp(earliest, self.now);
        }
        self
    }

    /// Notes the state of the blocks that the request brings.
    pub(crate) fn brings(mut self, brought: Brought) -> Self {
        self.brought = brought;
        self
    }

    /// Makes the operation one about directories wherever they are, and not about the one that the
    /// request is addressed to.
    pub(crate) fn asks_anywhere(&mut self) {
        self.asked = None;
    }

    /// Makes this a part of a transaction over several servers.
    pub(crate) fn part_of(mut self, own: TxnId) -> Self {
        self.be_part_of(own);
        self
    }

    /// Recalls no directories that this session holds, here and at other servers.
    pub(crate) fn keeps_held(mut self, session: Option<SessionId>) -> Self {
        self.keeps_held = session;
        self
    }

    /// Whether a directory need not be recalled that this session holds.
    pub(crate) fn keeps_held_by(&self, holder: SessionId) -> bool {
        self.caller.session.is_some_and(|session| session.id == holder)
            || self.keeps_held == Some(holder)
            || self.ends_prepared
    }

    /// Sets whether a transaction that is prepared here is being ended. That waits for no
    /// delegation: the holder may be waiting for the end, and nobody else is granted a directory in
    /// which a transaction has a part.
    pub(crate) fn ends_prepared(&mut self, ends: bool) {
        self.ends_prepared = ends;
    }

    /// Like [`Txn::part_of`].
    pub(crate) fn be_part_of(&mut self, own: TxnId) {
        self.own = Some(own);
    }

    /// Takes the records known and wanted of other servers; `None` when none were needed.
    pub(crate) fn take_remote(&mut self) -> Option<Box<Remote>> {
        let now = self.now;
        let mut remote = self.remote.get_mut().take()?;
        remote.now = Some(now);
        remote.session = self.keeps_held;
        Some(remote)
    }

    /// Whether the operation has read, written or lacks any records of other servers.
    pub(crate) fn is_remote(&self) -> bool {
        let remote = self.remote.borrow();
        remote.as_ref().is_some_and(|remote| {
            remote.is_involved() || remote.coordinated || !remote.missing().is_empty()
        })
    }

    /// Whether the records of other servers did not fit together, and must be read anew.
    pub(crate) fn is_torn(&self) -> bool {
        self.remote.borrow().as_ref().is_some_and(|remote| remote.is_torn())
    }

    /// The keys that the operation has written here.
    pub(crate) fn written(&self) -> Vec<Key> {
        self.group.written()
    }

    /// Refuses the operation while a prepared transaction stands on a record that it has written.
    pub(crate) fn unsettled(&self) -> Result<()> {
        self.conflict.get().map_or(Ok(()), |doubt| Err(doubt.into()))
    }

    /// Whether this server has a key.
    pub(crate) fn is_here(&self, key: &[u8]) -> bool {
        self.shared.cluster.as_ref().is_none_or(|cluster| cluster.owns_key(key))
    }

    /// Whether this server has a shard.
    pub(crate) fn has_shard(&self, shard: ShardId) -> bool {
        self.shared.owns(shard)
    }

    fn with_remote<T>(&self, act: impl FnOnce(&mut Remote) -> T) -> T {
        act(self.remote.borrow_mut().get_or_insert_default())
    }

    /// Refuses a use of `key` that a prepared transaction is in the way of: the request waits for
    /// its outcome.
    fn settle_read(&self, key: &[u8], want: Want) -> Result<()> {
        self.settle_held(key)?;
        let reads = want != Want::Change && self.own.is_none();
        if !self.shared.prepared.any() || (reads && self.shared.bugs.has(Bug::PreparedNotAwaited)) {
            return Ok(());
        }
        match self.shared.prepared.in_the_way(key, want, self.own) {
            Some(doubt) => Err(doubt.into()),
            None => Ok(()),
        }
    }

    /// Refuses an operation that puts an entry, confirmed elsewhere, into a directory that is not
    /// confirmed yet: the request waits. Other servers check their directories when they prepare.
    pub(crate) fn settle_early_mkdir(&self, dir: &Dir) -> Result<()> {
        if !self.shared.prepared.any() {
            return Ok(());
        }
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        match self.shared.prepared.early_mkdir_among([&key].into_iter()) {
            Some(doubt) => Err(doubt.into()),
            None => Ok(()),
        }
    }

    /// Whether the directory of a content record here has an entry that is not lost any more.
    pub(crate) fn is_confirmed(&self, key: &Key) -> bool {
        let prepared = &self.shared.prepared;
        !prepared.any() || prepared.early_mkdir_among([key].into_iter()).is_none()
    }

    /// Makes directories whose entries may still be lost count as absent, where other servers have
    /// them.
    pub(crate) fn wants_confirmed(&self) {
        self.with_remote(|remote| remote.wants_confirmed = true);
    }

    /// The fault for a directory of this number that a shard does not have.
    pub(crate) fn no_dir(&self, shard: ShardId, ino: Ino) -> Fault {
        Fault::Retry(if self.may_be_born(shard, ino) { Retry::Busy } else { Retry::StaleDir })
    }

    /// Notes that the key of a content record means the directory of this number, and no other.
    pub(crate) fn means(&self, key: &[u8], ino: Ino) {
        if !self.is_here(key) {
            self.with_remote(|remote| remote.means(key, ino));
        }
    }

    /// Whether a directory of this number, which its shard here does not have, may have been lost
    /// in a power failure, with its early mkdir not reported yet. Of another server's shard that
    /// server says only what is certain.
    ///
    /// The number was drawn by the server that put the entry: only that one can report the early
    /// mkdir.
    pub(crate) fn may_be_born(&self, shard: ShardId, ino: Ino) -> bool {
        if !self.has_shard(shard) {
            return false;
        }
        let early_mkdirs = &self.shared.early_mkdirs;
        let maker = || self.shared.cluster.as_ref()?.map().server_of(ino.shard());
        early_mkdirs.are_unheard() && maker().is_none_or(|maker| !early_mkdirs.has_heard(maker))
    }

    /// Refuses a change of `key` while a prepared transaction stands on it: the request waits for
    /// its outcome.
    pub(crate) fn settle_change(&self, key: &[u8]) -> Result<()> {
        self.settle_read(key, Want::Change)
    }

    /// Whether anybody may have the inode open; its shard of birth knows.
    pub(crate) fn maybe_open(&self, ino: Ino) -> Result<bool> {
        if self.has_shard(ino.shard()) {
            return Ok(self.shared.opens.maybe_open(ino));
        }
        let open = self.with_remote(|remote| remote.get(&key::open(ino)))?;
        Ok(open.is_some())
    }

    /// Whether the server that begins sessions, which is another one, has this session.
    pub(crate) fn has_begun(&self, session: SessionId) -> Result<bool> {
        let (record, _) = self.with_remote(|remote| remote.glance(&key::session(session)))?;
        Ok(record.is_some())
    }

    /// Notes that a prepared transaction is in the way of changing `key`.
    fn settle_write(&self, key: &[u8]) {
        if self.shared.prepared.any()
            && let Some(doubt) = self.shared.prepared.in_the_way(key, Want::Change, self.own)
        {
            self.conflict.set(Some(doubt));
        }
    }

    /// Asks for records that will be read, so that those of other servers are read together.
    pub(crate) fn want(&self, keys: &[Key]) -> Result<()> {
        self.want_as(keys, Remote::want)
    }

    /// Like [`Txn::want`], for records that a listing can do without: those of a silent server are
    /// given up soon.
    pub(crate) fn want_if_told(&self, keys: &[Key]) -> Result<()> {
        self.want_as(keys, Remote::want_if_told)
    }

    fn want_as(&self, keys: &[Key], want: fn(&mut Remote, &[u8])) -> Result<()> {
        let elsewhere = || keys.iter().filter(|key| !self.is_here(key));
        if self.shared.cluster.is_none() || elsewhere().next().is_none() {
            return Ok(());
        }
        self.with_remote(|remote| {
            elsewhere().for_each(|key| want(remote, key));
            if remote.missing().is_empty() { Ok(()) } else { Err(Fault::Remote) }
        })
    }

    /// Whether a record cannot be listed: its server is silent, or a transaction that is about to
    /// change it has been in doubt for long. A younger transaction is waited for.
    pub(crate) fn is_untold(&self, key: &[u8]) -> Result<bool> {
        if !self.is_here(key) {
            return Ok(self.is_silent_about(key));
        }
        self.settle_read(key, Want::List(self.waited_since))?;
        Ok(self.is_in_doubt(key))
    }

    /// Whether a record that can be done without is another server's that is silent.
    pub(crate) fn is_silent_about(&self, key: &[u8]) -> bool {
        self.remote.borrow().as_ref().is_some_and(|remote| remote.is_untold(key))
    }

    /// Whether a prepared transaction is about to change a record that this server has.
    pub(crate) fn is_in_doubt(&self, key: &[u8]) -> bool {
        let prepared = &self.shared.prepared;
        prepared.any() && prepared.in_the_way(key, Want::Read, self.own).is_some()
    }

    /// Like [`Txn::want`], for records to be read before others and held: a directory may move with
    /// them.
    pub(crate) fn want_held(&self, keys: &[Key]) {
        let elsewhere: Vec<_> = keys.iter().filter(|key| !self.is_here(key)).collect();
        if !elsewhere.is_empty() {
            self.with_remote(|remote| elsewhere.iter().for_each(|key| remote.want_held(key)));
        }
    }

    /// Assumes that another server has no such record, unless it was read. That server checks it
    /// before the commit.
    pub(crate) fn assume_absent(&self, key: &[u8]) {
        if !self.is_here(key) {
            self.with_remote(|remote| remote.assume_absent(key));
        }
    }

    /// Assumes that another server has a share as it is remembered, if it is, and that a name in
    /// it is free, unless they were read. That server checks both before the commit.
    pub(crate) fn assume_free(&self, share: &Key, name: &Key) {
        if !self.is_here(share)
            && let Some(record) = self.shared.remote_hints.share(share)
        {
            self.with_remote(|remote| remote.assume(share, record, name));
        }
    }

    /// Notes whether a new name in another server's share was free: [`Txn::assume_free`] goes by
    /// that.
    pub(crate) fn meets(&self, dir: &Dir, free: bool) {
        let share = self.share_key(dir.content.home, dir.id, dir.partition);
        match free {
            _ if self.is_here(&share) => {}
            true => self.shared.remote_hints.learn(&share, || dir.content.to_record()),
            false => self.shared.remote_hints.forget(&share),
        }
    }

    /// Whether the operation rests on an assumption that may be wrong ([`Txn::assume_free`]).
    pub(crate) fn assumes(&self) -> bool {
        self.remote.borrow().as_ref().is_some_and(|remote| remote.assumed().is_some())
    }

    /// Whether the request was sent to the coordinator, whatever it is about.
    pub(crate) fn is_for_coordinator(&self) -> bool {
        self.shared.cluster.is_some() && self.is_to_server
    }

    /// Refuses an operation of the coordinator, unless this server is that.
    pub(crate) fn is_coordinators(&self) -> Result<()> {
        let elsewhere = self.shared.cluster.as_ref().is_some_and(|cluster| !cluster.coordinates());
        if elsewhere { Err(Fault::Retry(Retry::Coordinate)) } else { Ok(()) }
    }

    /// Notes that a directory is about to move, or to change its permissions. In a cluster only the
    /// coordinator does that.
    pub(crate) fn coordinate(&self, moved: DirId) -> Result<()> {
        if self.shared.cluster.is_none() {
            return self.alone();
        }
        self.is_coordinators()?;
        self.with_remote(|remote| {
            remote.coordinated = true;
            remote.moves.push(moved);
        });
        Ok(())
    }

    /// Makes sure that the operation is executed while no other core has a group under way. Another
    /// core may have checked paths for changes that it has not written yet: these would be seen
    /// after this operation. Checks in the meantime would not know of it.
    pub(crate) fn alone(&self) -> Result<()> {
        if !self.shared.gate.is_shared() || self.group.is_alone {
            return Ok(());
        }
        Err(Alone.into())
    }

    /// The coordinator's memory of renames, if this server is the coordinator.
    pub(crate) fn ancestry_hints(&self) -> Option<MutexGuard<'_, AncestryHints>> {
        let coordinator = self.shared.cluster.as_ref()?.coordinator.as_ref()?;
        Some(coordinator.ancestry_hints())
    }

    /// Notes that a directory must stay where it is until the moving ones have moved.
    pub(crate) fn stays(&self, dir: DirId) {
        if self.shared.cluster.is_some() {
            self.with_remote(|remote| remote.chain.push(dir));
        }
    }

    /// Whether a record of another server was read already.
    fn has_read(&self, key: &[u8]) -> bool {
        self.remote.borrow().as_ref().is_some_and(|remote| remote.has(key))
    }

    /// Makes the operation find an inode wherever it is, and not only for a request that is sent to
    /// its server.
    pub(crate) fn follow(&mut self) {
        self.follows = true;
    }

    /// Like [`Txn::commit`]; the answer to the request is stored with the group, and remembered when
    /// that is written.
    pub(crate) fn commit_with_answer(self, session: &Arc<Session>, seq: Seq, encoded: Vec<u8>) {
        let answer = Bytes::copy_from_slice(&encoded);
        let is_stored = !self.shared.bugs.has(Bug::AnswerNotStored);
        let group = self.commit();
        if is_stored {
            group.changes.put_answer(session.clone(), seq, answer.clone());
            group.after.tells_of_change = true;
        }
        group.after.answers.push((session.clone(), seq, answer));
        group.give_scratch(encoded);
    }

    /// Joins the group. A transaction that is dropped without this has no effect.
    pub(crate) fn commit(self) -> &'a mut CommitGroup {
        let mut facts = self.facts;
        let told = !facts.moved.is_empty() && self.shared.cluster.is_none();
        debug_assert!(!told || self.group.is_alone || !self.shared.gate.is_shared());
        self.group.commit();
        facts.roots |= self.charges.changes_roots();
        let lost = self.own.is_some() && self.shared.bugs.has(Bug::ChargeLost);
        let charged = self.charges.keep().filter(|_| !lost);
        let changes = &mut self.group.changes;
        changes.charge(charged);
        facts.left.retain(|ino| self.shared.owns(ino.shard()));
        changes.facts.add(facts);
        if let (Some(session), false) = (self.caller.session, self.named.is_empty()) {
            let mut unnamed = session.unnamed.lock();
            self.named.into_iter().for_each(|block| unnamed.name(block));
        }
        self.group
    }

    /// An empty buffer for the bytes of an answer, to be given back to the group.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        self.group.take_scratch()
    }

    /// Takes a lock until the group is written. Returns `true` when it was free until now, so that
    /// records read before may have changed.
    pub(crate) fn lock(&mut self, lock: LockId) -> Result<bool> {
        self.group.lock(&self.shared.locks, lock)
    }

    /// Like [`Txn::lock`], for the lock that guards a key. A key that only its owner writes has
    /// none.
    pub(crate) fn lock_key(&mut self, key: &[u8]) -> Result<()> {
        lock::of_key(key).map_or(Ok(()), |lock| self.lock(lock).map(drop))
    }

    /// The settings of the file system, as they are when the group is written.
    pub(crate) fn settings(&self) -> Settings {
        let written = self.facts.settings.or(self.group.changes.facts.settings);
        written.unwrap_or_else(|| self.shared.settings())
    }

    /// Changes the settings. In a cluster the coordinator does it; the others get them with their
    /// next lease.
    pub(crate) fn set_settings(&mut self, settings: Settings) -> Result<()> {
        self.is_coordinators()?;
        self.put(key::settings(), &settings);
        self.facts.settings = Some(settings);
        Ok(())
    }

    /// The key ring, as it is when the group is written.
    pub(crate) fn key_ring(&self) -> KeyRing {
        let written = self.facts.keys.as_ref().or(self.group.changes.facts.keys.as_ref());
        written.map_or_else(|| self.shared.keys.get().ring.clone(), |ring| (**ring).clone())
    }

    /// The bytes under `key` as this operation sees them.
    pub(crate) fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.settle_read(key, Want::Read)?;
        match self.group.find(key) {
            Some(Found::Bytes(bytes)) => Ok(Some(Bytes::copy_from_slice(bytes))),
            Some(Found::Dir(content)) => Ok(Some(content.to_record())),
            Some(Found::Deleted) => Ok(None),
            None if !self.is_here(key) => self.with_remote(|remote| remote.get(key)),
            None => self.stored(key),
        }
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match key {
            key if key::is_name(key) => {
                Ok(self.shared.record_cache.name(key, || self.shared.engine.get(key))?)
            }
            key => Ok(self.shared.engine.get(key)?),
        }
    }

    /// The record under `key`.
    pub(crate) fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.get_bytes(key)?.map(|bytes| Ok(R::from_record(&bytes)?)).transpose()
    }

    /// The content record under `key`.
    pub(crate) fn get_content(&self, key: &[u8]) -> Result<Option<Content>> {
        self.settle_read(key, Want::Read)?;
        match self.group.find(key) {
            Some(Found::Dir(content)) => Ok(Some(content.clone())),
            None if self.is_here(key) => self.shared.record_cache.dir(key, || {
                let stored = self.shared.engine.get(key)?;
                Ok(stored.map(|bytes| Content::from_record(&bytes)).transpose()?)
            }),
            Some(Found::Bytes(_) | Found::Deleted) | None => self.get(key),
        }
    }

    /// Stores a record.
    pub(crate) fn put(&mut self, key: Key, record: &impl Record) {
        if !self.is_here(&key) {
            return self.with_remote(|remote| remote.put(key, record.to_record()));
        }
        self.settle_write(&key);
        self.group.put(key, |out| record.encode_record(out));
    }

    /// Stores a record's bytes as another server has stored them.
    pub(crate) fn put_stored(&mut self, key: Key, value: &[u8]) {
        if !self.is_here(&key) {
            let value = Bytes::copy_from_slice(value);
            return self.with_remote(|remote| remote.put(key, value));
        }
        self.settle_write(&key);
        self.group.put(key, |out| out.extend_from_slice(value));
    }

    /// Stores a content record as a prepared transaction wants it.
    pub(crate) fn put_content(&mut self, key: Key, content: Content) {
        self.group.put_dir(key, content);
    }

    /// Stores names of a partition of this server that does not have them yet, and whose directory
    /// is locked. The names ascend, nothing is stored under them, and no transaction holds them.
    pub(crate) fn put_run<'b>(&mut self, names: impl Iterator<Item = (Key, &'b [u8])>) {
        self.group.put_run(names);
    }

    /// Removes names of a partition of this server that does not have them, and whose directory is
    /// locked: all that is stored between the first and the last of them, which the group has not
    /// changed.
    pub(crate) fn delete_run(&mut self, names: Vec<Key>) {
        if let Some((first, last)) = names.first().zip(names.last()) {
            if let Some(txn) = self.shared.prepared.holds(first, last) {
                self.conflict.set(Some(txn));
            }
            self.group.delete_run(names);
        }
    }

    /// Removes a record.
    pub(crate) fn delete(&mut self, key: Key) {
        if !self.is_here(&key) {
            return self.with_remote(|remote| remote.delete(key));
        }
        self.settle_write(&key);
        self.group.delete(key);
    }

    /// Removes everything under a prefix, however much it is, with one change. Reads only whether
    /// there is anything.
    pub(crate) fn delete_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        let to = key::end_of(prefix);
        let mut any = false;
        self.scan_unwritten(prefix, &to, Want::Read, &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        })?;
        if any {
            self.group.delete_range(Key::from_slice(prefix), Key::from_slice(&to));
        }
        Ok(())
    }

    /// Whether the group, without the operation, has changed anything in a range of keys.
    pub(crate) fn has_unwritten(&self, from: &[u8], to: &[u8]) -> bool {
        self.group.changes.are_in(from, to)
    }

    /// Visits stored keys in a range. The operation must not have written anything yet. If the
    /// group has unwritten changes in the range, the operation runs again after their write.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        assert!(!self.group.is_pending(), "an operation scans before it writes");
        self.scan_unwritten(from, to, Want::Read, visit)
    }

    /// Like [`Txn::scan`], for a listing: a record that a transaction, long in doubt, is about to
    /// change is visited as it was before.
    pub(crate) fn scan_listed(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        assert!(!self.group.is_pending(), "an operation scans before it writes");
        self.scan_unwritten(from, to, Want::List(self.waited_since), visit)
    }

    /// Like [`Txn::scan`], for a range in which the operation has written nothing.
    fn scan_unwritten(
        &self,
        from: &[u8],
        to: &[u8],
        want: Want,
        visit: &mut store::kv::Visit<'_>,
    ) -> Result<()> {
        if self.group.changes.are_in(from, to) {
            return Err(Unwritten.into());
        }
        self.settle_held(from)?;
        if self.shared.prepared.any()
            && let Some(doubt) = self.shared.prepared.in_range(from, to, want, self.own)
        {
            return Err(doubt.into());
        }
        Ok(self.shared.engine.scan(from, to, visit)?)
    }

    /// The records under a prefix, at most `max`.
    pub(crate) fn scan_prefix(&self, prefix: &[u8], max: usize) -> Result<Vec<(Key, Bytes)>> {
        let mut found = Vec::new();
        self.scan(prefix, &key::end_of(prefix), &mut |key, value| {
            found.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
            if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    }

    /// The stored chunks of a file from `first` on, at most `max`.
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

    /// A new inode number, born on `shard` in the group of `dir`.
    pub(crate) fn new_ino(&mut self, shard: ShardId, dir: DirId) -> Result<Ino> {
        let shared = self.shared;
        debug_assert!(shared.owns(shard), "only the server of a shard gives out its numbers");
        if let Some(ino) = self.held.and_then(|held| held.ino) {
            return self.given_ino(shard, ino);
        }
        let lane = shared.config.placement().lane_of(dir);
        let draw = || -> Result<Ino> {
            let store = |batch| store_stable(shared, batch);
            Ok(shared.inos.next::<Fault>(shard, store)?.on_lane(lane))
        };
        match self.remote.get_mut() {
            Some(remote) => remote.ino(draw),
            None => draw(),
        }
    }

    /// The inode number that a session was given before, for a file in a directory that it holds.
    /// The session is trusted to use each number once.
    fn given_ino(&self, shard: ShardId, ino: Ino) -> Result<Ino> {
        let fits = ino.shard() == shard && self.shared.inos.was_given_out(ino);
        if !fits || !self.trusts() || self.get_bytes(&key::inode(ino, Part::Main))?.is_some() {
            return Err(FsError::Invalid.into());
        }
        Ok(ino)
    }

    /// A new inode number of the first of these shards that this server has, or of any that it has.
    pub(crate) fn new_ino_near(&mut self, shards: &[ShardId], dir: DirId) -> Result<Ino> {
        let all = (0..self.shared.config.shards).map(ShardId);
        let own = shards.iter().copied().chain(all).find(|shard| self.has_shard(*shard));
        self.new_ino(own.ok_or(FsError::Io)?, dir)
    }

    /// Memory of the core for lines of the audit log.
    pub(crate) fn audit_memory(&mut self) -> &mut audit::Memory {
        &mut self.group.audit
    }

    /// The same, and the lines of the group.
    pub(crate) fn audit(&mut self) -> (&mut audit::Memory, &mut audit::Lines) {
        (&mut self.group.audit, &mut self.group.changes.facts.audit)
    }

    /// Whether another operation of the group has removed the directory with this content record.
    pub(crate) fn group_frees(&self, content: &[u8]) -> bool {
        self.group.changes.facts.freed.iter().any(|freed| freed[..] == *content)
    }

    /// Whether the operation, or another one of its group, has moved directories.
    pub(crate) fn moves(&self) -> bool {
        !self.facts.moved.is_empty() || !self.group.changes.facts.moved.is_empty()
    }

    /// Whether the server, and not the client's kernel, checks permissions for this caller.
    pub(crate) fn checks(&self) -> bool {
        self.caller.standing.checks
    }

    /// Whether the caller notes what answers tell besides: a mount does.
    fn takes_notes(&self) -> bool {
        self.caller.session.is_some() && !self.checks()
    }

    /// Has the answer tell a mount of these directories, too.
    pub(crate) fn tells_of(mut self, dirs: Vec<Attr>) -> Self {
        self.dirs.extend(dirs);
        self
    }

    /// Takes the directories that the answer tells a mount besides.
    pub(crate) fn take_noted(&mut self) -> Vec<Attr> {
        std::mem::take(&mut self.dirs)
    }

    /// Whether a file that the caller writes loses its set-id bits. Where the kernel checks, the
    /// client says so.
    pub(crate) fn loses_set_id(&self) -> bool {
        self.checks() && !self.caller.cred.is_root()
    }

    /// The ticket that lets this session use something that it was shown.
    pub(crate) fn ticket(&self, parts: &[u64]) -> u64 {
        match self.caller.session {
            Some(session) if !self.caller.standing.trusted => session.ticket(parts),
            _ => 0,
        }
    }

    /// Refuses something that this session was not shown.
    pub(crate) fn check_ticket(&self, parts: &[u64], ticket: u64) -> Result<()> {
        match self.caller.session {
            Some(session) if !self.caller.standing.trusted && session.ticket(parts) != ticket => {
                Err(FsError::Denied.into())
            }
            _ => Ok(()),
        }
    }
}
