//! Processes that a command leaves behind: each is the command again, with `--daemon`, in a session
//! of its own, and with its log in a file.

use std::{
    fs::OpenOptions,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::OwnedFd,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, bail};

use crate::{failure, mount_log::MountLog, output};

/// Starts the process that will serve, and waits until it prints a line that begins with `ready`, or
/// has failed. `what` names it.
pub(crate) fn leave(what: &str, ready: &str, quiet: bool) -> anyhow::Result<ExitCode> {
    let (said, say) = std::io::pipe()?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    // With our own arguments: what they mean does not depend on the process. What comes after `--`
    // is no option.
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let options = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    command.args(&args[..options]).arg("--daemon").args(&args[options..]);
    command.stdin(Stdio::null()).stdout(say.try_clone()?).stderr(say);
    let mut child =
        command.spawn().with_context(|| format!("cannot start the process of {what}"))?;
    // The command holds our end of the pipe.
    drop(command);
    let mut works = false;
    for line in BufReader::new(said).lines() {
        let line = line?;
        works |= line.starts_with(ready);
        if line.starts_with(ready) {
            if !quiet {
                output::print(&line)?;
            }
        } else {
            // This is the log, and the error. Without stderr there is no place for it.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
    if works {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    if status.code().is_none() {
        bail!("the process of {what} was killed");
    }
    Ok(failure::failed())
}

/// Begins a session of its own, which no terminal ends.
pub(crate) fn begin_session() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot begin a session")?;
    Ok(())
}

/// Sends stderr to the log, if there is one. A daemon also lets go of the output and the folder of
/// the process that started it.
pub(crate) fn leave_terminal(daemon: bool, log: Option<&MountLog>) -> anyhow::Result<()> {
    let null = || OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    if let Some(log) = log {
        log.take_stderr()?;
    } else if daemon {
        rustix::stdio::dup2_stderr(null()?)?;
    }
    if daemon {
        rustix::stdio::dup2_stdout(null()?)?;
        std::env::set_current_dir("/")?;
    }
    Ok(())
}
