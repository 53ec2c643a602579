//! `pando csi`: volumes for Kubernetes.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ::csi::{FarKeeper, Mounter, Plugin, PluginOptions, Roles};
use anyhow::{Context as _, bail};
use tokio::net::UnixListener;

use crate::{
    connect::{self, Servers, TokenArgs},
    mount_process::MountProcesses,
    output,
    signals::Stop,
};

/// Serve volumes to Kubernetes, until SIGINT or SIGTERM.
///
/// The plugin speaks the Container Storage Interface. A volume is a directory in --root with a
/// quota; a node mounts it with a token that is good for that directory alone. One plugin serves
/// the controller of a cluster, with --controller, and one each node, with --node-only. Without
/// either it does both. The token must be an administrator's.
///
/// Mounts have processes of their own, which go on when the plugin ends. In a container they would
/// end with it: there, have them started by a keeper in another one, which --keeper-only makes.
///
/// Once the plugin listens, it prints its address.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The socket: a file that is replaced when no process listens at it.
    #[arg(long, value_name = "unix:///PATH", value_parser = socket)]
    endpoint: PathBuf,
    /// The servers of the file system.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT...]", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// The name of this node in Kubernetes [default: the host's name].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Serve the controller alone: make and remove volumes.
    #[arg(long, conflicts_with_all = ["node_only", "keeper_only"])]
    controller: bool,
    /// Serve a node alone: mount volumes.
    #[arg(long, conflicts_with = "keeper_only")]
    node_only: bool,
    /// Serve node plugins that have their mounts started here, and nothing else. No token is
    /// needed.
    #[arg(long)]
    keeper_only: bool,
    /// Have mounts started by the keeper at this socket.
    #[arg(long, value_name = "unix:///PATH", value_parser = socket, conflicts_with = "keeper_only")]
    keeper: Option<PathBuf>,
    /// The directory that has the volumes. A missing one is made, for root alone.
    #[arg(long, value_name = "PATH", default_value = "/volumes")]
    root: String,
    /// Folder with the records of mounts, by which they are found after a restart of the plugin. A
    /// start of the machine should empty the folder, as /run is. Each start on a node makes it
    /// root's alone.
    #[arg(long, value_name = "DIR", default_value = "/run/pando-csi")]
    state: PathBuf,
    /// The name of the driver, as StorageClasses have it.
    #[arg(long, value_name = "NAME", default_value = "csi.pando.dev")]
    driver: String,
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.starts_with('/') { Ok(path.into()) } else { Err("is not unix:///PATH".to_owned()) }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(Box::pin(serve(args)))?;
    // A thread may wait for a mount that does not answer.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let here = MountProcesses::new(&args.server, args.token.tls(), &args.state);
    if !args.controller {
        let context = || format!("cannot use {}", args.state.display());
        here.own().with_context(context)?;
    }
    // With a keeper it is the keeper that hands tokens over.
    if args.keeper.is_none() {
        here.clear();
    }
    let here: Arc<dyn Mounter> = Arc::new(here);
    if args.keeper_only {
        let listener = listen(&args.endpoint)?;
        output::print(&format!("serving mounts at {}", args.endpoint.display()))?;
        ::csi::serve_keeper(listener, here, stop.asked()).await?;
        return leave(&args.endpoint);
    }
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando csi");
    let mounter = match &args.keeper {
        Some(socket) => Arc::new(FarKeeper::new(socket, here)),
        None => here,
    };
    let options = PluginOptions {
        driver: args.driver,
        node: args.node.unwrap_or_else(crate::system::host_name),
        root: args.root,
        records: args.state,
        roles: Roles { controller: !args.node_only, node: !args.controller },
    };
    let plugin = Plugin::new(options, config, mounter)
        .map_err(|error| crate::failure::usage(format!("--root: {error}")))?;
    let listener = listen(&args.endpoint)?;
    output::print(&format!("serving csi at {}", args.endpoint.display()))?;
    ::csi::serve(listener, Arc::new(plugin), stop.asked()).await?;
    leave(&args.endpoint)
}

/// Listens at a socket for root alone, in place of one that nobody listens at any more.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let context = || format!("cannot listen at {}", path.display());
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(context)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(context),
        Ok(found) if !found.file_type().is_socket() => {
            bail!("{} is there, and no socket", path.display());
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            bail!("another process listens at {}", path.display());
        }
        Ok(_) => fs::remove_file(path).with_context(context)?,
    }
    let listener = UnixListener::bind(path).with_context(context)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(context)?;
    Ok(listener)
}

fn leave(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
