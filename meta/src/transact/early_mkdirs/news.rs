//! News of early mkdirs that a core has to tell, in memory.

use std::cell::{Cell, RefCell};

use wire::TxnId;

/// The news of early mkdirs that one core has to tell.
#[derive(Default)]
pub(crate) struct Telling {
    pub(super) born: Told,
    pub(super) stable: Told,
}

/// A queue that has a task while there is anything in it.
#[derive(Default)]
pub(super) struct Told {
    pub(super) queue: RefCell<Vec<TxnId>>,
    runs: Cell<bool>,
}

impl Told {
    /// Appends early mkdirs. `true`: the queue needs a task.
    pub(super) fn push(&self, txns: impl IntoIterator<Item = TxnId>) -> bool {
        self.queue.borrow_mut().extend(txns);
        !self.runs.replace(true)
    }

    /// Takes all early mkdirs. If there are none, the task ends.
    pub(super) fn take(&self) -> Vec<TxnId> {
        let txns = std::mem::take(&mut *self.queue.borrow_mut());
        self.runs.set(!txns.is_empty());
        txns
    }
}
