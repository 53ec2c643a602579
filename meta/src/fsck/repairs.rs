//! Repairs that wait to be done. A check runs on no core, and only cores repair.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::fix::Fix;

/// A repair, as a step of a core.
pub(crate) struct Repair {
    pub(super) fix: Fix,
    /// Whether contents that cannot be read any more may be given up.
    pub(super) discard_lost: bool,
    pub(super) mended: Mutex<bool>,
}

/// Repairs that wait for the background.
#[derive(Default)]
pub(crate) struct Repairs {
    pub(super) queue: Mutex<VecDeque<(Arc<Repair>, oneshot::Sender<()>)>>,
    pub(super) wake: Notify,
}

impl Repairs {
    /// Looks again at a finding; `true` if it was wrong, and is right now.
    pub(super) async fn mend(&self, fix: Fix, discard_lost: bool) -> bool {
        let repair = Arc::new(Repair { fix, discard_lost, mended: Mutex::new(false) });
        let (done, waited) = oneshot::channel();
        self.queue.lock().push_back((repair.clone(), done));
        self.wake.notify_one();
        // The background may end before it answers; then nothing was repaired.
        let _ = waited.await;
        *repair.mended.lock()
    }
}
