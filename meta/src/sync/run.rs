//! The task that syncs.

use std::{
    future::pending,
    mem,
    sync::{Arc, atomic::Ordering},
};

use crate::server::{Counters, Shared};

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
        let mut waiting = mem::take(&mut *queue.waiting.lock());
        if !queue.dirty.swap(false, Ordering::AcqRel) && waiting.is_empty() {
            continue;
        }
        waiting.append(&mut queue.riding.lock());
        let written = queue.written.load(Ordering::Acquire);
        let syncing = shared.clone();
        Counters::add(&shared.counters.syncs);
        let began = shared.observed.now();
        let synced = shared.options.offload.run(move || syncing.make_stable()).await;
        shared.observed.syncs.record(shared.observed.now().since(began));
        match synced {
            Ok(()) => {
                queue.stable.store(written, Ordering::Release);
                waiting.into_iter().for_each(|done| {
                    // The caller may have gone.
                    let _ = done.send(());
                });
            }
            Err(problem) => {
                shared.halt(problem);
                // The next sync may succeed, but what this one has lost stays lost.
                return pending().await;
            }
        }
        // Writes that came while the engine was syncing need a sync of their own.
        if queue.is_waited_for() || queue.dirty.load(Ordering::Acquire) {
            queue.wake.notify_one();
        }
    }
}
