//! `pando region status`, `flush` and `end`: questions to a region that is there.

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;

use super::{
    control::{self, Asked, Connection, Force, OTHER_VERSION, Standing, Told},
    ending::{self, EndingArgs, Outcome, ReportArgs},
    site,
};
use crate::{failure, output};

/// Show how far regions are.
///
/// Shows what is not committed yet, and what the file system below refuses, of the region on DIR, or
/// of all regions of this user.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// The region's directory.
    dir: Option<PathBuf>,
    /// Print JSON: a line for each region.
    #[arg(long)]
    json: bool,
}

/// Have everything committed that was changed until now.
///
/// Returns when the file system of DIR has it on stable storage. Programs go on meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Flush {
    /// The region's directory.
    dir: PathBuf,
}

/// End a region that `pando region up` has begun, or leave one that this machine has joined.
///
/// Commits everything and compares it, and ends the region's process. Ends with 1 if something could
/// not be committed, or differs, which it names. A region in which programs run stays. An end that
/// was begun goes on when this command is interrupted. Other machines that have joined the region
/// leave first. On a machine that has joined, this machine leaves, and the region goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct End {
    /// The region's directory.
    dir: PathBuf,
    #[command(flatten)]
    ending: EndingArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// End it also while programs use it: they lose it.
    #[arg(long)]
    force: bool,
}

pub(crate) fn status(args: &Status) -> anyhow::Result<ExitCode> {
    let told = match &args.dir {
        Some(dir) => vec![standing(control::ask(&site::known_as(dir)?, &Asked::Status)?)?],
        None => {
            let mut all = Vec::new();
            for socket in control::sockets()? {
                // One that has ended since is none.
                let Some(there) = control::ask_at(&socket, &Asked::Status)? else { continue };
                there.is_asked_shortly()?;
                match standing(there) {
                    Ok(standing) => all.push(standing),
                    Err(error) => ending::warn(&format!("{}: {error:#}", socket.display())),
                }
            }
            all.sort_by(|one, other| one.dir.cmp(&other.dir));
            all
        }
    };
    for standing in &told {
        if args.json {
            output::print(&serde_json::to_string(standing)?)?;
        } else {
            output::print(&shown(standing))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn standing(mut connection: Connection) -> anyhow::Result<Standing> {
    match connection.next()? {
        Told::Status(standing) => Ok(*standing),
        _ => bail!(OTHER_VERSION),
    }
}

fn shown(standing: &Standing) -> String {
    let Standing {
        dir,
        pid,
        lead,
        machines,
        programs,
        processes,
        memory,
        dirty,
        refused,
        trouble,
        ..
    } = standing;
    let lead = lead.as_ref().map_or_else(String::new, |lead| format!(", kept at {lead}"));
    let machines = if machines.is_empty() {
        String::new()
    } else {
        format!("  other machines: {}\n", machines.join(", "))
    };
    let memory = output::bytes(u64::try_from(*memory).unwrap_or(u64::MAX));
    let trouble = trouble.as_ref().map_or_else(String::new, |why| format!(": {why}; trying again"));
    let library = match processes {
        0 => String::new(),
        some => format!(", processes with the library: {some}"),
    };
    format!(
        "{}: process {pid}{lead}, programs entered: {programs}{library}, {memory}\n{machines}  \
         {dirty} paths to commit, {refused} refused{trouble}\n  \
         {} changes: {} committed in {} calls, {} superseded; {} look-ups below\n",
        dir,
        standing.acknowledged,
        standing.committed,
        standing.commits,
        standing.superseded,
        standing.loads,
    )
}

pub(crate) fn flush(args: &Flush) -> anyhow::Result<ExitCode> {
    let mut connection = control::ask(&site::known_as(&args.dir)?, &Asked::Flush)?;
    match last(&mut connection)? {
        Told::Flushed => Ok(ExitCode::SUCCESS),
        _ => bail!(OTHER_VERSION),
    }
}

pub(crate) fn end(args: &End) -> anyhow::Result<ExitCode> {
    let dir = site::known_as(&args.dir)?;
    let ending = args.ending.ending(&dir)?;
    let force = if args.force { Force::Yes } else { Force::No };
    let mut connection = control::ask(&dir, &Asked::End(ending, force))?;
    let outcome: Outcome = match last(&mut connection)? {
        Told::Ended(outcome) => outcome,
        Told::Left(lead) => {
            output::print(&format!(
                "this machine has left the region at {}, which goes on at {lead}",
                dir.display()
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => bail!(OTHER_VERSION),
    };
    Ok(if outcome.report(args.report) { ExitCode::SUCCESS } else { failure::failed() })
}

/// The last line of an answer; shows how far it is until then.
fn last(connection: &mut Connection) -> anyhow::Result<Told> {
    let bar = ending::bar();
    let last = loop {
        match connection.next() {
            Ok(Told::Progress(text)) => bar.set_message(text),
            last => break last,
        }
    };
    bar.finish_and_clear();
    last
}
