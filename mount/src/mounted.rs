//! Mounting, and the end of it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{Attr, Cred, EntryName, FsError, Ino};
use client::{AccessTimes, FileSystem, Turns};
use fuse::{
    Capabilities, Connection, Ended, InitOptions, IoUring, MountError, MountOptions, Session,
    Threads, Transport, Unmount,
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Statx, StatxAttributes, StatxFlags},
    io::Errno,
};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use wire::DirRef;

use crate::{
    Options, Synchronous,
    adapter::{Adapter, Manners},
    serve::{serve, start_threads},
};

/// Why a file system could not be mounted, unmounted or served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing at the mount point, or it cannot be reached.
    #[error("cannot use the mount point path={}", path.display())]
    NoMountpoint {
        /// The mount point.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The mount point is a file.
    #[error("the mount point is not a directory path={}", path.display())]
    NotDirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// The path has a mount already; perhaps no process serves it any more.
    #[error("something is mounted here already; unmount it first path={}", path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// Only root mounts and unmounts, or `fusermount3` for others.
    #[error("not permitted path={}", path.display())]
    NotPermitted {
        /// The mount point.
        path: PathBuf,
    },
    /// Files are open there, or a process works there.
    #[error("the mount is in use path={}", path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// The path has no mount.
    #[error("nothing is mounted here path={}", path.display())]
    NotMounted {
        /// Path that was to be unmounted.
        path: PathBuf,
    },
    /// The directory to be mounted is not in the file system.
    #[error("cannot mount the directory subdir={}", subdir.escape_ascii())]
    Subdir {
        /// The directory, as [`Options::subdir`] has it.
        subdir: Vec<u8>,
        /// Reason.
        #[source]
        source: client::Error,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot mount or unmount")]
    Mount(#[source] MountError),
    /// `/dev/fuse` failed.
    #[error("cannot serve the mount")]
    Session(#[from] fuse::SessionError),
}

/// By this a mount hears of changes that were made beside it.
#[derive(Clone)]
pub struct Beside(Arc<dyn Fn(Ino) + Send + Sync>);

impl Beside {
    fn of<S: FileSystem + Send + Sync + 'static>(adapter: &Arc<Adapter<S>>) -> Beside {
        let adapter = Arc::downgrade(adapter);
        Beside(Arc::new(move |dir| {
            if let Some(adapter) = adapter.upgrade() {
                adapter.names_changed(dir);
            }
        }))
    }

    /// Names in a directory were changed: the kernel drops the directory's attributes, which are
    /// asked for anew. Returns when it has. Must not be called on a thread that serves the mount.
    pub fn names_changed(&self, dir: Ino) {
        (self.0)(dir);
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beside")
    }
}

/// Read-ahead of the kernel.
const READ_AHEAD_KIB: u32 = 1024;

/// A mounted file system. Dropping it changes nothing: it is served until it is unmounted.
#[derive(Debug)]
pub struct Mounted {
    mountpoint: PathBuf,
    beside: Beside,
    served: JoinHandle<Result<Ended, fuse::SessionError>>,
}

/// Mounts `fs` on the directory `mountpoint`, and serves it in local tasks from then on. Over
/// io_uring, and where `turns` are taken, each CPU has a thread besides; they use `fs` in turns, as
/// its own tasks must.
///
/// `fs` must leave permissions to the kernel (a session with kernel checks).
///
/// # Errors
/// When the mount point or [`Options::subdir`] cannot be used, or the kernel refuses.
///
/// # Panics
/// Outside a `tokio::task::LocalSet`, or on a runtime without IO and time.
pub async fn run<S: FileSystem + Send + Sync + 'static>(
    fs: S,
    mountpoint: &Path,
    options: &Options,
    turns: &Turns,
) -> Result<Mounted, Error> {
    let root = subdir(&fs, &options.subdir).await?;
    let (path, kernel) = (mountpoint.to_owned(), mount_options(options));
    let (io_uring, over_mounts) = (options.io_uring, options.over_mounts);
    let connection = blocking(move || {
        check(&path, over_mounts)?;
        if io_uring == IoUring::On {
            allow_io_uring();
        }
        fuse::mount(&kernel, &path).map_err(|error| mount_error(&path, error))
    })
    .await?;
    let started = Box::pin(start(connection, fs, root, options, turns)).await;
    let (session, adapter) = match started {
        Ok(started) => started,
        Err(error) => {
            // The first error is the one to tell.
            drop(unmount(mountpoint, Unmount::Lazy).await);
            return Err(error.into());
        }
    };
    tell_transport(&session, mountpoint);
    let beside = Beside::of(&adapter);
    let served = spawn_local(serve(session, adapter, turns.clone()));
    let path = mountpoint.to_owned();
    // Without it large files are read in smaller steps.
    if let Err(error) = blocking(move || Ok(read_far_ahead(&path))).await? {
        tracing::debug!(%error, "the kernel reads ahead as little as ever");
    }
    Ok(Mounted { mountpoint: mountpoint.to_owned(), beside, served })
}

/// Agrees with the kernel, and starts the threads for each CPU.
async fn start<S: FileSystem + Send + Sync + 'static>(
    connection: Connection,
    fs: S,
    root: (DirRef, Attr),
    options: &Options,
    turns: &Turns,
) -> Result<(Session, Arc<Adapter<S>>), fuse::SessionError> {
    let threads = if turns.are_taken() { Threads::EachCpu } else { Threads::One };
    let init = InitOptions { threads, ..init_options(options) };
    let mut session = Session::start(connection, &init).await?;
    let manners = Manners {
        attr: options.attr_timeout,
        entry: options.entry_timeout,
        synchronous: options.synchronous,
    };
    let adapter = Arc::new(Adapter::new(fs, root, manners, session.notifier()));
    start_threads(&mut session, &adapter, turns).await?;
    adapter.comes_by(session.negotiated().transport());
    Ok((session, adapter))
}

/// Has the kernel offer io_uring, where this process may. Where it may not, the session says what is
/// missing.
fn allow_io_uring() {
    match fuse::enable_io_uring() {
        Ok(true) => tracing::info!("io_uring=on: the kernel offers io_uring to mounts from now on"),
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "cannot have the kernel offer io_uring"),
    }
}

/// Logs by which way requests come, and why not over io_uring where the mount prefers that.
fn tell_transport(session: &Session, mountpoint: &Path) {
    let transport = transport_name(session.negotiated().transport());
    let path = mountpoint.display();
    match session.without_io_uring() {
        Some(error) => {
            let why = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
            let why = why.map(ToString::to_string).collect::<Vec<_>>().join(": ");
            tracing::info!(transport, why, "requests of the kernel path={path}");
        }
        None => tracing::info!(transport, "requests of the kernel path={path}"),
    }
}

/// Name of a transport, as logs and the attribute `pando.transport` have it.
pub(crate) fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Device => "/dev/fuse",
        Transport::IoUring => "io_uring",
    }
}

impl Mounted {
    /// Path of the mount.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// For somebody who changes the file system beside this mount.
    #[must_use]
    pub fn beside(&self) -> Beside {
        self.beside.clone()
    }

    /// Unmounts; [`Mounted::ended`] then tells when everything is done.
    ///
    /// # Errors
    /// [`Error::Busy`] when it is in use and `when` is [`Unmount::WhenIdle`]; it is served as
    /// before then.
    pub async fn unmount(&self, when: Unmount) -> Result<(), Error> {
        unmount(&self.mountpoint, when).await
    }

    /// Waits until it was unmounted, by whomever, and until all operations under way are through:
    /// also those that wait for a server that is away.
    ///
    /// # Errors
    /// When `/dev/fuse` failed.
    pub async fn ended(self) -> Result<Ended, Error> {
        match self.served.await {
            Ok(ended) => Ok(ended?),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Unmounts what is mounted at `mountpoint`.
///
/// # Errors
/// When nothing is mounted there, it is in use, or the caller may not.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn unmount(mountpoint: &Path, when: Unmount) -> Result<(), Error> {
    let path = mountpoint.to_owned();
    // The unmount runs on another thread: the kernel may want answers first.
    blocking(move || fuse::unmount(&path, when).map_err(|error| unmount_error(&path, error))).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The directory that becomes the mount's root.
async fn subdir<S: FileSystem>(fs: &S, path: &[u8]) -> Result<(DirRef, Attr), Error> {
    let failed = |source: client::Error| Error::Subdir { subdir: path.to_owned(), source };
    let (mut dir, mut attr) = fs.root();
    let components = path.split(|byte| *byte == b'/');
    for component in components.filter(|component| !component.is_empty()) {
        let name =
            EntryName::new(component).map_err(|error| failed(FsError::from(error).into()))?;
        let entry = fs.lookup(&Cred::ROOT, &dir, &name).await.map_err(failed)?;
        dir = entry.dir.ok_or_else(|| failed(FsError::NotDirectory.into()))?;
        attr = entry.attr;
    }
    Ok((dir, attr))
}

/// Whether the mount point is a directory that nothing is mounted on.
fn check(path: &Path, over_mounts: bool) -> Result<(), Error> {
    let stat = stat(path).map_err(|errno| no_mountpoint(path, errno.into()))?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return Err(Error::NotDirectory { path: path.to_owned() });
    }
    if !over_mounts && stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Error::AlreadyMounted { path: path.to_owned() });
    }
    Ok(())
}

/// Lets the kernel read ahead as much as one request can hold. It offers 128 KiB whatever the
/// session would take, so this takes root, by way of sysfs.
fn read_far_ahead(path: &Path) -> io::Result<()> {
    let stat = stat(path)?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB.to_string())
}

/// Stats a path without asking the process that serves the mount there.
fn stat(path: &Path) -> rustix::io::Result<Statx> {
    rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)
}

fn no_mountpoint(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        // A mount whose process has ended.
        Some(Errno::NOTCONN) => Error::AlreadyMounted { path },
        _ => Error::NoMountpoint { path, source },
    }
}

fn mount_error(path: &Path, error: MountError) -> Error {
    match error {
        MountError::MountPoint { source, .. } => no_mountpoint(path, source),
        MountError::Kernel { ref source, .. } => {
            let errno = source.raw_os_error().map(Errno::from_raw_os_error);
            match errno {
                Some(Errno::PERM | Errno::ACCESS) => Error::NotPermitted { path: path.to_owned() },
                _ => Error::Mount(error),
            }
        }
        MountError::OpenDevice(_) | MountError::NoHelper(_) | MountError::Helper(_) => {
            Error::Mount(error)
        }
    }
}

fn unmount_error(path: &Path, error: MountError) -> Error {
    let errno = match &error {
        MountError::Kernel { source, .. } => source.raw_os_error(),
        MountError::OpenDevice(_)
        | MountError::MountPoint { .. }
        | MountError::NoHelper(_)
        | MountError::Helper(_) => None,
    };
    let path = path.to_owned();
    match errno.map(Errno::from_raw_os_error) {
        Some(Errno::BUSY) => Error::Busy { path },
        Some(Errno::INVAL | Errno::NOENT) => Error::NotMounted { path },
        Some(Errno::PERM | Errno::ACCESS) => Error::NotPermitted { path },
        _ => Error::Mount(error),
    }
}

/// Without one the kernel refuses its options, and mount(8) leaves them out.
fn has_security_module() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

fn mount_options(options: &Options) -> MountOptions {
    MountOptions {
        fsname: options.fsname.clone(),
        subtype: "pando".to_owned(),
        read_only: options.read_only,
        allow_other: options.allow_other,
        default_permissions: options.kernel_checks,
        nosuid: !options.suid,
        nodev: !options.dev,
        noexec: !options.exec,
        synchronous: options.synchronous == Synchronous::Everything,
        dirsync: options.synchronous == Synchronous::Names,
        noatime: options.access_times == AccessTimes::Never,
        strictatime: options.access_times == AccessTimes::Always,
        security: if has_security_module() { options.security.clone() } else { Vec::new() },
        ..MountOptions::default()
    }
}

fn init_options(options: &Options) -> InitOptions {
    // The kernel checks permissions where it knows of ACLs.
    let acls = if options.kernel_checks { Capabilities::POSIX_ACL } else { Capabilities::empty() };
    let capabilities = acls
        | Capabilities::ASYNC_READ
        | Capabilities::ASYNC_DIO
        | Capabilities::AUTO_INVAL_DATA
        | Capabilities::CACHE_SYMLINKS
        | Capabilities::DONT_MASK
        | Capabilities::EXPORT_SUPPORT
        | Capabilities::DO_READDIRPLUS
        | Capabilities::READDIRPLUS_AUTO
        | Capabilities::HANDLE_KILLPRIV_V2
        | Capabilities::PARALLEL_DIROPS
        | Capabilities::POSIX_LOCKS
        | Capabilities::FLOCK_LOCKS
        | Capabilities::ABORT_ERROR;
    InitOptions {
        capabilities,
        max_write: options.max_write,
        io_uring: options.io_uring,
        ..InitOptions::default()
    }
}
