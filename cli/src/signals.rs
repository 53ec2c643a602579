//! The signals that end a server or a mount.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM. From its making on they no longer kill the process, also when it was started
/// with one of them ignored, as shells do in the background.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    /// Takes over the signals. Must be called within a runtime.
    pub(crate) fn listen() -> anyhow::Result<Stop> {
        let take = |kind| signal(kind).context("cannot handle signals");
        Ok(Stop {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// SIGHUP as well: for a process whose end is work, and whose terminal may go.
    pub(crate) fn hangup_too(self) -> anyhow::Result<Stop> {
        let hangup = signal(SignalKind::hangup()).context("cannot handle signals")?;
        Ok(Stop { hangup: Some(hangup), ..self })
    }

    /// Returns when someone asks the process to end.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = next(self.hangup.as_mut()) => {}
        }
    }
}

async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
