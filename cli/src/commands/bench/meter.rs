//! Resources of the file system under test, read between the phases. A server reports its own; the
//! kernel reports those of a mount's process.

use std::time::Duration;

use bench::{Meter, Usage};
use client::Client;

use crate::{
    mounts::{Keeper, Mount},
    system,
};

/// Time-out after which the server counts as silent.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// The process that serves a mount on this machine.
pub(crate) struct MountProcess(pub(crate) u32);

impl MountProcess {
    /// The process that serves `mount`, where it can be seen.
    pub(crate) fn of(mount: &Mount) -> Option<MountProcess> {
        mount.keeper().as_mut().and_then(Keeper::process).map(MountProcess)
    }
}

/// Reads the usage of a server and of a mount's process, as far as they are known.
pub(crate) struct Gauge {
    client: Option<Client>,
    mount: Option<MountProcess>,
    /// Number of times that the server was asked: these are requests too.
    asked: u64,
}

impl Gauge {
    /// A gauge that asks the server through `client`. Where the server and the mount are one
    /// process (`pando up`), it counts as the server.
    pub(crate) async fn new(client: Option<Client>, mount: Option<MountProcess>) -> Gauge {
        let mut gauge = Gauge { client, mount, asked: 0 };
        if let Some(status) = gauge.ask().await {
            gauge.mount = gauge.mount.filter(|mount| mount.0 != status.process.id);
        }
        gauge
    }

    /// Asks the server for its status. A server that fails to answer once is not asked again.
    async fn ask(&mut self) -> Option<wire::Status> {
        let client = self.client.as_ref()?;
        match tokio::time::timeout(STATUS_TIMEOUT, client.status()).await {
            Ok(Ok(status)) => {
                self.asked += 1;
                Some(status)
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(
                    "the server does not tell what it uses: that takes an administrator's token"
                );
                self.client = None;
                None
            }
        }
    }

    pub(crate) async fn close(self) -> client::Result<()> {
        match self.client {
            Some(client) => client.close().await,
            None => Ok(()),
        }
    }
}

impl Meter for Gauge {
    async fn read(&mut self) -> Usage {
        let status = self.ask().await;
        let requests = status.as_ref().and_then(|status| {
            let found = status.counters.iter().find(|(name, _)| name == "requests");
            found.map(|(_, requests)| requests.saturating_sub(self.asked))
        });
        Usage {
            server_cpu: status.map(|status| Duration::from_micros(status.process.cpu_micros)),
            requests,
            client_cpu: self.mount.as_ref().and_then(|mount| system::process_cpu(mount.0)),
        }
    }
}
