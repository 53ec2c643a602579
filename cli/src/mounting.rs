//! A mount as a process has it: a session, a mount, and their end.
//!
//! `mount` and `up` call it on a single-threaded runtime, within a `LocalSet`. On its way out it
//! unmounts, sends what was written, and ends the session, in this order; an observer that sees the
//! process gone can rely on all three.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail};
use client::{Client, Delegating, Turns};
use mount::{IoUring, Mounted, Options, Synchronous, Unmount};

use crate::{
    mounts::{self, Kept, Mount},
    signals::Stop,
};

/// Time that the users of a mount have after it was told to end, before they lose it.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(2);

/// A mount that works.
pub(crate) struct Mounting {
    fs: Delegating,
    turns: Turns,
    mounted: Mounted,
    _kept: Option<Kept>,
}

/// Turns of the threads of a mount: one for each CPU, where requests may come over io_uring.
pub(crate) fn turns(options: &Options) -> Turns {
    match options.io_uring {
        IoUring::Off => Turns::default(),
        IoUring::Auto | IoUring::On => Turns::of_threads(),
    }
}

/// Mounts what `client` sees; the threads of the mount and the client's tasks take `turns`.
pub(crate) async fn start(
    client: Client,
    mountpoint: &Path,
    options: &Options,
    turns: &Turns,
) -> anyhow::Result<Mounting> {
    let fs = Delegating::new(client, options.delegations && is_lazy(options));
    let mounted = Box::pin(mount::run(fs.clone(), mountpoint, options, turns)).await;
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            // The first error is the one to tell.
            drop(turns.in_turn(fs.close()).await);
            return Err(error.into());
        }
    };
    // Without it everything works, but `umount` does not wait for us.
    let kept = mounts::keep(mountpoint)
        .inspect_err(|error| tracing::warn!(error = format!("{error:#}"), "umount will not wait"))
        .ok();
    Ok(Mounting { fs, turns: turns.clone(), mounted, _kept: kept })
}

/// Whether changes may be answered before the server has them.
fn is_lazy(options: &Options) -> bool {
    options.synchronous == Synchronous::OnDemand && !options.read_only
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
        let Mounting { fs, turns, mounted, _kept } = self;
        let mountpoint = mounted.mountpoint().to_owned();
        let mut ended = std::pin::pin!(mounted.ended());
        let failed = tokio::select! {
            ended = &mut ended => {
                return close(&fs, &turns, stop).await.and(Ok(ended.map(|_| ())?));
            }
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
        close(&fs, &turns, stop).await?;
        unmounted?;
        match left {
            Ok(ended) => ended.map(drop)?,
            // Answers from now on would be of changes that are never sent.
            Err(_) => turns.end(),
        }
        Ok(())
    }
}

/// Sends what was written and ends the session.
async fn close(fs: &Delegating, turns: &Turns, stop: &mut Stop) -> anyhow::Result<()> {
    tokio::select! {
        closed = turns.in_turn(fs.close()) => closed.context("some writes could not be stored"),
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
