//! The subcommands, one file each.

mod backup;
mod bench;
mod cluster;
mod completions;
mod csi;
mod dev;
mod du;
mod dump;
mod everywhere;
mod format;
mod fsck;
mod info;
mod inode;
mod journal;
mod keys;
mod load;
mod locks;
mod man;
mod mount;
pub(crate) mod mount_helper;
mod opens;
mod place;
mod profile;
mod quota;
mod region;
mod restore;
mod s3;
mod serve;
mod server;
mod sessions;
mod settings;
mod status;
mod token;
mod top;
mod trash;
mod umount;
mod up;
mod version;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{logging::LogFormat, trace::TraceArgs};

/// Where the help of each command shows options that all have: at its end.
const GLOBAL: &str = "Options of every command";

/// Pando: a metadata service for distributed file systems.
#[derive(Debug, Parser)]
#[command(name = "pando", version, propagate_version = false, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 it worked, 1 it did not, 2 the command line is wrong.")]
pub(crate) struct Cli {
    /// Level of the log on stderr: error, warn, info, debug or trace, or pairs such as meta=debug.
    #[arg(
        long, global = true, env = "PANDO_LOG", default_value = "warn", value_name = "LEVEL",
        help_heading = GLOBAL
    )]
    pub(crate) log_level: String,
    /// Format of the log on stderr.
    #[arg(
        long, global = true, env = "PANDO_LOG_FORMAT", value_enum,
        default_value_t = LogFormat::Text, help_heading = GLOBAL
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Format(format::Args),
    Serve(serve::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    S3(s3::Args),
    Csi(csi::Args),
    Region(region::Args),
    Up(up::Args),
    Dev(dev::Args),
    Token(token::Args),
    Keys(keys::Args),
    Server(server::Args),
    Status(status::Args),
    Top(top::Args),
    Profile(profile::Args),
    Sessions(sessions::Args),
    Opens(opens::Args),
    Locks(locks::Args),
    Watch(watch::Args),
    Info(info::Args),
    Du(du::Args),
    Quota(quota::Args),
    Set(settings::Set),
    Get(settings::Get),
    Fsck(fsck::Args),
    Dump(dump::Args),
    Load(load::Args),
    Backup(backup::Args),
    Journal(journal::Args),
    Restore(restore::Args),
    Bench(bench::Args),
    Version(version::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Whether to write a trace.
    pub(crate) fn trace(&self) -> Option<&TraceArgs> {
        if let Command::Serve(args) = self {
            Some(args.trace())
        } else if let Command::Up(args) = self {
            Some(args.trace())
        } else if let Command::Mount(args) = self {
            args.trace()
        } else {
            None
        }
    }

    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Format(args) => format::run(&args),
            Command::Serve(args) => serve::run(&args),
            Command::Mount(args) => mount::run(args),
            Command::Umount(args) => umount::run(&args),
            Command::S3(args) => s3::run(args),
            Command::Csi(args) => csi::run(args),
            Command::Region(args) => args.run(),
            Command::Up(args) => up::run(&args),
            Command::Dev(args) => dev::run(&args),
            Command::Token(args) => token::run(args),
            Command::Keys(args) => keys::run(args),
            Command::Server(args) => server::run(args),
            Command::Status(args) => status::run(args),
            Command::Top(args) => top::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Sessions(args) => sessions::run(args),
            Command::Opens(args) => opens::run(args),
            Command::Locks(args) => locks::run(args),
            Command::Watch(args) => watch::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Du(args) => du::run(&args),
            Command::Quota(args) => quota::run(args),
            Command::Set(args) => settings::set(&args),
            Command::Get(args) => settings::get(&args),
            Command::Fsck(args) => fsck::run(args),
            Command::Dump(args) => dump::run(args),
            Command::Load(args) => load::run(&args),
            Command::Backup(args) => backup::run(&args),
            Command::Journal(args) => journal::run(&args),
            Command::Restore(args) => restore::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Version(args) => version::run(&args),
            Command::Completions(args) => completions::run(&args),
            Command::Man(args) => man::run(&args),
        }
    }
}
