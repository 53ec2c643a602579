//! Numbers of requests that the kernel has sent, by kind.
//!
//! `adapter` counts each request once, when it begins. Programs read the numbers as the extended
//! attribute `pando.requests` of any file of the mount: `pando bench apps` does, to say how many
//! requests of the kernel a file costs.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Number of kinds that are told apart: more than the protocol's operation codes, the largest of
/// which is below it.
const KINDS: usize = 64;

/// A name of the protocol and the number of requests of that kind.
type Kind = (&'static str, u64);

/// Counts since the mount began.
pub(crate) struct Counts {
    kinds: Mutex<[Kind; KINDS]>,
    /// Nodes that the kernel has forgotten: these are told and have no answer.
    forgotten: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts { kinds: Mutex::new([("", 0); KINDS]), forgotten: AtomicU64::new(0) }
    }

    /// Counts a request with this operation code and name.
    pub(crate) fn request(&self, opcode: u32, name: &'static str) {
        let Ok(at) = usize::try_from(opcode) else { return };
        if let Some(kind) = self.kinds.lock().get_mut(at) {
            *kind = (name, kind.1 + 1);
        }
    }

    /// Counts a node that the kernel forgets.
    pub(crate) fn forget(&self) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns each kind that was seen, with its number, in the order of the operation codes.
    pub(crate) fn all(&self) -> Vec<Kind> {
        let forgotten = ("FORGET", self.forgotten.load(Ordering::Relaxed));
        let kinds = self.kinds.lock().into_iter().chain([forgotten]);
        kinds.filter(|(_, number)| *number > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let counts = Counts::new();
        assert_eq!(counts.all(), []);
        counts.request(3, "GETATTR");
        counts.request(1, "LOOKUP");
        counts.request(3, "GETATTR");
        counts.request(4096, "CUSE_INIT");
        counts.forget();
        assert_eq!(counts.all(), [("LOOKUP", 1), ("GETATTR", 2), ("FORGET", 1)]);
    }
}
