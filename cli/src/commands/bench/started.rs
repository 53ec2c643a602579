//! Processes of this program that stay: servers and mounts beside which something is measured.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};

pub(crate) use crate::children::SERVING;

/// Beginning of the line in which a mount says that it works.
pub(crate) const MOUNTED: &str = "mounted at ";

/// Starts a process that stays, in a group of its own, and waits until it has said a line that
/// begins with `ready`.
pub(crate) fn started(command: &mut Command, ready: &str) -> anyhow::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut process = command.spawn().context("cannot start this program")?;
    let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.starts_with(ready) {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            process.wait()?;
            bail!("a process ended before it was ready");
        }
    }
    Ok(process)
}
