//! `pando mount`: put a file system into the tree of this machine.

use std::{
    path::{self, Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use bench::Delayed;
use client::Tasks;
use tokio::task::LocalSet;
use wire::Squash;

use crate::{
    behind,
    connect::{self, Servers, TokenArgs},
    mount_log::MountLog,
    mounting, notify, output,
    signals::Stop,
    trace::TraceArgs,
};

/// The beginning of the line that says that the mount works.
const READY: &str = "mounted at ";

/// Mount a file system.
///
/// Returns once the mount works, and leaves a process behind that serves it until `pando umount`,
/// SIGINT or SIGTERM. Programs on the mount wait while no server answers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Servers of the file system.
    #[arg(value_name = "HOST:PORT[,HOST:PORT...]", value_parser = connect::servers)]
    servers: Servers,
    /// A directory, whose own files are hidden by the mount.
    mountpoint: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    options: MountArgs,
    /// Serve the mount in this process.
    #[arg(long)]
    foreground: bool,
    /// Print nothing when the mount works.
    #[arg(short, long)]
    quiet: bool,
    /// Once the mount works, append the log to this file, or to none with `none` [default: stderr
    /// with --foreground, else /var/log/pando/MOUNTPOINT.log with - for /, or for users
    /// ~/.local/state/pando/MOUNTPOINT.log].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceArgs,
    /// Add a round trip to the connections to the servers, as of a network between them: for
    /// measurements.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = crate::values::rtt)]
    rtt: Duration,
    /// This is the process that is left behind.
    #[arg(long, hide = true)]
    daemon: bool,
}

/// Help of `-o`: a list, which the doc comment of an option cannot have.
const OPTIONS_HELP: &str = "\
Mount options, separated by commas:
  ro                    refuse changes
  allow_other           let other users in
  dev, suid             let devices be opened; let set-id bits have effect
  noexec                let no program be executed
  subdir=/PATH          mount only this directory
  attr_timeout=S        attributes may be out of date by this many seconds [default: 1]
  entry_timeout=S       names may be out of date by this many seconds [default: 1]
  io_uring=auto|on|off  take requests from the kernel over io_uring, with a thread for each CPU:
                        where it allows that, or fail without it (root turns it on), or never
                        [default: auto]
  relatime              reads set access times now and then (the default)
  noatime, strictatime  reads set access times never, or always
  sync                  answer a request once it is on stable storage
  dirsync               the same for changes of names
  delegations=on|off    change directories that this mount makes or works in without asking the
                        server first, unless another client asks for them [default: on]
  context=LABEL, ...    labels for SELinux
rw, nodev, nosuid, exec and async undo options before them. Options for mount(8) and systemd
(_netdev, nofail, noauto, user, x-...) have no effect here.";

/// Options of a mount, for `mount` and `up`.
#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// Mount options, separated by commas.
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = options, long_help = OPTIONS_HELP)]
    options: Vec<String>,
}

fn options(text: &str) -> Result<String, String> {
    mount::Options::default().set(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

impl Args {
    /// Whether this process writes a trace: the one that serves the mount does.
    pub(crate) fn trace(&self) -> Option<&TraceArgs> {
        (self.foreground || self.daemon).then_some(&self.trace)
    }
}

impl MountArgs {
    /// The options as given, on top of `options`.
    pub(crate) fn on_top_of(&self, mut options: mount::Options) -> anyhow::Result<mount::Options> {
        for list in &self.options {
            options.set(list)?;
        }
        Ok(options)
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.foreground || args.daemon {
        return serve(args);
    }
    behind::leave(&format!("the mount at {}", args.mountpoint.display()), READY, args.quiet)
}

/// Serves the mount until its end.
fn serve(args: Args) -> anyhow::Result<ExitCode> {
    if args.daemon {
        behind::begin_session()?;
    }
    let mountpoint = path::absolute(&args.mountpoint)?;
    let log = MountLog::open(args.log.as_deref(), &mountpoint, args.daemon)?;
    let purpose = format!("mounted at {}", mountpoint.display());
    let mut config = connect::config(args.servers.0.clone(), args.token.read()?, &purpose);
    let ids = connect::ids(&config.token);
    // The servers look at each caller of a token that squashes or maps.
    config.kernel_checks = ids.is_none();
    config.dial = Arc::new(Delayed::new(config.dial, args.rtt));
    let only = connect::only_user(&config.token);
    // The name is as given: by it mount(8) finds an existing mount, and umount(8) the mount to end.
    let fsname = args.servers.0.join(",");
    let kernel_checks = ids.is_none_or(|ids| ids.squash != Squash::All);
    let options = mount::Options { fsname, kernel_checks, ..mount::Options::default() };
    let options = args.options.on_top_of(options)?;
    config.access_times = options.access_times;
    let turns = mounting::turns(&options);
    config.tasks = if turns.are_taken() { Tasks::InTurns(turns.clone()) } else { Tasks::Local };
    let users = only.map_or_else(String::new, |only| users(only.uid, options.allow_other));
    crate::system::raise_open_files();

    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        mounting::clear_dead(&mountpoint).await?;
        let client = tokio::select! {
            client = connect::connect(config) => client?,
            () = stop.asked() => bail!("interrupted"),
        };
        let mounting = mounting::start(client, &mountpoint, &options, &turns).await?;
        // The process that left this one behind waits for the line.
        if args.daemon || !args.quiet {
            output::print(&(ready(&mountpoint) + &users))?;
        }
        notify::ready();
        behind::leave_terminal(args.daemon, log.as_ref())?;
        if let Some(log) = log {
            tokio::task::spawn_local(log.keep_short());
        }
        mounting.serve(&mut stop, std::future::pending()).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The line that says that a mount works.
pub(crate) fn ready(mountpoint: &Path) -> String {
    format!("{READY}{}", mountpoint.display())
}

/// Says which user can use a mount whose token lets only one user act. The kernel lets other users
/// in only if it was told to.
fn users(only: u32, allow_other: bool) -> String {
    let me = rustix::process::geteuid().as_raw();
    if allow_other || only == me {
        return format!(", only user {only} can use it");
    }
    format!(
        ", nobody can use it: the token is user {only}'s, and without -o allow_other only user {me} gets in"
    )
}
