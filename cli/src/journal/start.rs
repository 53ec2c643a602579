//! A server takes its journal over, before it serves.
//!
//! ```text
//! keep and read the log, open the engine
//! note the next generation, on stable storage
//! fence                                the end of the chain, for this generation
//! apply                                what the chain has and the engine lacks
//! put                                  what the log has and the chain lacks
//! ```
//!
//! A directory that has followed another server's journal waits first until the lease of that one has
//! ended, unless whoever calls has seen that.
//!
//! If the log does not reach back to the chain's end, or the directory has no base yet, the journal
//! begins with the next base.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use ::backup::{Names, Place};
use ::journal::{
    Covered, End, Error, Journal as Chain, Known, Owner, Reader, Replica, Segment, Tenure, Times,
    Trouble, Verdict, Vigil, check, fence,
};
use anyhow::{Context as _, anyhow, bail, ensure};
use base::{Random as _, error::describe};
use meta::Server;
use parking_lot::Mutex;
use store::{Batch, Blocks, Engine, LogRecord, RocksConfig, RocksEngine, records_of};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Journaled, Phase, Ship,
    run::{self, Journal, Work},
    shown,
};
use crate::{
    backups, connect,
    data::{self, Asked, BackupProgress, DataDir, JournalNote},
    failure::usage,
    system::{self, SystemRandom},
};

/// Time after which a request to the store has failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a start waits for a store that fails.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a store that failed is read again.
const READ_PAUSE: Duration = Duration::from_millis(500);

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

    let position = engine.position();
    let random = Arc::new(SystemRandom::default());
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
        let mut note = match JournalNote::read(path)? {
            Some(note) if note.history == history => note,
            Some(before) => {
                let owned = still_own(path, before, true).await?;
                JournalNote::begin(url, uuid, history, owned.next_generation() - 1)
            }
            None => JournalNote::begin(url, uuid, history, 0),
        };
        let failed = Mutex::new(None);
        let told = |trouble: Trouble<'_>| tell(&failed, &trouble);
        let tenure = Tenure::unbound(terms.lease);
        let (owner, mut taken, begun, succeeds) = loop {
            let end = own(&chain, &mut note).await?;
            let ends_at = match terms.ends_at {
                None if note.follows => lease_ended(&chain, end.number).await?,
                seen => seen,
            };
            let reached = position.max(end.last.unwrap_or_default());
            // Changes on this disk alone must not be lost to a server that stands by.
            let is_whole =
                note.base > 0 && rest(&logged, end.last.unwrap_or_default(), position).is_some();
            let begun = system::since_boot();
            if is_whole {
                tenure.bind(begun);
            }
            let known = Known {
                segment: end.number,
                replica: Replica { generation: note.generation, position: reached },
                covered: Covered { base: note.base, position: note.position },
                stable: 0,
                // A later segment is looked at first: it may be another server's fence.
                ends_at: Some(ends_at.unwrap_or(end.number)),
                lease_millis: tenure.millis(),
            };
            let owner = Owner { generation: note.next_generation(), run: random.next() };
            note.asked.push(Asked { generation: owner.generation, run: owner.run });
            note.write(path)?;
            let fenced = fence(&chain, owner, &known, Times::default(), random.clone(), &told);
            match timeout(STORE_TIMEOUT, fenced).await {
                Ok(Ok(taken)) => break (owner, taken, begun, note.follows && ends_at.is_some()),
                // A late segment of this directory, if its end is not another server's.
                Ok(Err(Error::GoesOn { .. })) if ends_at.is_none() => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    let why = failed.lock().clone();
                    let why = why.unwrap_or_else(|| "it does not answer".to_owned());
                    return Err(anyhow!(Error::Slow(STORE_TIMEOUT)).context(why));
                }
            }
        };
        let writer = &mut taken.writer;
        // A start before the others have heard of this directory says it again.
        note.succeeds = succeeds || note.succeeds && !data.had_lease();
        (note.generation, note.asked, note.follows) = (owner.generation, Vec::new(), false);
        note.write(path)?;
        let end = writer.end();
        let last = end.last.unwrap_or_default();
        if last > position {
            let all = Reader::new(chain.clone(), note.segment, Replica::default());
            let mut missing = all.alone().until(end.number);
            while let Some(segment) = next(&mut missing).await? {
                apply(&engine, segment)?;
            }
        }
        ensure!(
            engine.position() >= last,
            "the metadata end at change {}, and {last} was stable: the disk has lost some. `pando \
             journal recover` makes a directory that has it",
            engine.position()
        );
        engine.sync()?;
        let phase = match rest(&logged, last, position) {
            _ if note.base == 0 => Phase::Begins,
            Some(rest) => {
                let rest = rest.to_vec();
                run::append_all(writer, rest, &told, STORE_TIMEOUT).await?;
                Phase::InForce
            }
            None => Phase::Begins,
        };
        // Where the two differ, the chain was read when a late segment of this directory was not
        // there yet.
        if phase == Phase::InForce {
            tenure.bind(begun);
        }
        anyhow::Ok((taken.writer, phase, note, (tenure, begun)))
    };
    let (writer, phase, note, (tenure, begun)) =
        runtime.block_on(taken).map_err(|error| refused(error, url, path))?;
    drop(runtime);
    data::drop_logs(path)?;

    let at = (engine.position(), phase);
    let ship = Arc::new(Ship::new(shown(url), note.generation, tenure, at));
    ship.course.lock().status = writer.status();
    ship.chain.get_or_init(|| chain);
    tracing::info!(generation = note.generation, segment = writer.end().number, ?phase, "journal");
    ship.noted.store(note.segment, Ordering::Release);
    let (path, shipped) = (path.to_owned(), Arc::clone(&ship));
    let (address, succeeds) = (terms.address.clone(), note.succeeds);
    let work = Work { ship: shipped, writer, follower, path, note, address, renewed: begun };
    let journal = Journal::start(work)?;
    let journaled = Arc::new(Journaled::new(Arc::clone(&engine), Arc::clone(&ship)));
    Ok(Started { engine, journaled, ship, journal, succeeds })
}

/// Sees that the chain is this directory's up to its end: it has had the newest generation, or has
/// begun to fence for it.
pub(crate) async fn own(chain: &Chain, note: &mut JournalNote) -> anyhow::Result<End> {
    // Changes that a fence of its own has cut off are in its log still, and are no fork.
    let mut reader = Reader::new(chain.clone(), note.segment, Replica::default()).alone();
    while next(&mut reader).await?.is_some() {}
    let end = reader.end();
    let Owner { generation, run } = end.owner;
    if note.asked.contains(&Asked { generation, run }) {
        note.generation = generation;
    }
    if generation > note.generation {
        return Err(Error::Fenced { number: end.number, generation, run }.into());
    }
    // A successor has collected what came after a fence.
    if chain.beyond(end.number).await?.is_some() {
        let position = end.last.unwrap_or_default();
        return Err(Error::NeedsBase { number: end.number + 1, position }.into());
    }
    Ok(end)
}

/// Has a directory that has followed another server's journal know the bases that were made meanwhile:
/// contents that they name stay.
pub(crate) fn know_bases(path: &Path, url: &str) -> anyhow::Result<()> {
    let Some(note) = JournalNote::read(path)?.filter(|note| note.follows) else { return Ok(()) };
    let Some(progress) = BackupProgress::read(path)? else { return Ok(()) };
    let uuid = u128::from_str_radix(&note.uuid, 16).context("journal.json has no id")?;
    let names = Names::new(uuid, note.history);
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

/// Waits until the lease of the server that wrote a journal's last segment has ended. Returns its
/// number, or nothing where it has no lease: then somebody has said that it is gone.
async fn lease_ended(chain: &Chain, number: u64) -> anyhow::Result<Option<u64>> {
    let Some(last) = chain.read(number).await? else { return Ok(None) };
    let vigil = Vigil::new(last.header, system::since_boot());
    let address = &vigil.last().lease.address;
    loop {
        match vigil.verdict(system::since_boot()) {
            Verdict::Ended => return Ok(Some(number)),
            Verdict::Unleased => return Ok(None),
            Verdict::Held(left) => {
                tracing::info!(address, ?left, "the lease of the server before must end first");
                sleep(left).await;
            }
        }
    }
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
    mut note: JournalNote,
    leaves: bool,
) -> anyhow::Result<JournalNote> {
    ensure!(
        !note.follows,
        "{} has followed the journal of another server at {}: serve it with that journal, or not at all",
        path.display(),
        shown(&note.url)
    );
    let url = note.url.clone();
    let looked = async {
        let key = data::backup_key(path)?;
        let uuid = u128::from_str_radix(&note.uuid, 16).context("it names no file system")?;
        let place = Place::open_once(&url, backups::variables(), REQUEST_TIMEOUT)?;
        let member = member(data::server_of(path));
        let chain = Chain::new(place, (uuid, note.history), member, key, REQUEST_TIMEOUT);
        let end = own(&chain, &mut note).await?;
        if leaves { leave(&chain, &end, path, &mut note).await } else { Ok(()) }
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
    Ok(note)
}

/// Ends a chain whose directory turns away from it, so that nobody takes over what is not gone on
/// with: by a fence without a lease.
async fn leave(
    chain: &Chain,
    end: &End,
    path: &Path,
    note: &mut JournalNote,
) -> anyhow::Result<()> {
    let last = chain.read(end.number).await?;
    if last.is_none_or(|last| last.header.lease.millis == 0) {
        return Ok(());
    }
    let random = Arc::new(SystemRandom::default());
    let position = end.last.unwrap_or_default();
    let known = Known {
        segment: end.number,
        replica: Replica { generation: note.generation, position },
        covered: Covered { base: note.base, position: note.position },
        ends_at: Some(end.number),
        ..Known::default()
    };
    let owner = Owner { generation: note.next_generation(), run: random.next() };
    note.asked.push(Asked { generation: owner.generation, run: owner.run });
    note.write(path)?;
    let fenced = fence(chain, owner, &known, Times::default(), random, &|_| ());
    timeout(STORE_TIMEOUT, fenced).await.map_err(|_| Error::Slow(STORE_TIMEOUT))??;
    note.generation = owner.generation;
    Ok(())
}

/// The next segment; a store that fails for a moment is asked again.
async fn next(reader: &mut Reader) -> Result<Option<Segment>, Error> {
    let begun = Instant::now();
    loop {
        match reader.next().await {
            Err(error) if error.is_passing() && begun.elapsed() < STORE_TIMEOUT => {
                tracing::warn!(error = describe(&error), "the journal cannot be read");
                sleep(READ_PAUSE).await;
            }
            done => return done,
        }
    }
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

/// The records of the log after `end`, if they follow it and reach `position`.
fn rest(logged: &[LogRecord], end: u64, position: u64) -> Option<&[LogRecord]> {
    if position <= end {
        return Some(&[]);
    }
    let begins = logged.iter().position(|record| record.last() > end).unwrap_or(logged.len());
    let rest = &logged[begins..];
    let follows = rest.first().is_some_and(|first| first.first == end + 1);
    let reaches = rest.last().is_some_and(|last| last.last() == position);
    (follows && reaches).then_some(rest)
}

/// Writes the records of a segment that an engine lacks, with the numbers that they have.
pub(crate) fn apply(engine: &RocksEngine, segment: Segment) -> anyhow::Result<()> {
    for record in segment.records {
        let at = engine.position();
        if record.last() <= at {
            continue;
        }
        if record.sequence != at + 1 {
            bail!("record {} of the journal does not follow position {at}", record.sequence);
        }
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
        assert_eq!(firsts(10, 10), Some(vec![]));
        assert_eq!(firsts(12, 10), Some(vec![]));
        assert_eq!(firsts(3, 10), None, "change 4 is missing");
        assert_eq!(firsts(4, 11), None, "change 11 is missing");
        assert_eq!(firsts(5, 10), None, "the journal ends within a record");
    }
}
