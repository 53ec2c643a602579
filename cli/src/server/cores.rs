//! The threads of a server: one per core, each with its tasks.

use std::{io, net::TcpStream, path::PathBuf, thread, time::Duration};

use anyhow::Context as _;
use meta::Server;
use rustix::net::sockopt;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::LocalSet,
};

use crate::{
    accept::{Accepted, Acceptor},
    admission::Admission,
    certificates::Certificates,
    data::{self, DataDir},
};

/// Pause between two looks whether a server of a cluster has a lease, until it has.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Time that a stop waits for work that was handed to other threads.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which the peer of a connection is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Number of such questions, and the pause between two of them.
const KEEPALIVE_TRIES: u32 = 4;
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(15);

pub(super) fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> anyhow::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(work).context("cannot start a thread")
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build()
        .context("cannot start a runtime")
}

/// One core's part of the server, before its thread has it.
pub(super) struct Core {
    pub(super) server: Server,
    pub(super) index: usize,
    pub(super) data: PathBuf,
    /// The data directory, of a server of several.
    pub(super) member: Option<PathBuf>,
    pub(super) connections: mpsc::UnboundedReceiver<Accepted>,
    pub(super) admission: Admission,
    /// Tasks that the first core has besides.
    pub(super) first: Option<(Acceptor, Certificates)>,
    pub(super) stopped: watch::Receiver<bool>,
}

impl Core {
    /// Serves until the server is stopped.
    pub(super) fn run(mut self, runtime: Runtime) {
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, async {
            let core = self.server.core(self.index);
            let executor = core.clone();
            tokio::task::spawn_local(async move { executor.run().await });
            if let Some((acceptor, certificates)) = self.first.take() {
                tokio::task::spawn_local(certificates.renew());
                let background = core.clone();
                tokio::task::spawn_local(async move { background.background().await });
                tokio::task::spawn_local(acceptor.run());
                tokio::task::spawn_local(keep_newest_key(self.server.clone(), self.data));
                if let Some(data) = self.member.take() {
                    tokio::task::spawn_local(note_boot(self.server.clone(), data));
                }
            }
            tokio::task::spawn_local(take_connections(core, self.connections, self.admission));
            // The sender lives as long as the server.
            let _ = self.stopped.wait_for(|stopped| *stopped).await;
            if self.index == 0 {
                self.server.resign().await;
            }
        });
        drop(tasks);
        runtime.shutdown_timeout(STOP_TIMEOUT);
    }
}

/// Keeps the newest signing key in the data directory, for `pando token create --data`.
async fn keep_newest_key(server: Server, folder: PathBuf) {
    let keep = |number, secret: &wire::Secret| {
        if let Err(error) = data::write_newest_key(&folder, number, &secret.0) {
            tracing::warn!(%error, "`pando token create --data` does not know the newest key");
        }
    };
    server.follow_newest_key(keep).await;
}

/// Notes once that the server has had a lease.
async fn note_boot(server: Server, data: PathBuf) {
    while !server.has_had_lease() {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    if let Err(error) = DataDir::note_boot(&data) {
        tracing::warn!(%error, "clients will drop their caches when this server is restarted");
    }
}

async fn take_connections(
    core: meta::Core,
    mut connections: mpsc::UnboundedReceiver<Accepted>,
    admission: Admission,
) {
    while let Some(Accepted { stream, slot }) = connections.recv().await {
        match prepare(stream) {
            Ok(stream) => {
                let (core, admission) = (core.clone(), admission.clone());
                let from = stream.peer_addr().ok();
                tokio::task::spawn_local(async move {
                    match admission.admit(stream).await {
                        Ok((link, binding)) => core.serve_bound(link, from, binding).await,
                        Err(closed) => tracing::debug!("{closed}"),
                    }
                    drop(slot);
                });
            }
            Err(error) => tracing::warn!(%error, "a connection was lost at once"),
        }
    }
}

fn prepare(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    // A client whose machine is gone says nothing, and would have its connection for ever.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_TRIES)?;
    tokio::net::TcpStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_of_a_machine_that_is_gone_does_not_last() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = prepare(ours).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_TRIES);
    }
}
