//! Connections as they come: dealt to the cores in turn, counted, and refused when there are too
//! many.
//!
//! Core 0 of a server runs it. When no file can be opened for a connection, those that are there go
//! on, and the new one waits in the kernel until there is one.
//!
//! Always true: at most as many connections as there are slots are served, and the last files that
//! the process may open are none of them: the data needs some. Whoever is refused is told to wait.

use std::{
    io,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use meta::Server;
use tokio::sync::mpsc;
use wire::{Answer, Retry};

use crate::admission;

/// Pause before another try when connections cannot be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are taken unasked, where there are files for them.
const CONNECTIONS_MAX: usize = 1 << 16;
/// Files that are kept for the data; a quarter of all where that is less.
const FILES_KEPT: usize = 2048;
/// Number of refused connections that are told so at a time; more are cut off.
const REFUSALS_MAX: usize = 64;
/// Time that a refused client has to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Places for connections: how many there may be, and how many are taken.
#[derive(Clone)]
pub(crate) struct Slots {
    taken: Arc<AtomicUsize>,
    max: usize,
    /// Number of files that the process may open, and how many of them are kept for the data.
    files: (usize, usize),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// There are as many as may be.
    Connections,
    /// The process has nearly as many files open as it may.
    Files,
}

/// A connection's place; free again when it is dropped.
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Slots {
    /// Returns as many slots as were asked for, or as the process can have with its limit of open
    /// files.
    pub(crate) fn new(asked: Option<usize>, files: u64) -> Slots {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let kept = FILES_KEPT.min(files / 4);
        let max = asked.unwrap_or(CONNECTIONS_MAX.min(files - kept));
        Slots { taken: Arc::new(AtomicUsize::new(0)), max, files: (files, kept) }
    }

    fn limited(max: usize) -> Slots {
        Slots { taken: Arc::new(AtomicUsize::new(0)), max, files: (usize::MAX, 0) }
    }

    /// A place for a connection that is this file of the process: the lowest number that was free.
    fn take_for(&self, file: i32) -> Result<Slot, Refused> {
        let (files, kept) = self.files;
        if usize::try_from(file).is_ok_and(|file| file >= files - kept) {
            return Err(Refused::Files);
        }
        self.take().ok_or(Refused::Connections)
    }

    fn take(&self) -> Option<Slot> {
        let slot = Slot(self.taken.clone());
        (self.taken.fetch_add(1, Ordering::Relaxed) < self.max).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that is to be served.
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) slot: Slot,
}

/// Accepts connections.
pub(crate) struct Acceptor {
    pub(crate) listener: TcpListener,
    pub(crate) connections: Slots,
    pub(crate) server: Server,
    pub(crate) cores: Vec<mpsc::UnboundedSender<Accepted>>,
}

impl Acceptor {
    /// Accepts connections and deals them to the cores in turn.
    pub(crate) async fn run(self) {
        let listener = match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept connections"),
        };
        let mut cores = self.cores.iter().cycle();
        // Refused connections have files too, of those that are kept.
        let refusals = Slots::limited(REFUSALS_MAX.min(self.connections.files.1 / 2));
        let (mut failing, mut full) = (false, None);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(%error, "cannot accept connections; those there are go on");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            if std::mem::replace(&mut failing, false) {
                tracing::warn!("connections are accepted again");
            }
            let slot = self.connections.take_for(stream.as_raw_fd());
            let Ok(slot) = slot
                .inspect_err(|why| note_refusal(&self.server, &self.connections, *why, &mut full))
            else {
                if let Some(slot) = refusals.take() {
                    tokio::task::spawn_local(async move {
                        let told = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(stream)).await;
                        tracing::debug!(told = matches!(told, Ok(Ok(()))), "a connection too many");
                        drop(slot);
                    });
                }
                continue;
            };
            if full.take().is_some() {
                tracing::warn!("there is room for connections again");
            }
            let core = cores.next().expect("there is at least one core");
            match stream.into_std() {
                // A core that has ended does so because the server stops.
                Ok(stream) => drop(core.send(Accepted { stream, slot })),
                Err(error) => tracing::warn!(%error, "a connection was lost at once"),
            }
        }
    }
}

/// Counts a refused connection, and logs the reason when that is new.
fn note_refusal(server: &Server, slots: &Slots, why: Refused, full: &mut Option<Refused>) {
    server.connection_refused();
    if full.replace(why) == Some(why) {
        return;
    }
    match why {
        Refused::Connections => {
            let max = slots.max;
            tracing::error!(max, "no more connections are taken: --connections-max");
        }
        Refused::Files => {
            let (max, kept) = slots.files;
            tracing::error!(
                max,
                kept,
                "no more connections are taken: the limit of open files (ulimit -n)"
            );
        }
    }
}

/// Tells a client to wait, as the answer to its Hello. One that speaks TLS is told nothing, and
/// comes again, as words in clear are none of its server.
async fn refuse(mut stream: tokio::net::TcpStream) -> io::Result<()> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    let words = if first[0] == tls::FIRST_BYTE {
        Vec::new()
    } else {
        admission::answer(1, &Answer::Retry(Retry::Busy))
    };
    admission::say_last(&mut stream, &words).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_again_when_its_connection_ends() {
        let slots = Slots::limited(1);
        let slot = slots.take();
        assert!(slot.is_some() && slots.take().is_none());
        drop(slot);
        assert!(slots.take().is_some());
    }

    #[test]
    fn connections_leave_files_for_the_data() {
        let max = |asked, files| Slots::new(asked, files).max;
        assert_eq!((max(None, 1024), max(None, 1 << 20), max(Some(5), 1024)), (768, 1 << 16, 5));
        assert_eq!(max(None, 20_000), 20_000 - 2048);
        let few = Slots::new(Some(5000), 100);
        assert_eq!(few.take_for(75).err(), Some(Refused::Files));
        assert!(few.take_for(74).is_ok());
    }
}
