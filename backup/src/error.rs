//! Errors of backups, each with its remedy.

/// Why a base could not be made, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no store that this program can open.
    #[error("the URL of the backup cannot be used: {0}")]
    Url(String),
    /// The store failed, or is away.
    #[error("the backup store failed: {}", in_short(.0))]
    Store(object_store::Error),
    /// A local file failed.
    #[error("cannot use {path}")]
    Local {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
    /// An object was sealed with another key.
    #[error("{name} was sealed with the backup key {found}, and this is key {given}")]
    OtherKey {
        /// Name of the object.
        name: String,
        /// Id of the key that sealed the object.
        found: String,
        /// Id of the key in use.
        given: String,
    },
    /// An object was changed, cut off, or put under another name.
    #[error("{0} is altered or damaged: its seal does not fit")]
    Altered(String),
    /// An object that a manifest names is missing.
    #[error("{0} is missing: the base is incomplete, so choose another one (`pando backup list`)")]
    Missing(String),
    /// A manifest says what no version of this program wrote.
    #[error("{name} cannot be read: {reason}")]
    Manifest {
        /// Name of the manifest.
        name: String,
        /// The fault.
        reason: String,
    },
    /// The directory of the place is not there.
    #[error("there is no directory {0}: is it mounted?")]
    NoDirectory(String),
    /// The place has lost all bases of the history.
    #[error(
        "the place has none of the bases of this data directory, of which base {newest} was the \
         newest: is it mounted, and is it the right one? If the bases are gone for good, remove \
         backup.json of the stopped server: a new history begins"
    )]
    Empty {
        /// Number of the newest base that was made.
        newest: u64,
    },
    /// Several histories have bases that could be meant.
    #[error("several histories have such bases: name one of them")]
    Ambiguous(Vec<Candidate>),
    /// There is nothing to restore.
    #[error("no base {0}")]
    NoBase(String),
    /// Another process writes bases of the same history: a copy of the data directory is served.
    #[error("another server writes bases of this history: it serves a copy of this data directory")]
    Foreign,
}

/// A history that has bases which could be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Id of the history.
    pub history: String,
    /// Unique id of the file system.
    pub uuid: String,
    /// Name of the file system.
    pub name: String,
    /// Time of the newest such base, in seconds since the Unix epoch.
    pub newest: u64,
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Error {
        Error::Store(error)
    }
}

/// An error of a store and its first cause: each error of a store repeats all that caused it.
#[must_use]
pub fn in_short(error: &object_store::Error) -> String {
    const CHARS_MAX: usize = 300;
    let text: String = error.to_string().chars().take(CHARS_MAX).collect();
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let cause: String = cause.to_string().chars().take(CHARS_MAX).collect();
    if text.contains(&cause) { text } else { format!("{text}: {cause}") }
}

impl Error {
    pub(crate) fn local(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.display().to_string();
        move |error| Error::Local { path, error }
    }
}
