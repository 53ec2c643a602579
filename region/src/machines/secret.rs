//! The secret of a region, and the note by which other machines find it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::hidden::NOTE;

/// Most bytes of a note.
const BYTES_MAX: u64 = 4096;

/// A secret that the machines of a region share.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret(pub(super) [u8; 32]);

impl Secret {
    /// A secret of random bytes.
    #[must_use]
    pub fn new(random: [u8; 32]) -> Secret {
        Secret(random)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> String {
        secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Secret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Secret, &'static str> {
        let wrong = "a secret is 64 hexadecimal digits";
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        let mut secret = [0; 32];
        for (at, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong)?;
        }
        Ok(Secret(secret))
    }
}

/// How to reach the lead of a region: a file in its directory that only its user can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Address of the lead, `HOST:PORT`.
    pub lead: String,
    /// The lead's machine, and which of its boots that was.
    pub machine: Machine,
    /// The region's secret.
    pub secret: Secret,
}

/// A machine, as far as it can be told from others, and a boot of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name and number; empty where they do not tell it from others, as those of one that was
    /// copied.
    pub name: String,
    /// Number of the boot.
    pub boot: String,
}

impl Machine {
    /// Whether a process that ran there, and not here, is gone: this is the machine, or a later boot
    /// of it.
    #[must_use]
    pub fn is_gone(&self, here: &Machine) -> bool {
        self.boot == here.boot || (!self.name.is_empty() && self.name == here.name)
    }

    /// This machine.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn here() -> io::Result<Machine> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let number = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let number = number.trim();
        let tells = !number.is_empty() && !host.starts_with("localhost");
        let name = if tells { format!("{host} {number}") } else { String::new() };
        Ok(Machine { name, boot: boot.trim().to_owned() })
    }
}

/// Why a note cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    /// There is one already.
    #[error("{} is there", .0.display())]
    There(PathBuf),
    /// Somebody else may have written it, or may have read the secret.
    #[error("{} is not a file that only its user can read", .0.display())]
    Open(PathBuf),
    /// Something else is in it.
    #[error(
        "{} is no note of a region ({error}): remove it if no machine has a region there",
        .path.display()
    )]
    Other {
        /// The note.
        path: PathBuf,
        /// The trouble.
        error: serde_json::Error,
    },
    /// The file system refuses.
    #[error("cannot use {}: {error}", .path.display())]
    Io {
        /// The note.
        path: PathBuf,
        /// The trouble.
        error: io::Error,
    },
}

impl Note {
    /// Place of the note of a region on this directory.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        dir.join(std::ffi::OsStr::from_bytes(NOTE))
    }

    /// Writes the note, where none is.
    ///
    /// # Errors
    /// When one is there, or the file system refuses.
    pub fn write(&self, dir: &Path) -> Result<(), NoteError> {
        let path = Note::path(dir);
        let text = serde_json::to_vec(self).expect("text");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let written = keeping_times(dir, || {
            let mut file = options.open(&path)?;
            let written = is_private(&file.metadata()?)
                .then_some(())
                .ok_or_else(|| io::Error::other("others can read files that this user makes here"))
                .and_then(|()| file.write_all(&text))
                .and_then(|()| file.sync_all());
            // Half a note is in the way of the next region.
            written.inspect_err(|_| drop(fs::remove_file(&path)))
        });
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => NoteError::There(path),
            _ => NoteError::Io { path, error },
        })
    }

    /// Reads the note in a directory; `None` where there is none.
    ///
    /// # Errors
    /// When it is not one that this user has written, and others cannot read.
    pub fn read(dir: &Path) -> Result<Option<Note>, NoteError> {
        use std::io::Read as _;

        let path = Note::path(dir);
        let io = |error| NoteError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        // Somebody else may have put anything there.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).expect("flags of open(2)");
        let file = match options.read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let found = file.metadata().map_err(io)?;
        if !is_private(&found) {
            return Err(NoteError::Open(path));
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).map_err(io)?;
        let note = serde_json::from_slice(&text);
        note.map(Some).map_err(|error| NoteError::Other { path, error })
    }

    /// Removes the note, if it is this one.
    ///
    /// # Errors
    /// When it cannot be read or removed.
    pub fn remove(&self, dir: &Path) -> Result<(), NoteError> {
        if Note::read(dir)?.as_ref() != Some(self) {
            return Ok(());
        }
        let path = Note::path(dir);
        match keeping_times(dir, || fs::remove_file(&path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(NoteError::Io { path, error })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Whether a file is one that only this user can read and write.
fn is_private(found: &fs::Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    found.is_file() && found.uid() == user && found.mode() & 0o077 == 0
}

/// Changes a name in a directory, which has the times of before then: a region has them from its
/// beginning, and compares them at its end.
fn keeping_times<T>(dir: &Path, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = fs::metadata(dir)?;
    let changed = change()?;
    let [last_access, last_modification] =
        [(before.atime(), before.atime_nsec()), (before.mtime(), before.mtime_nsec())]
            .map(|(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec });
    let times = Timestamps { last_access, last_modification };
    // Somebody who may write to a directory need not be its owner.
    if let Err(error) = rustix::fs::utimensat(CWD, dir, &times, AtFlags::empty()) {
        tracing::debug!(%error, "the directory has the time of its note");
    }
    Ok(changed)
}
