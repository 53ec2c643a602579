//! The library that is preloaded into programs of a region: where it is, and who answers it.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use mount::{Beside, Options, Synchronous};
use region::{Peer, Programs, Region};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{UnixListener, UnixStream},
    sync::oneshot,
    task::LocalSet,
};

use super::control::PROGRAMS;
use crate::connect;

/// File name of the library.
const LIBRARY: &str = "libpando_region.so";
/// The variable by which the library finds its region.
const REGION: &str = "PANDO_REGION";
/// The variable by which the loader of programs finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// The variable with options of AddressSanitizer.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
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
    /// Programs use the mount alone.
    Off,
}

/// A socket for programs that have the library; nobody answers there yet.
pub(super) struct Prepared {
    preloaded: Preloaded,
    socket: Bound,
    listener: std::os::unix::net::UnixListener,
}

/// A program that is given all this uses the library.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Preloaded {
    library: String,
    /// Namespaces of mounts and users.
    namespaces: (u64, u64),
    token: String,
    socket: String,
    dir: String,
}

/// A socket that is removed when this is dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        // The next region on the directory removes one that stays.
        drop(std::fs::remove_file(&self.0));
    }
}

/// The library of a region, while it is answered.
pub(super) struct Library {
    pub(super) preloaded: Preloaded,
    pub(super) programs: Programs,
    _socket: Bound,
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
    options: &Options,
    beside: Option<&Path>,
) -> anyhow::Result<Option<Prepared>> {
    let prepared = match wanted {
        Wanted::Off => return Ok(None),
        Wanted::Auto | Wanted::On => try_prepare(dir, options, beside),
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

fn try_prepare(dir: &Path, options: &Options, beside: Option<&Path>) -> anyhow::Result<Prepared> {
    ensure!(!options.read_only, "the mount is for reading only");
    // Messages do neither, and the kernel both.
    ensure!(options.synchronous == Synchronous::OnDemand, "the mount is synchronous");
    ensure!(options.exec, "the mount has no programs");
    let library = find()?;
    let beside = beside.context("there is no folder for its socket")?;
    let mut socket = beside.as_os_str().to_owned();
    socket.push(PROGRAMS);
    let socket = PathBuf::from(socket);
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.with_context(|| format!("{} is not UTF-8", path.display()))
    };
    let mut token = [0; 16];
    getrandom::fill(&mut token).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let namespace = |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|of| of.ino());
    let preloaded = Preloaded {
        library: text(&library)?,
        namespaces: (namespace("mnt")?, namespace("user")?),
        token: crate::values::hex(&token),
        socket: text(&socket)?,
        dir: text(dir)?,
    };
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
    let bound = Bound(socket.clone());
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&socket, mode).with_context(context)?;
    listener.set_nonblocking(true).with_context(context)?;
    Ok(Prepared { preloaded, socket: bound, listener })
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
        let programs = Programs::new(
            region.clone(),
            preloaded.token.clone(),
            Arc::new(move |dir| beside.names_changed(dir)),
        );
        let (stop, stopped) = oneshot::channel();
        // A thread of its own: the mount's thread must not tell the kernel anything.
        let runtime = connect::runtime()?;
        let serving = programs.clone();
        let mounts = Mounts::watch(Path::new(&preloaded.dir), programs.clone())?;
        let thread = std::thread::Builder::new().name("programs".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::task::spawn_local(mounts.follow());
                tokio::select! {
                    served = serve(listener, serving) => if let Err(error) = served {
                        tracing::error!(%error, "programs use the mount alone from now on");
                    },
                    _ = stopped => {}
                }
            });
        })?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Library { preloaded, programs, _socket: socket, stop, thread })
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
    }
}

impl Preloaded {
    /// Has a program get the library, and find the region that is mounted as this device.
    pub(super) fn give(&self, command: &mut Command, device: u64) {
        let mut libraries = OsString::from(&self.library);
        let others = other_libraries();
        if !others.is_empty() {
            libraries.push(":");
            libraries.push(others);
        }
        command.env(PRELOAD, libraries);
        // Else programs with AddressSanitizer refuse to start where a library comes before its own.
        let mut options = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
        if !options.is_empty() {
            options.push(":");
        }
        options.push("verify_asan_link_order=0");
        command.env(ASAN_OPTIONS, options);
        let Preloaded { namespaces: (mounts, users), token, socket, dir, .. } = self;
        command.env(REGION, format!("{device}:{mounts}:{users}:{token}:{socket}:{dir}"));
    }
}

/// The kernel's table of mounts, as it changes: what is mounted in a region is not seen by messages.
struct Mounts {
    table: File,
    dir: Vec<u8>,
    programs: Programs,
}

impl Mounts {
    fn watch(dir: &Path, programs: Programs) -> anyhow::Result<Mounts> {
        let table = File::open("/proc/self/mountinfo").context("cannot read the mount table")?;
        let dir = dir.as_os_str().as_bytes().to_owned();
        let mounts = Mounts { table, dir, programs };
        mounts.look()?;
        Ok(mounts)
    }

    fn look(&self) -> io::Result<()> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        self.programs.use_mount(crate::mounts::are_within(&table, &self.dir));
        Ok(())
    }

    /// Follows all changes.
    async fn follow(self) {
        #[expect(deprecated, reason = "unsafe are descriptors that others close, and this is ours")]
        let told = self
            .table
            .try_clone()
            .and_then(|table| AsyncFd::with_interest(table, Interest::PRIORITY));
        let followed: io::Result<()> = async {
            let told = told?;
            loop {
                told.ready(Interest::PRIORITY).await?.clear_ready();
                self.look()?;
            }
        }
        .await;
        if let Err(error) = followed {
            tracing::warn!(%error, "programs use the mount alone from now on");
            self.programs.use_mount(true);
        }
    }
}

/// Has a program not get the library of a region around this one.
pub(super) fn take_away(command: &mut Command) {
    if std::env::var_os(REGION).is_some() {
        command.env(PRELOAD, other_libraries());
        command.env_remove(REGION);
    }
}

/// Libraries that programs get besides, as this one has them.
fn other_libraries() -> OsString {
    let libraries = std::env::var_os(PRELOAD).unwrap_or_default();
    let is_ours = |path: &[u8]| Path::new(OsStr::from_bytes(path)).ends_with(LIBRARY);
    let paths = libraries.as_bytes().split(|byte| *byte == b':' || *byte == b' ');
    let others: Vec<_> = paths.filter(|path| !path.is_empty() && !is_ours(path)).collect();
    OsStr::from_bytes(&others.join(&b':')).to_owned()
}
