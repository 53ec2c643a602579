//! What a check asks other servers: it is on no core, and only cores have connections to them.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use wire::{Reply, Request};

use crate::Core;

/// An answer is waited for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whom to ask, for what, and who waits for the answer.
type Question = (u16, Request, oneshot::Sender<Reply>);

/// Questions that wait for the background.
#[derive(Default)]
pub(crate) struct Asked {
    queue: Mutex<VecDeque<Question>>,
    wake: Notify,
}

impl Asked {
    /// Asks another server; `None` when there was no answer.
    pub(super) async fn ask(&self, server: u16, request: Request) -> Option<Reply> {
        let (sender, reply) = oneshot::channel();
        self.queue.lock().push_back((server, request, sender));
        self.wake.notify_one();
        reply.await.ok()
    }
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let asked = &core.inner.shared.jobs.asked;
    loop {
        let next = asked.queue.lock().pop_front();
        let Some((server, request, sender)) = next else {
            asked.wake.notified().await;
            continue;
        };
        // Whoever reads what is prepared waits for its outcome, which may never come.
        let reply = tokio::time::timeout(PATIENCE, core.inner.peers.ask(server, &request)).await;
        if let Ok(Ok(reply)) = reply {
            // Whoever asked may have gone.
            let _ = sender.send(reply);
        }
    }
}
