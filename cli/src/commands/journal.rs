//! `pando journal`: the journal of a server in an object store is tested, read, and gone on with.

use std::{cell::RefCell, path::PathBuf, process::ExitCode};

use ::backup::{Base, Key, Place};
use ::journal::{Verified, check, time_put};
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use indicatif::ProgressBar;
use tokio::runtime::Runtime;

use super::backup::{From, ambiguous, bar, described, history, place_url};
use crate::{
    backups::{self, variables},
    connect,
    data::Kept,
    journal::{
        recover::{Recovered, Source, Watch},
        start::REQUEST_TIMEOUT,
    },
    output,
    system::SystemRandom,
};

/// Puts of a check without `--puts`.
const PUTS: u32 = 20;
/// Bytes of an object of a check: about a segment of 50 ms.
const PUT_BYTES: usize = 64 << 10;

/// Test, read and go on with the journal of a server.
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
    /// Number of the server, if the file system is a cluster: each of its servers has a journal.
    #[arg(long, value_name = "N")]
    server: Option<u16>,
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
/// The directory has everything that was stable. Serve it with `pando serve`: from then on the old
/// directory is out of date, and a server that still runs on it stops with its next change. See that the old
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
    fn bases(&self, source: &Source<'_>, runtime: &Runtime) -> anyhow::Result<Vec<Base>> {
        let bases = runtime.block_on(source.bases(self.history.as_deref()));
        bases.map_err(|error| match error.downcast() {
            Ok(error) => ambiguous(error, "a journal"),
            Err(error) => error,
        })
    }

    fn source<'a>(&'a self, (place, key): &'a (Place, Key)) -> Source<'a> {
        let (url, server) = (&self.from.from, self.server);
        Source { url, place, key, server, kept: Kept { server, ..Kept::default() } }
    }
}

impl Verify {
    fn run(&self) -> anyhow::Result<()> {
        let opened = self.which.from.open()?;
        let (source, runtime) = (self.which.source(&opened), connect::runtime()?);
        let bases = self.which.bases(&source, &runtime)?;
        let journal = source.journal(&bases[0])?;
        let verified = runtime.block_on(async {
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
        let opened = self.which.from.open()?;
        let (source, runtime) = (self.which.source(&opened), connect::runtime()?);
        let bases = self.which.bases(&source, &runtime)?;
        let bars = Bars::default();
        let recovered = source.recover(bases, &self.data, &runtime, &bars);
        bars.clear();
        let Recovered { name, base, end } = recovered?;
        let data = self.data.display();
        // Without a lease the other servers cannot know that the lost machine is off.
        let replace = if self.which.server.unwrap_or_default() > 0 { " --replace" } else { "" };
        output::print(&format!(
            "recovered {name} in {data}: {}, and the journal up to change {end}\n\
             serve it with `pando serve --data {data}{replace}`",
            described(&base)
        ))
    }
}

/// Shows the steps of a recovery.
#[derive(Default)]
struct Bars(RefCell<Option<ProgressBar>>);

impl Bars {
    fn clear(&self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Bars {
    fn reads(&self, base: &Base, bytes: u64) -> anyhow::Result<()> {
        self.0.borrow_mut().get_or_insert_with(|| bar(base)).set_position(bytes);
        Ok(())
    }

    fn applies(&self, segment: u64) -> anyhow::Result<()> {
        let mut shown = self.0.borrow_mut();
        if shown.as_ref().is_none_or(|bar| bar.length().is_some())
            && let Some(before) = shown.replace(ProgressBar::new_spinner())
        {
            before.finish_and_clear();
        }
        if let Some(bar) = &*shown {
            bar.set_message(format!("segment {segment} of the journal"));
            bar.tick();
        }
        Ok(())
    }
}
