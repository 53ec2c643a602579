//! `pando region join`: use the region of another machine.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use region::{Front, Note, Wish};
use tokio::task::LocalSet;

use super::{
    control::{Control, Force, OnEnd, Told, Whose},
    machines,
    site::{Kept, PlaceArgs, Seen, Site},
    up,
};
use crate::{behind, connect, failure, mount_log::MountLog, notify, output, signals::Stop};

/// Join the region that another machine has on DIR.
///
/// DIR must be the same directory here as there, as on a shared file system: the region's address
/// and secret are in a file of it that only its user can read. Programs of this machine that `pando
/// region exec` runs see the region as those of the other one do; each operation is a message to
/// that machine. Returns once the region works here, and leaves a process behind, which ends with
/// `pando region end DIR` here or there, on SIGINT, SIGTERM and SIGHUP, and when DIR is unmounted.
/// If the other machine is lost, programs here lose the region.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
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

/// The cause of the end on this machine.
enum Over {
    /// The wish of somebody that it leaves.
    Left,
    /// The lead is gone.
    Lost,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.foreground || args.daemon {
        return serve(args);
    }
    behind::leave(&format!("the region at {}", args.place.dir()?.display()), up::READY, false)
}

fn serve(args: Args) -> anyhow::Result<ExitCode> {
    if args.daemon {
        behind::begin_session()?;
    }
    let dir = args.place.dir()?;
    let log = MountLog::open(args.log.as_deref(), &dir, args.daemon)?;
    let note = Note::read(&dir)?.with_context(|| {
        format!(
            "{} is no region of this user that others may join: begin it with `pando region up \
             {} --listen HOST:PORT`",
            dir.display(),
            dir.display()
        )
    })?;
    let mut place = args.place.take(dir, Seen::Elsewhere)?;
    let socket = place.socket.take().context("a region that stays must be reached to be ended")?;
    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?.hangup_too()?;
        let (front, carry) = machines::join(&note).await?;
        let mut carried = tokio::spawn(carry);
        let kept = Kept::Elsewhere(front.clone());
        let mut site = Box::pin(place.mount(front.clone(), kept)).await?;
        let whose = Whose::Of(note.lead.clone());
        let (control, mut ends) = match Control::listen(socket, &site, whose, None, OnEnd::Asked) {
            Ok(listening) => listening,
            Err(error) => {
                site.leave(&mut stop).await;
                return Err(error);
            }
        };
        // Somebody who has started this and has gone needs no line.
        output::or_log(output::print(&format!("{}{}", up::READY, site.dir.display())));
        notify::ready();
        output::or_log(behind::leave_terminal(args.daemon, log.as_ref()));
        if let Some(log) = log {
            tokio::task::spawn_local(log.keep_short());
        }
        let over = loop {
            tokio::select! {
                Some(mut end) = ends.recv() => {
                    match up::leave(&mut site, &control, end.force, &mut stop).await {
                        Ok(()) => {
                            front.close();
                            end.to.tell_last(&Told::Left(note.lead.clone())).await;
                            break Over::Left;
                        }
                        Err(why) => end.to.tell_last(&Told::Refused(why)).await,
                    }
                }
                wish = front.wish() => {
                    if leaves(&front, &mut site, &control, wish, &mut stop).await {
                        break Over::Left;
                    }
                }
                () = stop.asked() => {
                    control.ends_now(true);
                    site.leave(&mut stop).await;
                    break Over::Left;
                }
                ended = &mut site.ended => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the mount of the region has ended");
                    }
                    control.ends_now(true);
                    site.lose("it was unmounted").await;
                    break Over::Left;
                }
                _ = &mut carried => {
                    control.ends_now(true);
                    site.lose("its lead is gone").await;
                    break Over::Lost;
                }
            }
        };
        front.close();
        match over {
            Over::Left => {
                // The lead hears of it by the end of the connection.
                drop(carried.await);
                Ok(ExitCode::SUCCESS)
            }
            Over::Lost => {
                let lead = &note.lead;
                tracing::error!(lead, "the connection to the region's machine has ended");
                Ok(failure::failed())
            }
        }
    })
}

/// Leaves if the lead wants it, unless programs use the region: then it is told so.
async fn leaves(
    front: &Front,
    site: &mut Site,
    control: &Control,
    wish: Wish,
    stop: &mut Stop,
) -> bool {
    let left = match wish {
        Wish::Ask => {
            front.answer(wish, control.why_busy());
            return false;
        }
        Wish::Leave => up::leave(site, control, Force::No, stop).await,
        Wish::Must => up::leave(site, control, Force::Yes, stop).await,
    };
    match left {
        Ok(()) => true,
        Err(why) => {
            front.answer(wish, Some(why));
            false
        }
    }
}
