//! A data directory is made that goes on where a journal ends.
//!
//! The newest base that fits is restored, and what the chain has beyond is applied to it. Files are
//! made by [`data::restore`]; who may serve the directory is decided at its start.

use std::{cell::RefCell, cmp::Reverse, collections::BTreeSet, path::Path};

use ::backup::{Base, Key, Place};
use ::journal::{Error, Journal as Chain, Reader, Replica};
use anyhow::Context as _;
use store::{Engine as _, RocksEngine};
use tokio::{runtime::Runtime, sync::Notify};

use super::start::{REQUEST_TIMEOUT, apply, member};
use crate::{
    backups::{address, variables},
    data::{self, BackupProgress, JournalNote, Kept, KeptBackup, Restored},
    failure::usage,
};

/// A journal in a store, and the bases that it begins with.
pub(crate) struct Source<'a> {
    pub(crate) url: &'a str,
    pub(crate) place: &'a Place,
    pub(crate) key: &'a Key,
    /// Number of the server in its cluster, if the file system is one.
    pub(crate) server: Option<u16>,
    /// Options that the directory keeps.
    pub(crate) kept: Kept,
}

/// Steps of a recovery, for who shows them. Each is asked whether to go on.
pub(crate) trait Watch {
    /// A base is read.
    ///
    /// # Errors
    /// When nobody wants the directory any more.
    fn reads(&self, base: &Base, bytes: u64) -> anyhow::Result<()>;
    /// A segment is applied.
    ///
    /// # Errors
    /// The same as of [`Watch::reads`].
    fn applies(&self, segment: u64) -> anyhow::Result<()>;
}

/// There is no base that a journal begins with; there may be one later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBase {
    #[error("there is no base of a server with a journal: nothing can be recovered")]
    None,
    #[error("there is no base of server {0} with a journal: nothing can be recovered")]
    OfServer(u16),
    #[error("no complete base leads to the end of the journal")]
    Leads,
}

/// A directory that was made.
pub(crate) struct Recovered {
    /// Name of the file system.
    pub(crate) name: String,
    pub(crate) base: Base,
    /// The last change.
    pub(crate) end: u64,
}

impl Source<'_> {
    /// The bases of the one history of this server that has a journal, the newest first.
    pub(crate) async fn bases(&self, history: Option<&str>) -> anyhow::Result<Vec<Base>> {
        let mut bases = self.place.bases(self.key, history).await?;
        bases.retain(|base| base.manifest.generation > 0);
        let servers: BTreeSet<_> = bases.iter().filter_map(|base| base.manifest.server).collect();
        if self.server.is_none() && !servers.is_empty() {
            let servers: Vec<_> = servers.iter().map(u16::to_string).collect();
            return Err(usage(format!(
                "the journals are those of a cluster: choose one of its servers with --server ({})",
                servers.join(", ")
            )));
        }
        // The first server of a cluster may have been the only one of its file system.
        let of_it = bases.iter().filter(|base| base.manifest.server == self.server);
        let of_it: BTreeSet<_> = of_it.map(|base| base.manifest.history.clone()).collect();
        bases.retain(|base| of_it.contains(&base.manifest.history));
        if bases.is_empty() {
            return Err(self.server.map_or(NoBase::None, NoBase::OfServer).into());
        }
        Base::must_be_of_one_history(&bases)?;
        bases.reverse();
        Ok(bases)
    }

    /// The journal that a base belongs to.
    pub(crate) fn journal(&self, base: &Base) -> anyhow::Result<Chain> {
        let place = Place::open_once(self.url, variables(), REQUEST_TIMEOUT)?;
        let ids = ids(base)?;
        let member = member(base.manifest.server);
        Ok(Chain::new(place, ids, member, self.key.clone(), REQUEST_TIMEOUT))
    }

    /// Makes a directory of the newest of these bases that leads to the end of their journal.
    pub(crate) fn recover(
        &self,
        mut bases: Vec<Base>,
        path: &Path,
        runtime: &Runtime,
        watch: &dyn Watch,
    ) -> anyhow::Result<Recovered> {
        let newest = bases.iter().map(|base| base.manifest.number).max().unwrap_or_default();
        let kept = &self.kept;
        bases.retain(Base::is_complete);
        // An old server may be late with a base.
        bases.sort_by_key(|base| Reverse((base.manifest.generation, base.manifest.number)));
        for base in bases {
            let mut end = 0;
            let mut complete = |path: &Path, engine: &RocksEngine| {
                let completed = self.complete(path, engine, &base, watch);
                end = runtime.block_on(completed)?;
                let progress = BackupProgress::read(path)?.context("backup.json is gone")?;
                BackupProgress { newest: progress.newest.max(newest), ..progress }.write(path)?;
                let before = kept.backup.clone().filter(|before| before.url == self.url);
                let backup = before.unwrap_or_else(|| KeptBackup::at(self.url));
                let backup = Some(KeptBackup { journal: true, ..backup });
                Kept { backup, ..kept.clone() }.write(path)
            };
            let restored = Restored::Successor(&mut complete, self.server);
            let done = data::restore(path, self.key, restored, |folder| {
                let (stopped, stop) = (RefCell::new(None), Notify::new());
                let told = |done: ::backup::Progress| {
                    if let Err(error) = watch.reads(&base, done.bytes) {
                        stopped.borrow_mut().get_or_insert(error);
                        stop.notify_one();
                    }
                };
                runtime.block_on(async {
                    tokio::select! {
                        restored = self.place.restore(&base, self.key, folder, &told) => restored?,
                        () = stop.notified() => {}
                    }
                    anyhow::Ok(())
                })?;
                stopped.take().map_or(Ok(()), Err)
            });
            match done {
                Ok((name, _)) => return Ok(Recovered { name, base, end }),
                Err(error) => match error.downcast_ref() {
                    Some(
                        Error::NeedsBase { .. }
                        | Error::Forked { .. }
                        | Error::Broken { .. }
                        | Error::Missing(_)
                        | Error::Altered(_),
                    ) => {
                        let base = base.manifest.number;
                        tracing::warn!(base, error = format!("{error:#}"), "a base does not fit");
                    }
                    Some(_) | None => return Err(error),
                },
            }
        }
        Err(NoBase::Leads.into())
    }

    /// Brings a restored engine to the end of the journal, and notes where that is. Returns the last
    /// change.
    async fn complete(
        &self,
        path: &Path,
        engine: &RocksEngine,
        base: &Base,
        watch: &dyn Watch,
    ) -> anyhow::Result<u64> {
        let manifest = &base.manifest;
        let journal = self.journal(base)?;
        let replica = Replica { generation: manifest.generation, position: engine.position() };
        // The copy may have more than the base says: what was written while it was made.
        let position = replica.position;
        let mut reader = Reader::new(journal.clone(), manifest.segment, replica);
        while let Some(segment) = reader.next().await? {
            watch.applies(segment.header.number)?;
            apply(engine, segment)?;
        }
        // The server may go on, or what comes next was collected.
        let number = reader.end().number;
        if journal.beyond(number).await?.is_some() {
            let Some(segment) = reader.next().await? else {
                return Err(Error::NeedsBase { number: number + 1, position }.into());
            };
            apply(engine, segment)?;
        }
        let end = reader.end();
        let (uuid, history) = ids(base)?;
        let mut noted = JournalNote::begin(self.url, uuid, history, end.owner.generation);
        (noted.note.follows, noted.note.segment) = (true, end.number);
        (noted.note.base, noted.note.position) = (manifest.number, position);
        noted.write(path)?;
        let of = (&*address(self.url), &*self.key.id());
        BackupProgress::of_successor(of, history, manifest.number).write(path)?;
        Ok(engine.position())
    }
}

/// Ids of the file system and of the history.
fn ids(base: &Base) -> anyhow::Result<(u128, u64)> {
    let uuid = u128::from_str_radix(&base.manifest.uuid.replace('-', ""), 16);
    let history = u64::from_str_radix(&base.manifest.history, 16);
    Ok((uuid.context("a base names no file system")?, history.context("a base has no history")?))
}
