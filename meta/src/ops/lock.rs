//! `lock`: take, change and give back locks of files; find a lock that is in the way; take up
//! claims after a restart.
//!
//! The inode is locked: a file that its session closes on another core is closed before or after.
//!
//! Cost: no read and no write of the store.
//! POSIX: fcntl(2), flock(2). EAGAIN, EDEADLK, ENOLCK; EBADF when the session has not opened the
//! file.

use base::FsError;
use wire::{Lock, LockCancel, LockClaim, LockFound, LockTest, Retry};

use crate::{
    bugs::Bug,
    error::{Fault, Result},
    file_locks::{Refusal, Turn},
    lock,
    server::Shared,
    session::Session,
    txn::{CommitGroup, Txn},
};

/// Executes a request that does not wait.
pub(crate) fn run(txn: &mut Txn<'_>, req: &Lock) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    txn.lock(lock::ino_lock(req.ino))?;
    may_ask(txn.shared, session, req)?;
    let (result, let_in) = txn.shared.file_locks.set(session.id, req);
    match result {
        Ok(()) => txn.facts.let_in.extend(let_in),
        // A failed transaction is dropped with its effects: tell the waiting requests now.
        Err(_) => let_in.tell(),
    }
    result.map_err(fault)
}

/// Executes a request that waits if it must.
///
/// Cost: as [`run`], and the group is written before.
pub(crate) fn wait(
    shared: &Shared,
    group: &mut CommitGroup,
    session: &Session,
    req: &Lock,
) -> Result<Turn> {
    group.lock(&shared.locks, lock::ino_lock(req.ino))?;
    may_ask(shared, session, req)?;
    let (result, let_in) = shared.file_locks.wait(session.id, req);
    let_in.tell();
    result.map_err(fault)
}

pub(crate) fn find(txn: &Txn<'_>, req: &LockTest) -> Result<Option<LockFound>> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    has_open(txn.shared, session, req.ino)?;
    if !req.range.is_valid() {
        return Err(FsError::Invalid.into());
    }
    claims_are_in(txn.shared)?;
    Ok(txn.shared.file_locks.find(session.id, req))
}

pub(crate) fn cancel(txn: &mut Txn<'_>, req: &LockCancel) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    let let_in = txn.shared.file_locks.cancel(session.id, req.number, req.settled);
    txn.facts.let_in.extend(let_in);
    Ok(())
}

/// Takes up locks that the session had before the restart. A session that has claimed already asks
/// again because it missed the answer.
pub(crate) fn claim(txn: &mut Txn<'_>, req: &LockClaim) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    if !txn.shared.opens.awaits_claims_of(session.id) {
        return Ok(());
    }
    txn.shared.file_locks.settle(session.id, req.settled);
    for claimed in &req.locks {
        has_open(txn.shared, session, claimed.ino)?;
        if let Err(error) = txn.shared.file_locks.claim(session.id, claimed) {
            tracing::warn!(
                session = %session.id, ino = %claimed.ino, %error,
                "a lock was claimed that it had not"
            );
        }
    }
    Ok(())
}

fn may_ask(shared: &Shared, session: &Session, req: &Lock) -> Result<()> {
    if !req.range.is_valid() {
        return Err(FsError::Invalid.into());
    }
    if req.mode.is_none() {
        return Ok(());
    }
    has_open(shared, session, req.ino)?;
    claims_are_in(shared)
}

fn has_open(shared: &Shared, session: &Session, ino: base::Ino) -> Result<()> {
    match shared.opens.access(ino, session.id) {
        Some(_) => Ok(()),
        None => Err(FsError::BadHandle.into()),
    }
}

/// Refuses while a session from before the restart may still claim: nobody else may get its lock.
fn claims_are_in(shared: &Shared) -> Result<()> {
    if shared.opens.awaits_claims() && !shared.bugs.has(Bug::LockClaimsNotAwaited) {
        return Err(Fault::Retry(Retry::Busy));
    }
    Ok(())
}

fn fault(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::Denied(error) => Fault::Answer(error),
        Refusal::Echo => Fault::Retry(Retry::Busy),
    }
}
