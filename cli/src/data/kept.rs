//! Addresses to listen on, as a data directory keeps them: `serve` and `up` take them from there
//! when the command line does not name others.

use std::{fs, io, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

const FILE: &str = "serve.json";

/// Addresses of the last start. Persisted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Address for clients; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<KeptAddress>,
    /// Address of the status page, or `off`; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<KeptAddress>,
}

/// An address as it was given. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptAddress {
    pub(crate) address: String,
    /// Whether `--insecure` was given with it.
    pub(crate) insecure: bool,
}

impl Kept {
    /// Returns what a directory keeps. Takes no lock.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Kept> {
        let file = path.join(FILE);
        let context = || {
            let file = file.display();
            format!("cannot read {file}; remove it, and give --listen and --http again")
        };
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(context),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(error).with_context(context),
        }
    }

    /// Has a directory keep this, if it keeps something else. The caller serves the directory.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        if Kept::read(path).ok().as_ref() == Some(self) {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        super::replace(path, FILE, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.join(FILE).display()))
    }
}
