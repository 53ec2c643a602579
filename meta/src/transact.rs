//! Transactions over several servers: two-phase commit, presumed abort.
//!
//! The server that a client has asked is the *initiator*. It runs the operation with records that
//! it has read of other servers ([`crate::txn::remote`]). It has them prepare what the operation
//! stands on and writes there ([`participant`]), runs it once more in a group of its own, and
//! commits with that group's write ([`run`], [`phase`]). Then it tells the others ([`tell`]). After
//! a crash [`recover`] finishes what is left.
//!
//! Each side relies only on what is stable at the other. A participant answers when its prepared
//! part is stable. It is told to commit when the commit is stable, and the commit is forgotten when
//! the applied part is. A participant that is not told asks for the outcome ([`outcome`]).
//!
//! A directory that is made on another server waits for none of that, and is confirmed later
//! ([`early_mkdirs`]).
//!
//! No transaction waits for another while keys are prepared for it: one that meets another gives up
//! what it has prepared and begins anew.
//!
//! Paper: InfiniFS §4.2.

pub(crate) mod doubt;
pub(crate) mod early_mkdirs;
pub(crate) mod ends;
pub(crate) mod locks;
pub(crate) mod outcome;
pub(crate) mod participant;
pub(crate) mod phase;
mod read;
pub(crate) mod recover;
pub(crate) mod run;
pub(crate) mod session_root;
mod tell;

use std::time::Duration;

use base::{Decode, DecodeError, Encode, HashSet, Reader, codec};
use bytes::Bytes;
use parking_lot::Mutex;
use wire::{PeerWrite, TxnId};

use crate::record::Record;

/// Time after which an initiator, which tells the outcome by itself, is asked.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1000);

codec! {
    /// The part of a transaction that is prepared here.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub(crate) struct PreparedRecord {
        /// Keys that the transaction stands on and does not change.
        pub stands: Vec<Bytes>,
        /// The changes of the transaction.
        pub writes: Vec<PeerWrite>,
        /// The key of a content record that is stored already, if the transaction does nothing here
        /// but make it. The directory exists if the transaction commits, and is not confirmed
        /// before this record is gone.
        pub born: Option<Bytes>,
        /// The other participants, which may know how the transaction ended.
        pub others: Others,
    }
}

impl Record for PreparedRecord {}

/// The other participants of a transaction. None are no bytes: the field comes last, and older
/// records have nothing there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Others(pub(crate) Vec<u16>);

impl Encode for Others {
    fn encode(&self, out: &mut Vec<u8>) {
        if !self.0.is_empty() {
            self.0.encode(out);
        }
    }
}

impl Decode for Others {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.is_empty() {
            return Ok(Others::default());
        }
        let others = Vec::decode(input)?;
        if others.is_empty() { Err(DecodeError::Invalid("others")) } else { Ok(Others(others)) }
    }
}

codec! {
    /// The end here of another server's transaction with several participants, kept until none of
    /// them can ask any more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum EndedRecord {
        /// The transaction was committed, and its part here is done.
        Committed = 1,
        /// The transaction was not prepared when another participant asked, and never will be.
        Refused = 2,
    }
}

impl Record for EndedRecord {}

codec! {
    /// The note that a transaction is committed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct CommittedRecord {
        /// The servers that may not know of the commit yet.
        pub participants: Vec<u16>,
        /// The directory that the transaction makes at its only participant, which need not have
        /// the record on stable storage.
        pub born: Option<Child>,
    }
}

impl Record for CommittedRecord {}

codec! {
    /// A directory whose entry is here and whose content record is another server's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Child {
        /// The key of the directory's entry.
        pub name: Bytes,
        /// The key of the directory's content record.
        pub key: Bytes,
        /// The content record as it was made.
        pub content: Bytes,
    }
}

/// The transactions, begun since the server started, whose outcome is open.
#[derive(Default)]
pub(crate) struct Initiated {
    open: Mutex<HashSet<TxnId>>,
}

impl Initiated {
    pub(crate) fn begin(&self, txn: TxnId) {
        self.open.lock().insert(txn);
    }

    pub(crate) fn end(&self, txn: TxnId) {
        self.open.lock().remove(&txn);
    }

    pub(crate) fn is_open(&self, txn: TxnId) -> bool {
        self.open.lock().contains(&txn)
    }
}
