//! Addresses to listen on, and the length of a cluster's leases, as a data directory keeps them:
//! `serve` and `up` take them from there when the command line does not say otherwise.

use std::{fs, io, path::Path, time::Duration};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::certificates::Files;

const FILE: &str = "serve.json";

/// Options of the last start. Persisted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Address for clients; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<KeptAddress>,
    /// Address of the status page, or `off`; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<KeptAddress>,
    /// `--cluster-lease` in milliseconds; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_lease_ms: Option<u64>,
    /// Address at which others reach the server; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// Whether `--tls` was given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tls: bool,
    /// The operator's own certificate; absent: none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<Files>,
    /// Number of the server that the directory is, or stands by for; absent: the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<u16>,
    /// Where backups go; absent: none was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<KeptBackup>,
}

/// Backups as they were asked for. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptBackup {
    pub(crate) url: String,
    pub(crate) every_seconds: u64,
    pub(crate) keep_seconds: u64,
    /// Whether there is a journal in the same place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) journal: bool,
    /// `--journal-lease` in milliseconds; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) journal_lease_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl KeptBackup {
    /// Backups to a place, as often and kept as long as when nothing else is said.
    pub(crate) fn at(url: &str) -> KeptBackup {
        KeptBackup {
            url: url.to_owned(),
            every_seconds: 300,
            keep_seconds: 24 * 3600,
            journal: false,
            journal_lease_ms: 0,
        }
    }

    /// Length of the journal's lease.
    pub(crate) fn journal_lease(&self) -> Option<Duration> {
        (self.journal_lease_ms > 0).then(|| Duration::from_millis(self.journal_lease_ms))
    }
}

/// An address as it was given. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptAddress {
    pub(crate) address: String,
    /// Whether `--insecure` was given with it, or with the status page's `--http-insecure`.
    pub(crate) insecure: bool,
}

impl Kept {
    /// Length of the leases that the coordinator of a cluster gives.
    pub(crate) fn cluster_lease(&self) -> Option<Duration> {
        self.cluster_lease_ms.map(Duration::from_millis)
    }

    /// The backups, if they belong to a journal.
    pub(crate) fn journal(&self) -> Option<&KeptBackup> {
        self.backup.as_ref().filter(|backup| backup.journal)
    }

    /// Returns what a directory keeps. Takes no lock.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Kept> {
        let file = path.join(FILE);
        let context = || {
            let file = file.display();
            format!(
                "cannot read {file}; remove it, and give --listen, --http and the other options that it \
                 keeps again"
            )
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
