//! `pando region up`: start a region that stays until it is told to end.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use mount::{Error, Unmount};
use tokio::task::LocalSet;

use super::{
    control::{Control, End, Force, OnEnd, Told},
    ending::{self, EndingArgs, ReportArgs},
    site::{Site, SiteArgs},
};
use crate::{behind, connect, failure, mount_log::MountLog, notify, output, signals::Stop};

/// The beginning of the line that says that the region works.
const READY: &str = "region at ";

/// Begin a region that stays until `pando region end`.
///
/// Returns once the region works, and leaves a process behind. `pando region exec` runs programs in
/// it, one after the other or at the same time. The process ends as `pando region end` has it, with
/// the options given here, on SIGINT and SIGTERM, and when DIR is unmounted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    site: SiteArgs,
    #[command(flatten)]
    ending: EndingArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// Serve the region in this process.
    #[arg(long)]
    foreground: bool,
    /// Once the region works, append the log to this file, or to none with `none` [default: stderr
    /// with --foreground, else /var/log/pando/DIR.log with - for /, or for users
    /// ~/.local/state/pando/DIR.log].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// This is the process that is left behind.
    #[arg(long, hide = true)]
    daemon: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.foreground || args.daemon {
        return serve(args);
    }
    behind::leave(&format!("the region at {}", args.site.dir()?.display()), READY, false)
}

fn serve(args: Args) -> anyhow::Result<ExitCode> {
    if args.daemon {
        behind::begin_session()?;
    }
    let dir = args.site.dir()?;
    let ending = args.ending.ending(&dir)?;
    let log = MountLog::open(args.log.as_deref(), &dir, args.daemon)?;
    let taken = args.site.take(dir)?;
    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        let site = Box::pin(taken.start()).await?;
        let (control, mut ends) = Control::listen(&site, OnEnd::Asked)?;
        output::print(&format!("{READY}{}", site.dir.display()))?;
        notify::ready();
        behind::leave_terminal(args.daemon, log.as_ref())?;
        if let Some(log) = log {
            tokio::task::spawn_local(log.keep_short());
        }
        let Site { dir, region, mounted, lock: _lock, .. } = site;
        let mut unmounted = Box::pin(mounted.ended());
        let (mut end, left) = loop {
            tokio::select! {
                Some(mut end) = ends.recv() => match leaves(&control, &dir, end.force).await {
                    Ok(left) => break (Some(end), left),
                    Err(why) => end.to.tell(&Told::Refused(why)).await,
                },
                () = stop.asked() => {
                    let left = leaves(&control, &dir, Force::Yes).await;
                    // A region that cannot be unmounted is committed all the same.
                    break (None, left.unwrap_or(Left::InUse));
                }
                ended = &mut unmounted => {
                    ended?;
                    break (None, Left::InUse);
                }
            }
        };
        if left == Left::Idle {
            unmounted.await?;
        }
        let ending = end.as_ref().map_or(&ending, |End { ending, .. }| ending).clone();
        let outcome = {
            let mut ended = Box::pin(ending::end(&region, &ending, &mut stop, |_| ()));
            match &mut end {
                Some(End { to, .. }) => tokio::select! {
                    outcome = &mut ended => outcome,
                    () = to.follow(&region) => unreachable!("it goes on for ever"),
                },
                None => ended.await,
            }
        };
        drop(control);
        match (outcome, &mut end) {
            (Ok(outcome), end) => {
                if let Some(End { to, .. }) = end {
                    to.tell(&Told::Ended(outcome.clone())).await;
                }
                let went_well = outcome.report(args.report);
                Ok(if went_well { ExitCode::SUCCESS } else { failure::failed() })
            }
            (Err(error), Some(End { to, .. })) => {
                to.tell(&Told::Refused(format!("{error:#}"))).await;
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    })
}

/// How a region was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// By all who used it.
    Idle,
    /// Somebody may use it still, and gets errors.
    InUse,
}

/// Takes the mount away, unless programs use it that may not lose it.
async fn leaves(control: &Control, dir: &Path, force: Force) -> Result<Left, String> {
    let programs = control.programs();
    if force == Force::No && programs > 0 {
        return Err(format!("programs run that were started in the region: {programs}"));
    }
    match mount::unmount(dir, Unmount::WhenIdle).await {
        Err(Error::Busy { .. }) if force == Force::No => {
            Err("programs use the region: files of it are open, or folders in use".to_owned())
        }
        Err(error) if force == Force::No => Err(error.to_string()),
        Err(_) => {
            tracing::warn!("programs still use the region; they lose it");
            let left = mount::unmount(dir, Unmount::Lazy).await;
            left.map(|()| Left::InUse).map_err(|error| error.to_string())
        }
        Ok(()) => Ok(Left::Idle),
    }
}
