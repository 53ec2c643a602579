//! Directories whose entries are here and whose content records are another server's.
//!
//! mkdir makes one, as a transaction with that server, and needs no stable storage for it. The other server stores the
//! record, out of sight, and says so at once; the batch of the entry here is the commit. Then it is told twice: that the
//! directory is *born*, at once, so that everybody sees it; and that it is *confirmed*, when the entry is stable, and the
//! directory confirmed that the entry is in. Until then everybody uses it, but whatever must be stable inside it waits,
//! and so does every transaction over several servers that touches it ([`Prepared::confirmed`], [`Prepared::take`]): so
//! nothing stable ever hangs on an entry that was lost.
//!
//! - *The entry is lost* with what this server has not synced: the other server asks, hears that nothing is known, and
//!   forgets the directory if nothing is in it; otherwise it puts the entry back where it was ([`orphaned`]).
//! - *The record is lost* with what the other server has not synced: when it starts it asks everybody what was born
//!   there, before it says of any directory that it is not there ([`learn`]). What has not committed by then, never does.
//!   The entry stays as it is until it is confirmed, so nobody removes a directory that comes back.
//!
//! Always true: an entry is committed here only while the record that was prepared for it is there, or its server asks
//! for it before it answers anybody about it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base::{HashMap, HashSet, Pauses};
use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use wire::{Birth, Born, DirRef, Expected, HurryBirths, PeerWrite, Reply, Request, Retry, TxnId};

use super::{
    Child, PreparedRecord,
    locks::{Doubt, Prepared},
};
use crate::{
    Core,
    bugs::Bug,
    core::Step,
    error::{Fault, Result},
    lock,
    record::{Content, EntryRecord, Key, key, key::Part},
    server::Shared,
    txn::{Dir, Txn, remote::Plan},
};

/// The pause before a server is asked again, at first and at most.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Directories are confirmed together that are born within so long, unless somebody waits for one.
const ROUND: Duration = Duration::from_millis(10);
/// While fewer wait to be confirmed, each is told of at once.
const FEW: usize = 4;

/// The births that began here and are not over, and whom this server has not heard since it started.
#[derive(Default)]
pub(crate) struct Births {
    table: Mutex<HashMap<TxnId, Begun>>,
    /// How often somebody has waited for one of them.
    hurried: watch::Sender<u64>,
    /// Others' births that somebody waits for, to be told to them.
    wanted: Mutex<HashSet<TxnId>>,
    wants: Notify,
    unheard: Mutex<HashSet<u16>>,
    unheard_count: AtomicUsize,
}

struct Begun {
    server: u16,
    child: Child,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It is prepared.
    Begun,
    /// Its entry is in a batch that is about to be written.
    Committed,
    /// Its entry is written.
    Written,
}

impl Births {
    /// It has heard of none of the others.
    pub(crate) fn hear_of(&self, others: impl Iterator<Item = u16>) {
        let mut unheard = self.unheard.lock();
        unheard.extend(others);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    /// Whether some server may still say that there is a directory which is not there.
    pub(crate) fn are_unheard(&self) -> bool {
        self.unheard_count.load(Ordering::Acquire) > 0
    }

    pub(super) fn has_heard(&self, server: u16) -> bool {
        !self.unheard.lock().contains(&server)
    }

    fn heard(&self, server: u16) {
        let mut unheard = self.unheard.lock();
        unheard.remove(&server);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    fn others(&self) -> Vec<u16> {
        self.unheard.lock().iter().copied().collect()
    }

    /// One is prepared; it is not known yet what the key of its entry is.
    pub(super) fn begin(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Begun });
    }

    /// One that a crash has left.
    pub(super) fn resume(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Written });
    }

    /// Its entry is about to be written; `None`: its server has started anew, and it comes to nothing.
    pub(super) fn commit(&self, txn: TxnId, entry: &Key) -> Option<Child> {
        let mut table = self.table.lock();
        let begun = table.get_mut(&txn)?;
        begun.stage = Stage::Committed;
        begun.child.name = Bytes::copy_from_slice(entry);
        Some(begun.child.clone())
    }

    /// It is confirmed, or comes to nothing.
    pub(crate) fn end(&self, txn: TxnId) {
        self.table.lock().remove(&txn);
    }

    /// What was born at a server. What has not been is not going to be.
    pub(crate) fn at(&self, server: u16) -> Vec<Birth> {
        let mut table = self.table.lock();
        table.retain(|_, begun| begun.server != server || begun.stage > Stage::Begun);
        let at = table.iter().filter(|(_, begun)| begun.server == server);
        let birth = |(txn, begun): (&TxnId, &Begun)| {
            let Child { key, content, .. } = begun.child.clone();
            Birth { txn: *txn, key, content }
        };
        at.map(birth).collect()
    }

    /// Its entry is written.
    fn written(&self, txn: TxnId) {
        if let Some(begun) = self.table.lock().get_mut(&txn) {
            begun.stage = Stage::Written;
        }
    }

    /// Which of them have their entries.
    pub(crate) fn born_of(&self, txns: &[TxnId]) -> Vec<TxnId> {
        let table = self.table.lock();
        let is_born =
            |txn: &&TxnId| table.get(txn).is_some_and(|begun| begun.stage == Stage::Written);
        txns.iter().filter(is_born).copied().collect()
    }

    /// Somebody waits for one that began here.
    pub(crate) fn hurry(&self) {
        self.hurried.send_modify(|times| *times += 1);
    }

    /// Somebody waits for some that others have begun.
    pub(crate) fn want(&self, births: impl IntoIterator<Item = TxnId>) {
        let mut wanted = self.wanted.lock();
        wanted.extend(births);
        if !wanted.is_empty() {
            self.wants.notify_one();
        }
    }

    fn child(&self, txn: TxnId) -> Option<(u16, Key)> {
        let table = self.table.lock();
        table.get(&txn).map(|begun| (begun.server, Key::from_slice(&begun.child.name)))
    }
}

/// The content record that a transaction makes at a server, if that is all that it does there.
pub(super) fn made<'a>(
    expects: &'a [Expected],
    writes: &'a [PeerWrite],
) -> Option<(&'a Bytes, &'a Bytes)> {
    let ([expected], [PeerWrite::Put((at, content))]) = (expects, writes) else { return None };
    let is_birth = expected.was.is_none() && expected.key == *at && key::is_content(at);
    is_birth.then_some((at, content))
}

/// The directory that is born by a plan, and where.
pub(super) fn planned(plan: &Plan) -> Option<(u16, Child)> {
    let (server, part) = plan.first_key_value().filter(|_| plan.len() == 1)?;
    let (key, content) = made(&part.expects, &part.writes)?;
    let name = Bytes::new();
    Some((*server, Child { name, key: key.clone(), content: content.clone() }))
}

/// A directory's entry is about to be written: it stays as it is until the directory is confirmed. `None`: not now.
pub(super) fn commit(txn: &Txn<'_>, birth: TxnId) -> Option<Child> {
    let entry = txn.written().into_iter().find(|key| key::is_entry(key))?;
    let prepared = &txn.shared.prepared;
    if !prepared.take_entry(birth, entry.clone()) {
        return None;
    }
    let child = txn.shared.births.commit(birth, &entry);
    if child.is_none() {
        prepared.free(birth);
    }
    child
}

/// What the births of one core have to tell.
#[derive(Default)]
pub(crate) struct Telling {
    born: Told,
    stable: Told,
}

/// A queue that has a task while there is anything in it.
#[derive(Default)]
struct Told {
    queue: RefCell<Vec<TxnId>>,
    runs: Cell<bool>,
}

impl Told {
    /// `true`: it needs a task.
    fn push(&self, txns: impl IntoIterator<Item = TxnId>) -> bool {
        self.queue.borrow_mut().extend(txns);
        !self.runs.replace(true)
    }

    /// Empty: the task ends.
    fn take(&self) -> Vec<TxnId> {
        let txns = std::mem::take(&mut *self.queue.borrow_mut());
        self.runs.set(!txns.is_empty());
        txns
    }
}

/// The entry is written: the other server is told that the directory is born, and later that it is confirmed.
pub(super) fn tell(core: &Core, txn: TxnId) {
    core.inner.shared.births.written(txn);
    let telling = &core.inner.births;
    // Of many each is confirmed soon, and who needs one sooner asks.
    let few = telling.stable.queue.borrow().len() < FEW;
    if few && telling.born.push([txn]) {
        let core = core.clone();
        tokio::task::spawn_local(async move {
            loop {
                let born = core.inner.births.born.take();
                if born.is_empty() {
                    return;
                }
                for (server, txns) in by_server(&core.inner.shared, &born) {
                    let told = core
                        .inner
                        .peers
                        .ask(server, &Request::Born(Born { txns, confirmed: false }));
                    // Who does not hear it hears that it is confirmed.
                    tokio::task::spawn_local(async move { drop(told.await) });
                }
                tokio::task::yield_now().await;
            }
        });
    }
    if telling.stable.push([txn]) {
        tokio::task::spawn_local(confirm_all(core.clone()));
    }
}

async fn confirm_all(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        let mut hurried = shared.births.hurried.subscribe();
        let stable = core.inner.births.stable.take();
        if stable.is_empty() {
            return;
        }
        if !shared.bugs.has(Bug::ConfirmedEarly) {
            shared.sync.wait().await;
        }
        let mut free = Vec::new();
        for txn in stable {
            match above(&shared, txn) {
                Some(doubt) => {
                    let core = core.clone();
                    tokio::task::spawn_local(async move {
                        let mut waits = Some(doubt);
                        while let Some(doubt) = waits {
                            core.inner.shared.until_ended(doubt).await;
                            waits = above(&core.inner.shared, txn);
                        }
                        confirm(&core, &[txn]).await;
                    });
                }
                None => free.push(txn),
            }
        }
        let confirming = core.clone();
        tokio::task::spawn_local(async move { confirm(&confirming, &free).await });
        // Late or not, all that have come meanwhile are next.
        let _ = timeout(ROUND, hurried.changed()).await;
    }
}

/// The birth of the directory that the entry is in, if that is not confirmed itself.
fn above(shared: &Shared, txn: TxnId) -> Option<Doubt> {
    let (_, name) = shared.births.child(txn)?;
    let dir = key::parse_dir(&name)?;
    // A directory in several partitions is confirmed.
    let content = key::content(key::shard_of(&name), dir, 0, Part::Main);
    shared.prepared.birth_among([&content].into_iter())
}

async fn confirm(core: &Core, txns: &[TxnId]) {
    let shared = core.inner.shared.clone();
    if shared.is_halted() {
        return;
    }
    let told = by_server(&shared, txns).into_iter().map(|(server, txns)| async move {
        let request = Request::Born(Born { txns: txns.clone(), confirmed: true });
        ask(core, server, &request).await;
        core.step(Step::Confirmed(txns)).await;
    });
    join_all(told).await;
}

/// Asks until there is an answer.
async fn ask(core: &Core, server: u16, request: &Request) -> Reply {
    let mut pauses = Pauses::new(PAUSE_FIRST, PAUSE_MAX);
    loop {
        match core.inner.peers.ask(server, request).await {
            Ok(reply) => return reply,
            Err(why) => tracing::debug!(server, ?why, "a server does not answer about births"),
        }
        sleep(pauses.draw(core.inner.shared.random.as_ref())).await;
    }
}

fn by_server(shared: &Shared, txns: &[TxnId]) -> BTreeMap<u16, Vec<TxnId>> {
    let mut by_server = BTreeMap::<u16, Vec<TxnId>>::new();
    for txn in txns {
        if let Some((server, _)) = shared.births.child(*txn) {
            by_server.entry(server).or_default().push(*txn);
        }
    }
    by_server
}

/// Directories are confirmed: their entries may change, and nothing is left to be told of them.
pub(crate) fn confirmed(txn: &mut Txn<'_>, txns: &[TxnId]) {
    for birth in txns {
        txn.delete(key::committed(*birth));
        txn.ended.push(*birth);
    }
}

/// Hears of all servers what was born here.
pub(super) async fn learn(core: &Core) {
    let shared = &core.inner.shared;
    let heard = shared.births.others().into_iter().map(|server| async move {
        let reply = ask(core, server, &Request::AskBirths).await;
        if let Reply::Births(births) = reply
            && !shared.bugs.has(Bug::LostBirthForgotten)
        {
            let born: Vec<TxnId> = births.iter().map(|birth| birth.txn).collect();
            core.step(Step::Births(births)).await;
            born.into_iter().for_each(|txn| shared.prepared.is_born(txn));
        }
        shared.births.heard(server);
    });
    join_all(heard).await;
}

/// Tells others of whose births somebody waits for here, for as long as the server runs.
pub(super) async fn hurry(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        shared.births.wants.notified().await;
        let mut by_server = BTreeMap::<u16, Vec<TxnId>>::new();
        for txn in std::mem::take(&mut *shared.births.wanted.lock()) {
            by_server.entry(txn.server).or_default().push(txn);
        }
        for (server, txns) in by_server {
            let asked = core.inner.peers.ask(server, &Request::HurryBirths(HurryBirths { txns }));
            let shared = shared.clone();
            tokio::task::spawn_local(async move {
                // Otherwise it is waited for until it is confirmed.
                if let Ok(Reply::Born(born)) = asked.await {
                    born.into_iter().for_each(|txn| shared.prepared.is_born(txn));
                }
            });
        }
    }
}

/// Directories were born here: what was lost of them is made again, with nothing in it.
pub(crate) fn born(txn: &mut Txn<'_>, births: &[Birth]) -> Result<()> {
    for birth in births {
        if txn.shared.prepared.has(birth.txn) {
            continue;
        }
        if let Some(lock) = lock::of_key(&birth.key) {
            txn.lock(lock)?;
        }
        if txn.get_bytes(&birth.key)?.is_none() {
            store(txn, birth.txn, &birth.key, &birth.content);
        }
    }
    Ok(())
}

/// Stores a record that is confirmed later; `false` when another transaction is in the way.
pub(super) fn store(txn: &mut Txn<'_>, birth: TxnId, at: &Bytes, content: &Bytes) -> bool {
    let holds = !txn.shared.bugs.has(Bug::PreparedNotHeld);
    if holds && !txn.shared.prepared.take_birth(birth, Key::from_slice(at)) {
        return false;
    }
    txn.be_part_of(birth);
    txn.put_stored(Key::from_slice(at), content);
    let record = PreparedRecord { stands: Vec::new(), writes: Vec::new(), born: Some(at.clone()) };
    if !txn.shared.bugs.has(Bug::PrepareNotStored) {
        txn.put(key::prepared(birth), &record);
    }
    true
}

/// A directory is confirmed, or its birth has come to nothing and nobody has seen it.
pub(super) fn end(txn: &mut Txn<'_>, birth: TxnId, at: &Bytes, is_there: bool) -> Result<()> {
    txn.be_part_of(birth);
    if !is_there {
        forget(txn, &Key::from_slice(at))?;
    }
    txn.delete(key::prepared(birth));
    txn.ended.push(birth);
    Ok(())
}

/// Removes a directory with nothing in it; `false`: there is something.
fn forget(txn: &mut Txn<'_>, at: &Key) -> Result<bool> {
    let (shard, Some(dir)) = (key::shard_of(at), key::parse_dir(at)) else { return Ok(true) };
    let Some(content) = txn.get_content(at)? else { return Ok(true) };
    if content.entries > 0 {
        return Ok(false);
    }
    // Rename lists, and attributes that were too long for the record.
    txn.delete_prefix(&key::names(shard, dir))?;
    txn.delete(key::content(shard, dir, 0, Part::Xattrs));
    txn.delete(at.clone());
    Ok(true)
}

/// The entry of a directory that is born here was lost: it goes as well if nothing is in it, and otherwise gets its entry
/// back.
pub(crate) fn orphaned(txn: &mut Txn<'_>, birth: TxnId) -> Result<()> {
    let record = txn.get::<PreparedRecord>(&key::prepared(birth))?;
    let Some(at) = record.and_then(|record| record.born) else { return Ok(()) };
    let (at, Some(id)) = (Key::from_slice(&at), key::parse_dir(&at)) else { return Ok(()) };
    txn.lock(lock::dir_lock(id))?;
    if !forget(txn, &at)?
        && let Some(content) = txn.get_content(&at)?
    {
        enter(txn, &Dir::master(id, content))?;
    }
    txn.delete(key::prepared(birth));
    txn.ended.push(birth);
    Ok(())
}

/// Puts a directory back where it was born, unless something else is there by now: then `fsck` finds it.
fn enter(txn: &mut Txn<'_>, dir: &Dir) -> Result<()> {
    let Content { parent, parent_ino, parent_home, name, .. } = &dir.content;
    let lost = || {
        tracing::error!(id = %dir.id, "a directory has lost its place; run `pando fsck --repair`");
        Ok(())
    };
    let Some(name) = name else { return lost() };
    let above = DirRef { id: *parent, ino: *parent_ino, home: *parent_home, ticket: 0 };
    let mut above = match txn.owner(&above, name) {
        Ok(above) => above,
        Err(Fault::Retry(Retry::StaleDir)) => return lost(),
        Err(fault) => return Err(fault),
    };
    match txn.entry(&above, name)? {
        Some(EntryRecord::Dir(access)) if access.id == dir.id => Ok(()),
        Some(EntryRecord::Dir(_) | EntryRecord::Node(_) | EntryRecord::Link(_)) => lost(),
        None => {
            txn.put_entry(&above, name, &EntryRecord::Dir(Txn::access_of(dir)));
            above.content.entries += 1;
            above.content.subdirs = above.content.subdirs.saturating_add(1);
            txn.touch(&mut above);
            txn.put_dir(&above);
            Ok(())
        }
    }
}

/// Holds again what was held for births before this start.
pub(super) fn hold(prepared: &Prepared, txn: TxnId, child: &Child) {
    let taken = prepared.take_entry(txn, Key::from_slice(&child.name));
    assert!(taken, "what was held together is held together again");
}
