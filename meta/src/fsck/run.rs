//! The part of a core in checks, which run on none: repairs, and questions to other servers.

use std::time::Duration;

use tokio::time::timeout;

use super::repair;
use crate::Core;

/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does the repairs for as long as the server runs.
pub(crate) async fn repair(core: Core) {
    let repairs = &core.inner.shared.jobs.repairs;
    loop {
        let next = repairs.queue.lock().pop_front();
        match next {
            Some((repair, done)) => {
                core.step(move |txn| repair::step(txn, &repair)).await;
                // The check may be gone.
                let _ = done.send(());
            }
            None => repairs.wake.notified().await,
        }
    }
}

/// Asks the questions for as long as the server runs.
pub(crate) async fn ask(core: Core) {
    let asked = &core.inner.shared.jobs.asked;
    loop {
        let next = asked.queue.lock().pop_front();
        let Some((server, request, sender)) = next else {
            asked.wake.notified().await;
            continue;
        };
        // A read of something prepared waits for its outcome, which may never come.
        let reply = timeout(PATIENCE, core.inner.peers.ask(server, &request)).await;
        if let Ok(Ok(reply)) = reply {
            // The check may be gone.
            let _ = sender.send(reply);
        }
    }
}
