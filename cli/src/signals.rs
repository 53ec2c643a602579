//! The signals that end a server or a mount.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, and SIGHUP where that is asked for. From its making on they no longer kill the
/// process, also when it was started with one of them ignored, as shells do in the background.
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

    /// SIGHUP as well, unless it is ignored, as `nohup` has it: for a process whose end is work, and
    /// whose terminal may go.
    pub(crate) fn hangup_too(self) -> anyhow::Result<Stop> {
        if ignores_hangup() {
            return Ok(self);
        }
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

    /// Returns when someone asks a process that is ending to hurry: a terminal that goes does not.
    pub(crate) async fn hurried(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether this process was started with SIGHUP ignored (proc_pid_status(5)).
fn ignores_hangup() -> bool {
    const HANGUP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & HANGUP != 0)
}

async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
