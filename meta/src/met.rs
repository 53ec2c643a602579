//! Directories of other servers, as this one has met them in renames: what it takes for granted of them the next time.
//!
//! A rename into a directory of another server stands on the share that gets the name, which seldom changes but for times and
//! counts, and on that the name is free. Where it was so the last time, neither is read before it is prepared
//! (`txn::remote`). It is a hint only, is bounded, and is lost at a restart: what is not so their server says when it
//! prepares.

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{recent::Recent, record::Key};

/// What is remembered at most; the oldest is forgotten.
const SHARES_MAX: usize = 1024;

/// The hints.
pub(crate) struct Met {
    known: Mutex<Recent<Key, Bytes>>,
}

impl Default for Met {
    fn default() -> Met {
        Met { known: Mutex::new(Recent::new(SHARES_MAX)) }
    }
}

impl Met {
    /// A share was met, and a name in it was free.
    pub(crate) fn learn(&self, share: &Key, record: impl FnOnce() -> Bytes) {
        let mut known = self.known.lock();
        if known.get(share).is_none() {
            known.insert(share.clone(), record());
        }
    }

    /// It is not so any more.
    pub(crate) fn forget(&self, share: &Key) {
        self.known.lock().remove(share);
    }

    /// The record of a share, if nothing is known to be otherwise.
    pub(crate) fn share(&self, share: &Key) -> Option<Bytes> {
        self.known.lock().get(share).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_met_first_is_forgotten_first() {
        let met = Met::default();
        let key = |number: usize| Key::from_slice(&number.to_be_bytes());
        for number in 0..=SHARES_MAX {
            met.learn(&key(number), || Bytes::from(vec![1]));
        }
        assert_eq!(met.share(&key(0)), None);
        met.learn(&key(1), || unreachable!("it is known"));
        assert_eq!(met.share(&key(1)), Some(Bytes::from(vec![1])));
        met.forget(&key(1));
        assert_eq!(met.share(&key(1)), None);
        met.learn(&key(1), || Bytes::from(vec![2]));
        assert_eq!(met.share(&key(1)), Some(Bytes::from(vec![2])));
        assert_eq!(met.known.lock().len(), SHARES_MAX);
    }
}
