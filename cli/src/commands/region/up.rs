//! `pando region up`: start a region that stays until it is told to end.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use mount::{Error, Unmount};
use tokio::task::LocalSet;

use super::{
    control::{Control, End, Force, OnEnd, Told, Whose},
    ending::{self, EndingArgs, ReportArgs},
    machines::Machines,
    site::{Begun, Site, SiteArgs},
};
use crate::{behind, connect, failure, mount_log::MountLog, notify, output, signals::Stop};

/// The beginning of the line that says that the region works.
pub(super) const READY: &str = "region at ";

/// Begin a region that stays until `pando region end`.
///
/// Returns once the region works, and leaves a process behind. `pando region exec` runs programs in
/// it, one after the other or at the same time. The process ends as `pando region end
/// --force` has it, with the options given here, on SIGINT, SIGTERM and SIGHUP, and when DIR is
/// unmounted.
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
    let mut taken = args.site.take(dir)?;
    let runtime = connect::runtime()?;
    let socket =
        taken.place.socket.take().context("a region that stays must be reached to be ended")?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?.hangup_too()?;
        let begun = Box::pin(taken.start()).await?;
        let Begun { region, mut site, machines, library, lock } = begun;
        let whose = Whose::Ours(machines.as_ref().map(|machines| machines.lead.clone()));
        let listening = Control::listen(socket, &site, whose, library.as_ref(), OnEnd::Asked);
        let (control, mut ends) = match listening {
            Ok(listening) => listening,
            Err(error) => {
                site.leave(&mut stop).await;
                return Err(error);
            }
        };
        // Somebody who has started this and has gone needs no line.
        output::or_log(output::print(&format!("{READY}{}", site.dir.display())));
        notify::ready();
        output::or_log(behind::leave_terminal(args.daemon, log.as_ref()));
        if let Some(log) = log {
            tokio::task::spawn_local(log.keep_short());
        }
        let mut end = loop {
            tokio::select! {
                Some(mut end) = ends.recv() => {
                    let left =
                        all_leave(machines.as_ref(), &mut site, &control, end.force, &mut stop);
                    match left.await {
                        Ok(()) => break Some(end),
                        Err(why) => end.to.tell_last(&Told::Refused(why)).await,
                    }
                }
                () = stop.asked() => {
                    control.ends_now(true);
                    if let Some(machines) = &machines {
                        machines.lose().await;
                    }
                    site.leave(&mut stop).await;
                    break None;
                }
                ended = &mut site.ended => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the mount of the region has ended");
                    }
                    control.ends_now(true);
                    if let Some(machines) = &machines {
                        machines.lose().await;
                    }
                    site.lose("it was unmounted").await;
                    break None;
                }
            }
        };
        // For machines that have not left, and programs beside the mount: what would be answered from
        // now on would not be committed.
        region.close();
        // Another wish that the region ends is answered: it does.
        ends.close();
        while let Ok(mut other) = ends.try_recv() {
            other.to.tell_last(&Told::Refused("the region ends already".to_owned())).await;
        }
        let ending = end.as_ref().map_or(&ending, |End { ending, .. }| ending).clone();
        let outcome = {
            let mut ended = Box::pin(ending::end(&region, &ending, &mut stop, |_| ()));
            match &mut end {
                Some(End { to, .. }) => tokio::select! {
                    outcome = &mut ended => outcome,
                    () = to.follow(&site.kept) => unreachable!("it goes on for ever"),
                },
                None => ended.await,
            }
        };
        // Before anybody is told: the directory may be a region again at once.
        drop((control, site, machines, library, lock));
        if let Some(End { to, .. }) = &mut end {
            to.tell_last(&match &outcome {
                Ok(outcome) => Told::Ended(outcome.clone()),
                Err(error) => Told::Refused(format!("{error:#}")),
            })
            .await;
        }
        let went_well = outcome?.report(args.report);
        Ok(if went_well { ExitCode::SUCCESS } else { failure::failed() })
    })
}

/// Has other machines leave, and takes the mount away here, unless programs use the region that may
/// not lose it.
async fn all_leave(
    machines: Option<&Machines>,
    site: &mut Site,
    control: &Control,
    force: Force,
    stop: &mut Stop,
) -> Result<(), String> {
    let Some(machines) = machines else { return leave(site, control, force, stop).await };
    if force == Force::Yes {
        machines.lose().await;
        return leave(site, control, force, stop).await;
    }
    // Before any other machine has left; and none enters meanwhile.
    control.ends_now(true);
    let left = match control.why_busy() {
        Some(why) => Err(why),
        None => tokio::select! {
            left = machines.leave() => left,
            () = stop.asked() => {
                machines.lose().await;
                return leave(site, control, Force::Yes, stop).await;
            }
        },
    };
    let left = match left {
        Ok(()) => leave(site, control, force, stop).await,
        Err(why) => Err(why),
    };
    if left.is_err() {
        control.ends_now(false);
        machines.goes_on();
    }
    left
}

/// Takes the mount away, unless programs use it that may not lose it.
pub(super) async fn leave(
    site: &mut Site,
    control: &Control,
    force: Force,
    stop: &mut Stop,
) -> Result<(), String> {
    // From here on none enters that would be missed in the count.
    control.ends_now(true);
    if force == Force::Yes {
        site.leave(stop).await;
        return Ok(());
    }
    let left = if let Some(why) = control.why_busy() {
        Err(why)
    } else {
        match mount::unmount(&site.dir, Unmount::WhenIdle).await {
            Ok(()) => Ok(()),
            Err(Error::Busy { .. }) => {
                Err("programs use the region: files of it are open, or folders in use".to_owned())
            }
            Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
        }
    };
    match left {
        Ok(()) => {
            site.ends_itself(stop).await;
            Ok(())
        }
        Err(why) => {
            control.ends_now(false);
            Err(why)
        }
    }
}
