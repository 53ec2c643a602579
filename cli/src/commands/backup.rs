//! `pando backup`: bases in an object store are made, listed, checked and restored.

mod forget;

use std::{
    path::{self, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use ::backup::{Base, Error, Key, Manifest, Place, Progress, Wanted};
use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use store::RocksConfig;

use super::{format::has_keys, token::moment};
use crate::{
    backups::{self, Maker},
    connect,
    data::{self, DataDir, Restored},
    failure::usage,
    journal::start::must_own,
    output,
};

/// Make, list, check, restore and remove backups of the metadata of a file system of one server.
///
/// `pando serve --backup URL` makes a base every five minutes while something changes. A base has
/// the metadata, which includes the contents of small files, and the keys. Contents in a block store
/// elsewhere stay there; contents in DIR/blocks are not backed up. All is encrypted with the key in
/// DIR/backup.key, and nothing can be restored without that key.
///
/// URL is a directory, or s3://BUCKET/PREFIX?option=value with credentials in AWS_* of the
/// environment.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Now(Now),
    List(List),
    Check(Check),
    Restore(Restore),
    Final(Final),
    Forget(forget::Forget),
    Key(PrintKey),
}

/// Make a base of a data directory that no server uses now.
#[derive(Debug, clap::Args)]
struct Now {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Store of the backup [default: what DIR keeps of the last start].
    #[arg(long, value_name = "URL", value_parser = place_url)]
    to: Option<String>,
}

/// Where bases are, and the key that opens them.
#[derive(Debug, clap::Args)]
pub(super) struct From {
    /// Store of the backup.
    #[arg(long, value_name = "URL", value_parser = place_url)]
    pub(super) from: String,
    /// File with the backup key, as `pando backup key` prints it, or DIR/backup.key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// The base that is meant.
#[derive(Debug, clap::Args)]
struct WantedBase {
    /// Take a base of this history, as `pando backup list` prints it [default: the only history
    /// that has such bases].
    #[arg(long, value_name = "ID", value_parser = history)]
    history: Option<String>,
    /// Take the newest base of this time or before, such as 2026-01-31T12:00:00Z [default: the
    /// newest one].
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<u64>,
}

/// List the bases of a store that a key opens, the oldest first.
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    from: From,
    /// List the bases of this history only.
    #[arg(long, value_name = "ID", value_parser = history)]
    history: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Read all objects of a base, decrypt them and compare them with what was stored.
#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    base: WantedBase,
}

/// Make a data directory from a base. All of it is verified on the way.
///
/// Where several histories have bases, as those of a restored copy and of its original, --history
/// names the one that is meant. The copy has the keys and tokens of the original. Inode numbers go
/// on further, as the original may have used the next ones. The copy deletes no contents from a
/// shared block store before
/// `pando backup final` says that the original is gone; until then, run `pando fsck --gc` at neither.
/// After an interruption run the same command again: DIR is not served before it is whole.
#[derive(Debug, clap::Args)]
struct Restore {
    #[command(flatten)]
    from: From,
    /// The new data directory: missing or empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    base: WantedBase,
}

/// Say of a restored copy that its original is gone for good: from the next start on, the copy
/// deletes contents that nothing names.
///
/// Contents that only bases of the original name are lost then, one after the other.
#[derive(Debug, clap::Args)]
struct Final {
    /// The data directory of the copy.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// Print the backup key of a data directory. The key opens every base, and a base has the keys of
/// the file system: keep it secret, and not in the store of the backup.
#[derive(Debug, clap::Args)]
struct PrintKey {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Now(now) => now.run(),
        Command::List(list) => list.run(),
        Command::Check(check) => check.run(),
        Command::Restore(restore) => restore.run(),
        Command::Final(done) => done.run(),
        Command::Forget(forget) => forget.run(),
        Command::Key(key) => key.run(),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the address of a backup, for clap.
pub(super) fn place_url(text: &str) -> Result<String, String> {
    match text.split_once("://") {
        Some(("s3", place)) if has_keys(place) => {
            Err("the address must not hold keys: set AWS_* in the environment".to_owned())
        }
        Some(("s3", _)) => Ok(text.to_owned()),
        Some(("file", path)) if path.starts_with('/') => Ok(text.to_owned()),
        Some(_) => Err("neither a directory, nor file:///, nor s3://".to_owned()),
        None => path::absolute(text)
            .map(|path| format!("file://{}", path.display()))
            .map_err(|error| error.to_string()),
    }
}

fn time(text: &str) -> Result<u64, String> {
    let time = humantime::parse_rfc3339_weak(text).map_err(|error| error.to_string())?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map(|since| since.as_secs()).map_err(|_| "is before 1970".to_owned())
}

/// Parses the id of a history, for clap.
pub(super) fn history(text: &str) -> Result<String, String> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let wrong = || "an id of a history has 16 hexadecimal digits".to_owned();
    is_id.then(|| text.to_lowercase()).ok_or_else(wrong)
}

fn open(url: &str) -> anyhow::Result<Place> {
    backups::open_place(url)
        .with_context(|| format!("cannot open {}", backups::without_options(url)))
}

impl From {
    pub(super) fn open(&self) -> anyhow::Result<(Place, Key)> {
        Ok((open(&self.from)?, data::read_backup_key(&self.key)?))
    }
}

impl WantedBase {
    async fn find(&self, place: &Place, key: &Key) -> anyhow::Result<Base> {
        let wanted = Wanted { history: self.history.clone(), at: self.at };
        place.choose(key, &wanted).await.map_err(|error| ambiguous(error, "such bases"))
    }
}

/// Names the histories of which one is to be chosen, as several have `what`.
pub(super) fn ambiguous(error: Error, what: &str) -> anyhow::Error {
    let Error::Ambiguous(candidates) = error else { return error.into() };
    let lines = candidates.iter().map(|of| {
        format!("\n  --history {}  {}, newest base {}", of.history, of.name, at(of.newest))
    });
    let lines: String = lines.collect();
    anyhow!("several histories have {what}: choose one of them{lines}")
}

impl Now {
    fn run(&self) -> anyhow::Result<()> {
        let data = DataDir::open(&self.data)?;
        let kept = data::Kept::read(&self.data)?;
        backups::for_one_server(data.server(), kept.journal().is_some())?;
        let kept = kept.backup;
        let holds_nothing = kept.is_none() && !data.has_local_blocks();
        let url = self.to.clone().or(kept.map(|kept| kept.url));
        let Some(url) = url else { return Err(usage("--to URL says where the backup goes")) };
        must_own(data.path())?;
        let engine = data.engine(&data.blocks()?, &RocksConfig::default())?;
        let mut maker = Maker::new(&url, data.path(), data.name());
        let made = connect::runtime()?.block_on(maker.make(&engine, |_| ()))?;
        let (bytes, uploaded) = (backups::size(made.bytes), backups::size(made.uploaded));
        output::print(&format!("made base {}: {bytes}, {uploaded} uploaded", made.number))?;
        if holds_nothing {
            output::print(
                "a server without --backup deletes contents of removed files at once, also those \
                 that this base names",
            )?;
        }
        Ok(())
    }
}

/// A base as it is listed.
#[derive(Serialize)]
struct Listed<'a> {
    made: u64,
    history: &'a str,
    number: u64,
    name: &'a str,
    uuid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    files: usize,
    bytes: u64,
    complete: bool,
}

impl<'a> Listed<'a> {
    fn of(base: &'a Base) -> Listed<'a> {
        let manifest = &base.manifest;
        Listed {
            made: manifest.made,
            history: &manifest.history,
            number: manifest.number,
            name: &manifest.name,
            uuid: &manifest.uuid,
            server: manifest.server,
            files: manifest.files.len(),
            bytes: manifest.bytes(),
            complete: base.is_complete(),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            at(self.made),
            match self.server {
                Some(server) => format!("{}, server {server}", self.name),
                None => self.name.to_owned(),
            },
            self.history.to_owned(),
            self.number.to_string(),
            self.files.to_string(),
            backups::size(self.bytes),
            if self.complete { "complete" } else { "LACKS OBJECTS" }.to_owned(),
        ]
    }
}

impl List {
    fn run(&self) -> anyhow::Result<()> {
        let (place, key) = self.from.open()?;
        let of = self.history.as_deref();
        let bases = connect::runtime()?.block_on(place.bases(&key, of))?;
        let listed: Vec<_> = bases.iter().map(Listed::of).collect();
        if self.json {
            return output::print_json(&listed);
        }
        let rows: Vec<_> = listed.iter().map(Listed::row).collect();
        let heads = ["MADE", "NAME", "HISTORY", "BASE", "FILES", "SIZE", "STATE"];
        output::print(&output::table(&heads, &rows))
    }
}

impl Check {
    fn run(&self) -> anyhow::Result<()> {
        let (place, key) = self.from.open()?;
        let base = connect::runtime()?.block_on(async {
            let base = self.base.find(&place, &key).await?;
            let bar = bar(&base);
            place.check(&base, &key, &|done| tell(&bar, done)).await?;
            bar.finish_and_clear();
            anyhow::Ok(base)
        })?;
        output::print(&format!("{} is sound", described(&base)))
    }
}

impl Restore {
    fn run(&self) -> anyhow::Result<()> {
        let (place, key) = self.from.open()?;
        let runtime = connect::runtime()?;
        let base = runtime.block_on(self.base.find(&place, &key))?;
        let bar = bar(&base);
        let (name, has_local_blocks) = data::restore(&self.data, &key, Restored::Copy, |folder| {
            let told = |done| tell(&bar, done);
            Ok(runtime.block_on(place.restore(&base, &key, folder, &told))?)
        })?;
        bar.finish_and_clear();
        let data = self.data.display();
        output::print(&format!("restored {name} in {data} from {}", described(&base)))?;
        if has_local_blocks {
            return output::print(&format!(
                "contents of larger files are not in a backup: copy what you have of the original's \
                 DIR/blocks to {data}/blocks before you serve it"
            ));
        }
        output::print(&format!(
            "the copy deletes no contents until `pando backup final --data {data}`: say that when \
             the original is gone for good"
        ))
    }
}

impl Final {
    fn run(&self) -> anyhow::Result<()> {
        let data = DataDir::open(&self.data)?;
        let was = data::finalize(data.path())?;
        let shown = self.data.display();
        output::print(&if was {
            format!("{shown} deletes contents that nothing names from its next start on")
        } else {
            format!("{shown} was no restored copy: nothing to do")
        })
    }
}

impl PrintKey {
    fn run(&self) -> anyhow::Result<()> {
        let key = data::backup_key(&self.data)?;
        tracing::warn!(
            "this key opens every base, and with it the file system: keep it secret, and away from \
             the store of the backup"
        );
        output::print(key.to_text().trim_end())
    }
}

pub(super) fn described(base: &Base) -> String {
    let manifest = &base.manifest;
    let (made, size) = (at(manifest.made), backups::size(manifest.bytes()));
    let Manifest { number, history, files, .. } = manifest;
    format!("base {number} of {made} in history {history}, {} files, {size}", files.len())
}

/// A time for people, of seconds since the Unix epoch.
pub(super) fn at(seconds: u64) -> String {
    moment(i64::try_from(seconds).unwrap_or(i64::MAX))
}

pub(super) fn bar(base: &Base) -> ProgressBar {
    let bar = ProgressBar::new(base.manifest.bytes());
    let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {eta} left");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.expect("the template is well-formed"))
}

pub(super) fn tell(bar: &ProgressBar, done: Progress) {
    bar.set_position(done.bytes);
}
