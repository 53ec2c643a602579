//! Numbers of requests that the kernel has sent, by kind.
//!
//! `adapter` counts each request once, when it begins. Programs read the numbers as the extended
//! attribute `pando.requests` of any file of the mount: `pando bench apps` does, to say how many
//! requests of the kernel a file costs.

use std::cell::Cell;

/// Number of kinds that are told apart: more than the protocol's operation codes, the largest of
/// which is below it.
const KINDS: usize = 64;

/// A name of the protocol and the number of requests of that kind.
type Kind = (&'static str, u64);

/// Counts since the mount began.
pub(crate) struct Counts {
    kinds: [Cell<Kind>; KINDS],
    /// Nodes that the kernel has forgotten: these are told and have no answer.
    forgotten: Cell<u64>,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts { kinds: [const { Cell::new(("", 0)) }; KINDS], forgotten: Cell::new(0) }
    }

    /// Counts a request with this operation code and name.
    pub(crate) fn request(&self, opcode: u32, name: &'static str) {
        let kind = usize::try_from(opcode).ok().and_then(|at| self.kinds.get(at));
        if let Some(kind) = kind {
            kind.set((name, kind.get().1 + 1));
        }
    }

    /// Counts a node that the kernel forgets.
    pub(crate) fn forget(&self) {
        self.forgotten.set(self.forgotten.get() + 1);
    }

    /// Returns each kind that was seen, with its number, in the order of the operation codes.
    pub(crate) fn all(&self) -> Vec<Kind> {
        let kinds = self.kinds.iter().map(Cell::get).chain([("FORGET", self.forgotten.get())]);
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
