//! A server that comes back by itself: after its disk was full, and when shards have moved.
//!
//! `serve` calls it; `up`, whose client lives in the server's threads, ends instead. A server
//! refuses writes before its disk is full ([`meta::Limits`]); but when others fill the disk to its
//! last byte, its engine cannot write, and it halts: what a failed write has left is known only
//! after a new start. So it is started anew, in this process and on the same addresses, as soon as
//! there is room. Clients see a server that was away for a while.
//!
//! It never starts anything again that failed for another reason.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    data::DataDir,
    server::{self, Listen, Options, Running},
    system,
};

/// A server that waits for room looks for it so often.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// With less, the engine cannot even be opened.
const ROOM_BYTES_MIN: u64 = 4 << 20;

/// A server that is serving, or waits for room to do it again.
pub(crate) struct Serving {
    data: PathBuf,
    options: Options,
    running: Option<Running>,
}

impl Serving {
    /// Serves the file system in `data`.
    pub(crate) fn start(data: &Path, mut options: Options) -> anyhow::Result<Serving> {
        let running = server::start(DataDir::open(data)?, &options)?;
        // The next start must use the same addresses.
        let fixed =
            |listen: Listen, address: SocketAddr| Listen { address: address.to_string(), ..listen };
        options.listen = fixed(options.listen, running.address());
        options.word = meta::Word::default();
        options.ends_at = None;
        options.http = options.http.zip(running.http()).map(|(listen, http)| fixed(listen, http));
        Ok(Serving { data: data.to_owned(), options, running: Some(running) })
    }

    /// The server; there is one until [`Serving::failed`] was called.
    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("only `failed` takes it away")
    }

    /// Returns when the server cannot serve any more, and will not be able to, with the reason.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        loop {
            if let Some(running) = &self.running {
                let error = running.failed().await;
                if begins_anew(&error) {
                    match self.begin_anew().await {
                        Ok(()) => continue,
                        Err(error) if is_full(&error) => {}
                        Err(error) => return error,
                    }
                } else if !is_full(&error) {
                    return error;
                }
                tracing::error!(error = format!("{error:#}"), "waiting for room to serve again");
                if let Err(error) = self.running.take().map_or(Ok(()), Running::stop) {
                    tracing::debug!(error = format!("{error:#}"), "not stopped cleanly");
                }
            }
            if let Err(error) = self.again().await {
                return error;
            }
        }
    }

    /// Ends the run of the server, and begins the next one at once.
    async fn begin_anew(&mut self) -> anyhow::Result<()> {
        let running = self.running.take().context("there is no server")?;
        self.running = Some(running.begin_anew(&self.options).await?);
        Ok(())
    }

    /// Starts the server when there is room for it.
    async fn again(&mut self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            if system::space(&self.data).1 < ROOM_BYTES_MIN {
                continue;
            }
            let started =
                DataDir::open(&self.data).and_then(|data| server::start(data, &self.options));
            match started {
                Ok(running) => {
                    tracing::warn!("there is room: serving again");
                    self.running = Some(running);
                    return Ok(());
                }
                Err(error) if is_full(&error) => {
                    tracing::debug!(error = format!("{error:#}"), "still no room");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the server; what was executed is stable then.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.running.map_or(Ok(()), Running::stop)
    }
}

/// Whether the server is to be opened anew, as shards have moved or servers have joined.
fn begins_anew(error: &anyhow::Error) -> bool {
    then(error) == Some(meta::Then::BeginsAnew)
}

/// Whether the server has left its cluster, so that it ends as it should.
pub(crate) fn has_left(error: &anyhow::Error) -> bool {
    then(error) == Some(meta::Then::Leaves)
}

/// The step that follows, if the error is that of a server that has stopped serving.
fn then(error: &anyhow::Error) -> Option<meta::Then> {
    let problem = error.chain().find_map(|cause| cause.downcast_ref::<meta::Problem>());
    problem.map(|problem| problem.then)
}

/// Whether there was only no room.
fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let problem = cause.downcast_ref::<meta::Problem>().is_some_and(|problem| problem.full);
        let store = cause.downcast_ref::<store::Error>();
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        problem
            || matches!(store, Some(store::Error::Full(_)))
            || matches!(io, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    })
}
