//! Bases of one data directory, into the history that it has noted for the place and the key.
//!
//! The thread of a running server uses it, and `pando backup now`. A directory is made when its
//! address is first given, and never again: when it is missing later, it is not mounted.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::backup::{Collected, Error, History, Key, Made, Moment, Place};
use ::journal::Covered;
use anyhow::{Context as _, bail};
use meta::Server;
use store::{Engine as _, RocksEngine};
use tokio::time::Instant;

use super::{now_seconds, open_place, variables, without_options};
use crate::{
    data::{self, BackupProgress, JournalNote},
    journal::{Based, Ship},
    system::SystemRandom,
};

/// Makes bases of one data directory.
pub(crate) struct Maker {
    pub(super) path: PathBuf,
    name: String,
    url: String,
    /// The place and what is known of its bases, once it could be opened.
    opened: Option<Opened>,
    random: SystemRandom,
    /// The journal that bases belong to.
    ship: Option<Arc<Ship>>,
}

struct Opened {
    place: Place,
    /// The address that the directory notes.
    address: String,
    uuid: u128,
    key: Key,
    history: History,
    /// Time up to which it is counted how long earlier bases hold blocks.
    counted: Instant,
}

impl Maker {
    /// The place and the key are opened at the first base.
    pub(crate) fn new(url: &str, path: &Path, name: &str) -> Maker {
        Maker {
            path: path.to_owned(),
            name: name.to_owned(),
            url: url.to_owned(),
            opened: None,
            random: SystemRandom::default(),
            ship: None,
        }
    }

    /// The same, for a server with a journal.
    pub(super) fn beside(self, ship: Option<Arc<Ship>>) -> Maker {
        Maker { ship, ..self }
    }

    /// Makes a base. `begun` is told its number before its copy is begun.
    pub(crate) async fn make(
        &mut self,
        engine: &RocksEngine,
        begun: impl Fn(u64),
    ) -> anyhow::Result<Made> {
        let opened = match &mut self.opened {
            Some(opened) => opened,
            none => none.insert(Opened::open(&self.url, &self.path, engine)?),
        };
        if let Some(ship) = &self.ship {
            ship.still_owns().await?;
        }
        match opened.history.check_owner().await {
            // Where the journal is this server's, another one was late with a base.
            Err(Error::Foreign) if self.ship.is_some() => opened.skip(&self.path).await?,
            Err(Error::Foreign) if JournalNote::read(&self.path)?.is_some() => {
                bail!("another server has taken the journal of this directory over")
            }
            Err(Error::Foreign) => {
                tracing::warn!("{}: this one begins a history of its own", Error::Foreign);
                opened.leave(&self.path)?;
                opened.history.check_owner().await?;
            }
            checked => checked?,
        }
        let of = (&*self.path, &*self.name);
        // No segment up to this one has more than the copy.
        let journal = self.ship.as_ref().map_or((0, 0), |ship| (ship.generation(), ship.segment()));
        if let Some(ship) = &self.ship {
            ship.base_begins();
        }
        let made = base(&mut opened.history, of, engine, begun, journal, &self.random).await;
        if let (Ok((_, covered)), Some(ship)) = (&made, &self.ship) {
            ship.base_made(Based { covered: *covered, segment: journal.1 });
        } else if let Some(ship) = &self.ship {
            ship.base_fails();
        }
        let made = made.map(|(made, _)| made);
        if let Err(error) = &made
            && self.ship.is_none()
            && let Some(Error::Foreign) = error.downcast_ref()
        {
            opened.leave(&self.path)?;
        }
        data::end_copy(&self.path)?;
        made
    }

    /// Removes old bases, where nothing has changed for so long since the newest one. Returns what
    /// is left, and the number of the oldest base that holds blocks: 0 while bases of an earlier
    /// history do.
    pub(crate) async fn collect(
        &mut self,
        keep_seconds: u64,
        quiet: Duration,
    ) -> anyhow::Result<(Collected, u64)> {
        let opened = self.opened.as_mut().context("the place is not open yet")?;
        let collected = opened.history.collect(keep_seconds, quiet.as_secs()).await?;
        if let Some(ship) = &self.ship {
            ship.still_owns().await?;
        }
        let passed = opened.counted.elapsed().as_secs();
        opened.counted += Duration::from_secs(passed);
        let noted = read_progress(&self.path)?;
        let mut now = noted.clone();
        now.hold_earlier(passed, keep_seconds);
        if now != noted {
            now.write(&self.path)?;
        }
        let is_alone = now.earlier_held_seconds.is_none();
        Ok((collected, if is_alone { collected.oldest } else { 0 }))
    }
}

impl Opened {
    fn open(url: &str, path: &Path, engine: &RocksEngine) -> anyhow::Result<Opened> {
        let Turned { place, address, key, progress } = turn(url, path, engine)?;
        let uuid = Server::uuid(engine)?;
        let history = History::new(place.clone(), uuid, progress.noted(), key.clone());
        Ok(Opened { place, address, uuid, key, history, counted: Instant::now() })
    }

    /// Goes on above the bases of another process in the same history.
    async fn skip(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut progress = read_progress(path)?;
        let bases = self.place.bases(&self.key, Some(&progress.current.id())).await?;
        let numbers = bases.iter().map(|base| base.manifest.number);
        progress.newest = progress.newest.max(numbers.max().unwrap_or_default());
        progress.write(path)?;
        let (place, key) = (self.place.clone(), self.key.clone());
        self.history = History::new(place, self.uuid, progress.noted(), key);
        Ok(())
    }

    /// Begins a history of its own, as another server writes this one.
    fn leave(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut progress = read_progress(path)?;
        progress.leave((&self.address, &self.key.id()));
        progress.write(path)?;
        let (place, key) = (self.place.clone(), self.key.clone());
        self.history = History::new(place, self.uuid, progress.noted(), key);
        self.counted = Instant::now();
        Ok(())
    }
}

/// The place, key and history of a directory's bases.
pub(crate) struct Turned {
    pub(crate) place: Place,
    /// The address that the directory notes.
    pub(crate) address: String,
    pub(crate) key: Key,
    pub(crate) progress: BackupProgress,
}

/// Turns a directory to the history for a place and its key, which are made if this is the first
/// time.
pub(crate) fn turn(url: &str, path: &Path, engine: &RocksEngine) -> anyhow::Result<Turned> {
    let noted = BackupProgress::read(path)?;
    let address = address(url);
    let is_known = noted.as_ref().is_some_and(|noted| noted.knows(&address));
    let place = if is_known { open_place(url)? } else { Place::begin(url, variables())? };
    let had_key = data::has_backup_key(path);
    let key = data::make_backup_key(path)?;
    let of = (address.as_str(), &*key.id());
    let progress = match noted {
        Some(mut noted) => {
            noted.turn_to(of);
            noted
        }
        None => {
            // A note that was removed had begun bases, which blocks are marked with.
            let newest = Server::newest_mark(engine)?;
            BackupProgress::begin(of, newest, had_key || newest > 0)
        }
    };
    progress.write(path)?;
    Ok(Turned { place, address, key, progress })
}

async fn base(
    history: &mut History,
    (path, name): (&Path, &str),
    engine: &RocksEngine,
    begun: impl Fn(u64),
    journal: (u64, u64),
    random: &SystemRandom,
) -> anyhow::Result<(Made, Covered)> {
    let number = history.next();
    let mut noted = read_progress(path)?;
    noted.newest = number;
    noted.write(path)?;
    begun(number);
    let position = engine.position();
    let copy = data::begin_copy(path, engine)?;
    let small = data::small_files(path)?;
    let (made, name) = (now_seconds(), name.to_owned());
    let moment = Moment { made, position, journal, server: data::server_of(path), name };
    let made = history.make((&copy, "meta"), &small, moment, random).await?;
    noted.current.made = number;
    noted.write(path)?;
    Ok((made, Covered { base: number, position }))
}

fn read_progress(path: &Path) -> anyhow::Result<BackupProgress> {
    BackupProgress::read(path)?.context("backup.json is gone")
}

/// The address by which a place is known again.
pub(crate) fn address(url: &str) -> String {
    without_options(url).trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use store::{Batch, RocksConfig};

    use super::*;
    use crate::data::{DataDir, New, format};

    #[tokio::test]
    async fn tables_that_are_stored_are_known_after_a_place_was_away() {
        let folder = tempfile::tempdir().unwrap();
        let (path, place) = (folder.path().join("data"), folder.path().join("store"));
        let new = New {
            name: "data".to_owned(),
            shards: 1,
            servers: 1,
            locality: base::Locality::Directory,
            inline_bytes_max: 4096,
            blocks: None,
            compression: store::Compression::None,
        };
        format(&path, &new).unwrap();
        let data = DataDir::open(&path).unwrap();
        let engine = data.engine(&data.blocks().unwrap(), &RocksConfig::default()).unwrap();
        let mut batch = Batch::default();
        batch.put(b"zz", &[7; 100_000]);
        engine.write(batch).unwrap();
        engine.write_out().unwrap();
        let url = format!("file://{}", place.display());
        let mut maker = Maker::new(&url, &path, "data");
        assert!(maker.collect(0, Duration::ZERO).await.is_err());
        maker.make(&engine, |_| ()).await.unwrap();
        let away = folder.path().join("away");
        fs::rename(&place, &away).unwrap();
        maker.make(&engine, |_| ()).await.unwrap_err();
        assert!(maker.opened.is_some());
        assert!(!place.exists());
        fs::rename(&away, &place).unwrap();
        maker.make(&engine, |_| ()).await.unwrap();
        let noted = BackupProgress::read(&path).unwrap().unwrap();
        assert_eq!((noted.newest, noted.current.made), (2, 2));
        assert_eq!(noted.current.url, Some(url));
        assert!(!path.join("backup-copy").exists());
    }
}
