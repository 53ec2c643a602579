//! Questions of a check to other servers. A check runs on no core, and only cores have connections
//! to other servers.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use wire::{Reply, Request};

use crate::Core;

/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The server to ask, the request, and the channel for the answer.
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

/// Asks the questions for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let asked = &core.inner.shared.jobs.asked;
    loop {
        let next = asked.queue.lock().pop_front();
        let Some((server, request, sender)) = next else {
            asked.wake.notified().await;
            continue;
        };
        // A read of something prepared waits for its outcome, which may never come.
        let reply = tokio::time::timeout(PATIENCE, core.inner.peers.ask(server, &request)).await;
        if let Ok(Ok(reply)) = reply {
            // The check may be gone.
            let _ = sender.send(reply);
        }
    }
}
