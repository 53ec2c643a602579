//! Files of a data directory that serve backups: the key, the history, the copy that is uploaded, and
//! a directory made from a base.
//!
//! Invariant: the number of a base is stable in `backup.json` before its copy is begun. Blocks are
//! held by these numbers, so none is given twice in a history.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ::backup::Key;
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use meta::Server;
use serde::{Deserialize, Serialize};
use store::{Engine, RocksConfig, RocksEngine, stable::sync_folder};

use super::{
    ABOUT, ADMIN_TOKEN, About, Begun, META, Making, NEWEST_KEY, SIGNING_KEY, finish, read_about,
    remove, replace, write_private,
};
use crate::system::secret;

pub(super) const KEY: &str = "backup.key";
pub(super) const RESTORED: &str = "restored";
pub(super) const RESTORING: &str = "restoring";
const PROGRESS: &str = "backup.json";
const COPY: &str = "backup-copy";
const COPY_BEGUN: &str = "backup-copy.tmp";
/// Files of a data directory that a base has beside the metadata; the second need not be there.
const SMALL: [&str; 4] = [ABOUT, NEWEST_KEY, SIGNING_KEY, ADMIN_TOKEN];

/// Contents of `backup.json`. Persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Id of the history, random.
    pub(crate) history: u64,
    /// Number of the newest base that was begun; 0: none.
    pub(crate) newest: u64,
}

impl Progress {
    /// A history without bases.
    pub(crate) fn begin() -> Progress {
        Progress { history: u64::from_le_bytes(secret::<8>()), newest: 0 }
    }

    /// The progress that a directory has noted, if any.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Option<Progress>> {
        let file = path.join(PROGRESS);
        let context = || format!("cannot read {}; remove it: a new history begins", file.display());
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map(Some).with_context(context),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(context),
        }
    }

    /// Notes this, on stable storage.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        replace(path, PROGRESS, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.join(PROGRESS).display()))
    }
}

/// The key of a directory's backups. Takes no lock.
pub(crate) fn backup_key(path: &Path) -> anyhow::Result<Key> {
    read_about(path)?;
    read_backup_key(&path.join(KEY))
        .context("a key is made when `pando serve --backup URL` first starts")
}

/// Reads a key from a file.
pub(crate) fn read_backup_key(file: &Path) -> anyhow::Result<Key> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    Key::parse(&text).with_context(|| format!("{shown} holds no backup key"))
}

/// The key of a directory's backups, which is made when there is none.
pub(crate) fn make_backup_key(path: &Path) -> anyhow::Result<Key> {
    if !path.join(KEY).exists() {
        let key = Key::new(secret::<32>());
        replace(path, KEY, key.to_text().as_bytes())
            .with_context(|| format!("cannot write {}", path.join(KEY).display()))?;
        let file = path.join(KEY);
        tracing::warn!(
            file = %file.display(),
            "a backup key was made: keep a copy elsewhere (`pando backup key`), as nothing can be \
             restored without it"
        );
    }
    backup_key(path)
}

/// Whether the directory is a restored copy whose original may still be in use.
pub(crate) fn is_restored(path: &Path) -> bool {
    path.join(RESTORED).exists()
}

/// The original of a restored copy is gone. Returns whether the directory was a restored copy.
pub(crate) fn finalize(path: &Path) -> anyhow::Result<bool> {
    read_about(path)?;
    let was = is_restored(path);
    remove(fs::remove_file(path.join(RESTORED)), path)?;
    sync_folder(path)?;
    Ok(was)
}

/// Small files of a directory, for a base.
pub(crate) fn small_files(path: &Path) -> anyhow::Result<Vec<(&'static str, Bytes)>> {
    let mut files = Vec::new();
    for name in SMALL {
        match fs::read(path.join(name)) {
            Ok(bytes) => files.push((name, Bytes::from(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && name == NEWEST_KEY => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {name}"));
            }
        }
    }
    Ok(files)
}

/// Makes a copy of the metadata beside its writers. Returns where the copy is.
pub(crate) fn begin_copy(path: &Path, engine: &RocksEngine) -> anyhow::Result<PathBuf> {
    end_copy(path)?;
    let copy = path.join(COPY);
    engine.copy_beside_writers(&copy).context("cannot copy the metadata")?;
    Ok(copy)
}

/// Removes the copy, or what a crash has left of it.
pub(crate) fn end_copy(path: &Path) -> anyhow::Result<()> {
    for name in [COPY, COPY_BEGUN] {
        remove(fs::remove_dir_all(path.join(name)), path)?;
    }
    Ok(())
}

/// Makes a data directory of the files that `fill` puts into a folder: those of a base. Returns the
/// name of the file system, and whether its blocks are in the directory.
pub(crate) fn restore(
    path: &Path,
    key: &Key,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<(String, bool)> {
    let begun = Begun::new(path, Making::Restore)?;
    let restoring = path.join(RESTORING);
    fs::create_dir(&restoring).with_context(|| format!("cannot make {}", restoring.display()))?;
    fill(&restoring)?;
    let about: About = read_about(&restoring)?;
    ensure!(about.server.is_none(), "the base is of a server of a cluster");
    for name in [META, NEWEST_KEY, SIGNING_KEY, ADMIN_TOKEN] {
        match fs::rename(restoring.join(name), path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && name == NEWEST_KEY => {}
            moved => moved.with_context(|| format!("the base has no {name}"))?,
        }
    }
    write_private(path, KEY, key.to_text().as_bytes())?;
    let why = "a copy made from a backup; see `pando backup final`\n";
    write_private(path, RESTORED, why.as_bytes())?;
    {
        // Opening it also puts the log into tables.
        let engine = RocksEngine::open(&path.join(META), &RocksConfig::default())
            .context("the restored metadata cannot be opened")?;
        Server::prepare_copy(&engine)?;
        engine.write_out()?;
        engine.sync()?;
    }
    let text = fs::read_to_string(restoring.join(ABOUT)).context("the base has no pando.json")?;
    fs::remove_dir_all(&restoring).context("cannot remove what was read")?;
    finish(path, &text).with_context(|| format!("cannot write to {}", path.display()))?;
    drop(begun);
    Ok((about.name, about.blocks.is_none()))
}
