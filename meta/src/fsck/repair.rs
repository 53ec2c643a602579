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

use base::{DirId, Ino};
use bytes::Bytes;

pub(crate) use lost::directory as rescue;

use super::{fix::Fix, hex::hex, repairs::Repair};
use crate::{
    error::{Fault, Result},
    record::{
        Key, Record, VERSION as RECORD_VERSION,
        key::{self, Zone},
    },
    txn::Txn,
};

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
    let known = key::zone_among(key, txn.shared.config.shards);
    let Some((zone, shard)) = known else { return drop_record(txn, key) };
    match (zone, key[2], key.len()) {
        (Zone::Users, b'N', _) => names::name(txn, shard, key, lose),
        (Zone::Users, b'D', 22) => dirs::directory(txn, shard, key),
        (Zone::Users, b'I', 12) => files::slot(txn, key, lose),
        // Chunks are repaired with their file.
        (Zone::Users, b'B', 15) => Ok(false),
        (Zone::Users, ..) => drop_record(txn, key),
        (Zone::Work, b'R', 13) => files::reclaim(txn, shard, key),
        (Zone::Work, ..) => system::work(txn, shard, key),
        (Zone::Server, ..) => system::record(txn, key),
    }
}

/// Removes a record, and writes its bytes to the log, as they will be gone.
fn drop_record(txn: &mut Txn<'_>, key: &Key) -> Result<bool> {
    let Some(value) = txn.get_bytes(key)? else { return Ok(false) };
    tracing::warn!(key = hex(key), value = hex(&value), "record removed");
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
