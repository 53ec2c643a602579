//! Directories of other servers, as this one has met them in renames: what it takes for granted of them the next time.
//!
//! A rename into a directory of another server stands on the share that gets the name, which seldom changes but for times and
//! counts, and on that the name is free. Where it was so the last time, neither is read before it is prepared
//! (`txn::remote`). It is a hint only, is bounded, and is lost at a restart: what is not so their server says when it
//! prepares.

use std::collections::VecDeque;

use base::HashMap;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::record::Key;

/// What is remembered at most; the oldest is forgotten.
const SHARES_MAX: usize = 1024;

/// The hints.
#[derive(Default)]
pub(crate) struct Met {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    shares: HashMap<Key, Bytes>,
    order: VecDeque<Key>,
}

impl Met {
    /// A share was met, and a name in it was free.
    pub(crate) fn learn(&self, share: &Key, record: impl FnOnce() -> Bytes) {
        let mut known = self.known.lock();
        if known.shares.contains_key(share) {
            return;
        }
        known.shares.insert(share.clone(), record());
        known.order.push_back(share.clone());
        if known.order.len() > SHARES_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.shares.remove(&oldest);
        }
    }

    /// It is not so any more.
    pub(crate) fn forget(&self, share: &Key) {
        let mut known = self.known.lock();
        if known.shares.remove(share).is_some() {
            known.order.retain(|key| key != share);
        }
    }

    /// The record of a share, if nothing is known to be otherwise.
    pub(crate) fn share(&self, share: &Key) -> Option<Bytes> {
        self.known.lock().shares.get(share).cloned()
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
        assert_eq!(met.known.lock().order.len(), SHARES_MAX);
    }
}
