//! Mounts that `pando csi` starts: each by a run of `pando mount`, which leaves a process behind.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
};

use csi::Mounter;
use tokio::process::Command;

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

/// A file with a token. Only while a mount starts is it there.
struct HandedToken(PathBuf);

impl Drop for HandedToken {
    fn drop(&mut self) {
        // The next start of the plugin removes what stays.
        let _ = fs::remove_file(&self.0);
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
            let name = file.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(TOKEN).and_then(|rest| rest.split('.').next());
            // Another process may hand one over just now. This one has handed over none yet: in a
            // container the number is that of the process before.
            let own = std::process::id().to_string();
            let alive =
                owner.is_some_and(|pid| pid != own && Path::new("/proc").join(pid).exists());
            if owner.is_some() && !alive {
                drop(HandedToken(file.path()));
            }
        }
    }

    fn hand_over(&self, token: &str) -> io::Result<HandedToken> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let number = self.handed.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{TOKEN}{}.{number}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let handed = HandedToken(path);
        file.write_all(token.as_bytes())?;
        Ok(handed)
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
        command.arg("--token").arg(&handed.0).arg("-o").arg(options);
        run(command.arg(&self.servers).arg(path)).await
    }

    async fn unmount(&self, path: &Path) -> Result<(), String> {
        match find(path) {
            Some(_) => run(this_program()?.arg("umount").arg(path)).await,
            None => Ok(()),
        }
    }

    fn is_dead(&self, path: &Path) -> bool {
        find(path).is_some_and(|mount| mount.is_dead())
    }
}
