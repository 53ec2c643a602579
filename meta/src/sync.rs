//! Stable storage, for all cores and connections at once.
//!
//! A caller that must wait for stable storage joins a queue. One task takes the whole queue, syncs
//! blocks and the engine once, and answers every caller in it. When no caller waits, the task syncs
//! what was written within the commit interval.

pub(crate) mod run;

use std::{
    future::pending,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// The queue.
#[derive(Default)]
pub(crate) struct SyncQueue {
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    /// Callers that wait for the next sync without making it begin sooner.
    riding: Mutex<Vec<oneshot::Sender<()>>>,
    dirty: AtomicBool,
    /// Number of writes that have begun, that have ended, and that are stable.
    begun: AtomicU64,
    written: AtomicU64,
    stable: AtomicU64,
    wake: Notify,
}

impl SyncQueue {
    /// Counts a write that is about to begin: from now on its effects may be seen.
    pub(crate) fn writing(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a write that has ended.
    pub(crate) fn written(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
        self.sync_soon();
    }

    /// Lets a sync begin at the end of the commit interval at the latest.
    fn sync_soon(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// Returns when everything written before this call is on stable storage; never, if it cannot
    /// be.
    pub(crate) async fn wait(&self) {
        let (done, stable) = oneshot::channel();
        self.waiting.lock().push(done);
        self.wake.notify_one();
        if stable.await.is_err() {
            pending::<()>().await;
        }
    }

    /// Whether everything that anybody can have seen is on stable storage.
    pub(crate) fn is_stable(&self) -> bool {
        self.stable.load(Ordering::Acquire) == self.begun.load(Ordering::Acquire)
    }

    /// Waits like [`SyncQueue::wait`], but returns at once when nothing was written since the last
    /// sync.
    pub(crate) async fn until_stable(&self) {
        if !self.is_stable() {
            self.wait().await;
        }
    }

    /// Waits like [`SyncQueue::wait`], but for the next sync that others wait for, or that of the
    /// commit interval.
    pub(crate) async fn ride(&self) {
        let (done, stable) = oneshot::channel();
        self.riding.lock().push(done);
        // Race: the last write may be in a sync that has begun, and no further write need come.
        self.sync_soon();
        if stable.await.is_err() {
            pending::<()>().await;
        }
    }

    /// Number of callers that wait.
    pub(crate) fn waiters(&self) -> usize {
        self.waiting.lock().len() + self.riding.lock().len()
    }

    fn is_waited_for(&self) -> bool {
        !self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use base::Epoch;
    use bytes::Bytes;
    use tokio::time::{Instant, sleep};
    use wire::{Decide, Heartbeat, PeerRead, Prepare, Reply, Request, TxnId};

    use crate::{
        Durability, Offload, ServerOptions,
        coordinator::tests::{
            life,
            several::{in_cluster, in_cluster_of},
        },
        record::Record as _,
    };

    fn strict_and_slow(address: &str) -> ServerOptions {
        let slow = Offload::Timed(Arc::new(|| (Duration::from_millis(50), Duration::ZERO)));
        let durability = Durability::Strict;
        ServerOptions { durability, offload: slow, ..ServerOptions::simulated(address) }
    }

    #[test]
    fn with_strict_durability_servers_are_told_only_what_is_stable() {
        in_cluster_of(strict_and_slow, async |three| {
            let peers = &three.node(1).core.inner.peers;
            let txn = TxnId { server: 1, run: 1, number: 1 };
            let prepare = Request::Prepare(Prepare {
                txn,
                expects: vec![],
                writes: vec![],
                early_mkdir: false,
                held: false,
                others: vec![],
                session: None,
            });
            let read = async {
                sleep(Duration::from_millis(10)).await;
                let was = three.engines[0].unsynced();
                let read = Request::PeerRead(PeerRead {
                    keys: vec![],
                    inos: Vec::new(),
                    hold: None,
                    confirmed: false,
                    session: None,
                });
                (was, peers.ask(0, &read).await, three.engines[0].unsynced())
            };
            let (_, (was, told, is)) = futures::join!(peers.ask(0, &prepare), read);
            assert_eq!((told, is), (Ok(Reply::Values(vec![])), 0));
            assert!(was > 0, "something was written");
        });
    }

    fn relaxed_and_slow(address: &str) -> ServerOptions {
        ServerOptions { durability: Durability::Relaxed, ..strict_and_slow(address) }
    }

    #[test]
    fn settings_and_roots_are_told_when_they_are_stable() {
        in_cluster_of(relaxed_and_slow, async |three| {
            let peers = &three.node(1).core.inner.peers;
            let txn = TxnId { server: 1, run: 1, number: 1 };
            let (expects, writes) = (vec![], vec![]);
            let prepare = Prepare {
                txn,
                expects,
                writes,
                early_mkdir: false,
                held: false,
                others: vec![],
                session: None,
            };
            let knows = &three.node(1).core.inner.shared;
            let (settings, roots) = (knows.settings().to_record(), knows.quotas.version());
            for (settings, roots) in [(Bytes::new(), roots), (settings, u64::MAX)] {
                let has_others = (settings.is_empty(), roots == u64::MAX);
                let (address, epoch) = ("b:1".into(), Epoch(0));
                let beat = Heartbeat {
                    address,
                    epoch,
                    version: 0,
                    requests: 0,
                    settings,
                    keys: 0,
                    roots,
                    in_doubt: None,
                    strict: false,
                    kept_all: true,
                    life: life("b"),
                };
                let beats = async {
                    sleep(Duration::from_millis(10)).await;
                    let lease = peers.ask(0, &Request::Heartbeat(beat)).await;
                    (lease, three.engines[0].unsynced())
                };
                let (_, (lease, unsynced)) =
                    futures::join!(peers.ask(0, &Request::Prepare(prepare.clone())), beats);
                let Ok(Reply::Lease(lease)) = lease else { panic!("{lease:?}") };
                assert_eq!((lease.settings.is_some(), lease.roots.is_some()), has_others);
                assert_eq!(unsynced, 0);
            }
        });
    }

    #[test]
    fn no_sync_begins_for_who_tells_how_a_transaction_ended() {
        in_cluster(async |three| {
            let peers = &three.node(1).core.inner.peers;
            let txn = TxnId { server: 1, run: 1, number: 1 };
            let decide = Request::Decide(Decide { txn, commit: true });
            let prepare = Request::Prepare(Prepare {
                txn,
                expects: vec![],
                writes: vec![],
                early_mkdir: false,
                held: false,
                others: vec![],
                session: None,
            });
            let began = Instant::now();
            assert_eq!(peers.ask(0, &decide).await, Ok(Reply::Nothing));
            assert!(began.elapsed() > Duration::from_millis(5), "{:?}", began.elapsed());

            // With one that begins for somebody else it is answered.
            let began = Instant::now();
            let (told, _) = futures::join!(peers.ask(0, &decide), peers.ask(0, &prepare));
            assert_eq!(told, Ok(Reply::Nothing));
            assert!(began.elapsed() < Duration::from_millis(5), "{:?}", began.elapsed());
        });
    }
}
