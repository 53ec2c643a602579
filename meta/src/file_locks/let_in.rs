//! Requests that have waited for a file lock and have it now.

use tokio::sync::oneshot;

/// How waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The lock is granted.
    Granted,
    Cancelled,
    /// Another request came under the same number, and waits in this one's place.
    AskedAgain,
}

/// Requests that need not wait any more. They are told when the group that let them in is written.
#[derive(Default)]
pub(crate) struct LetIn(pub(super) Vec<oneshot::Sender<Told>>);

impl LetIn {
    /// Whether no request waits for this.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells all of these requests.
    pub(crate) fn tell(self) {
        for waiting in self.0 {
            // The connection of the request may be gone.
            let _ = waiting.send(Told::Granted);
        }
    }

    /// Adds the requests of `others`.
    pub(crate) fn extend(&mut self, others: LetIn) {
        self.0.extend(others.0);
    }
}
