//! `pando journal`: the journal of a server in an object store is tested, read, and gone on with.

use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ::backup::{Base, Key, Place};
use ::journal::{Error, Journal, Reader, Replica, Verified, check, time_put};
use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Subcommand;
use indicatif::ProgressBar;
use store::{Engine as _, RocksEngine};

use super::backup::{From, ambiguous, bar, described, history, place_url, tell};
use crate::{
    backups::{self, address, variables},
    connect,
    data::{self, BackupProgress, JournalNote, Kept, KeptBackup, Restored},
    journal::start::{MEMBER, REQUEST_TIMEOUT, apply},
    output,
    system::SystemRandom,
};

/// Puts of a check without `--puts`.
const PUTS: u32 = 20;
/// Bytes of an object of a check: about a segment of 50 ms.
const PUT_BYTES: usize = 64 << 10;

/// Test, read and go on with the journal of a file system of one server.
///
/// `pando serve --journal URL` keeps it: everything that is stable is in the object store at URL
/// before anybody is told. When the machine is lost, `pando journal recover` makes a data directory
/// on another one, which has everything that was stable.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(Check),
    Verify(Verify),
    Recover(Recover),
}

/// Test whether an object store can hold a journal, and how long its puts take.
///
/// Sixty-four writers create one object at the same time, and one of them must win: a journal in a
/// store where several do would lose what was stable. `fsync` on a mount takes one to two puts.
#[derive(Debug, clap::Args)]
struct Check {
    /// The store: a directory, or s3://BUCKET/PREFIX.
    #[arg(value_name = "URL", value_parser = place_url)]
    url: String,
    /// Number of puts that are timed, one after the other.
    #[arg(long, value_name = "N", default_value_t = PUTS)]
    puts: u32,
}

/// A journal in a store.
#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    from: From,
    /// The history that the journal belongs to, as `pando backup list` prints it [default: the only
    /// one that has a journal].
    #[arg(long, value_name = "ID", value_parser = history)]
    history: Option<String>,
}

/// Read all segments of a journal, decrypt them, and see that the chain is whole and that a base
/// leads to its end.
#[derive(Debug, clap::Args)]
struct Verify {
    #[command(flatten)]
    which: Which,
}

/// Make a data directory that goes on where a lost machine's journal ends.
///
/// The directory has everything that was stable. Serve it with `pando serve`: from then on the old directory
/// is out of date, and a server that still runs on it stops with its next change. See that the old
/// machine is off, or cut off, before: until that change it may answer reads with what is old.
/// After an interruption run the same command again.
#[derive(Debug, clap::Args)]
struct Recover {
    #[command(flatten)]
    which: Which,
    /// The new data directory: missing or empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Check(check) => check.run(),
        Command::Verify(verify) => verify.run(),
        Command::Recover(recover) => recover.run(),
    }?;
    Ok(ExitCode::SUCCESS)
}

impl Check {
    fn run(&self) -> anyhow::Result<()> {
        let shown = backups::without_options(&self.url);
        let place = Place::open_once(&self.url, variables(), REQUEST_TIMEOUT)?;
        let random = SystemRandom::default();
        connect::runtime()?.block_on(async {
            check(&place, &random).await?;
            output::print(&format!("{shown} lets one writer win: it can hold a journal"))?;
            let mut times = Vec::new();
            for _ in 0..self.puts {
                times.push(time_put(&place, PUT_BYTES, &random).await.context("a put failed")?);
            }
            times.sort_unstable();
            let Some(longest) = times.last() else { return Ok(()) };
            output::print(&format!(
                "a put takes {:?} (half of {}), and {longest:?} at most",
                times[times.len() / 2],
                times.len()
            ))
        })
    }
}

impl Which {
    /// The bases of the one history that has a journal, the newest first.
    async fn bases(&self, place: &Place, key: &Key) -> anyhow::Result<Vec<Base>> {
        let mut bases = place.bases(key, self.history.as_deref()).await?;
        bases.retain(|base| base.manifest.generation > 0);
        if bases.is_empty() {
            bail!("there is no base of a server with a journal: nothing can be recovered");
        }
        Base::must_be_of_one_history(&bases).map_err(|error| ambiguous(error, "a journal"))?;
        bases.reverse();
        Ok(bases)
    }

    /// The journal that a base belongs to.
    fn journal(&self, base: &Base, key: &Key) -> anyhow::Result<Journal> {
        let place = Place::open_once(&self.from.from, variables(), REQUEST_TIMEOUT)?;
        let (uuid, history) = ids(base)?;
        Ok(Journal::new(place, (uuid, history), MEMBER, key.clone(), REQUEST_TIMEOUT))
    }
}

/// Ids of the file system and of the history.
fn ids(base: &Base) -> anyhow::Result<(u128, u64)> {
    let uuid = u128::from_str_radix(&base.manifest.uuid.replace('-', ""), 16);
    let history = u64::from_str_radix(&base.manifest.history, 16);
    Ok((uuid.context("a base names no file system")?, history.context("a base has no history")?))
}

impl Verify {
    fn run(&self) -> anyhow::Result<()> {
        let (place, key) = self.which.from.open()?;
        let verified = connect::runtime()?.block_on(async {
            let bases = self.which.bases(&place, &key).await?;
            let journal = self.which.journal(&bases[0], &key)?;
            let bar = ProgressBar::new_spinner();
            let verified = journal
                .verify(&|so_far: &Verified| {
                    bar.set_message(format!("{} segments", so_far.segments));
                    bar.tick();
                })
                .await?;
            bar.finish_and_clear();
            anyhow::Ok(verified)
        })?;
        let Verified { segments, records, bytes, sequences, generations, base, .. } = verified;
        output::print(&format!(
            "{segments} segments are sound: {records} records up to change {}, {}, generation {}",
            sequences.1,
            backups::size(bytes),
            generations.1
        ))?;
        ensure!(base > 0, "no complete base leads to the end of the journal");
        output::print(&format!("base {base} leads to the end"))
    }
}

impl Recover {
    fn run(&self) -> anyhow::Result<()> {
        let (place, key) = self.which.from.open()?;
        let runtime = connect::runtime()?;
        let mut bases = runtime.block_on(self.which.bases(&place, &key))?;
        let newest = bases.iter().map(|base| base.manifest.number).max().unwrap_or_default();
        bases.retain(Base::is_complete);
        // An old server may be late with a base.
        bases.sort_by_key(|base| Reverse((base.manifest.generation, base.manifest.number)));
        for base in bases {
            let bar = bar(&base);
            let mut end = 0;
            let mut complete = |path: &Path, engine: &RocksEngine| {
                end = runtime.block_on(self.complete(path, engine, &base, &key))?;
                let progress = BackupProgress::read(path)?.context("backup.json is gone")?;
                BackupProgress { newest: progress.newest.max(newest), ..progress }.write(path)
            };
            let restored = Restored::Successor(&mut complete);
            let done = data::restore(&self.data, &key, restored, |folder| {
                let told = |done| tell(&bar, done);
                Ok(runtime.block_on(place.restore(&base, &key, folder, &told))?)
            });
            bar.finish_and_clear();
            match done {
                Ok((name, _)) => {
                    let data = self.data.display();
                    return output::print(&format!(
                        "recovered {name} in {data}: {}, and the journal up to change {end}\n\
                         serve it with `pando serve --data {data}`",
                        described(&base)
                    ));
                }
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
        Err(anyhow!("no complete base leads to the end of the journal"))
    }

    /// Brings a restored engine to the end of the journal, and notes where that is. Returns the last
    /// change.
    async fn complete(
        &self,
        path: &Path,
        engine: &RocksEngine,
        base: &Base,
        key: &Key,
    ) -> anyhow::Result<u64> {
        let manifest = &base.manifest;
        let journal = self.which.journal(base, key)?;
        let replica = Replica { generation: manifest.generation, position: engine.position() };
        // The copy may have more than the base says: what was written while it was made.
        let position = replica.position;
        let mut reader = Reader::new(journal.clone(), manifest.segment, replica);
        let bar = ProgressBar::new_spinner();
        while let Some(segment) = reader.next().await? {
            bar.set_message(format!("segment {} of the journal", segment.header.number));
            bar.tick();
            apply(engine, segment)?;
        }
        bar.finish_and_clear();
        let end = reader.end();
        if journal.beyond(end.number).await?.is_some() {
            return Err(Error::NeedsBase { number: end.number + 1, position }.into());
        }
        let (uuid, history) = ids(base)?;
        let url = &*self.which.from.from;
        JournalNote {
            segment: manifest.segment,
            base: manifest.number,
            position,
            ..JournalNote::begin(url, uuid, history, end.owner.generation)
        }
        .write(path)?;
        let of = (&*address(url), &*key.id());
        BackupProgress::of_successor(of, history, manifest.number).write(path)?;
        let backup = Some(KeptBackup { journal: true, ..KeptBackup::at(url) });
        Kept { backup, ..Kept::default() }.write(path)?;
        Ok(engine.position())
    }
}
