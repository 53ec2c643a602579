//! The signals that end a server or a mount.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM. From its making on they no longer kill the process, also when it was started
/// with one of them ignored, as shells do in the background.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Takes over the signals. Must be called within a runtime.
    pub(crate) fn listen() -> anyhow::Result<Stop> {
        let take = |kind| signal(kind).context("cannot handle signals");
        Ok(Stop {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
        })
    }

    /// Returns when someone asks the process to end.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
