//! The note of a data directory on its journal: which one it is, and from where it is read.
//!
//! Invariant: a generation is stable here before anything of it is in the journal, so a directory
//! never takes the next generation of another one for its own.

use std::{fs, io, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{remove, replace};

const FILE: &str = "journal.json";

/// Contents of `journal.json`. Persisted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalNote {
    /// The history of bases that the journal belongs to.
    pub(crate) history: u64,
    /// The newest generation that this directory has asked for.
    pub(crate) generation: u64,
    /// A segment from which the journal can be read; 0: its first.
    pub(crate) segment: u64,
    /// The newest base of this directory, and the position that it covers; 0: none.
    pub(crate) base: u64,
    pub(crate) position: u64,
}

impl JournalNote {
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
