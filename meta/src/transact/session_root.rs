//! The way to the root of a session that begins, where it leads over several servers.
//!
//! `core` starts this for a Hello whose run met a record of another server. It reads the records
//! that are lacking and hands the Hello back to its core, which runs it again, as often as it
//! takes. There is no session before the run that lacks nothing. Nothing is kept locked or
//! prepared: as with any look-up, the directory may be moved a moment later.

use std::time::Duration;

use base::Backoff;
use tokio::time::sleep;
use wire::ReplyHeader;

use super::read::read;
use crate::{Core, core::Work, incoming::Incoming, txn::Remote};

/// The pause after records of several servers did not fit together.
const PAUSE: Duration = Duration::from_millis(5);

/// Reads the lacking records, and runs the Hello once more. If they cannot be read, the client is
/// told.
pub(crate) async fn run(core: Core, incoming: Incoming, mut remote: Box<Remote>) {
    let shared = core.inner.shared.clone();
    let Some(cluster) = &shared.cluster else { return };
    if remote.is_torn() && !remote.is_damaged() {
        sleep(Backoff::new(PAUSE, PAUSE).draw(shared.random.as_ref())).await;
    }
    let known = read(&core, cluster, &mut remote).await;
    if incoming.connection.is_closed() {
        return;
    }
    match known {
        Ok(()) => core.inner.push(Work::Begin(incoming, remote)),
        Err(fault) => {
            let call = incoming.header.call;
            let reply = ReplyHeader { call, cache_version: shared.invalidations.version() };
            shared.until_told().await;
            incoming.connection.reply_now(reply, &fault.answer(&shared));
        }
    }
}
