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

/// Unmount a file system, and wait until everything written was sent and the process that served it
/// has ended.
///
/// A mount that is in use is left as it is. One whose process was killed is only taken away. One
/// that is bound to another place as well is served there on, and not waited for. When no server
/// answers, the mount is taken away, and what could not be sent stays with the process, which sends
/// it when a server is back: the command fails and names the process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted.
    mountpoint: PathBuf,
    /// Take it away whoever uses it, and end its process: what waits for a server fails, and what
    /// was not sent is lost.
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
                    "cannot unmount {path} (`fuser -m {path}` names who uses it; --force takes it away from them)"
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
                    "unmounted, but no server answers: what could not be sent is with process {}, which sends it when \
                     one is back (`kill` gives it up)",
                    keeper.process().unwrap_or_default()
                );
            }
        }
        if began.elapsed() >= TELL_AFTER && !std::mem::replace(&mut told, true) {
            let process = keeper.process().unwrap_or_default();
            tracing::warn!(process, "waiting until everything that was written is sent");
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
    let process = process.context("the process of the mount did not say its number")?;
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
