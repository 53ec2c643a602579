//! A region that works: its directory, which nobody else may make a region, and its mount.

use std::{
    fs::File,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use client::{FileSystem, SystemClock};
use mount::{Beside, Ended, Error, Options, Unmount};
use region::{Calls, Front, Progress, Region, Settings};
use rustix::{
    fs::FlockOperation,
    mount::{MountFlags, MountPropagationFlags},
    thread::UnshareFlags,
};

use super::{
    control::Socket,
    library::{self, Library, Prepared, Wanted},
    machines::{self, Listen, Machines},
};
use crate::{mounting, mounts, signals::Stop, system::SystemRandom};

/// Tasks that commit at the same time.
const WORKERS: usize = 4;

/// The source of the mount, in the kernel's table.
const SOURCE: &str = "pando-region";

/// Time within which a mount ends that was taken away, if it is nowhere else.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// The largest file that may be kept in memory.
const INLINE_MAX: u64 = 64 << 10;

/// The directory of a region, and its settings.
#[derive(Debug, clap::Args)]
pub(super) struct SiteArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Keep files up to this size in memory, and write larger ones at once: at most 64K.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = inline)]
    inline_max: usize,
    /// Memory for what the region knows; what is committed is forgotten to keep to it.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = crate::values::size)]
    memory: u64,
    /// Changes that may wait to be committed; then programs wait.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    dirty_max: usize,
    /// Let other machines join the region (`pando region join`), which connect to this address.
    /// With a host of 0.0.0.0 they are told this machine's name; with port 0, a free one.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Have programs that are linked dynamically reach small files beside the mount, by a library
    /// that is loaded into them.
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t = Wanted::Auto)]
    library: Wanted,
}

/// A directory that is a region on this machine.
#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// The directory, on any file system. Only one region may be on it.
    dir: PathBuf,
    /// Mount options: noexec, dev, suid, allow_other, io_uring=auto|on|off and others of
    /// `pando mount`.
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = options)]
    options: Vec<String>,
}

fn inline(text: &str) -> Result<usize, String> {
    let size = crate::values::size(text)?;
    let size = usize::try_from(size).ok().filter(|_| size <= INLINE_MAX);
    size.ok_or_else(|| "it is more than 64K".to_owned())
}

fn options(text: &str) -> Result<String, String> {
    Options::default().set(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// The path by which a region on a directory is known.
pub(super) fn known_as(dir: &Path) -> anyhow::Result<PathBuf> {
    dir.canonicalize().with_context(|| match mounts::find(dir) {
        Ok(Some(mount)) if mount.is_dead() => format!(
            "the process of the region at {dir} was killed, and left its mount: pando umount {dir}",
            dir = dir.display()
        ),
        Ok(_) | Err(_) => format!("cannot use {}", dir.display()),
    })
}

/// Whether other machines see a region, too: then the kernel of none may believe what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Here,
    Elsewhere,
}

impl PlaceArgs {
    /// The path by which the region is known.
    pub(super) fn dir(&self) -> anyhow::Result<PathBuf> {
        known_as(&self.dir)
    }

    /// Takes the directory on this machine, and for root a mount namespace, before any other thread
    /// runs.
    pub(super) fn take(&self, dir: PathBuf, seen: Seen) -> anyhow::Result<Place> {
        is_not_mounted(&dir)?;
        let socket = Socket::claim(&dir)?;
        let is_hidden = rustix::process::geteuid().is_root();
        if is_hidden {
            hide_mounts().context("cannot make a mount namespace")?;
        }
        // The region must not work in itself.
        std::env::set_current_dir("/")?;
        let mut options = Options { fsname: SOURCE.to_owned(), ..Options::default() };
        // The kernel checks what programs may do, so other users may be let in where it lets us.
        options.allow_other = is_hidden;
        options.over_mounts = true;
        if seen == Seen::Elsewhere {
            (options.attr_timeout, options.entry_timeout) = (Duration::ZERO, Duration::ZERO);
        }
        for list in &self.options {
            options.set(list)?;
        }
        let timeouts = options.attr_timeout.max(options.entry_timeout);
        if seen == Seen::Elsewhere && !timeouts.is_zero() {
            bail!("other machines may change the region: attr_timeout and entry_timeout must be 0");
        }
        crate::system::raise_open_files();
        Ok(Place { dir, socket, is_hidden, options })
    }
}

impl SiteArgs {
    /// The path by which the region is known.
    pub(super) fn dir(&self) -> anyhow::Result<PathBuf> {
        self.place.dir()
    }

    /// Lets other machines join, wherever this one listens, if it does not say so already.
    pub(super) fn listens(&mut self) {
        self.listen.get_or_insert_with(|| "0.0.0.0:0".to_owned());
    }

    /// Takes the directory, as [`PlaceArgs::take`] does, for a region of this process.
    pub(super) fn take(&self, dir: PathBuf) -> anyhow::Result<Taken> {
        let below = region::Mounted::open(&dir)?;
        is_not_mounted(&dir)?;
        let lock = lock(&dir)?;
        machines::nobody_leads(&dir)?;
        let listen =
            self.listen.as_deref().map(|listen| Listen::bind(listen, &lock)).transpose()?;
        let seen = if listen.is_some() { Seen::Elsewhere } else { Seen::Here };
        let place = self.place.take(dir, seen)?;
        let beside = place.socket.as_ref().map(Socket::path);
        let library = library::prepare(self.library, &place.dir, &place.options, beside)?;
        let settings = Settings {
            inline_max: self.inline_max,
            memory_max: usize::try_from(self.memory).unwrap_or(usize::MAX),
            dirty_max: self.dirty_max.max(1),
            ..Settings::default()
        };
        Ok(Taken { place, below, lock, settings, listen, library })
    }
}

/// A directory that is to be a region on this machine.
pub(super) struct Place {
    dir: PathBuf,
    /// The socket by which other commands reach the region, if there can be one.
    pub(super) socket: Option<Socket>,
    is_hidden: bool,
    options: Options,
}

/// A directory that is to be a region of this process.
pub(super) struct Taken {
    pub(super) place: Place,
    below: region::Mounted,
    /// By this nobody else begins a region on the directory.
    lock: File,
    settings: Settings,
    listen: Option<Listen>,
    library: Option<Prepared>,
}

/// A region of this process.
pub(super) struct Begun {
    pub(super) region: Region,
    pub(super) site: Site,
    /// The other machines, if they may join.
    pub(super) machines: Option<Machines>,
    /// The library that programs get.
    pub(super) library: Option<Library>,
    /// By this nobody else begins a region on the directory.
    pub(super) lock: File,
}

/// A region that is mounted on this machine.
pub(super) struct Site {
    pub(super) dir: PathBuf,
    pub(super) kept: Kept,
    /// The end of the mount.
    pub(super) ended: Pin<Box<dyn Future<Output = Result<Ended, Error>>>>,
    /// By this the mount hears of what was changed beside it.
    pub(super) beside: Beside,
    /// Number of the mount as a device, by which programs know that they are in the region.
    pub(super) device: u64,
    /// Whether only those see it who are in its mount namespace.
    pub(super) is_hidden: bool,
}

/// Where a region is kept.
#[derive(Clone)]
pub(super) enum Kept {
    /// In this process.
    Here(Region),
    /// In that of another machine.
    Elsewhere(Front),
}

impl Kept {
    /// How far it is.
    pub(super) async fn progress(&self) -> client::Result<Progress> {
        match self {
            Kept::Here(region) => Ok(region.progress()),
            Kept::Elsewhere(front) => front.progress().await,
        }
    }

    /// Commits what was changed until now.
    pub(super) async fn sync(&self) -> client::Result<()> {
        match self {
            Kept::Here(region) => region.sync().await,
            Kept::Elsewhere(front) => front.sync().await,
        }
    }

    /// Answers no more on this machine.
    fn close(&self) {
        match self {
            Kept::Here(region) => region.close(),
            Kept::Elsewhere(front) => front.close(),
        }
    }
}

impl Taken {
    /// Begins the region. Must be called within a `LocalSet`.
    pub(super) async fn start(self) -> anyhow::Result<Begun> {
        let Taken { place, below, lock, settings, listen, library } = self;
        let random = SystemRandom::default();
        let key = base::HashKey::new(base::Random::next(&random), base::Random::next(&random));
        let clock = Arc::new(SystemClock);
        let region = Region::new(Arc::new(below), Calls::OnThreads, settings, clock, key)
            .map_err(|error| anyhow::anyhow!("cannot use {}: {error}", place.dir.display()))?;
        for _ in 0..WORKERS {
            tokio::spawn(region.clone().work());
        }
        let site = Box::pin(place.mount(region.clone(), Kept::Here(region.clone()))).await?;
        let others = || {
            let machines = listen.map(|listen| listen.begin(&region)).transpose()?;
            let begin = |library: Prepared| library.begin(&region, site.beside.clone());
            Ok((machines, library.map(begin).transpose()?))
        };
        match others() {
            Ok((machines, library)) => Ok(Begun { region, site, machines, library, lock }),
            Err(error) => {
                drop(mount::unmount(&site.dir, Unmount::Lazy).await);
                Err(error)
            }
        }
    }
}

impl Place {
    /// Mounts the region. Must be called within a `LocalSet`.
    pub(super) async fn mount<S>(self, fs: S, kept: Kept) -> anyhow::Result<Site>
    where
        S: FileSystem + Clone + Send + Sync + 'static,
    {
        let Place { dir, is_hidden, options, .. } = self;
        let turns = mounting::turns(&options);
        let mounted = Box::pin(mount::run(fs, &dir, &options, &turns)).await?;
        let beside = mounted.beside();
        let ended = Box::pin(mounted.ended());
        // This thread serves the mount.
        let path = dir.clone();
        let root = tokio::task::spawn_blocking(move || std::fs::metadata(path)).await?;
        let device = match root {
            Ok(root) => root.dev(),
            Err(error) => {
                // The first error is the one to tell.
                drop(mount::unmount(&dir, Unmount::Lazy).await);
                return Err(error).with_context(|| format!("cannot use {}", dir.display()));
            }
        };
        Ok(Site { dir, kept, ended, beside, device, is_hidden })
    }
}

impl Site {
    /// Takes the region away. Programs that still use it lose it.
    pub(super) async fn leave(&mut self, stop: &mut Stop) {
        // In a namespace of its own the mount stays, covered, so that there is no moment in which a
        // program that goes on sees the file system below.
        if self.is_hidden {
            return self.lose("it ends").await;
        }
        match mount::unmount(&self.dir, Unmount::WhenIdle).await {
            Ok(()) => self.ends_itself(stop).await,
            Err(Error::NotMounted { .. }) => self.lose("it was unmounted").await,
            Err(error) => {
                tracing::warn!("programs still use the region; they lose it");
                if let Err(error) = mount::unmount(&self.dir, Unmount::Lazy).await {
                    tracing::warn!(%error, "cannot unmount");
                }
                self.lose(&format!("{:#}", anyhow::Error::from(error))).await;
            }
        }
    }

    /// Waits for the end of a mount that was taken away, as nobody used it.
    pub(super) async fn ends_itself(&mut self, stop: &mut Stop) {
        let lost = tokio::select! {
            ended = &mut self.ended => match ended {
                Ok(_) if self.is_hidden => return self.cover().await,
                Ok(_) => return,
                Err(error) => error.to_string(),
            },
            () = tokio::time::sleep(LEFT_WITHIN) => "it is mounted elsewhere, too".to_owned(),
            () = stop.asked() => "interrupted".to_owned(),
        };
        self.lose(&lost).await;
    }

    /// Answers no more: a change that was answered from now on would perhaps not be committed. Nor
    /// may a program that goes on fall through to the file system below.
    pub(super) async fn lose(&self, why: &str) {
        tracing::debug!(why, "the region answers no more");
        if self.is_hidden {
            self.cover().await;
        }
        self.kept.close();
    }

    /// Has programs in the region's namespace see an empty directory.
    async fn cover(&self) {
        let dir = self.dir.clone();
        let cover = move || {
            // Changes of files that programs have mapped arrive before that.
            if let Ok(root) = File::open(&dir)
                && let Err(error) = rustix::fs::syncfs(root)
            {
                tracing::warn!(%error, "cannot sync the region");
            }
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            rustix::mount::mount("pando-region-ended", &dir, "tmpfs", flags, c"mode=0,size=4k")
        };
        match tokio::task::spawn_blocking(cover).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "programs may see what is below"),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Checks that a directory is no region that is mounted. The root of one is another directory than
/// the one that is locked.
fn is_not_mounted(dir: &Path) -> anyhow::Result<()> {
    if mounts::find(dir)?.is_some_and(|mount| mount.is_of(SOURCE)) {
        bail!("a region is on {} already", dir.display());
    }
    Ok(())
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let file = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => bail!("a region is on {} already", dir.display()),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", dir.display())),
    }
}

/// Mounts of this process and its children are seen by them only.
fn hide_mounts() -> rustix::io::Result<()> {
    #[expect(deprecated, reason = "unsafe are file descriptors, and these stay shared")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", follow)
}
