//! Files of a data directory that serve backups: the key, the history, the copy that is uploaded, and
//! a directory made from a base.
//!
//! Invariant: the number of a base is stable in `backup.json` before its copy is begun. Blocks are
//! held by these numbers, so none is given twice, whatever the history.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ::backup::{Key, Noted};
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use meta::Server;
use serde::{Deserialize, Serialize};
use store::{Engine, RocksConfig, RocksEngine, stable::sync_folder};

use super::{
    ABOUT, ADMIN_TOKEN, About, BOOT, Begun, COORDINATOR, FORMATTING, JournalNote, META, Making,
    NEWEST_KEY, SIGNING_KEY, finish, read_about, remove, replace, version_of, write_private,
};
use crate::system::secret;

pub(crate) const KEY: &str = "backup.key";
pub(super) const RESTORED: &str = "restored";
pub(super) const RESTORING: &str = "restoring";
const PROGRESS: &str = "backup.json";
const COPY: &str = "backup-copy";
const COPY_BEGUN: &str = "backup-copy.tmp";
/// Metadata of a server that was replaced.
const REPLACED: &str = "meta.replaced";
/// Files of a data directory that a base has beside the metadata.
const SMALL: [&str; 5] = [ABOUT, NEWEST_KEY, SIGNING_KEY, ADMIN_TOKEN, COORDINATOR];
/// Files of these that need not be there: no key is newer than the first, the token was moved, the
/// server has not joined others.
const OPTIONAL: [&str; 3] = [NEWEST_KEY, ADMIN_TOKEN, COORDINATOR];

/// Contents of `backup.json`. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The history that bases go into.
    #[serde(flatten)]
    pub(crate) current: HistoryNote,
    /// Number of the newest base that was begun, in whatever history; 0: none.
    pub(crate) newest: u64,
    /// Histories at other addresses, or with other keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<HistoryNote>,
    /// Seconds that a server has run since another history was turned to, while bases of the
    /// earlier one hold blocks; absent: they hold none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) earlier_held_seconds: Option<u64>,
}

/// A history of bases. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryNote {
    /// Id of the history, random.
    pub(crate) history: u64,
    /// Address of its place without options; absent: a program of before has not noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Id of its key; absent as the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Number of the newest base that was made; 0: none is known.
    #[serde(default)]
    pub(crate) made: u64,
}

impl HistoryNote {
    /// A history without bases.
    fn begin(url: &str, key: &str) -> HistoryNote {
        let history = u64::from_le_bytes(secret::<8>());
        HistoryNote { history, url: Some(url.to_owned()), key: Some(key.to_owned()), made: 0 }
    }

    /// The id as it is in names of objects.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}", self.history)
    }

    fn is_at(&self, url: &str) -> bool {
        self.url.as_deref().is_none_or(|noted| noted == url)
    }

    fn is_of(&self, url: &str, key: &str) -> bool {
        self.is_at(url) && self.key.as_deref().is_none_or(|noted| noted == key)
    }
}

impl Progress {
    /// A first history. Numbers go on above `newest`. Where `follows` another one that nothing
    /// tells of any more, the bases of that one hold blocks for a while.
    pub(crate) fn begin((url, key): (&str, &str), newest: u64, follows: bool) -> Progress {
        let current = HistoryNote::begin(url, key);
        let earlier_held_seconds = follows.then_some(0);
        Progress { current, newest, others: Vec::new(), earlier_held_seconds }
    }

    /// The history of a lost directory, for its successor. `newest` is that of the base that the
    /// successor is made from.
    pub(crate) fn of_successor((url, key): (&str, &str), history: u64, newest: u64) -> Progress {
        let current = HistoryNote { history, made: newest, ..HistoryNote::begin(url, key) };
        Progress { current, newest, others: Vec::new(), earlier_held_seconds: None }
    }

    /// Turns to the history with this address and key, which may be a new one.
    pub(crate) fn turn_to(&mut self, (url, key): (&str, &str)) {
        if self.current.is_of(url, key) {
            self.current.url = Some(url.to_owned());
            self.current.key = Some(key.to_owned());
            return;
        }
        let known = self.others.iter().position(|note| note.is_of(url, key));
        let next = match known {
            Some(index) => self.others.remove(index),
            None => HistoryNote::begin(url, key),
        };
        self.others.push(std::mem::replace(&mut self.current, next));
        self.earlier_held_seconds = Some(0);
    }

    /// Turns to a new history, as another server writes the one that there was.
    pub(crate) fn leave(&mut self, (url, key): (&str, &str)) {
        self.current = HistoryNote::begin(url, key);
        self.earlier_held_seconds = Some(0);
    }

    /// Turns to a new history in the same place.
    pub(crate) fn leave_current(&mut self) {
        let (url, key) = (self.current.url.take(), self.current.key.take());
        self.leave((url.as_deref().unwrap_or_default(), key.as_deref().unwrap_or_default()));
    }

    /// Whether a history was begun at an address.
    pub(crate) fn knows(&self, url: &str) -> bool {
        std::iter::once(&self.current).chain(&self.others).any(|note| note.is_at(url))
    }

    /// Counts the time that bases of an earlier history hold blocks. They do for `keep_seconds`.
    pub(crate) fn hold_earlier(&mut self, passed: u64, keep_seconds: u64) {
        let held = self.earlier_held_seconds.map(|held| held.saturating_add(passed));
        self.earlier_held_seconds = held.filter(|held| *held < keep_seconds);
    }

    /// The current history, for its bases.
    pub(crate) fn noted(&self) -> Noted {
        let HistoryNote { history, made, .. } = self.current;
        Noted { history, newest: self.newest, made }
    }

    /// The progress that a directory has noted, if any.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Option<Progress>> {
        let file = path.join(PROGRESS);
        let context = || {
            let file = file.display();
            format!("cannot read {file}; remove it while no server runs: a new history begins")
        };
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

/// Has a directory that has no key yet keep this one.
pub(crate) fn keep_backup_key(path: &Path, key: &Key) -> anyhow::Result<()> {
    replace(path, KEY, key.to_text().as_bytes())
        .with_context(|| format!("cannot write {}", path.join(KEY).display()))
}

/// Whether there is a key of a directory's backups: it may have bases.
pub(crate) fn has_backup_key(path: &Path) -> bool {
    path.join(KEY).exists()
}

/// The key of a directory's backups, which is made when there is none.
pub(crate) fn make_backup_key(path: &Path) -> anyhow::Result<Key> {
    if !has_backup_key(path) {
        keep_backup_key(path, &Key::new(secret::<32>()))?;
        let file = path.join(KEY);
        tracing::warn!(
            file = %file.display(),
            "a backup key was made: keep a copy elsewhere (`pando backup key`), as nothing can be \
             restored without it"
        );
    }
    read_backup_key(&path.join(KEY))
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
            Err(error) if may_lack(name, &error) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {name}"));
            }
        }
    }
    Ok(files)
}

fn may_lack(name: &str, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && OPTIONAL.contains(&name)
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

/// Has a directory be as one in which a restore was interrupted, so that it can be made anew. The
/// metadata are kept aside where somebody may want to look at them, in place of those that were kept
/// before.
pub(crate) fn unmake(path: &Path, keeps: bool) -> anyhow::Result<()> {
    let _lock = super::lock(path)?;
    let context = || format!("cannot clear {}", path.display());
    fs::write(path.join(FORMATTING), Making::Restore.name()).with_context(context)?;
    // A directory without the mark would be one that nobody may touch.
    sync_folder(path).with_context(context)?;
    super::drop_logs(path)?;
    // Before the directory is one that nobody needs.
    if keeps && path.join(META).exists() {
        remove(fs::remove_dir_all(path.join(REPLACED)), path)?;
        remove(fs::rename(path.join(META), path.join(REPLACED)), path)?;
        sync_folder(path).with_context(context)?;
    }
    remove(fs::remove_file(path.join(ABOUT)), path)?;
    sync_folder(path).with_context(context)?;
    remove(fs::remove_file(path.join(BOOT)), path)?;
    JournalNote::forget(path)
}

/// The purpose of a directory that is made from a base.
pub(crate) enum Restored<'a> {
    /// A copy beside an original that may be in use.
    Copy,
    /// The successor of an original that is lost: this brings the metadata to the journal's end, and
    /// notes where that is. With the number of the server in its cluster, which a base of before it
    /// had others does not have.
    Successor(&'a mut dyn FnMut(&Path, &RocksEngine) -> anyhow::Result<()>, Option<u16>),
}

/// Makes a data directory of the files that `fill` puts into a folder: those of a base. Returns the
/// name of the file system, and whether its blocks are in the directory.
pub(crate) fn restore(
    path: &Path,
    key: &Key,
    restored: Restored<'_>,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<(String, bool)> {
    let begun = Begun::new(path, Making::Restore)?;
    let restoring = path.join(RESTORING);
    fs::create_dir(&restoring).with_context(|| format!("cannot make {}", restoring.display()))?;
    keep_backup_key(path, key)?;
    fill(&restoring)?;
    let mut about: About = read_about(&restoring)?;
    ensure!(
        about.server.is_none() || matches!(restored, Restored::Successor(..)),
        "the base is of a server of a cluster, and the others have gone on since: `pando journal \
         recover --server` makes a directory that is where they are"
    );
    for name in [META, NEWEST_KEY, SIGNING_KEY, ADMIN_TOKEN, COORDINATOR] {
        match fs::rename(restoring.join(name), path.join(name)) {
            Err(error) if may_lack(name, &error) => {}
            moved => moved.with_context(|| format!("the base has no {name}"))?,
        }
    }
    if let Restored::Copy = restored {
        let why = "a copy made from a backup; see `pando backup final`\n";
        write_private(path, RESTORED, why.as_bytes())?;
    }
    {
        // Opening it also puts the log into tables.
        let engine = RocksEngine::open(&path.join(META), &RocksConfig::default())
            .context("the restored metadata cannot be opened")?;
        match restored {
            Restored::Copy => Server::prepare_copy(&engine)?,
            Restored::Successor(complete, server) => {
                complete(path, &engine)?;
                about.server = server;
            }
        }
        engine.write_out()?;
        engine.sync()?;
    }
    fs::remove_dir_all(&restoring).context("cannot remove what was read")?;
    // An older program must not serve what this one has brought up to date.
    about.version = version_of(about.server);
    finish(path, &about.to_text()?)
        .with_context(|| format!("cannot write to {}", path.display()))?;
    drop(begun);
    Ok((about.name, about.blocks.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{New, VERSION, format};

    fn places(progress: &Progress) -> Vec<(Option<&str>, Option<&str>)> {
        let notes = std::iter::once(&progress.current).chain(&progress.others);
        notes.map(|note| (note.url.as_deref(), note.key.as_deref())).collect()
    }

    #[test]
    fn each_address_and_key_has_a_history_and_a_change_holds_blocks() {
        let mut progress = Progress::begin(("file:///a", "k"), 7, false);
        let first = progress.current.history;
        assert_eq!((progress.newest, progress.earlier_held_seconds), (7, None));
        progress.turn_to(("file:///a", "k"));
        assert_eq!((progress.current.history, progress.earlier_held_seconds), (first, None));
        progress.turn_to(("file:///b", "k"));
        assert_ne!(progress.current.history, first);
        assert_eq!((progress.newest, progress.earlier_held_seconds), (7, Some(0)));
        progress.hold_earlier(10, 30);
        progress.hold_earlier(10, 30);
        assert_eq!(progress.earlier_held_seconds, Some(20));
        // Another change begins the time anew.
        progress.turn_to(("file:///a", "other"));
        assert_eq!(progress.earlier_held_seconds, Some(0));
        progress.turn_to(("file:///a", "k"));
        assert_eq!((progress.current.history, progress.others.len()), (first, 2));
        progress.hold_earlier(30, 30);
        assert_eq!(progress.earlier_held_seconds, None);
        assert!(progress.knows("file:///b") && !progress.knows("file:///c"));
    }

    #[test]
    fn a_note_of_a_program_of_before_is_of_the_place_that_is_used_next() {
        let mut progress: Progress =
            serde_json::from_str(r#"{ "history": 5, "newest": 3 }"#).unwrap();
        progress.turn_to(("s3://b/p", "k"));
        assert_eq!((progress.current.history, progress.earlier_held_seconds), (5, None));
        assert_eq!(places(&progress), [(Some("s3://b/p"), Some("k"))]);
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(text, r#"{"history":5,"url":"s3://b/p","key":"k","made":0,"newest":3}"#);
    }

    #[test]
    fn a_copy_has_the_version_of_the_program_that_restores_it() {
        let folder = tempfile::tempdir().unwrap();
        let (original, copy) = (folder.path().join("original"), folder.path().join("copy"));
        let new = New {
            name: "data".to_owned(),
            shards: 1,
            servers: 1,
            locality: base::Locality::Directory,
            inline_bytes_max: 4096,
            blocks: None,
            compression: store::Compression::None,
        };
        format(&original, &new).unwrap();
        let about = fs::read_to_string(original.join(ABOUT)).unwrap();
        let older = about.replace(&format!("\"version\": {VERSION}"), "\"version\": 12");
        assert_ne!(older, about);
        restore(&copy, &Key::new([1; 32]), Restored::Copy, |folder| {
            for name in [META, SIGNING_KEY] {
                fs::rename(original.join(name), folder.join(name))?;
            }
            Ok(fs::write(folder.join(ABOUT), older)?)
        })
        .unwrap();
        assert_eq!(fs::read_to_string(copy.join(ABOUT)).unwrap(), about);
        assert!(!copy.join(ADMIN_TOKEN).exists());
    }
}
