//! `pando region run`: start a region, run a program in it, and commit everything at its end.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::LocalSet;

use super::{
    control::{Control, OnEnd, Whose},
    ending::{self, EndingArgs, ReportArgs},
    library::{self, Preloaded},
    nodes::NodesArgs,
    site::{Begun, SiteArgs},
};
use crate::{connect, failure, signals::Stop};

/// Run a program in a consistent region, and commit what it changed.
///
/// The program, and what it starts, see DIR as a file system in the memory of this machine:
/// creates, writes, removals and renames there are answered before the file system of DIR has them,
/// which gets each path as it is some moments later. Others see the changes late. When the program
/// has ended, everything is committed and compared; then the command ends with the program's exit
/// code, or with 1 if something could not be committed, which it names.
///
/// If this process is killed, changes of which the program has not waited for an fsync may be lost.
/// Run by root, only the program sees the region; run by others, all processes of the user do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    site: SiteArgs,
    #[command(flatten)]
    nodes: NodesArgs,
    /// The program, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
    #[command(flatten)]
    ending: EndingArgs,
    #[command(flatten)]
    report: ReportArgs,
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    let work_dir = std::env::current_dir().ok();
    let nodes = args.nodes.nodes()?;
    if !nodes.are_none() {
        args.site.listens();
    }
    let dir = args.site.dir()?;
    let ending = args.ending.ending(&dir)?;
    let mut taken = args.site.take(dir)?;
    let socket = taken.place.socket.take();
    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?.hangup_too()?;
        let begun = Box::pin(taken.start()).await?;
        let Begun { region, mut site, machines, library, lock: _lock } = begun;
        let lead = machines.as_ref().map(|machines| machines.lead.clone());
        let listening = socket.map(|socket| {
            let whose = Whose::Ours(lead);
            Control::listen(socket, &site, whose, library.as_ref(), OnEnd::WithItsProgram)
        });
        let control = listening.transpose().unwrap_or_else(|error| {
            let error = format!("{error:#}");
            tracing::warn!(error, "other commands cannot reach the region");
            None
        });
        let (started, joined) = nodes.start(&site.dir, &mut stop).await;
        let ran = match joined {
            Ok(()) => {
                let given = library.as_ref().map(|library| (&library.preloaded, site.device));
                program(&args.program, work_dir.as_deref(), given, &mut stop).await
            }
            Err(error) => Err(error),
        };
        if let Some(machines) = &machines {
            let left = tokio::select! {
                left = machines.leave() => left,
                () = stop.asked() => Err("interrupted".to_owned()),
            };
            if let Err(why) = left {
                tracing::warn!(why, "machines lose the region, which ends with its program");
                machines.lose().await;
            }
        }
        started.end().await;
        if let Some((control, _)) = &control {
            control.ends_now(true);
        }
        site.leave(&mut stop).await;
        if let Some(machines) = &machines {
            machines.lead.ends(true);
        }
        // Changes of other machines, and of programs beside the mount, would not be committed from
        // now on.
        region.close();
        let bar = ending::bar();
        let told = |progress: &_| bar.set_message(ending::message(progress));
        let outcome = Box::pin(ending::end(&region, &ending, &mut stop, told)).await;
        bar.finish_and_clear();
        // Not before: what is under way there must come to its end.
        drop((control, library));
        // A program that did not run is the first thing to tell; others may have changed the region.
        let (status, outcome) = match (ran, outcome) {
            (Ok(status), outcome) => (status, outcome?),
            (Err(error), outcome) => {
                drop(outcome.map(|outcome| outcome.report(args.report)));
                return Err(error);
            }
        };
        let went_well = outcome.report(args.report);
        Ok(if went_well || !status.success() { exit_code(status) } else { failure::failed() })
    })
}

/// Runs the program in the region, and returns how it ended.
async fn program(
    words: &[OsString],
    work_dir: Option<&Path>,
    library: Option<(&Preloaded, u64)>,
    stop: &mut Stop,
) -> anyhow::Result<ExitStatus> {
    let (name, args) = words.split_first().expect("clap asks for one");
    let mut command = Command::new(name);
    command.args(args);
    if let Some(work_dir) = work_dir {
        // The same path, which may lead into the region by now.
        command.current_dir(work_dir);
        command.env("PWD", work_dir);
    }
    match library {
        Some((preloaded, device)) => preloaded.give(&mut command, device),
        None => library::take_away(&mut command),
    }
    let name = name.clone();
    let shown = || format!("cannot run {}", Path::new(&name).display());
    // Before the program begins, its process looks up its folder and itself, perhaps in the region:
    // so this thread must go on with serving it.
    let spawned = tokio::task::spawn_blocking(move || command.spawn()).await?;
    let mut child = spawned.with_context(shown)?;
    let pid = Pid::from_child(&child);
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    loop {
        tokio::select! {
            status = &mut ended => return status?.with_context(shown),
            // Ctrl-C reaches the program by itself; being told to end reaches only us. It may have
            // ended just now.
            () = stop.asked() => drop(kill_process(pid, Signal::TERM)),
        }
    }
}

/// The program's own exit code, as a shell has it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
