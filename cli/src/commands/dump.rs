//! `pando dump`: a copy of a file system that is being served, as of one moment.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal as _, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use base::{BlockId, Decode as _, FsError, HashSet};
use client::{Client, DumpError};
use indicatif::{ProgressBar, ProgressStyle};
use meta::dump::{DUMP_OPENING, Frame, Frames, Header, Trailer};

use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

/// Bytes of a dump that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
const CANNOT_WRITE: &str = "cannot write the dump";
const LOST: &str = "the dump was lost";

/// Write a copy of a file system, as of one moment, while it is served. Needs the administrator's token.
///
/// It has every name, attribute, link, extended attribute and setting, and contents that rest with their metadata;
/// contents in blocks are named, and copied as well with --contents. What is open without a name is left out. `pando
/// load` makes a file system of it. FILE is there when all of it is; `-` is stdout.
///
/// On several servers all of them are dumped together: changes wait for the moment that is taken, some milliseconds as a rule and three
/// seconds at most, and how long it was is told. If a server does not answer then there is no dump, and everybody goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, or any of several.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// Where to write to.
    file: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// Copy the blocks of files too.
    #[arg(long)]
    contents: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando dump");
    connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        if args.file.as_os_str() == "-" {
            copy(&client, io::stdout().lock(), args.contents).await?;
        } else {
            let copied = to_file(&client, &args.file, args.contents).await?;
            if client.servers() > 1 {
                output::print(&copied.to_string())?;
            }
        }
        anyhow::Ok(client.close().await?)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The file gets its name when it is whole and stable.
async fn to_file(client: &Client, path: &Path, contents: bool) -> anyhow::Result<Copied> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let failed = || format!("cannot write {}", path.display());
    let mut file = File::create(&part).with_context(failed)?;
    let copied = async {
        let copied = copy(client, &mut file, contents).await?;
        file.sync_all().and_then(|()| fs::rename(&part, path)).with_context(failed)?;
        anyhow::Ok(copied)
    };
    let copied = copied.await;
    if copied.is_err() {
        // What is left of it is of no use; the error says why.
        let _ = fs::remove_file(&part);
    }
    copied
}

/// What was written, and what it took of others.
struct Copied {
    all: Trailer,
    paused: Duration,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Trailer { records, blocks, .. }, ms) = (self.all, self.paused.as_secs_f64() * 1e3);
        write!(f, "dumped {records} records, {blocks} blocks; changes waited for {ms:.1} ms")
    }
}

async fn copy(client: &Client, out: impl Write, contents: bool) -> anyhow::Result<Copied> {
    let mut dump = match client.dump_start().await {
        Err(DumpError::Failed(client::Error::Fs(FsError::Busy))) => {
            bail!("a dump is being made already")
        }
        Err(DumpError::Failed(error)) => {
            connect::for_administrators(Err(error)).context("cannot start the dump")?
        }
        started => started.context("cannot start the dump")?,
    };
    let paused = dump.paused;
    let copied = pages(client, &mut dump, out, contents).await;
    // Whole or not, no server need keep it.
    let ended = dump.end(client).await;
    let copied = Copied { all: copied?, paused };
    ended.context(LOST)?;
    tracing::info!("{copied}");
    Ok(copied)
}

async fn pages(
    client: &Client,
    dump: &mut client::Dump,
    out: impl Write,
    contents: bool,
) -> anyhow::Result<Trailer> {
    let header = Header::from_bytes(&dump.header).context("the server's answer cannot be read")?;
    let mut file = Dump {
        out: BufWriter::with_capacity(BUFFER_BYTES, out),
        frames: Frames::default(),
        bar: bar(dump.records_estimated),
    };
    file.out.write_all(&DUMP_OPENING).context(CANNOT_WRITE)?;
    file.put(&Frame::Header(header))?;
    while let Some(page) = dump.next(client).await.context(LOST)? {
        if !page.records.is_empty() {
            file.put(&Frame::Records(page.records))?;
        }
        if contents {
            file.blocks(client, page.server, page.blocks).await?;
        }
    }
    let trailer = file.frames.seen;
    file.put(&Frame::Trailer(trailer))?;
    file.out.flush().context(CANNOT_WRITE)?;
    file.bar.finish_and_clear();
    Ok(trailer)
}

/// A dump that is being written.
struct Dump<W: Write> {
    out: BufWriter<W>,
    frames: Frames,
    bar: ProgressBar,
}

impl<W: Write> Dump<W> {
    fn put(&mut self, frame: &Frame) -> anyhow::Result<()> {
        let bytes = self.frames.put(frame);
        self.out.write_all(&bytes).context(CANNOT_WRITE)?;
        // The number of records is an estimate, and may be passed.
        let records = self.frames.seen.records;
        self.bar.set_length(self.bar.length().unwrap_or_default().max(records));
        self.bar.set_position(records);
        Ok(())
    }

    async fn blocks(
        &mut self,
        client: &Client,
        server: u16,
        blocks: Vec<(BlockId, u32)>,
    ) -> anyhow::Result<()> {
        // Chunks of one file may share a block.
        let mut copied: HashSet<BlockId> = HashSet::default();
        for (block, bytes) in blocks {
            if copied.insert(block) {
                let data = client.read_block(server, block, bytes).await;
                let data = data.with_context(|| format!("block {block} cannot be read"))?;
                self.put(&Frame::Block((block, data)))?;
            }
        }
        Ok(())
    }
}

fn bar(records: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("dumped {pos} of about {len} records {wide_bar} {eta}");
    let bar = ProgressBar::new(records);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.expect("the template is well-formed"))
}
