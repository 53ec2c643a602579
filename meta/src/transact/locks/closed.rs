//! Transactions that are never prepared from now on: this server has told another participant, or
//! may have to tell, how they ended here. Each has an `E` record, until it is over everywhere.

use wire::TxnId;

use super::Prepared;

impl Prepared {
    /// Ends a transaction here: late parts of it are refused.
    pub(crate) fn close(&self, txn: TxnId) {
        self.table.lock().closed.insert(txn);
    }

    /// Like [`Prepared::close`], unless the transaction is prepared: then the result is `false`.
    /// Keys that it merely holds are freed.
    pub(crate) fn refuse(&self, txn: TxnId) -> bool {
        let mut table = self.table.lock();
        if table.txns.contains_key(&txn) && !table.holding.contains(&txn) {
            return false;
        }
        self.free_in(&mut table, txn);
        table.closed.insert(txn);
        drop(table);
        self.ended.notify_waiters();
        true
    }

    /// All closed transactions.
    pub(crate) fn closed(&self) -> Vec<TxnId> {
        let mut closed: Vec<_> = self.table.lock().closed.iter().copied().collect();
        closed.sort_unstable();
        closed
    }

    /// Forgets transactions that nobody asks for any more.
    pub(crate) fn are_over(&self, txns: &[TxnId]) {
        let mut table = self.table.lock();
        for txn in txns {
            table.closed.remove(txn);
        }
    }
}
