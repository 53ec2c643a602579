//! What a check asks other servers: it is on no core, and only cores have connections to them.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use wire::{PeerRead, Reply, Request};

use crate::Core;

type Values = Vec<Option<Bytes>>;

/// Whom to ask, for which records, and who waits for them.
type Question = (u16, Vec<Bytes>, oneshot::Sender<Values>);

/// Questions that wait for the background.
#[derive(Default)]
pub(crate) struct Asked {
    queue: Mutex<VecDeque<Question>>,
    wake: Notify,
}

impl Asked {
    /// Reads records of another server, in order; `None` when there was no answer.
    pub(super) async fn ask(&self, server: u16, keys: Vec<Bytes>) -> Option<Values> {
        let (sender, values) = oneshot::channel();
        self.queue.lock().push_back((server, keys, sender));
        self.wake.notify_one();
        values.await.ok()
    }
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let asked = &core.inner.shared.jobs.asked;
    loop {
        let next = asked.queue.lock().pop_front();
        let Some((server, keys, sender)) = next else {
            asked.wake.notified().await;
            continue;
        };
        let request = Request::PeerRead(PeerRead { keys });
        if let Ok(Reply::Values(values)) = core.inner.peers.ask(server, &request).await {
            // Whoever asked may have gone.
            let _ = sender.send(values);
        }
    }
}
