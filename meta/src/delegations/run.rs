//! Taking directories back from sessions that do not answer.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::grant;
use crate::{Core, error::Result, record::key, server::Counters, space_guard::Level, txn::Txn};

/// Interval at which recalled directories are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// The shortest time between a recall and the end of the delegation. A server that stood still hears
/// its holders first.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The longest time that a session that is heard of may take to give a directory back.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(30);

/// Recalls what must not be held any more, and ends delegations that were recalled from sessions
/// that are gone, or take too long.
pub(crate) async fn run(core: Core) {
    futures::join!(Box::pin(end_recalled(&core)), recall_when_scarce(&core));
}

/// Recalls everything when the disk is nearly full: from then on the call that finds no room tells
/// it.
async fn recall_when_scarce(core: &Core) {
    let shared = &core.inner.shared;
    loop {
        shared.space_guard.until_scarce().await;
        shared.delegations.gather().await;
        shared.space_guard.until(Level::Enough).await;
    }
}

async fn end_recalled(core: &Core) {
    let held = &core.inner.shared.delegations;
    loop {
        held.asked.notified().await;
        take_back(core).await;
        while held.counts().1 > 0 {
            let began = Instant::now();
            sleep(LOOK).await;
            // A server that stood still has heard nobody meanwhile.
            if began.elapsed() < ANSWER_WITHIN {
                take_back(core).await;
            }
        }
    }
}

async fn take_back(core: &Core) {
    let shared = &core.inner.shared;
    for (dir, session, since) in shared.delegations.recalled() {
        let waited = since.elapsed();
        let lease = grant::lease(shared);
        // A session that does not know of its delegation never asks.
        let silence = shared.delegations.silence_of(session).unwrap_or(waited);
        // A holder that has lost a directory and is silent still will not answer for this one.
        let is_gone = silence >= lease && shared.delegations.has_revoked(session);
        let patience = match shared.session(session) {
            _ if waited < ANSWER_WITHIN && !is_gone => continue,
            None => Duration::ZERO,
            Some(found) if found.idle() >= lease || silence >= lease => Duration::ZERO,
            Some(_) => GIVE_BACK_WITHIN,
        };
        // The holder cannot send what waits behind a transaction that has a part there.
        let is_stopped = !patience.is_zero() && shared.prepared.has_part_in(dir);
        if waited < patience || is_stopped {
            continue;
        }
        tracing::warn!(
            %dir, %session, ?waited,
            "a directory is taken from a mount that has not given it back in time"
        );
        core.step(move |txn| revoke(txn, dir, session)).await;
    }
}

/// Ends a delegation, while no core has a group under way: what stood on the delegation is written.
fn revoke(txn: &mut Txn<'_>, dir: base::DirId, session: base::SessionId) -> Result<()> {
    txn.alone()?;
    if txn.shared.delegations.revoke(dir, session) {
        txn.delete(key::delegation(dir));
        Counters::add(&txn.shared.counters.delegations_revoked);
    }
    Ok(())
}
