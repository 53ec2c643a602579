//! Mounts that `pando csi` starts: each by a run of `pando mount`, which leaves a process behind.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use csi::Mounter;
use rustix::fs::{FlockOperation, flock};
use tokio::{process::Command, time::timeout};

use crate::{
    connect::{Servers, TlsArgs},
    mounts::{self, Mount},
};

/// Beginning of the names of files that hand over tokens.
const TOKEN: &str = "token.";

/// Starts and ends processes of mounts.
pub(crate) struct MountProcesses {
    servers: String,
    /// Options that say which connections are encrypted.
    tls: Vec<String>,
    /// Root's own folder.
    folder: PathBuf,
    handed: AtomicU64,
}

/// Time that a run of `pando umount` has: as long as writes are sent, others wait for their turn.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// A file with a token. The process that has it locks it, and removes it when the mount works.
struct HandedToken {
    path: PathBuf,
    _lock: File,
}

impl Drop for HandedToken {
    fn drop(&mut self) {
        // The next start of the plugin removes what stays.
        let _ = fs::remove_file(&self.path);
    }
}

impl MountProcesses {
    pub(crate) fn new(servers: &Servers, tls: &TlsArgs, folder: &Path) -> MountProcesses {
        MountProcesses {
            servers: servers.0.join(","),
            tls: tls.to_args(),
            folder: folder.to_owned(),
            handed: AtomicU64::new(0),
        }
    }

    /// Removes the tokens that a process which was killed has left.
    pub(crate) fn clear(&self) {
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !file.file_name().to_string_lossy().starts_with(TOKEN) {
                continue;
            }
            // Another process may hand one over just now. The number in the name does not say: in a
            // container there may be any process of that number.
            if let Ok(opened) = File::open(file.path())
                && flock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                drop(HandedToken { path: file.path(), _lock: opened });
            }
        }
    }

    /// Makes the folder root's alone, whoever has made it.
    pub(crate) fn own(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700))
    }

    fn hand_over(&self, token: &str) -> io::Result<HandedToken> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let number = self.handed.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{TOKEN}{}.{number}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(token.as_bytes())?;
        Ok(HandedToken { path, _lock: file })
    }
}

/// Runs this program to its end; an error is the line that it said.
async fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().await;
    let output = output.map_err(|error| format!("cannot start this program: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rev().find_map(|line| line.strip_prefix("pando: "));
    Err(line.map_or_else(|| format!("pando ended with {}", output.status), str::to_owned))
}

fn this_program() -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|error| format!("no path of pando: {error}"))?;
    Ok(Command::new(this))
}

fn find(path: &Path) -> Option<Mount> {
    mounts::find(path).ok().flatten()
}

#[tonic::async_trait]
impl Mounter for MountProcesses {
    fn check(&self, options: &str) -> Result<(), String> {
        mount::Options::default().set(options).map_err(|error| error.to_string())
    }

    async fn mount(&self, path: &Path, token: &str, options: &str) -> Result<(), String> {
        if find(path).is_some_and(|mount| mount.keeper().is_some()) {
            return Ok(());
        }
        let handed = self.hand_over(token).map_err(|error| format!("the token: {error}"))?;
        let mut command = this_program()?;
        command.arg("mount").arg("--quiet").args(&self.tls);
        command.arg("--token").arg(&handed.path).arg("-o").arg(options);
        run(command.arg(&self.servers).arg(path)).await
    }

    async fn unmount(&self, path: &Path) -> Result<(), String> {
        match find(path) {
            Some(_) => {
                let mut command = this_program()?;
                let run = run(command.arg("umount").arg(path).kill_on_drop(true));
                timeout(UNMOUNT_TIMEOUT, run).await.unwrap_or_else(|_| {
                    let seconds = UNMOUNT_TIMEOUT.as_secs();
                    Err(format!("`pando umount` has not ended within {seconds} s"))
                })
            }
            None => Ok(()),
        }
    }

    fn note(&self, path: &Path) -> Result<Option<PathBuf>, String> {
        let noted = match mounts::find(path) {
            Ok(Some(mount)) => mount.note(),
            found => found.map(|_| None),
        };
        noted.map_err(|error| format!("the process of the mount: {error:#}"))
    }

    fn has_ended(&self, note: &Path) -> Result<bool, String> {
        let ended = mounts::noted_has_ended(note);
        ended.map_err(|error| format!("the process of the mount: {error:#}"))
    }

    fn is_dead(&self, path: &Path) -> bool {
        find(path).is_some_and(|mount| mount.is_dead())
    }
}
