//! Repairing what a check found, on the live server.
//!
//! `fsck` calls it between two sweeps. The sweep says of each finding where to look again; what is looked at here
//! is locked and read as it is now, and changed only if it is still wrong, in a small transaction that joins a
//! group like any request. So a repair can be interrupted anywhere, and done twice it finds nothing the second time.
//! That is not so of differences, so nobody repairs by one twice: there is one check at a time, and on a cluster a server
//! refuses repairs of any but its latest.
//!
//! Wrong counts are repaired by differences. A snapshot says by how much a count differs from what there is, and
//! operations that went on since change both alike.
//!
//! On a cluster whoever follows the checks asks for each repair, and it runs as any operation does: what it reads and
//! writes of other servers is prepared there. What would have to read more than single records of another server is refused, in
//! words, and so is what would put an inode where no server would look for it.
//!
//! Invariant: nothing that can still be read is given up. What has lost its place goes to `/lost+found`, under its
//! inode number. Only [`Fix::Lost`], and chunks that nobody can read, give up contents, and only when that was asked for.

mod dirs;
mod files;
mod lost;
mod names;
mod shares;
mod system;

use std::{collections::VecDeque, sync::Arc};

use base::{BlockId, DirId, Ino, ShardId, Time};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use wire::TxnId;

pub(crate) use lost::directory as rescue;

use crate::{
    Core,
    core::Step,
    error::{Fault, Result},
    record::{Key, QuotaId, Record, Usage, VERSION as RECORD_VERSION, key},
    txn::Txn,
};

/// Where to look again, and what is known that cannot be seen there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fix {
    /// At a record.
    Look(Key),
    /// At names of a directory whose content record is not on their shard.
    Group(ShardId, DirId),
    /// A directory's counts differ by so much from its names. One that was removed and made anew has its id.
    Counts { shard: ShardId, dir: DirId, ino: Ino, entries: i64, subdirs: i64 },
    /// An inode in its slot has so many names, and counted so many, when it was `changed`, if that matters: on a cluster
    /// names are counted at different moments.
    Links { ino: Ino, found: u32, nlink: u32, changed: Option<Time> },
    /// What is charged to a quota differs by so much from what it counts.
    Usage(QuotaId, Usage),
    /// What cores have charged to a quota that is not there.
    Forget(QuotaId),
    /// An inode number beyond those that are reserved, of what is at this record.
    Reserve(Ino, Key),
    /// The inode under a name has the number of another.
    Renumber(Key),
    /// Chunks without an inode; or, with `true`, of an inode that has other contents.
    Stray(Ino, bool),
    /// An inode is in use, at this record, and noted to be reclaimed.
    InUse(Ino, Key),
    /// A block is named by a chunk, and noted to be deleted.
    Named(Ino, u32, BlockId),
    /// A block that a chunk names is not there, or not whole.
    Lost(Ino, u32, BlockId),
    /// A transaction stays prepared, and its initiator says whether it is committed.
    Decide(TxnId, bool),
}

impl Fix {
    /// When it is its turn: what may find its place again comes before what would lose it, and what keeps others out
    /// before all else.
    pub(super) fn turn(&self) -> u8 {
        match self {
            Fix::Decide(..) => 0,
            Fix::Look(key) => match key.get(2) {
                Some(b'D') => 2,
                Some(b'I') => 3,
                Some(_) | None => 1,
            },
            Fix::Counts { .. }
            | Fix::Usage(..)
            | Fix::Forget(_)
            | Fix::Reserve(..)
            | Fix::Renumber(_)
            | Fix::InUse(..)
            | Fix::Named(..) => 1,
            Fix::Group(..) => 2,
            Fix::Links { .. } | Fix::Stray(..) | Fix::Lost(..) => 3,
        }
    }
}

/// One repair, as a step of a core.
pub(crate) struct Repair {
    fix: Fix,
    /// Contents that cannot be read any more may be given up.
    discard_lost: bool,
    mended: Mutex<bool>,
}

/// Repairs that wait for the background.
#[derive(Default)]
pub(crate) struct Repairs {
    queue: Mutex<VecDeque<(Arc<Repair>, oneshot::Sender<()>)>>,
    wake: Notify,
}

impl Repairs {
    /// Has something looked at again; whether it was wrong, and is right now.
    pub(super) async fn mend(&self, fix: Fix, discard_lost: bool) -> bool {
        let repair = Arc::new(Repair { fix, discard_lost, mended: Mutex::new(false) });
        let (done, waited) = oneshot::channel();
        self.queue.lock().push_back((repair.clone(), done));
        self.wake.notify_one();
        // Whoever would tell us may end before; then nothing was mended.
        let _ = waited.await;
        *repair.mended.lock()
    }
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let repairs = &core.inner.shared.jobs.repairs;
    loop {
        let next = repairs.queue.lock().pop_front();
        match next {
            Some((repair, done)) => {
                core.step(Step::Repair(repair)).await;
                // Whoever asked may have gone.
                let _ = done.send(());
            }
            None => repairs.wake.notified().await,
        }
    }
}

/// Does one.
pub(crate) fn step(txn: &mut Txn<'_>, repair: &Repair) -> Result<()> {
    *repair.mended.lock() = false;
    let mended = mend(txn, &repair.fix, repair.discard_lost)?;
    *repair.mended.lock() = mended;
    Ok(())
}

/// Looks at something again; whether it was wrong, and is right now. `lose`: contents that cannot be read any more may be
/// given up.
pub(super) fn mend(txn: &mut Txn<'_>, fix: &Fix, lose: bool) -> Result<bool> {
    Ok(match fix {
        Fix::Look(key) => look(txn, key, lose)?,
        Fix::Group(shard, dir) => dirs::group(txn, *shard, *dir)?,
        Fix::Counts { shard, dir, ino, entries, subdirs } => {
            dirs::count(txn, (*shard, *dir, *ino), *entries, *subdirs)?
        }
        Fix::Links { ino, found, nlink, changed } => {
            files::links(txn, (*ino, *changed), *found, *nlink)?
        }
        Fix::Usage(id, usage) => system::usage(txn, *id, *usage),
        Fix::Forget(id) => system::forget(txn, *id)?,
        Fix::Reserve(ino, key) => system::reserve(txn, *ino, key)?,
        Fix::Renumber(key) => names::renumber(txn, key)?,
        Fix::Stray(ino, taken) => lost::stray(txn, *ino, *taken)?,
        Fix::InUse(ino, key) => files::in_use(txn, *ino, key)?,
        Fix::Named(ino, chunk, block) => files::named(txn, *ino, *chunk, *block)?,
        Fix::Lost(ino, chunk, block) => lose && files::punch(txn, *ino, *chunk, *block)?,
        Fix::Decide(id, commit) => system::decide(txn, *id, *commit)?,
    })
}

fn look(txn: &mut Txn<'_>, key: &Key, lose: bool) -> Result<bool> {
    let shard = key.first_chunk::<2>().map(|bytes| ShardId(u16::from_be_bytes(*bytes)));
    let shard = shard.filter(|shard| shard.0 < txn.shared.config.shards);
    match (shard, key.get(2), key.len()) {
        (Some(shard), Some(b'N'), _) => names::name(txn, shard, key, lose),
        (Some(shard), Some(b'D'), 22) => dirs::directory(txn, shard, key),
        (Some(_), Some(b'I'), 12) => files::slot(txn, key, lose),
        (Some(shard), Some(b'R'), 11) => files::reclaim(txn, shard, key),
        // With the file it belongs to.
        (Some(_), Some(b'B'), 15) => Ok(false),
        (Some(shard), Some(_), _) => system::record(txn, shard, key),
        (Some(_), None, _) | (None, ..) => drop_record(txn, key),
    }
}

/// Removes a record, and writes its bytes to the log: nobody will be able to look at them any more.
fn drop_record(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    let Some(value) = txn.get_bytes(key)? else { return Ok(false) };
    tracing::warn!(
        key = super::sweep::hex(key),
        value = super::sweep::hex(&value),
        "record removed"
    );
    txn.delete(key.clone());
    Ok(true)
}

/// What clients have cached of a directory will not hold any more. On a cluster the coordinator tells them before, so it
/// does such a repair.
fn tell_clients(txn: &mut Txn<'_>, dir: DirId) -> Result<()> {
    txn.coordinate(dir)?;
    txn.events.push(dir);
    Ok(())
}

/// What is under a prefix is read only where it is: who repairs this is another server.
fn is_here(txn: &Txn<'_>, prefix: &[u8]) -> Result<()> {
    if txn.has_shard(key::shard_of(prefix)) {
        return Ok(());
    }
    Err(Fault::Refused("it is on several servers, and would have to be read as a whole".into()))
}

/// Whether an inode number may have been given out; of other servers' numbers it is taken for granted.
fn was_given_out(txn: &Txn<'_>, ino: Ino) -> bool {
    let exists = ino.shard().0 < txn.shared.config.shards;
    exists && !txn.has_shard(ino.shard()) || txn.shared.inos.was_given_out(ino)
}

/// The record under a key, if it is there and sound.
fn sound<R: Record>(txn: &Txn<'_>, key: &[u8]) -> Result<Option<R>> {
    Ok(txn.get_bytes(key)?.and_then(|bytes| R::from_record(&bytes).ok()))
}

/// A record whose parts do not fit together, as it is.
fn unsound<R: Record>(bytes: &Bytes) -> Option<R> {
    let (version, _) = bytes.split_first()?;
    if *version == RECORD_VERSION { R::from_bytes(&bytes.slice(1..)).ok() } else { None }
}
