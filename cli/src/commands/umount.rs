//! `pando umount`: take a mount away.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use mount::Unmount;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::{
    connect,
    mounts::{self, Keeper, Mount},
};

/// Pause between two looks whether the mount's process has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Time-out of the wait for a process whose servers are all away.
const AWAY_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after which the command says that the process is still busy.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// Pause after which a process that is to end is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Time after which such a process is killed.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// Unmount a file system: send all writes, and end the process of the mount.
///
/// A mount that is in use stays. If the process of the mount was killed, only the mount is removed.
/// A mount that is also bound to another place is served there on, and not waited for. If no server
/// answers, the mount is removed, and its process keeps unsent writes until a server is back: the
/// command fails and names the process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The mount point.
    mountpoint: PathBuf,
    /// Unmount although programs use the mount, and end its process: requests that wait for a
    /// server fail, and unsent writes are lost.
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(mount) = mounts::find(&args.mountpoint)? else {
        bail!("no file system of pando is mounted at {}", args.mountpoint.display());
    };
    let keeper = mount.keeper();
    connect::runtime()?.block_on(async {
        if args.force {
            return force(&mount, keeper).await;
        }
        let when = if mount.is_dead() { Unmount::Lazy } else { Unmount::WhenIdle };
        match mount::unmount(&mount.path, when).await {
            Err(error @ mount::Error::Busy { .. }) => {
                let path = args.mountpoint.display();
                return Err(error).context(format!(
                    "cannot unmount {path} (`fuser -m {path}` lists its users; --force unmounts it anyway)"
                ));
            }
            unmounted => unmounted?,
        }
        match keeper {
            Some(keeper) if !mounts::is_left(&mount)? => until_ended(&mount, keeper).await,
            Some(_) | None => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the process as long as any server may be there to take what was written.
async fn until_ended(mount: &Mount, mut keeper: Keeper) -> anyhow::Result<()> {
    let (began, mut told) = (Instant::now(), false);
    let mut looked = began;
    while !keeper.has_ended()? {
        if looked.elapsed() >= AWAY_TIMEOUT {
            looked = Instant::now();
            // A process that serves as well does not say from where.
            let answers = match mount.servers() {
                Some(servers) => connect::any_answers(&servers).await,
                None => true,
            };
            if !answers {
                bail!(
                    "unmounted, but no server answers: process {} keeps the unsent writes, and \
                     sends them once a server is back (`kill` drops them)",
                    keeper.process().unwrap_or_default()
                );
            }
        }
        if began.elapsed() >= TELL_AFTER && !std::mem::replace(&mut told, true) {
            let process = keeper.process().unwrap_or_default();
            tracing::warn!(process, "waiting until all writes are sent");
        }
        sleep(LOOK_PERIOD).await;
    }
    Ok(())
}

/// Takes the mount away from its users, and ends its process.
async fn force(mount: &Mount, keeper: Option<Keeper>) -> anyhow::Result<()> {
    mount::unmount(&mount.path, Unmount::Force).await?;
    let Some(mut keeper) = keeper else { return Ok(()) };
    let process = keeper.process().and_then(|number| Pid::from_raw(i32::try_from(number).ok()?));
    let process = process.context("the mount has not recorded its process id")?;
    let (began, mut asked) = (Instant::now(), None::<Instant>);
    while !keeper.has_ended()? {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            // The second time it does not wait for its server any more.
            let killed = began.elapsed() >= KILL_AFTER;
            let signal = if killed { Signal::KILL } else { Signal::TERM };
            // The process may be ending just now.
            let _ = kill_process(process, signal);
            asked = Some(Instant::now());
        }
        sleep(LOOK_PERIOD).await;
    }
    Ok(())
}
