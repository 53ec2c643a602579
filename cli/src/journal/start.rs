//! A data directory takes its journal over, before its server opens.
//!
//! The log is kept and read, and the engine opened; what follows is [`take_over`] of the crate
//! `journal`. A directory that has followed another server's journal waits there until the lease of
//! that one has ended, unless whoever calls has seen that.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use ::backup::{Names, Place};
use ::journal::{
    Claim, Data, Error, Failure, Journal as Chain, Note, Record, Segment, TakenOver, Trouble,
    check, leave, missing, own, take_over,
};
use anyhow::{Context as _, anyhow, ensure};
use base::{Random, error::describe};
use meta::Server;
use parking_lot::Mutex;
use store::{Batch, Blocks, Engine, LogRecord, RocksConfig, RocksEngine, records_of};
use tokio::time::timeout;

use super::{
    Journaled, Phase, Ship,
    run::{self, Journal, Work},
    shown,
};
use crate::{
    backups, connect,
    data::{self, BackupProgress, DataDir, JournalNote},
    failure::usage,
    system::{self, SystemRandom},
};

/// Time after which a request to the store has failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a start waits for a store that fails.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of a server as its journal has it: that in its cluster, or 0 for the only one of its file
/// system.
pub(crate) fn member(server: Option<u16>) -> u32 {
    server.unwrap_or_default().into()
}

/// A journal that was taken over, and the engine above it.
pub(crate) struct Started {
    pub(crate) engine: Arc<RocksEngine>,
    pub(crate) journaled: Arc<Journaled>,
    pub(crate) ship: Arc<Ship>,
    pub(crate) journal: Journal,
    /// The directory has followed another server's journal, and the lease of that server was seen to
    /// end: nobody serves with it any more.
    pub(crate) succeeds: bool,
}

/// How a server takes its journal over.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) url: String,
    /// Where the server is reached, for those who read the journal.
    pub(crate) address: String,
    /// The server's lease.
    pub(crate) lease: Option<Duration>,
    /// The segment whose lease was seen to end, by who has tested the store, too.
    pub(crate) ends_at: Option<u64>,
}

/// Opens the metadata of a directory whose journal is in the place of its backups.
pub(crate) fn start(
    data: &DataDir,
    blocks: &Blocks,
    config: &RocksConfig,
    terms: &Terms,
) -> anyhow::Result<Started> {
    for_shared_blocks(data)?;
    // On a thread of its own: the caller's may have a runtime.
    let started =
        thread::scope(|scope| scope.spawn(|| on_this_thread(data, blocks, config, terms)).join());
    started.unwrap_or_else(|_| Err(anyhow!("the start of the journal was interrupted")))
}

/// A journal needs contents in a shared store: those of a lost disk would be lost.
fn for_shared_blocks(data: &DataDir) -> anyhow::Result<()> {
    if data.has_local_blocks() {
        return Err(usage(
            "--journal needs contents of files in a shared store, as those on this machine's disk \
             would be lost with it: `pando format --blocks URL` makes such a file system, and `pando \
             load` brings a dump of this one into it",
        ));
    }
    ensure!(
        !data::is_restored(data.path()),
        "this is a restored copy whose original may be in use: say `pando backup final` first"
    );
    Ok(())
}

fn on_this_thread(
    data: &DataDir,
    blocks: &Blocks,
    config: &RocksConfig,
    terms: &Terms,
) -> anyhow::Result<Started> {
    let (path, url) = (data.path(), &*terms.url);
    data.cut_log(blocks)?;
    let logged = records_of(&data::keep_logs(path)?)?;
    let mut engine = data.engine(blocks, config)?;
    let follower = engine.follow()?;
    let engine = Arc::new(engine);
    let turned = backups::turn(url, path, &engine)?;
    let (key, history) = (turned.key, turned.progress.current.history);
    let uuid = Server::uuid(&*engine)?;
    let place = Place::open_once(url, backups::variables(), REQUEST_TIMEOUT)?;

    let random: Arc<dyn Random> = Arc::new(SystemRandom::default());
    let member = member(data.server());
    let chain = Chain::new(place.clone(), (uuid, history), member, key, REQUEST_TIMEOUT);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let taken = async {
        if terms.ends_at.is_none() {
            timeout(STORE_TIMEOUT, check(&place, &*random))
                .await
                .map_err(|_| Error::Slow(STORE_TIMEOUT))??;
        }
        let mut noted = match JournalNote::read(path)? {
            Some(noted) if noted.history == history => noted,
            Some(before) => {
                let owned = still_own(path, before, true).await?;
                JournalNote::begin(url, uuid, history, owned.note.next_generation() - 1)
            }
            None => JournalNote::begin(url, uuid, history, 0),
        };
        let failed = Mutex::new(None);
        let claim = Claim {
            lease: terms.lease,
            ends_at: terms.ends_at,
            was_heard: data.had_lease(),
            limit: STORE_TIMEOUT,
            now: &system::since_boot,
            told: &|trouble| tell(&failed, &trouble),
        };
        let mut note = noted.note.clone();
        let directory = Directory { path, noted: &noted, engine: &engine, logged: &logged };
        let taken = take_over(&chain, &mut note, &directory, &claim, &random).await;
        let taken = taken.map_err(|error| match (error, failed.lock().take()) {
            (error @ Error::Slow(_), Some(why)) => anyhow!(error).context(why),
            (Error::Data(error), _) => anyhow!(error),
            (error, _) => error.into(),
        })?;
        noted.note = note;
        anyhow::Ok((taken, noted))
    };
    let (taken, noted) = runtime.block_on(taken).map_err(|error| refused(error, url, path))?;
    let TakenOver { writer, tenure, begun, is_whole } = taken;
    let phase = if is_whole { Phase::InForce } else { Phase::Begins };
    drop(runtime);
    data::drop_logs(path)?;

    let at = (engine.position(), phase);
    let note = &noted.note;
    let ship = Arc::new(Ship::new(shown(url), note.generation, tenure, at));
    ship.course.lock().status = writer.status();
    ship.chain.get_or_init(|| chain);
    tracing::info!(generation = note.generation, segment = writer.end().number, ?phase, "journal");
    ship.noted.store(note.segment, Ordering::Release);
    let (path, shipped) = (path.to_owned(), Arc::clone(&ship));
    let (address, succeeds) = (terms.address.clone(), note.succeeds);
    let work = Work { ship: shipped, writer, follower, path, note: noted, address, renewed: begun };
    let journal = Journal::start(work)?;
    let journaled = Arc::new(Journaled::new(Arc::clone(&engine), Arc::clone(&ship)));
    Ok(Started { engine, journaled, ship, journal, succeeds })
}

/// Has a directory that has followed another server's journal know the bases that were made meanwhile:
/// contents that they name stay.
pub(crate) fn know_bases(path: &Path, url: &str) -> anyhow::Result<()> {
    let noted = JournalNote::read(path)?.filter(|noted| noted.note.follows);
    let Some(noted) = noted else { return Ok(()) };
    let Some(progress) = BackupProgress::read(path)? else { return Ok(()) };
    let uuid = u128::from_str_radix(&noted.uuid, 16).context("journal.json has no id")?;
    let names = Names::new(uuid, noted.history);
    // On a thread of its own: the caller's may have a runtime.
    let listed = thread::scope(|scope| {
        let list = || -> anyhow::Result<_> {
            let place = Place::open_once(url, backups::variables(), REQUEST_TIMEOUT)?;
            let listed = connect::runtime()?
                .block_on(async { timeout(STORE_TIMEOUT, place.numbers(&names)).await });
            Ok(listed.map_err(|_| Error::Slow(STORE_TIMEOUT))??)
        };
        scope.spawn(list).join()
    });
    let listed = listed.unwrap_or_else(|_| Err(anyhow!("the list of bases was interrupted")))?;
    let newest = listed.into_iter().max().unwrap_or_default().max(progress.newest);
    BackupProgress { newest, ..progress }.write(path)
}

/// Sees that the journal of a directory, if it has one, is not another server's by now: for who writes
/// to its history without serving it.
pub(crate) fn must_own(path: &Path) -> anyhow::Result<()> {
    let Some(note) = JournalNote::read(path)? else { return Ok(()) };
    look(path, note, false).map(drop)
}

/// Runs [`still_own`] on a thread of its own: the caller's may have a runtime.
fn look(path: &Path, note: JournalNote, leaves: bool) -> anyhow::Result<JournalNote> {
    let looked = thread::scope(|scope| {
        scope.spawn(|| connect::runtime()?.block_on(still_own(path, note, leaves))).join()
    });
    looked.unwrap_or_else(|_| Err(anyhow!("the look at the journal was interrupted")))
}

/// Sees that the chain is still a directory's, which turns away from it and `leaves` it.
async fn still_own(
    path: &Path,
    mut noted: JournalNote,
    leaves: bool,
) -> anyhow::Result<JournalNote> {
    ensure!(
        !noted.note.follows,
        "{} has followed the journal of another server at {}: serve it with that journal, or not at all",
        path.display(),
        shown(&noted.url)
    );
    let url = noted.url.clone();
    let mut note = noted.note.clone();
    let looked = async {
        let key = data::backup_key(path)?;
        let uuid = u128::from_str_radix(&noted.uuid, 16).context("it names no file system")?;
        let place = Place::open_once(&url, backups::variables(), REQUEST_TIMEOUT)?;
        let member = member(data::server_of(path));
        let chain = Chain::new(place, (uuid, noted.history), member, key, REQUEST_TIMEOUT);
        let end = own(&chain, &mut note, STORE_TIMEOUT).await?;
        if leaves {
            let random: Arc<dyn Random> = Arc::new(SystemRandom::default());
            let keep = |note: &Note| {
                let noted = JournalNote { note: note.clone(), ..noted.clone() };
                noted.write(path).map_err(Into::into)
            };
            leave(&chain, &end, &mut note, keep, STORE_TIMEOUT, &random).await?;
        }
        anyhow::Ok(())
    };
    if let Err(error) = looked.await {
        return match error.downcast_ref::<Error>() {
            Some(
                Error::Fenced { .. }
                | Error::Forked { .. }
                | Error::NeedsBase { .. }
                | Error::GoesOn { .. },
            ) => Err(refused(error, &url, path)),
            Some(_) | None => Err(error.context(format!(
                "it cannot be seen whether another server has taken the journal at {} over; if that \
                 store is gone for good and no other server is there, remove {}/journal.json",
                shown(&url),
                path.display()
            ))),
        };
    }
    noted.note = note;
    Ok(noted)
}

fn tell(last: &Mutex<Option<String>>, trouble: &Trouble<'_>) {
    if let Trouble::Failed { error, .. } = trouble {
        let text = describe(*error);
        if last.lock().replace(text.clone()).is_none() {
            tracing::warn!(error = text, "the journal's store fails; it is tried again");
        }
    }
}

/// Why a directory cannot take its journal over.
fn refused(error: anyhow::Error, url: &str, path: &Path) -> anyhow::Error {
    let (shown, path) = (shown(url), path.display());
    let why = match error.downcast_ref::<Error>() {
        Some(Error::Fenced { .. } | Error::Forked { .. }) => format!(
            "another server has taken the journal at {shown} over, and {path} is out of date: keep \
             it away from clients. `pando journal recover` makes a directory that goes on"
        ),
        Some(Error::GoesOn { .. }) => format!(
            "another server serves with the journal at {shown}; `pando serve --standby` waits until \
             it does not"
        ),
        Some(Error::NeedsBase { .. } | Error::Behind { .. }) => format!(
            "the journal at {shown} does not go on where {path} is: if this is the right place, \
             another server has taken it over, and `pando journal recover` makes a directory that \
             goes on"
        ),
        Some(_) | None => format!("cannot take the journal at {shown} over"),
    };
    error.context(why)
}

/// A data directory, as its journal is taken over or followed.
pub(crate) struct Directory<'a> {
    pub(crate) path: &'a Path,
    /// The note, whose part on the end of the chain changes.
    pub(crate) noted: &'a JournalNote,
    pub(crate) engine: &'a RocksEngine,
    /// The log of the run before.
    pub(crate) logged: &'a [LogRecord],
}

impl Data for Directory<'_> {
    fn position(&self) -> u64 {
        self.engine.position()
    }

    fn reaches(&self, position: u64) -> bool {
        rest(self.logged, position, self.engine.position()).is_some()
    }

    fn log_after(&self, position: u64) -> Option<Vec<Record>> {
        rest(self.logged, position, self.engine.position()).map(|rest| run::records(rest.to_vec()))
    }

    fn apply(&self, segment: Segment) -> Result<(), Failure> {
        apply(self.engine, segment).map_err(Into::into)
    }

    fn sync(&self) -> Result<(), Failure> {
        self.engine.sync().map_err(Into::into)
    }

    fn keep(&self, note: &Note) -> Result<(), Failure> {
        let noted = JournalNote { note: note.clone(), ..self.noted.clone() };
        noted.write(self.path).map_err(Into::into)
    }
}

/// The records of the log after `end`, if they follow it and reach `position`.
fn rest(logged: &[LogRecord], end: u64, position: u64) -> Option<&[LogRecord]> {
    let begins = logged.iter().position(|record| record.last() > end).unwrap_or(logged.len());
    let rest = &logged[begins..];
    let follows = rest.first().is_some_and(|first| first.first == end + 1);
    let reaches = rest.last().is_some_and(|last| last.last() == position);
    (follows && reaches).then_some(rest)
}

/// Writes the records of a segment that an engine lacks, with the numbers that they have.
pub(crate) fn apply(engine: &RocksEngine, segment: Segment) -> anyhow::Result<()> {
    for record in missing(segment, engine.position())? {
        let last = record.last();
        engine.write(Batch::decode(record.batch.into())?)?;
        ensure!(engine.position() == last, "position {last} of the journal is another one here");
    }
    Ok(())
}

/// A directory whose server has no journal any more begins a new history of bases: what it writes
/// from now on is not in the chain.
pub(crate) fn end(path: &Path) -> anyhow::Result<()> {
    let Some(note) = JournalNote::read(path)? else { return Ok(()) };
    look(path, note, true)?;
    data::drop_logs(path)?;
    if let Some(mut progress) = BackupProgress::read(path)? {
        progress.leave_current();
        progress.write(path)?;
    }
    tracing::warn!("there is no journal any more: what is stable is on this machine's disk alone");
    JournalNote::forget(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(first: u64, count: u32) -> LogRecord {
        LogRecord { first, count, bytes: Vec::new() }
    }

    #[test]
    fn a_log_is_put_only_where_it_follows_the_journal_and_is_whole() {
        let log = [record(5, 2), record(7, 1), record(8, 3)];
        let firsts = |end, position| {
            let rest = rest(&log, end, position)?;
            Some(rest.iter().map(|record| record.first).collect::<Vec<_>>())
        };
        assert_eq!(firsts(4, 10), Some(vec![5, 7, 8]));
        assert_eq!(firsts(6, 10), Some(vec![7, 8]));
        assert_eq!(firsts(3, 10), None, "change 4 is missing");
        assert_eq!(firsts(4, 11), None, "change 11 is missing");
        assert_eq!(firsts(5, 10), None, "the journal ends within a record");
    }
}
