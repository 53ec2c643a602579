//! Requests about the session itself: closes, claims after a restart, the end; and `statfs`.

use base::{Access, FsError};
use wire::{BlockDrop, Claim, Release, Statfs};

use super::open::proven_access;
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    feed, lock,
    txn::{Txn, sessions},
    unheard,
};

pub(crate) fn release(txn: &mut Txn<'_>, req: &Release) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    // Lock all inodes before anything happens: a request that gets a file lock here must be told.
    for (ino, _) in &req.files {
        txn.lock(lock::ino_lock(*ino))?;
    }
    for (ino, number) in &req.files {
        // Race: a session that opens the file again on another core may lock it between the two
        // steps below.
        let unnumbered = txn.shared.bugs.has(Bug::ReleaseNumberIgnored);
        let number = if unnumbered { u64::MAX } else { *number };
        if txn.shared.opens.release(*ino, session.id, number) {
            txn.shared.backlog.closed(*ino);
        }
        if txn.shared.opens.access(*ino, session.id).is_none() {
            let let_in = txn.shared.file_locks.close(session.id, *ino);
            txn.facts.let_in.extend(let_in);
            if txn.shared.feed.is_on() {
                feed::events::of_close(txn, session.id, *ino);
            }
        }
    }
    Ok(())
}

/// Takes up a user's opens from before the restart. Only a file that the user has opened can be
/// claimed: the client shows the proof, which is good for nothing else. A session that has claimed
/// already, or was never waited for, is told that all is well: it asks again because it missed the
/// answer.
pub(crate) fn claim(txn: &mut Txn<'_>, req: &Claim) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    let (uid, opener) = (txn.caller.cred.uid, (session.id, txn.caller.opener()));
    let awaited = txn.shared.opens.awaits_claims_of(session.id);
    for claimed in &req.files {
        let ino = claimed.file.ino;
        let access = proven_access(session, ino, uid, claimed.proof).ok_or(FsError::Denied)?;
        if awaited {
            txn.shared.opens.open(ino, opener, claimed.number, access);
            if txn.shared.feed.is_on() && access.includes(Access::WRITE) {
                feed::events::of_claim(txn, session.id, &claimed.file)?;
            }
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

/// Deletes blocks of a failed write, if no file names them.
pub(crate) fn drop_blocks(txn: &Txn<'_>, req: &BlockDrop) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    txn.shared.backlog.discard(session.unnamed.lock().give_up(&req.blocks));
    Ok(())
}

/// The client leaves: its opens are closed, and its answers are forgotten.
pub(crate) fn bye(txn: &mut Txn<'_>) -> Result<()> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    sessions::forget_session(txn, session.id).map_err(|fault| match fault {
        // The client would not wait a second time.
        Fault::Retry(_) => Fault::Answer(FsError::TryAgain),
        other => other,
    })?;
    tracing::info!(session = %session.id, client = session.client, "session closed");
    Ok(())
}

pub(crate) fn statfs(txn: &Txn<'_>) -> Statfs {
    let (bytes, bytes_free) = (txn.shared.options.space)();
    // An inode takes a few hundred bytes of the store: so many more could still be made. Inodes are
    // counted only below quotas; the number of records is about the same, or more.
    let files_free = bytes_free / 256;
    Statfs { bytes, bytes_free, files: txn.shared.records_estimated(), files_free }
}
