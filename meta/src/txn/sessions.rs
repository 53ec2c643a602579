//! Ends of sessions, as steps of operations.

use base::SessionId;
use wire::TokenError;

use super::Txn;
use crate::{audit, error::Result, record::key, server::Counters, session::in_use::InUse};

/// Ends a session whose lease has run out or whose token is good no more. A session that was heard of
/// since, or has renewed its token, goes on.
pub(crate) fn expire_session(txn: &mut Txn<'_>, session: SessionId) -> Result<()> {
    let lease = txn.shared.options.lease;
    match txn.shared.session(session) {
        Some(found) if found.begin_end_if_over(lease, txn.now, &txn.shared.keys) => {
            let token_ended = found.token_ended(txn.now, &txn.shared.keys);
            let token = found.token();
            forget_session(txn, session)?;
            let client = &found.client;
            let why = token_ended.map_or_else(|| "silent".to_owned(), |why| why.to_string());
            audit::note::ended(txn, (&found, token.as_ref()), &why);
            if let Some(TokenError::Expired) = token_ended {
                tracing::warn!(%session, client, "session ended: its token has expired");
            } else if let Some(reason) = token_ended {
                tracing::warn!(%session, client, %reason, "session ended: its token is void");
            } else {
                tracing::info!(%session, client, "session expired: nothing was heard of its client");
            }
            Counters::add(&txn.shared.counters.sessions_expired);
            Ok(())
        }
        Some(_) | None => Ok(()),
    }
}

/// Forgets a session when no request is inside any more: its record and its stored answers. Its
/// opens and its locks are released.
pub(crate) fn forget_session(txn: &mut Txn<'_>, session: SessionId) -> Result<()> {
    let shared = txn.shared;
    // Another core may have been faster.
    let Some(found) = shared.session(session) else { return Ok(()) };
    if !found.begin_end() {
        return Err(InUse(found).into());
    }
    txn.delete_prefix(&key::answers(session))?;
    for dir in shared.delegations.end_session(session) {
        txn.delete(key::delegation(dir));
    }
    txn.delete(key::session(session));
    // The session's locks become free when it can neither come back nor, in a cluster, be opened
    // again by its number.
    txn.facts.forgotten.push(session);
    if shared.cluster.is_none() {
        shared.sessions.lock().remove(&session);
    }
    found.end();
    shared.backlog.discard(found.unnamed.lock().give_up_all());
    let closed = shared.opens.end_session(session);
    txn.facts.left.extend(closed);
    if shared.opens.claimed(session) {
        shared.backlog.sweep();
    }
    Ok(())
}
