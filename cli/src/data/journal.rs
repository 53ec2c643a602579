//! The note of a data directory on its journal: which one it is, and from where it is read.
//!
//! Invariant: a generation and its run are stable here before anything of them is in the journal. So
//! a directory knows its own segments again after a crash, and takes those of no other for its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ::journal::Note;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use store::stable::sync_folder;

use super::{META, remove, replace};

const FILE: &str = "journal.json";
/// Logs that a start has not brought into the journal yet.
const LOGS: &str = "journal-logs";

/// Contents of `journal.json`. Persisted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalNote {
    /// URL of the journal.
    pub(crate) url: String,
    /// Id of the file system, in hexadecimal digits.
    pub(crate) uuid: String,
    /// The history of bases that the journal belongs to.
    pub(crate) history: u64,
    /// The owner of the journal's end, and from where the journal is read.
    #[serde(flatten)]
    pub(crate) note: Note,
}

/// Keeps the logs of a closed engine, which removes them when it opens: a start that fails may be
/// followed by another one. Returns where they are.
pub(crate) fn keep_logs(path: &Path) -> anyhow::Result<PathBuf> {
    let (from, to) = (path.join(META), path.join(LOGS));
    let keep = || {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let (file, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            if file.extension().is_some_and(|extension| extension == "log") {
                match fs::hard_link(&file, to.join(name)) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    linked => linked?,
                }
            }
        }
        sync_folder(&to)?;
        sync_folder(path)
    };
    keep().with_context(|| format!("cannot keep the logs in {}", to.display()))?;
    Ok(to)
}

/// The journal has what the logs have.
pub(crate) fn drop_logs(path: &Path) -> anyhow::Result<()> {
    remove(fs::remove_dir_all(path.join(LOGS)), path)
}

impl JournalNote {
    /// The note for a history that has no segment yet, of a directory that has had so many
    /// generations elsewhere.
    pub(crate) fn begin(url: &str, uuid: u128, history: u64, generation: u64) -> JournalNote {
        let (url, uuid) = (url.to_owned(), format!("{uuid:032x}"));
        JournalNote { url, uuid, history, note: Note { generation, ..Note::default() } }
    }

    /// The note of a directory, if it has a journal.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Option<JournalNote>> {
        let file = path.join(FILE);
        let context = || format!("cannot read {}", file.display());
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map(Some).with_context(context),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(context),
        }
    }

    /// Notes this, on stable storage.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        replace(path, FILE, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.join(FILE).display()))
    }

    /// Removes the note: the directory has no journal any more.
    pub(crate) fn forget(path: &Path) -> anyhow::Result<()> {
        remove(fs::remove_file(path.join(FILE)), path)
    }
}
