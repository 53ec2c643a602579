//! Questions of a check to other servers. A check runs on no core, and only cores have connections
//! to other servers.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use wire::{Reply, Request};

/// The server to ask, the request, and the channel for the answer.
type Question = (u16, Request, oneshot::Sender<Reply>);

/// Questions that wait for the background.
#[derive(Default)]
pub(crate) struct Asked {
    pub(super) queue: Mutex<VecDeque<Question>>,
    pub(super) wake: Notify,
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
