//! The initiator tells the participants how a transaction ended.
//!
//! `run` spawns this when a transaction has ended, and `recover` for commits that a crash has left.
//! The initiator says committed only when that is stable, and forgets the commit only when the
//! applied part is.

use std::time::Duration;

use base::Backoff;
use futures::future::join_all;
use tokio::time::sleep;
use wire::{Decide, Reply, Request, TxnId};

use crate::{
    Core,
    bugs::Bug,
    observe::{Laps, Part},
    peer::Unanswered,
    record::key,
};

/// The pause before a server is asked again, at first and at most.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Tells the participants: of a commit until all have heard, of an abort once, because a
/// participant that misses it asks.
pub(super) async fn tell(
    core: &Core,
    txn: TxnId,
    participants: Vec<u16>,
    commit: bool,
    laps: &Laps,
) {
    if participants.is_empty() {
        return;
    }
    let shared = core.inner.shared.clone();
    if commit && !shared.bugs.has(Bug::CommitNotAwaited) {
        shared.sync.wait().await;
        laps.end(Part::Sync, shared.observed.now());
    }
    if shared.bugs.has(Bug::CommitForgottenEarly) {
        core.forget(vec![key::committed(txn)]).await;
    }
    if shared.is_halted() {
        return;
    }
    let decide = Request::Decide(Decide { txn, commit });
    if !commit {
        let asked = |server: &u16| core.inner.peers.ask(*server, &decide);
        join_all(participants.iter().map(asked)).await;
        return;
    }
    // A server that has left had nothing prepared any more.
    let left =
        |server: &&u16| shared.cluster.as_ref().is_some_and(|it| it.map().has_left(**server));
    let told = participants.iter().filter(|server| !left(server));
    join_all(told.map(|server| ask_until_answered(core, *server, &decide))).await;
    laps.end(Part::Tell, shared.observed.now());
    core.forget(vec![key::committed(txn)]).await;
}

/// Asks a server, which may be away for long, until it has answered.
pub(super) async fn ask_until_answered(core: &Core, server: u16, request: &Request) -> Reply {
    let mut pauses = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    loop {
        match core.inner.peers.ask(server, request).await {
            Ok(reply) => return reply,
            Err(Unanswered::Failed(error)) => {
                tracing::warn!(server, %error, "another server cannot do what it is told");
            }
            Err(why) => tracing::debug!(server, ?why, "another server does not answer"),
        }
        sleep(pauses.draw(core.inner.shared.random.as_ref())).await;
    }
}
