//! Where the process of a mount logs once it has left the terminal: in a file, so that every `EIO`
//! has a line somewhere.

use std::{
    env,
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};

/// Folder of the logs of root's mounts; systemd names another folder where a unit has one.
const FOLDER: &str = "/var/log/pando";
/// Value of `--log` for no log.
const NONE: &str = "none";
/// Size at which a log is kept as FILE.1, and a new one begun.
const BYTES_MAX: u64 = 16 << 20;

/// Pause between two looks at the usual log.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

/// The log of a mount.
pub(crate) struct MountLog {
    file: File,
    /// The usual log, if no other program rotates it.
    usual: Option<Usual>,
}

/// The usual log: its folder, which was opened before the mount could cover it, and its name there.
struct Usual {
    folder: OwnedFd,
    name: String,
}

impl MountLog {
    /// The file that was asked for, or that of its mount point if the process leaves the terminal.
    ///
    /// # Errors
    /// When the file that was asked for cannot be opened. Without the usual one the mount has no
    /// log, which is said.
    pub(crate) fn open(
        asked: Option<&Path>,
        mountpoint: &Path,
        leaves: bool,
    ) -> anyhow::Result<Option<MountLog>> {
        match asked {
            Some(path) if path == Path::new(NONE) => Ok(None),
            Some(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                let file =
                    file.with_context(|| format!("cannot open the log {}", path.display()))?;
                Ok(Some(MountLog { file, usual: None }))
            }
            None if !leaves => Ok(None),
            None => {
                let Some(folder) = folder() else {
                    tracing::warn!("the mount has no log: HOME is not set, nor --log given");
                    return Ok(None);
                };
                match MountLog::usual(&folder, name(mountpoint)) {
                    Ok(log) => Ok(Some(log)),
                    Err(error) => {
                        tracing::warn!(folder = %folder.display(), %error, "the mount has no log");
                        Ok(None)
                    }
                }
            }
        }
    }

    fn usual(folder: &Path, name: String) -> io::Result<MountLog> {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let folder = File::open(folder)?.into();
        let usual = Usual { folder, name };
        let mut file = usual.append()?;
        if usual.is_due(&file)? {
            file = usual.begin_anew(&file)?;
        }
        Ok(MountLog { file, usual: Some(usual) })
    }

    /// From now on stderr, with the log and what panics say, goes there.
    pub(crate) fn take_stderr(&self) -> io::Result<()> {
        Ok(rustix::stdio::dup2_stderr(&self.file)?)
    }

    /// Puts the usual log aside when it has become long, and begins it anew when another program
    /// has put it aside.
    pub(crate) async fn keep_short(mut self) {
        let Some(usual) = self.usual.take() else { return };
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            let looked = match usual.is_due(&self.file) {
                Ok(false) => continue,
                Ok(true) => usual.begin_anew(&self.file),
                Err(error) => Err(error),
            };
            let again = looked.and_then(|file| {
                self.file = file;
                self.take_stderr()
            });
            if let Err(error) = again {
                tracing::warn!(name = usual.name, %error, "the log cannot be begun anew");
            }
        }
    }
}

impl Usual {
    fn append(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o640);
        Ok(rustix::fs::openat(&self.folder, self.name.as_str(), flags, mode)?.into())
    }

    /// Whether `file` is no more what has the name.
    fn has_moved(&self, file: &File) -> io::Result<bool> {
        let (there, ours) = (self.stat(), rustix::fs::fstat(file)?);
        Ok(there.is_none_or(|there| (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)))
    }

    fn stat(&self) -> Option<Stat> {
        rustix::fs::statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Whether `file` is too long, or no more what has the name.
    fn is_due(&self, file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.len() > BYTES_MAX || self.has_moved(file)?)
    }

    /// Opens another file of the name, where `file` is put aside unless it was.
    fn begin_anew(&self, file: &File) -> io::Result<File> {
        if !self.has_moved(file)? {
            let old = format!("{}.1", self.name);
            rustix::fs::renameat(&self.folder, self.name.as_str(), &self.folder, old)?;
        }
        self.append()
    }
}

fn folder() -> Option<PathBuf> {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The first folder is taken where a unit has several.
    if let Some(given) = env::var("LOGS_DIRECTORY").ok().filter(|given| !given.is_empty()) {
        return given.split(':').next().map(PathBuf::from);
    }
    if rustix::process::geteuid().is_root() {
        return Some(FOLDER.into());
    }
    let state = var("XDG_STATE_HOME").or_else(|| Some(var("HOME")?.join(".local/state")))?;
    Some(state.join("pando"))
}

/// `/mnt/data` logs to `mnt-data.log`.
fn name(mountpoint: &Path) -> String {
    let text = mountpoint.to_string_lossy();
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    // A name of a file has 255 bytes at most.
    let joined = parts.join("-");
    let from = joined.ceil_char_boundary(joined.len().saturating_sub(200));
    format!("{}.log", &joined[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_named_after_its_mount_point() {
        assert_eq!(name(Path::new("/mnt/data/")), "mnt-data.log");
        assert_eq!(name(Path::new("/")), ".log");
        assert!(name(Path::new(&format!("/{}", "ä".repeat(300)))).len() < 255);
    }

    #[test]
    fn a_long_log_is_put_aside_and_one_that_was_put_aside_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let open = || MountLog::usual(folder.path(), "log".to_owned()).unwrap();
        let len = |name: &str| std::fs::metadata(folder.path().join(name)).map(|found| found.len());
        open().file.set_len(BYTES_MAX + 1).unwrap();
        let log = open();
        assert_eq!((len("log").unwrap(), len("log.1").unwrap()), (0, BYTES_MAX + 1));
        let usual = log.usual.as_ref().unwrap();
        assert!(!usual.is_due(&log.file).unwrap());
        std::fs::rename(folder.path().join("log"), folder.path().join("elsewhere")).unwrap();
        assert!(usual.is_due(&log.file).unwrap());
        let again = usual.begin_anew(&log.file).unwrap();
        assert!(!usual.is_due(&again).unwrap() && len("elsewhere").is_ok());
        assert_eq!(len("log.1").unwrap(), BYTES_MAX + 1, "it is left as it is");
    }
}
