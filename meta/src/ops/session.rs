//! Requests about the session itself: closes, claims after a restart, the end; and `statfs`.

use base::FsError;
use wire::{BlockDrop, Claim, Release, Statfs};

use super::open::proven_access;
use crate::{
    bugs::Bug,
    driver,
    error::{Fault, Result},
    lock,
    txn::Txn,
    unheard,
};

pub(crate) fn release(txn: &mut Txn<'_>, req: &Release) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    // All of them before anything happens: whoever is let in to a lock must be told.
    for (ino, _) in &req.files {
        txn.lock(lock::ino_lock(*ino))?;
    }
    for (ino, number) in &req.files {
        // Race: who opens the file again on another core may lock it, between the two steps below.
        let unnumbered = txn.shared.bugs.has(Bug::ReleaseNumberIgnored);
        let number = if unnumbered { u64::MAX } else { *number };
        if txn.shared.opens.release(*ino, session.id, number) {
            txn.shared.backlog.closed(*ino);
        }
        if txn.shared.opens.access(*ino, session.id).is_none() {
            let let_in = txn.shared.file_locks.close(session.id, *ino);
            txn.let_in.extend(let_in);
        }
    }
    Ok(())
}

/// Takes up the opens of before the restart, of the user in whose name it is sent. Only what he has opened can be
/// claimed: the client shows the proof. A proof is good for nothing else: who has claimed already, or was never waited
/// for, is told that all is well, as it asks again because it did not hear so.
pub(crate) fn claim(txn: &mut Txn<'_>, req: &Claim) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    let (uid, opener) = (txn.caller.cred.uid, (session.id, txn.caller.opener()));
    let awaited = txn.shared.opens.awaits_claims_of(session.id);
    for claimed in &req.files {
        let ino = claimed.file.ino;
        let access = proven_access(session, ino, uid, claimed.proof).ok_or(FsError::Denied)?;
        if awaited {
            txn.shared.opens.open(ino, opener, claimed.number, access);
        }
    }
    if req.last && awaited {
        unheard::claimed(txn.shared, session);
        session.has_claimed();
        if txn.shared.opens.claimed(session.id) {
            txn.shared.backlog.sweep();
        }
    }
    Ok(())
}

/// A write of these blocks has failed: what nothing names is deleted.
pub(crate) fn drop_blocks(txn: &Txn<'_>, req: &BlockDrop) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    txn.shared.backlog.discard(session.unnamed.lock().give_up(&req.blocks));
    Ok(())
}

/// The client leaves: what it had open is closed, and its answers are forgotten.
pub(crate) fn bye(txn: &mut Txn<'_>) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    driver::forget_session(txn, session.id).map_err(|fault| match fault {
        // The client does not wait for it twice.
        Fault::Retry(_) => Fault::Answer(FsError::TryAgain),
        other => other,
    })?;
    tracing::info!(session = %session.id, client = session.client, "session closed");
    Ok(())
}

pub(crate) fn statfs(txn: &Txn<'_>) -> Statfs {
    let (bytes, bytes_free) = (txn.shared.options.space)();
    // An inode takes a few hundred bytes of the store; that many more could still be made. Inodes are not counted but below
    // quotas: the records are about as many, or more.
    let files_free = bytes_free / 256;
    Statfs { bytes, bytes_free, files: txn.shared.records_estimated(), files_free }
}
