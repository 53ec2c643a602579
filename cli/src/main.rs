//! `pando`: the one program.
//!
//! Each subcommand is a file of `commands`; this file reads the command line, and turns what a
//! subcommand returns into an exit code. What several subcommands need stands beside it: the data
//! directory ([`data`]), a server's threads ([`server`]) and its status page ([`http`]).
//!
//! Exit codes: 0 it worked, 1 it did not, 2 the command line is wrong. An error is one line on
//! stderr, with its causes.

mod accept;
mod admission;
mod audit;
mod backups;
mod balancing;
mod behind;
mod block_trial;
mod certificates;
mod children;
mod commands;
mod connect;
mod data;
mod failure;
mod http;
mod journal;
mod logging;
mod memory;
mod mount_log;
mod mount_process;
mod mounting;
mod mounts;
mod near;
mod notify;
mod observed;
mod output;
mod panics;
mod people;
mod server;
mod serving;
mod signals;
mod standby;
mod system;
mod terminal;
mod trace;
mod values;

use std::process::ExitCode;

use clap::Parser as _;

use crate::commands::{Cli, mount_helper};

fn main() -> ExitCode {
    panics::report_in_one_line();
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(helper) = mount_helper::helper(&program) {
        return mount_helper::run(helper).unwrap_or_else(|error| failure::report(&error));
    }
    let cli = Cli::parse();
    let started = logging::start(&cli.log_level, cli.log_format, cli.command.trace());
    // The trace ends when all is done.
    let ended = started.and_then(|trace| {
        let ended = cli.command.run();
        drop(trace);
        ended
    });
    match ended {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
