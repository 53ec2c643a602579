//! Transactions over several servers: two-phase commit, presumed abort.
//!
//! The server that a client has asked is the *initiator*. It runs the operation with what it has read of other servers
//! ([`crate::txn::remote`]), has them prepare what the operation stands on and writes there ([`participant`]), runs it
//! once more in a group of its own, and commits with that group's write ([`run`], [`phase`]). Then it tells the others ([`tell`]). What a
//! crash leaves is finished by [`recover`].
//!
//! What one side relies on is stable at the other first: a participant answers when what it prepared is stable, it is
//! told to commit when the commit is stable, and the commit is forgotten when what was applied is. What it is not told it
//! asks for ([`outcome`]).
//!
//! A directory that is made on another server waits for none of that, and is confirmed later ([`births`]).
//!
//! Nobody waits for anybody while keys are prepared for it: a transaction that meets another one gives up what it has
//! prepared and begins anew.
//!
//! Paper: InfiniFS §4.2.

pub(crate) mod births;
pub(crate) mod locks;
pub(crate) mod outcome;
pub(crate) mod participant;
pub(crate) mod phase;
mod read;
pub(crate) mod recover;
pub(crate) mod run;
mod tell;
pub(crate) mod way;

use base::{Decode, DecodeError, Encode, HashSet, Reader, codec};
use bytes::Bytes;
use parking_lot::Mutex;
use wire::{PeerWrite, TxnId};

use crate::record::Record;

codec! {
    /// What a transaction has prepared here.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub(crate) struct PreparedRecord {
        /// Keys that it stands on and does not change.
        pub stands: Vec<Bytes>,
        /// Its changes.
        pub writes: Vec<PeerWrite>,
        /// The key of a content record that is here already, if it does nothing but make that: it is there if the
        /// transaction commits, and not confirmed before this record is gone.
        pub born: Option<Bytes>,
        /// Who else may know how it ended.
        pub others: Others,
    }
}

impl Record for PreparedRecord {}

/// The other participants of a transaction. None are no bytes: it comes last, and records of before have nothing there.
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
    /// How a transaction of another server ended here that has other participants, until none of them can ask any more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum EndedRecord {
        /// It was committed, and its part here is done.
        Committed = 1,
        /// It was not prepared when another participant asked, and never will be.
        Refused = 2,
    }
}

impl Record for EndedRecord {}

codec! {
    /// A transaction is committed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct CommittedRecord {
        /// The servers that may not know it yet.
        pub participants: Vec<u16>,
        /// The directory that it makes at the only one of them, which need not have it on stable storage.
        pub born: Option<Child>,
    }
}

impl Record for CommittedRecord {}

codec! {
    /// A directory whose entry is here and whose content record is another server's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Child {
        /// The key of its entry.
        pub name: Bytes,
        /// The key of its content record.
        pub key: Bytes,
        /// The record as it was made.
        pub content: Bytes,
    }
}

/// The transactions of this run whose outcome is open.
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
