//! The journal of a server's process: a sync puts what was written into an object store in memory,
//! and a task renews the lease.
//!
//! The store answers at once, so that a sync, which is no future, can put. Stores that are slow, or
//! fail, are for the tests of the crate `journal`. A way to the store that is cut makes the syncs
//! that wait on a thread wait, and renewals.

use std::{io, sync::Arc, time::Duration};

use futures::FutureExt as _;
use journal::{Appended, Error, Lease, Record, TakenOver, Tenure, Writer};
use meta::Server;
use parking_lot::Mutex;
use store::{Batch, MemoryEngine};
use tokio::time::{Instant, sleep, sleep_until};

/// A part of the lease after which it is renewed.
const RENEWED_AFTER: u32 = 3;

/// A journal that a process owns.
pub(super) struct Ship {
    writer: Mutex<Writer>,
    tenure: Tenure,
    /// The moment from which the process counts time.
    zero: Instant,
    /// When the last segment was begun that renewed the lease.
    renewed: Mutex<Duration>,
    address: String,
    /// Until then the store cannot be reached.
    cut_until: Arc<Mutex<Instant>>,
    /// Why the journal is not this process' any more.
    lost: Mutex<Option<String>>,
}

impl Ship {
    pub(super) fn new(
        taken: TakenOver,
        zero: Instant,
        address: String,
        cut_until: &Arc<Mutex<Instant>>,
    ) -> Ship {
        let TakenOver { writer, tenure, begun, .. } = taken;
        Ship {
            writer: Mutex::new(writer),
            tenure,
            zero,
            renewed: Mutex::new(begun),
            address,
            cut_until: Arc::clone(cut_until),
            lost: Mutex::default(),
        }
    }

    /// Puts what the engine has and the journal lacks.
    pub(super) fn put(&self, engine: &MemoryEngine) -> store::Result<()> {
        let last = self.writer.lock().end().last.unwrap_or_default();
        let log = engine.log_after(last);
        let log = log.ok_or_else(|| failed("the log begins after the journal".to_owned()))?;
        if log.is_empty() {
            return Ok(());
        }
        let records = records(log);
        self.store(async |writer| writer.append(&records, &|_| ()).await).map_err(failed)
    }

    fn renew(&self) -> Result<(), String> {
        self.store(async |writer| writer.renew(&|_| ()).await)
    }

    /// Stores a segment, and notes what that means for the lease.
    fn store(
        &self,
        put: impl AsyncFnOnce(&mut Writer) -> journal::Result<Appended>,
    ) -> Result<(), String> {
        let mut writer = self.writer.lock();
        let begun = self.zero.elapsed();
        let (millis, address) = (self.tenure.millis(), self.address.clone());
        writer.set_lease(Lease { millis, resigned: false, address });
        let done = put(&mut writer).now_or_never().expect("a store in memory answers at once");
        match done {
            Ok(Appended { renews, .. }) => {
                if renews {
                    *self.renewed.lock() = begun;
                    self.tenure.extend(begun);
                }
                Ok(())
            }
            Err(error) => {
                let why = format!("the journal is lost: {error}");
                *self.lost.lock() = Some(why.clone());
                Err(why)
            }
        }
    }

    /// Renews the lease for as long as the journal is this process'.
    pub(super) async fn keep(self: Arc<Ship>, server: Server) {
        let lease = self.tenure.lease().unwrap_or_default();
        loop {
            let due = self.zero + *self.renewed.lock() + lease / RENEWED_AFTER;
            let cut_until = *self.cut_until.lock();
            if due.max(cut_until) > Instant::now() {
                sleep_until(due.max(cut_until)).await;
                continue;
            }
            if let Err(why) = self.renew() {
                server.journal_is_lost(&why);
                return std::future::pending().await;
            }
            // However short the lease is, others go on as well.
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Number of the last segment that this process has put.
    pub(super) fn segment(&self) -> u64 {
        self.writer.lock().end().number
    }
}

/// Batches of a log with their positions, as a segment has them.
pub(super) fn records(log: Vec<(u64, Batch)>) -> Vec<Record> {
    let record = |(sequence, batch): (u64, Batch)| Record {
        sequence,
        count: 1,
        batch: batch.encoded().to_vec().into(),
    };
    log.into_iter().map(record).collect()
}

fn failed(why: String) -> store::Error {
    store::Error::Io(io::Error::other(why))
}

impl meta::Journal for Ship {
    fn may_serve(&self) -> bool {
        self.tenure.holds(self.zero.elapsed())
    }
}

impl meta::Beside for Ship {
    fn problem(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Whether the journal is another process'. Nothing is ever removed from a journal here, and each look
/// sees all of it: another error is a fault of who reads it.
pub(super) fn is_another_s(error: &Error) -> bool {
    matches!(error, Error::Fenced { .. })
}
