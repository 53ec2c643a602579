//! Transactions that are not prepared from now on: this server has said to another participant, or may have to say, how
//! they ended here. With each goes an `E` record, until it is over everywhere.

use wire::TxnId;

use super::Prepared;

impl Prepared {
    /// It ends here: what comes of it later is refused.
    pub(crate) fn close(&self, txn: TxnId) {
        self.table.lock().closed.insert(txn);
    }

    /// As [`Prepared::close`], unless it is prepared; `false`: it is. What it only holds is free.
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

    /// All of them.
    pub(crate) fn closed(&self) -> Vec<TxnId> {
        let mut closed: Vec<_> = self.table.lock().closed.iter().copied().collect();
        closed.sort_unstable();
        closed
    }

    /// Nobody asks for these any more.
    pub(crate) fn are_over(&self, txns: &[TxnId]) {
        let mut table = self.table.lock();
        for txn in txns {
            table.closed.remove(txn);
        }
    }
}
