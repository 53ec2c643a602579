//! Granting a directory to a mount: the one that makes it, or works in it.
//!
//! Cost: one record with the mkdir, and inode numbers, which are drawn from memory.

use std::time::Duration;

use base::{AclKind, DirId, Layout, SessionId, ShardId};
use wire::{Grant, Granted, InoRange};

use super::{DelegationRecord, Granting};
use crate::{
    error::{Fault, Result},
    record::{Accounts, QuotaId, key},
    server::{Durability, Shared},
    txn::{Dir, Txn, store_stable},
};

/// Number of inode numbers that come with a grant.
const INOS_WITH_GRANT: u16 = 32;
/// Most inode numbers in one answer.
const INOS_MAX: u16 = 1024;

/// Time for which a session that is not heard of keeps its directories.
pub(super) fn lease(shared: &Shared) -> Duration {
    shared.options.lease / 3
}

/// Grants a new directory to the session that makes it, if the client wants that and it may be.
pub(crate) fn may_be_granted(txn: &mut Txn<'_>, dir: &Dir) -> Result<()> {
    let Some(session) = txn.caller.session.map(|session| session.id) else { return Ok(()) };
    if is_wanted(txn, session) && is_simple(txn, dir)? {
        give(txn, dir, session)?;
    }
    Ok(())
}

/// Whether the client wants a delegation, and the session may be granted one more.
pub(super) fn is_wanted(txn: &Txn<'_>, session: SessionId) -> bool {
    let shared = txn.shared;
    txn.held.is_some_and(|held| held.wants)
        && txn.trusts()
        && !txn.checks()
        && txn.caller.standing.within.is_none()
        && shared.options.durability != Durability::Strict
        && shared.space_guard.is_enough()
        && shared.delegations.may_grant(session, |id| shared.quotas.has_ample_room(id))
}

/// Whether the whole of a directory is decided here and now: what other servers have a part in is
/// not granted. Below a quota, and where the caller has nearly used up what it may have, the client
/// could not tell when nothing is left, and a default ACL it does not know.
pub(super) fn is_simple(txn: &Txn<'_>, dir: &Dir) -> Result<bool> {
    let content = &dir.content;
    Ok(matches!(content.layout, Layout::Whole)
        && content.quota == QuotaId::NONE
        && made_in(txn, dir).ids().all(|id| txn.shared.quotas.has_ample_room(id))
        && content.xattrs.acl(AclKind::Default)?.is_none()
        && txn.has_shard(txn.shard(content.home))
        && !txn.is_remote())
}

/// The accounts to which things are charged that the caller makes in a directory.
fn made_in(txn: &Txn<'_>, dir: &Dir) -> Accounts {
    let owner = dir.content.owner_of_new(txn.caller.cred);
    Accounts { quota: dir.content.quota, owner: Some(owner) }
}

/// Grants a directory with the operation.
pub(super) fn give(txn: &mut Txn<'_>, dir: &Dir, session: SessionId) -> Result<()> {
    let shard = txn.shard(dir.content.home);
    let inos = draw(txn, shard, dir.id, INOS_WITH_GRANT)?;
    let lease_ms = u32::try_from(lease(txn.shared).as_millis()).unwrap_or(u32::MAX);
    let grant = Grant { inos, now: txn.now, lease_ms };
    txn.put(key::delegation(dir.id), &DelegationRecord { session });
    txn.granting = Some(Granting { dir: dir.id, grant });
    Ok(())
}

/// Puts the delegation into force, as the operation is about to join its group: nobody has seen the
/// directory yet, or no other core has a group under way.
pub(crate) fn put_in_force(txn: &mut Txn<'_>) -> Option<Grant> {
    let Granting { dir, grant } = txn.granting.take()?;
    let session = txn.caller.session?;
    txn.shared.delegations.grant(dir, session.id);
    Some(grant)
}

/// The answer with the grant.
pub(crate) fn answer(grant: Grant, dirs: Vec<base::Attr>, reply: wire::Reply) -> wire::Answer {
    wire::Answer::Granted(Granted { grant, noted: wire::Noted { dirs, reply } })
}

/// Draws inode numbers in a row, for what is born in the group of `dir`.
pub(super) fn draw(txn: &Txn<'_>, shard: ShardId, dir: DirId, count: u16) -> Result<InoRange> {
    let shared = txn.shared;
    let store = |batch| store_stable(shared, batch);
    let (first, count) = shared.inos.next_range::<Fault>(shard, count.clamp(1, INOS_MAX), store)?;
    Ok(InoRange { first: first.on_lane(shared.config.placement().lane_of(dir)), count })
}
