//! `pando up`: a whole file system in one process, for one machine.

use std::{
    fs,
    path::{self, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use client::{Tasks, Turns};
use tokio::task::LocalSet;
use wire::Token;

use super::{
    format, mount,
    serve::{self, ServeArgs},
};
use crate::{
    connect::{self, Credentials},
    data::{self, DataDir},
    failure::usage,
    mounting, output,
    server::{self, Running},
    signals::Stop,
    trace::TraceArgs,
};

/// Serve the file system in a data directory and mount it, until SIGINT, SIGTERM or `pando umount`.
///
/// A missing or empty directory is formatted first, with the defaults of `pando format`. A missing
/// mount point is created, and a mount that a crash left there is removed. If the port is taken and
/// was not given, a free one is used: the addresses are printed, and written to DIR/address, a line
/// each.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The mount point. A mount by root lets all users in.
    #[arg(long, value_name = "MOUNTPOINT")]
    mount: PathBuf,
    #[command(flatten)]
    options: mount::MountArgs,
    #[command(flatten)]
    serve: ServeArgs,
}

impl Args {
    /// Whether to write a trace.
    pub(crate) fn trace(&self) -> &TraceArgs {
        self.serve.trace()
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        let mountpoint = path::absolute(&args.mount)?;
        mounting::clear_dead(&mountpoint).await?;
        fs::create_dir_all(&mountpoint)
            .with_context(|| format!("cannot make {}", mountpoint.display()))?;
        if !data::is_formatted(&args.data) {
            format::by_default(&args.data)?;
        }
        let data = DataDir::open(&args.data)?;
        if let Some(server) = data.server() {
            return Err(usage(format!(
                "{} is that of server {server} of a cluster: `pando up` serves a file system of one server; \
                 `pando serve` serves this",
                data.path().display()
            )));
        }
        let kept = args.serve.kept(&args.data)?;
        let running = server::start(data, &args.serve.options(&kept, true))?;
        let served = serve_mount(args, &mountpoint, &running, &mut stop).await;
        let stopped = running.stop();
        served.and(stopped)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts what `running` serves; returns when both should end.
async fn serve_mount(
    args: &Args,
    mountpoint: &path::Path,
    running: &Running,
    stop: &mut Stop,
) -> anyhow::Result<()> {
    let options = args.options.on_top_of(::mount::Options {
        allow_other: rustix::process::geteuid().is_root(),
        fsname: running.address().to_string(),
        ..::mount::Options::default()
    })?;
    let token = Token::administrator().sign(&data::signing_key(&args.data)?);
    let purpose = format!("mounted at {}", mountpoint.display());
    let mut config =
        connect::config(vec![running.address().to_string()], Credentials::of(token), &purpose);
    config.access_times = options.access_times;
    config.kernel_checks = true;
    config.tasks = Tasks::Local;
    config.blocks = Some(running.blocks());
    if let Some(near) = running.near() {
        config.dial = Arc::new(near);
    }
    let client = connect::connect(config).await?;
    // The server in this process is on this thread, too.
    let mounting = mounting::start(client, mountpoint, &options, &Turns::default()).await?;
    serve::announce(running)?;
    output::print(&mount::ready(mountpoint))?;
    mounting.serve(stop, running.failed()).await
}
