//! The library that is preloaded into programs of a region: where it is, and who answers it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use mount::Beside;
use region::{Peer, Programs, Region};
use serde::{Deserialize, Serialize};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::oneshot,
    task::LocalSet,
};

use crate::connect;

/// File name of the library.
const LIBRARY: &str = "libpando_region.so";
/// The variable by which the library finds its region.
const REGION: &str = "PANDO_REGION";
/// The variable by which the loader of programs finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// Bytes of a socket's path, with its NUL.
const SOCKET_BYTES: usize = 108;
/// Pause after a connection that could not be taken.
const AGAIN: Duration = Duration::from_millis(100);

/// Whether programs get the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Wanted {
    /// Where it is installed, and can be used.
    Auto,
    /// Or the region does not begin.
    On,
    /// They use the mount alone.
    Off,
}

/// A socket for programs that have the library; nobody answers there yet.
pub(super) struct Prepared {
    preloaded: Preloaded,
    socket: PathBuf,
    listener: std::os::unix::net::UnixListener,
}

/// What a program must be given to use the library.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Preloaded {
    library: String,
    socket: String,
    dir: String,
}

/// The library of a region, while it is answered.
pub(super) struct Library {
    pub(super) preloaded: Preloaded,
    pub(super) programs: Programs,
    socket: PathBuf,
    /// Dropped when the thread is to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Listens for programs of the region on `dir`, at a socket beside the one of other commands.
///
/// # Errors
/// Why they cannot use the library, if they must.
pub(super) fn prepare(
    wanted: Wanted,
    dir: &Path,
    beside: Option<&Path>,
) -> anyhow::Result<Option<Prepared>> {
    let prepared = match wanted {
        Wanted::Off => return Ok(None),
        Wanted::Auto | Wanted::On => try_prepare(dir, beside),
    };
    match prepared {
        Ok(prepared) => Ok(Some(prepared)),
        Err(error) if wanted == Wanted::On => Err(error.context("programs cannot use the library")),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::debug!(error, "programs use the mount alone");
            Ok(None)
        }
    }
}

fn try_prepare(dir: &Path, beside: Option<&Path>) -> anyhow::Result<Prepared> {
    let library = find()?;
    let beside = beside.context("there is no folder for its socket")?;
    let mut socket = beside.as_os_str().to_owned();
    socket.push(".programs");
    let socket = PathBuf::from(socket);
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.with_context(|| format!("{} is not UTF-8", path.display()))
    };
    let preloaded = Preloaded { library: text(&library)?, socket: text(&socket)?, dir: text(dir)? };
    let is_short = preloaded.socket.len() < SOCKET_BYTES && !preloaded.socket.contains(':');
    ensure!(is_short, "{} cannot be the path of a socket", socket.display());
    // The loader takes both for ends of a path.
    ensure!(!preloaded.library.contains([':', ' ']), "{} cannot be preloaded", library.display());
    // A process that was killed has left it.
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", socket.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let context = || format!("cannot listen at {}", socket.display());
    let listener = std::os::unix::net::UnixListener::bind(&socket).with_context(context)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&socket, mode).with_context(context)?;
    listener.set_nonblocking(true).with_context(context)?;
    Ok(Prepared { preloaded, socket, listener })
}

/// The library: where it is installed with this program, or built with it.
fn find() -> anyhow::Result<PathBuf> {
    ensure!(cfg!(target_arch = "x86_64"), "the library is for x86-64 only");
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["../lib/pando", ".", "deps"];
    let found =
        places.iter().find_map(|place| folder.join(place).join(LIBRARY).canonicalize().ok());
    let from = || format!("{LIBRARY} is not in ../lib/pando, as seen from {}", folder.display());
    found.with_context(from)
}

impl Prepared {
    /// Answers programs from now on.
    pub(super) fn begin(self, region: &Region, beside: Beside) -> anyhow::Result<Library> {
        let Prepared { preloaded, socket, listener } = self;
        let programs =
            Programs::new(region.clone(), Arc::new(move |dir| beside.names_changed(dir)));
        let (stop, stopped) = oneshot::channel();
        // A thread of its own: the mount's thread must not tell the kernel anything.
        let runtime = connect::runtime()?;
        let serving = programs.clone();
        let thread = std::thread::Builder::new().name("programs".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    served = serve(listener, serving) => if let Err(error) = served {
                        tracing::error!(%error, "programs use the mount alone from now on");
                    },
                    _ = stopped => {}
                }
            });
        })?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Library { preloaded, programs, socket, stop, thread })
    }
}

async fn serve(listener: std::os::unix::net::UnixListener, programs: Programs) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let me = rustix::process::geteuid().as_raw();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(peer) = peer(&stream).filter(|peer| peer.uid == me) else { continue };
                let programs = programs.clone();
                tokio::task::spawn_local(async move { programs.serve(peer, stream).await });
            }
            Err(error) => {
                tracing::warn!(%error, "a program cannot connect");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

fn peer(stream: &UnixStream) -> Option<Peer> {
    let peer = stream.peer_cred().ok()?;
    let pid = u32::try_from(peer.pid()?).ok()?;
    Some(Peer { pid, uid: peer.uid(), gid: peer.gid() })
}

impl Drop for Library {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(?panic, "the thread that answers programs has failed");
        }
        // The next region on the directory removes what stays.
        drop(std::fs::remove_file(&self.socket));
    }
}

impl Preloaded {
    /// Has a program get the library, and find the region that is mounted as this device.
    pub(super) fn give(&self, command: &mut Command, device: u64) {
        let mut libraries = OsString::from(&self.library);
        let others = std::env::var_os(PRELOAD);
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            libraries.push(":");
            libraries.push(others);
        }
        command.env(PRELOAD, libraries);
        command.env(REGION, region(device, &self.socket, OsStr::from_bytes(self.dir.as_bytes())));
    }
}

fn region(device: u64, socket: &str, dir: &OsStr) -> OsString {
    let mut region = OsString::from(format!("{device}:{socket}:"));
    region.push(dir);
    region
}

/// Has a program not get the library of a region around this one.
pub(super) fn take_away(command: &mut Command) {
    let Some(others) = std::env::var_os(PRELOAD).filter(|_| std::env::var_os(REGION).is_some())
    else {
        return;
    };
    let is_library = |path: &[u8]| Path::new(OsStr::from_bytes(path)).ends_with(LIBRARY);
    let mut kept = OsString::new();
    for path in others.as_bytes().split(|byte| *byte == b':' || *byte == b' ') {
        if !path.is_empty() && !is_library(path) {
            if !kept.is_empty() {
                kept.push(":");
            }
            kept.push(OsStr::from_bytes(path));
        }
    }
    command.env(PRELOAD, kept);
    command.env_remove(REGION);
}
