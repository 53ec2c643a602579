//! Hints on directories of other servers that renames have met: what the next rename may take for
//! granted.
//!
//! A rename into a directory of another server relies on the share that gets the name, which seldom
//! changes but for times and counts, and on the name being free. Where both held the last time,
//! neither is read before it is prepared (`txn::remote`). The table holds hints only, is bounded,
//! and is lost at a restart: the other server refuses to prepare what no longer holds.

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{recent::Recent, record::Key};

/// Number of shares that are remembered; the oldest is forgotten.
const SHARES_MAX: usize = 1024;

/// Records of other servers' shares, as hints.
pub(crate) struct RemoteHints {
    known: Mutex<Recent<Key, Bytes>>,
}

impl Default for RemoteHints {
    fn default() -> RemoteHints {
        RemoteHints { known: Mutex::new(Recent::new(SHARES_MAX)) }
    }
}

impl RemoteHints {
    /// Notes the record of a share in which a name was free.
    pub(crate) fn learn(&self, share: &Key, record: impl FnOnce() -> Bytes) {
        let mut known = self.known.lock();
        if known.get(share).is_none() {
            known.insert(share.clone(), record());
        }
    }

    /// Forgets a share whose record has changed.
    pub(crate) fn forget(&self, share: &Key) {
        self.known.lock().remove(share);
    }

    /// The record of a share as last met; `None` if it is unknown or has changed.
    pub(crate) fn share(&self, share: &Key) -> Option<Bytes> {
        self.known.lock().get(share).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_met_first_is_forgotten_first() {
        let hints = RemoteHints::default();
        let key = |number: usize| Key::from_slice(&number.to_be_bytes());
        for number in 0..=SHARES_MAX {
            hints.learn(&key(number), || Bytes::from(vec![1]));
        }
        assert_eq!(hints.share(&key(0)), None);
        hints.learn(&key(1), || unreachable!("it is known"));
        assert_eq!(hints.share(&key(1)), Some(Bytes::from(vec![1])));
        hints.forget(&key(1));
        assert_eq!(hints.share(&key(1)), None);
        hints.learn(&key(1), || Bytes::from(vec![2]));
        assert_eq!(hints.share(&key(1)), Some(Bytes::from(vec![2])));
        assert_eq!(hints.known.lock().len(), SHARES_MAX);
    }
}
