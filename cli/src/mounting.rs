//! A mount as a process has it: a session, a mount, and their end.
//!
//! `mount` and `up` call it on a single-threaded runtime, within a `LocalSet`. On its way out it
//! unmounts, sends what was written, and ends the session, in this order; an observer that sees the
//! process gone can rely on all three.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail};
use client::Client;
use mount::{Mounted, Options, Unmount};

use crate::{
    mounts::{self, Kept, Mount},
    signals::Stop,
};

/// Time that the users of a mount have after it was told to end, before they lose it.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(2);

/// A mount that works.
pub(crate) struct Mounting {
    client: Client,
    mounted: Mounted,
    _kept: Option<Kept>,
}

/// Mounts what `client` sees.
pub(crate) async fn start(
    client: Client,
    mountpoint: &Path,
    options: &Options,
) -> anyhow::Result<Mounting> {
    let mounted = Box::pin(mount::run(client.clone(), mountpoint, options)).await;
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            // The first error is the one to tell.
            drop(client.close().await);
            return Err(error.into());
        }
    };
    // Without it everything works, but `umount` does not wait for us.
    let kept = mounts::keep(mountpoint)
        .inspect_err(|error| tracing::warn!(error = format!("{error:#}"), "umount will not wait"))
        .ok();
    Ok(Mounting { client, mounted, _kept: kept })
}

impl Mounting {
    /// Serves until it is unmounted, `stop` asks, or `failed` is ready, which then is the error.
    ///
    /// A second signal ends the wait for a server that is away.
    pub(crate) async fn serve(
        self,
        stop: &mut Stop,
        failed: impl Future<Output = anyhow::Error>,
    ) -> anyhow::Result<()> {
        let Mounting { client, mounted, _kept } = self;
        let mountpoint = mounted.mountpoint().to_owned();
        let mut ended = std::pin::pin!(mounted.ended());
        let failed = tokio::select! {
            ended = &mut ended => return close(&client, stop).await.and(Ok(ended.map(|_| ())?)),
            () = stop.asked() => None,
            error = failed => Some(error),
        };
        let unmounted = unmount(&mountpoint).await;
        // Users that are still there lose it with this process.
        let left = tokio::time::timeout(IN_USE_TIMEOUT, &mut ended).await;
        if let Some(error) = failed {
            // Without a server nothing more can be sent.
            return Err(error);
        }
        close(&client, stop).await?;
        unmounted?;
        if let Ok(ended) = left {
            ended?;
        }
        Ok(())
    }
}

/// Sends what was written and ends the session.
async fn close(client: &Client, stop: &mut Stop) -> anyhow::Result<()> {
    tokio::select! {
        closed = client.close() => closed.context("some writes could not be stored"),
        () = stop.asked() => bail!("ended with writes that were not sent"),
    }
}

/// Takes the mount out of the tree, also when it is in use.
async fn unmount(mountpoint: &Path) -> Result<(), mount::Error> {
    match mount::unmount(mountpoint, Unmount::WhenIdle).await {
        Err(mount::Error::NotMounted { .. }) => Ok(()),
        Err(_) => {
            tracing::warn!(mountpoint = mounts::shown(mountpoint), "the mount is in use");
            mount::unmount(mountpoint, Unmount::Lazy).await
        }
        Ok(()) => Ok(()),
    }
}

/// Unmounts what processes that were killed have left at `mountpoint`.
pub(crate) async fn clear_dead(mountpoint: &Path) -> anyhow::Result<()> {
    while let Some(mount) = mounts::find(mountpoint)?.filter(Mount::is_dead) {
        tracing::info!(mountpoint = mounts::shown(mountpoint), "unmounting what a crash left");
        mount::unmount(&mount.path, Unmount::Lazy).await?;
    }
    Ok(())
}
