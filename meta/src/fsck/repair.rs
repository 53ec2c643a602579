//! Repairs of findings, on the live server.
//!
//! `fsck` calls this between two sweeps. The sweep says of each finding where to look again. The
//! record there is locked, read as it is now, and changed only if it is still wrong, in a small
//! transaction that joins a group like any request. So a repair can be interrupted anywhere, and a
//! second one finds nothing to do. That does not hold for repairs by a difference, so none of these
//! may be done twice: there is one check at a time, and on a cluster a server refuses repairs of
//! any check but its latest.
//!
//! Wrong counts are repaired by differences. The snapshot says by how much a count differs from the
//! records, and operations since then change both alike.
//!
//! On a cluster the client of the checks asks for each repair, and it runs like any operation: what
//! it reads and writes on other servers is prepared there. Two kinds of repairs are refused with a
//! reason: those that would have to read more than single records of another server, and those that
//! would put an inode where no server would look for it.
//!
//! Invariant: nothing that can still be read is given up. Things that have lost their place go to
//! `/lost+found`, under their inode number. Only [`Fix::Lost`], and chunks that cannot be read,
//! give up contents, and only on request.

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
    error::{Fault, Result},
    record::{Key, QuotaId, Record, Usage, VERSION as RECORD_VERSION, key},
    txn::Txn,
};

/// A repair: where to look again, and facts that cannot be seen there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fix {
    /// Look at a record.
    Look(Key),
    /// Names of a directory whose content record is not on their shard.
    Group(ShardId, DirId),
    /// A directory's counts differ by this much from its names. `ino` tells it from a directory
    /// that was made anew under the same id.
    Counts { shard: ShardId, dir: DirId, ino: Ino, entries: i64, subdirs: i64 },
    /// An inode in its slot has `found` names and counted `nlink`, when it was `changed`, if that
    /// matters: on a cluster names are counted at different moments.
    Links { ino: Ino, found: u32, nlink: u32, changed: Option<Time> },
    /// The charges of a quota differ by this much from what it counts.
    Usage(QuotaId, Usage),
    /// Charges of cores to a quota that does not exist.
    Forget(QuotaId),
    /// An inode number beyond the reserved ones, in use at this record.
    Reserve(Ino, Key),
    /// The inode under a name has the number of another.
    Renumber(Key),
    /// Chunks without an inode; or, with `true`, of an inode that has other contents.
    Stray(Ino, bool),
    /// An inode is in use, at this record, and noted to be reclaimed.
    InUse(Ino, Key),
    /// A block is named by a chunk, and noted to be deleted.
    Named(Ino, u32, BlockId),
    /// A block that a chunk names is missing or damaged.
    Lost(Ino, u32, BlockId),
    /// A transaction stays prepared, and its initiator says whether it is committed.
    Decide(TxnId, bool),
}

impl Fix {
    /// Turn of the repair. Repairs that may restore a place come before those that would lose it,
    /// and transactions that hold others up come first.
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

/// A repair, as a step of a core.
pub(crate) struct Repair {
    fix: Fix,
    /// Whether contents that cannot be read any more may be given up.
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
    /// Looks again at a finding; `true` if it was wrong, and is right now.
    pub(super) async fn mend(&self, fix: Fix, discard_lost: bool) -> bool {
        let repair = Arc::new(Repair { fix, discard_lost, mended: Mutex::new(false) });
        let (done, waited) = oneshot::channel();
        self.queue.lock().push_back((repair.clone(), done));
        self.wake.notify_one();
        // The background may end before it answers; then nothing was repaired.
        let _ = waited.await;
        *repair.mended.lock()
    }
}

/// Does the repairs for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let repairs = &core.inner.shared.jobs.repairs;
    loop {
        let next = repairs.queue.lock().pop_front();
        match next {
            Some((repair, done)) => {
                core.step(move |txn| step(txn, &repair)).await;
                // The check may be gone.
                let _ = done.send(());
            }
            None => repairs.wake.notified().await,
        }
    }
}

/// Does a repair.
pub(crate) fn step(txn: &mut Txn<'_>, repair: &Repair) -> Result<()> {
    *repair.mended.lock() = false;
    let mended = mend(txn, &repair.fix, repair.discard_lost)?;
    *repair.mended.lock() = mended;
    Ok(())
}

/// Looks again at a finding; `true` if it was wrong, and is right now. With `lose`, contents that
/// cannot be read any more may be given up.
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
        // Chunks are repaired with their file.
        (Some(_), Some(b'B'), 15) => Ok(false),
        (Some(shard), Some(_), _) => system::record(txn, shard, key),
        (Some(_), None, _) | (None, ..) => drop_record(txn, key),
    }
}

/// Removes a record, and writes its bytes to the log, as they will be gone.
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

/// Drops a directory from clients' caches. On a cluster the coordinator must announce that first,
/// so it does such a repair.
fn tell_clients(txn: &mut Txn<'_>, dir: DirId) -> Result<()> {
    txn.coordinate(dir)?;
    txn.facts.moved.push(dir);
    Ok(())
}

/// Refuses to read everything under a prefix on another server: that server must do the repair.
fn is_here(txn: &Txn<'_>, prefix: &[u8]) -> Result<()> {
    if txn.has_shard(key::shard_of(prefix)) {
        return Ok(());
    }
    Err(Fault::Refused("it is on several servers, and would have to be read as a whole".into()))
}

/// Whether an inode number may have been given out; assumed for numbers of other servers.
fn was_given_out(txn: &Txn<'_>, ino: Ino) -> bool {
    let exists = ino.shard().0 < txn.shared.config.shards;
    exists && !txn.has_shard(ino.shard()) || txn.shared.inos.was_given_out(ino)
}

/// The record under a key, if it exists and is sound.
fn sound<R: Record>(txn: &Txn<'_>, key: &[u8]) -> Result<Option<R>> {
    Ok(txn.get_bytes(key)?.and_then(|bytes| R::from_record(&bytes).ok()))
}

/// Decodes a record even if its parts do not fit together.
fn unsound<R: Record>(bytes: &Bytes) -> Option<R> {
    let (version, _) = bytes.split_first()?;
    if *version == RECORD_VERSION { R::from_bytes(&bytes.slice(1..)).ok() } else { None }
}
