//! Stable storage, for all cores and connections at once.
//!
//! Whoever must wait for stable storage joins a queue; one task takes the whole queue, syncs blocks and the
//! engine once, and answers everyone in it. Without anybody waiting it syncs what was written within the commit
//! interval.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    server::{Counters, Shared},
    unsynced,
};

/// The queue.
#[derive(Default)]
pub(crate) struct SyncQueue {
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    dirty: AtomicBool,
    wake: Notify,
}

impl SyncQueue {
    /// Something was written.
    pub(crate) fn written(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// Returns when everything written before this call is on stable storage; never, if it cannot be.
    pub(crate) async fn wait(&self) {
        let (done, stable) = oneshot::channel();
        self.waiting.lock().push(done);
        self.wake.notify_one();
        if stable.await.is_err() {
            pending::<()>().await;
        }
    }

    /// How many wait.
    pub(crate) fn waiters(&self) -> usize {
        self.waiting.lock().len()
    }

    fn is_waited_for(&self) -> bool {
        !self.waiting.lock().is_empty()
    }
}

/// Syncs for as long as the server runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let queue = &shared.sync;
    loop {
        queue.wake.notified().await;
        if !queue.is_waited_for() {
            let deadline = tokio::time::sleep(shared.options.commit_interval);
            tokio::pin!(deadline);
            loop {
                tokio::select! {
                    biased;
                    () = queue.wake.notified() => if queue.is_waited_for() { break },
                    () = &mut deadline => break,
                }
            }
        }
        let waiting = std::mem::take(&mut *queue.waiting.lock());
        if !queue.dirty.swap(false, Ordering::AcqRel) && waiting.is_empty() {
            continue;
        }
        let syncing = shared.clone();
        Counters::add(&shared.counters.syncs);
        let began = shared.observed.now();
        let synced = shared.options.offload.run(move || unsynced::sync(&syncing)).await;
        shared.observed.syncs.record(shared.observed.now().since(began));
        match synced {
            Ok(()) => waiting.into_iter().for_each(|done| {
                // Whoever waited may have gone.
                let _ = done.send(());
            }),
            Err(problem) => shared.halt(problem),
        }
        // What came while the engine was syncing needs a sync of its own.
        if queue.is_waited_for() || queue.dirty.load(Ordering::Acquire) {
            queue.wake.notify_one();
        }
    }
}
