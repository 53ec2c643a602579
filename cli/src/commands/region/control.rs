//! The socket of a region: other commands of its user enter it, look at it, flush it and end it.
//!
//! A command sends one line of JSON, and gets lines until the connection ends. The connection of a
//! command that has entered stays open in its program and in what that starts: they are counted by
//! it, and no region ends under them unless that is forced.

use std::{
    cell::Cell,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use region::{Lead, Programs, Progress};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

use super::{
    ending::{self, Ending, Outcome},
    library::{Library, Preloaded},
    site::{Kept, Site},
};
use crate::{mounts, values};

/// How often somebody who waits is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// Time within which a process that works answers a question for its state, or reads an answer.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Said of an answer that is none of this program's.
pub(super) const OTHER_VERSION: &str = "the region's process is of another version";
/// Most bytes of a question.
const ASKED_MAX: u64 = 64 << 10;

/// A question to a region.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Asked {
    /// Where the region is seen. The connection stays open.
    Enter,
    /// How far it is.
    Status,
    /// Commit what was changed until now.
    Flush,
    /// Commit everything, and end.
    End(Ending, Force),
}

/// Whether programs that use a region lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Force {
    Yes,
    No,
}

/// A line of an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    Entered(Entered),
    Status(Box<Standing>),
    /// How far it is, in words; more lines follow.
    Progress(String),
    Flushed,
    Ended(Outcome),
    /// This machine has left a region, which goes on at that address.
    Left(String),
    /// A reason why it cannot be done.
    Refused(String),
}

/// Where a region is seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entered {
    /// A process that sees it.
    pub(super) pid: u32,
    /// Number of its mount as a device.
    pub(super) device: u64,
    /// Whether only those see it who are in its mount namespace.
    pub(super) is_hidden: bool,
    /// The library that its programs get.
    pub(super) preloaded: Option<Preloaded>,
}

/// How far a region is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) dir: String,
    pub(super) pid: u32,
    /// Address of the machine that has the region, if it is another one.
    pub(super) lead: Option<String>,
    /// The other machines that use the region, as the one that has it knows them.
    pub(super) machines: Vec<String>,
    pub(super) programs: usize,
    /// Processes that use the region by the library.
    pub(super) processes: usize,
    pub(super) memory: usize,
    pub(super) dirty: usize,
    pub(super) refused: usize,
    pub(super) trouble: Option<String>,
    pub(super) acknowledged: u64,
    pub(super) committed: u64,
    pub(super) superseded: u64,
    pub(super) commits: u64,
    pub(super) loads: u64,
}

/// The machine that has a region.
pub(super) enum Whose {
    /// This process's, and these other machines may join.
    Ours(Option<Lead>),
    /// The lead at this address.
    Of(String),
}

/// The cause of a region's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnEnd {
    /// The end of its program.
    WithItsProgram,
    /// A question.
    Asked,
}

/// The wish that a region ends, and where to say how that goes.
pub(super) struct End {
    pub(super) ending: Ending,
    pub(super) force: Force,
    pub(super) to: Caller,
}

/// Somebody who waits for answers.
pub(super) struct Caller {
    to: OwnedWriteHalf,
    /// Whether all lines were sent whole.
    is_whole: bool,
}

impl Told {
    fn line(&self) -> Vec<u8> {
        line_of(self).expect("numbers and text")
    }
}

/// A question, or a part of an answer, as it is sent.
fn line_of(said: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    Ok(line)
}

impl Caller {
    /// Sends a line. Somebody who has gone away misses it.
    pub(super) async fn tell(&mut self, told: &Told) {
        // After half a line another one is of no use.
        if self.is_whole {
            self.is_whole = self.to.write_all(&told.line()).await.is_ok();
        }
    }

    /// Sends the last line. Somebody who does not read it, as a stopped process, misses it.
    pub(super) async fn tell_last(&mut self, told: &Told) {
        drop(tokio::time::timeout(READ_WITHIN, self.tell(told)).await);
    }

    /// Tells how far the region is, again and again, until this is dropped. Only whole lines are
    /// sent, and none to somebody who does not read.
    pub(super) async fn follow(&mut self, kept: &Kept) {
        loop {
            tokio::time::sleep(TOLD_EVERY).await;
            if self.is_whole
                && let Ok(progress) = kept.progress().await
            {
                let line = Told::Progress(ending::message(&progress)).line();
                self.is_whole = match self.to.try_write(&line) {
                    Ok(written) => written == line.len(),
                    Err(error) => error.kind() == io::ErrorKind::WouldBlock,
                };
            }
        }
    }
}

/// The socket of a region that has not begun: nothing of it may be needed while the region's thread
/// serves the mount, which may cover it.
pub(super) struct Socket {
    path: PathBuf,
    /// Inode number of the socket in its folder.
    ino: u64,
    listener: std::os::unix::net::UnixListener,
}

impl Socket {
    /// The socket of a region on a directory that is locked; `None` where there can be none, which
    /// is said.
    ///
    /// # Errors
    /// When a region of this user is known by the path already.
    pub(super) fn claim(dir: &Path) -> anyhow::Result<Option<Socket>> {
        let claimed = socket_of(dir).and_then(|path| {
            ensure!(!path.starts_with(dir), "{} is in it", path.display());
            // No other command may look while this takes the place of a socket that was left.
            let folder = std::fs::File::open(mounts::own_folder()?)?;
            rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive)?;
            if let Some(there) = connect(&path)? {
                return Ok(Err(there));
            }
            let context = || format!("cannot listen at {}", path.display());
            // A process that was killed has left it.
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(context);
                }
                Ok(()) | Err(_) => {}
            }
            let listener = std::os::unix::net::UnixListener::bind(&path).with_context(context)?;
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, mode).with_context(context)?;
            listener.set_nonblocking(true).with_context(context)?;
            let ino = std::fs::symlink_metadata(&path).with_context(context)?.ino();
            Ok(Ok(Socket { path, ino, listener }))
        });
        match claimed {
            Ok(Ok(socket)) => Ok(Some(socket)),
            Ok(Err(_)) => bail!("a region is on {} already", dir.display()),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "other commands cannot reach the region");
                Ok(None)
            }
        }
    }
}

impl Socket {
    /// The path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The next region on the directory removes what stays, and may have done so.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.ino) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A region's socket, while it answers.
pub(super) struct Control {
    _socket: Socket,
    shared: Rc<Shared>,
}

struct Shared {
    dir: PathBuf,
    kept: Kept,
    /// Address of the machine that has the region, if it is another one.
    lead: Option<String>,
    /// The other machines, if they may join.
    machines: Option<Lead>,
    entered: Entered,
    /// The programs that have the library.
    library: Option<Programs>,
    programs: Cell<usize>,
    /// Whether no more programs may enter.
    ends_now: Cell<bool>,
    on_end: OnEnd,
    ends: mpsc::Sender<End>,
}

impl Control {
    /// Answers from now on, in local tasks. Wishes that the region ends arrive at the receiver.
    pub(super) fn listen(
        socket: Socket,
        site: &Site,
        whose: Whose,
        library: Option<&Library>,
        on_end: OnEnd,
    ) -> anyhow::Result<(Control, mpsc::Receiver<End>)> {
        let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
        let pid = std::process::id();
        let entered = Entered {
            pid,
            device: site.device,
            is_hidden: site.is_hidden,
            preloaded: library.map(|library| library.preloaded.clone()),
        };
        let (ends, ended) = mpsc::channel(1);
        let (lead, machines) = match whose {
            Whose::Ours(machines) => (None, machines),
            Whose::Of(lead) => (Some(lead), None),
        };
        let shared = Rc::new(Shared {
            dir: site.dir.clone(),
            kept: site.kept.clone(),
            lead,
            machines,
            entered,
            library: library.map(|library| library.programs.clone()),
            programs: Cell::new(0),
            ends_now: Cell::new(false),
            on_end,
            ends,
        });
        tokio::task::spawn_local(accept(listener, Rc::clone(&shared)));
        Ok((Control { _socket: socket, shared }, ended))
    }

    /// Lets no more programs enter, or lets them again.
    pub(super) fn ends_now(&self, ends: bool) {
        self.shared.ends_now.set(ends);
    }

    /// Why the region cannot end on this machine, as far as programs are counted.
    pub(super) fn why_busy(&self) -> Option<String> {
        let programs = self.shared.programs.get();
        let files = self.shared.library.as_ref().map_or(0, Programs::written_files);
        match (programs, files) {
            (0, 0) => None,
            (0, _) => Some(format!("programs use the region: they write to {files} files of it")),
            _ => Some(format!("programs run that were started in the region: {programs}")),
        }
    }
}

async fn accept(listener: UnixListener, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::task::spawn_local(answer(stream, Rc::clone(&shared)));
            }
            Err(error) => {
                tracing::warn!(%error, "a command cannot reach the region");
                tokio::time::sleep(TOLD_EVERY).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, shared: Rc<Shared>) {
    let me = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == me || peer.uid() == 0) {
        return;
    }
    let (mut from, to) = stream.into_split();
    let mut to = Caller { to, is_whole: true };
    match question(&mut from).await {
        Ok(Asked::Enter) if shared.ends_now.get() => {
            to.tell(&Told::Refused("the region ends".to_owned())).await;
        }
        Ok(Asked::Enter) => {
            // First, so that nobody ends the region in between.
            shared.programs.set(shared.programs.get() + 1);
            to.tell(&Told::Entered(shared.entered.clone())).await;
            // The next thing to come is the end of the connection.
            drop(from.read(&mut [0]).await);
            shared.programs.set(shared.programs.get() - 1);
        }
        Ok(Asked::Status) => {
            to.tell(&match shared.standing().await {
                Ok(standing) => Told::Status(Box::new(standing)),
                Err(error) => Told::Refused(format!("the region's lead does not answer: {error}")),
            })
            .await;
        }
        Ok(Asked::Flush) => {
            let flushed = {
                let mut syncing = std::pin::pin!(shared.kept.sync());
                tokio::select! {
                    flushed = &mut syncing => flushed,
                    () = to.follow(&shared.kept) => unreachable!("it goes on for ever"),
                }
            };
            let flushed = match flushed {
                Ok(()) => shared.kept.progress().await.map(|progress| progress.failed),
                Err(error) => Err(error),
            };
            to.tell(&match flushed {
                Ok(refused) if refused > 0 => Told::Refused(format!(
                    "all is committed but what the file system below refuses: {refused} paths"
                )),
                Ok(_) => Told::Flushed,
                Err(error) => Told::Refused(format!("not everything could be committed: {error}")),
            })
            .await;
        }
        Ok(Asked::End(..)) if shared.on_end == OnEnd::WithItsProgram => {
            let why =
                format!("the region ends with its program: see process {}", shared.entered.pid);
            to.tell(&Told::Refused(why)).await;
        }
        Ok(Asked::End(ending, force)) => {
            // A region that is ending takes no other wish.
            if let Err(
                mpsc::error::TrySendError::Full(mut end)
                | mpsc::error::TrySendError::Closed(mut end),
            ) = shared.ends.try_send(End { ending, force, to })
            {
                end.to.tell(&Told::Refused("the region ends already".to_owned())).await;
            }
        }
        Err(error) => to.tell(&Told::Refused(format!("not understood: {error}"))).await,
    }
}

async fn question(from: &mut OwnedReadHalf) -> io::Result<Asked> {
    let mut line = String::new();
    tokio::io::BufReader::new(from.take(ASKED_MAX)).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

impl Shared {
    async fn standing(&self) -> client::Result<Standing> {
        let Progress { dirty, late, failed, trouble, memory, counts } =
            self.kept.progress().await?;
        Ok(Standing {
            dir: mounts::shown(&self.dir),
            pid: self.entered.pid,
            lead: self.lead.clone(),
            machines: self.machines.as_ref().map(Lead::machines).unwrap_or_default(),
            programs: self.programs.get(),
            processes: self.library.as_ref().map_or(0, Programs::processes),
            memory,
            dirty: dirty + late,
            refused: failed,
            trouble: trouble.map(|error| error.to_string()),
            acknowledged: counts.acknowledged,
            committed: counts.committed,
            superseded: counts.superseded,
            commits: counts.commits,
            loads: counts.loads,
        })
    }
}

const PREFIX: &str = "region.";
/// The end of the name of a socket for programs: that of other commands is the beginning.
pub(super) const PROGRAMS: &str = ".programs";

/// The socket of the region on a directory, of this user.
fn socket_of(dir: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;

    let sum = Sha256::digest(dir.as_os_str().as_bytes());
    Ok(mounts::own_folder()?.join(format!("{PREFIX}{}", values::hex(&sum[..12]))))
}

/// The sockets of all regions of this user.
pub(super) fn sockets() -> anyhow::Result<Vec<PathBuf>> {
    let folder = mounts::own_folder()?;
    let found = std::fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let found = found.with_context(|| format!("cannot read {}", folder.display()))?;
    let of_regions = found
        .into_iter()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            name.starts_with(PREFIX.as_bytes()) && !name.ends_with(PROGRAMS.as_bytes())
        })
        .map(|entry| entry.path());
    Ok(of_regions.collect())
}

/// A connection of a command to a region.
pub(super) struct Connection(BufReader<std::os::unix::net::UnixStream>);

/// Asks the region on a directory.
pub(super) fn ask(dir: &Path, asked: &Asked) -> anyhow::Result<Connection> {
    let there = ask_at(&socket_of(dir)?, asked)?;
    there.with_context(|| format!("no region of this user is on {}", dir.display()))
}

/// Asks the region of a socket; `None` if it has ended.
pub(super) fn ask_at(socket: &Path, asked: &Asked) -> anyhow::Result<Option<Connection>> {
    let Some(mut stream) = connect(socket)? else { return Ok(None) };
    stream
        .write_all(&line_of(asked)?)
        .with_context(|| format!("cannot ask {}", socket.display()))?;
    Ok(Some(Connection(BufReader::new(stream))))
}

fn connect(socket: &Path) -> anyhow::Result<Option<std::os::unix::net::UnixStream>> {
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot ask {}", socket.display())),
    }
}

impl Connection {
    /// The next line of the answer; what was refused is an error.
    pub(super) fn next(&mut self) -> anyhow::Result<Told> {
        let mut line = String::new();
        self.0.read_line(&mut line).context("the region's process has gone")?;
        if line.is_empty() {
            bail!("the region's process has gone");
        }
        match serde_json::from_str(&line).context(OTHER_VERSION)? {
            Told::Refused(why) => bail!("{why}"),
            told => Ok(told),
        }
    }

    /// Waits for each line for so long as somebody who works takes at most to answer.
    pub(super) fn is_asked_shortly(&self) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(READ_WITHIN))
    }

    /// The connection itself.
    pub(super) fn into_stream(self) -> std::os::unix::net::UnixStream {
        self.0.into_inner()
    }
}
