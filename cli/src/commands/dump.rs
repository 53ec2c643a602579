//! `pando dump`: a copy of a file system that is being served, as of one moment.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal as _, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use base::{BlockId, Decode as _, FsError, HashSet};
use client::{Client, DumpError};
use indicatif::{ProgressBar, ProgressStyle};
use meta::dump::{DUMP_OPENING, Frame, Frames, Header, Trailer};
use tokio::time::timeout;

use crate::{
    connect::{self, Servers, TokenArgs},
    output,
    signals::Stop,
};

/// Bytes of a dump that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
const CANNOT_WRITE: &str = "cannot write the dump";
const LOST: &str = "the dump was lost";
const INTERRUPTED: &str = "interrupted";
/// Time during which servers are told that a dump is given up.
const END_TIMEOUT: Duration = Duration::from_secs(4);

/// Write a copy of a file system, as of one moment, while it is served. Needs the administrator's
/// token.
///
/// A dump has every name, attribute, link, extended attribute and setting, and the contents of
/// files. With --metadata-only, contents in blocks are named and not copied. Files that are deleted
/// but still open are left out. `pando load` makes a file system from a dump. FILE appears once it
/// is complete, and a line reports what it holds; `-` is stdout. An interrupted dump leaves
/// nothing.
///
/// All servers of a cluster are dumped together. Changes wait for the common moment, usually some
/// milliseconds and three seconds at most; the command reports how long. If a server does not
/// answer meanwhile, the dump fails, and the file system goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, or any of several.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// Where to write to.
    file: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// Leave out contents in blocks. A load of this dump needs the blocks from elsewhere.
    #[arg(long)]
    metadata_only: bool,
    /// Copy the contents of files, which is what is done without --metadata-only.
    #[arg(long, hide = true, conflicts_with = "metadata_only")]
    contents: bool,
    /// Replace an existing FILE.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stdout = args.file.as_os_str() == "-";
    if !stdout && !args.force && args.file.symlink_metadata().is_ok() {
        bail!("{} exists; --force replaces it", args.file.display());
    }
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando dump");
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let client = tokio::select! {
            client = connect::connect(config) => client?,
            () = stop.asked() => bail!(INTERRUPTED),
        };
        let contents = !args.metadata_only;
        if stdout {
            let copied = copy(&client, io::stdout().lock(), contents, &mut stop).await?;
            // The dump may go to stdout, so this goes to stderr. Without stderr there is no place
            // for it.
            let _ = writeln!(io::stderr(), "{copied}");
        } else {
            let copied = to_file(&client, &args.file, contents, &mut stop).await?;
            output::print(&copied.to_string())?;
        }
        anyhow::Ok(client.close().await?)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The file gets its name when it is whole and stable.
async fn to_file(
    client: &Client,
    path: &Path,
    contents: bool,
    stop: &mut Stop,
) -> anyhow::Result<Copied> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let failed = || format!("cannot write {}", path.display());
    let mut file = File::create(&part).with_context(failed)?;
    let copied = async {
        let copied = copy(client, &mut file, contents, stop).await?;
        file.sync_all().and_then(|()| fs::rename(&part, path)).with_context(failed)?;
        anyhow::Ok(copied)
    };
    let copied = copied.await;
    if copied.is_err() {
        // The incomplete dump is of no use; the error says why.
        let _ = fs::remove_file(&part);
    }
    copied
}

/// Result of a dump: its trailer, the blocks left out, and the wait of changes.
struct Copied {
    all: Trailer,
    /// Blocks that are named, and not in it.
    left_out: u64,
    /// Duration for which changes waited, where there are several servers.
    paused: Option<Duration>,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trailer { records, blocks, .. } = self.all;
        match self.left_out {
            0 => write!(f, "dumped {records} records and the contents of {blocks} blocks")?,
            left => {
                write!(f, "dumped {records} records; the contents of {left} blocks are NOT in it")?
            }
        }
        match self.paused {
            Some(paused) => write!(f, "; changes waited for {:.1} ms", paused.as_secs_f64() * 1e3),
            None => Ok(()),
        }
    }
}

async fn copy(
    client: &Client,
    out: impl Write,
    contents: bool,
    stop: &mut Stop,
) -> anyhow::Result<Copied> {
    let started = {
        let mut starting = std::pin::pin!(client.dump_start());
        tokio::select! {
            started = &mut starting => started,
            () = stop.asked() => {
                // The dump may have begun already: then its number becomes known, and it can be
                // ended.
                if let Ok(Ok(dump)) = timeout(END_TIMEOUT, starting).await {
                    end(client, dump).await;
                }
                bail!(INTERRUPTED)
            }
        }
    };
    let mut dump = match started {
        Err(DumpError::Failed(client::Error::Fs(FsError::Busy))) => {
            bail!("another dump is running")
        }
        Err(DumpError::Failed(error)) => {
            connect::for_administrators(Err(error)).context("cannot start the dump")?
        }
        started => started.context("cannot start the dump")?,
    };
    let paused = (client.servers() > 1).then_some(dump.paused);
    let copied = tokio::select! {
        biased;
        () = stop.asked() => Err(anyhow!(INTERRUPTED)),
        copied = pages(client, &mut dump, out, contents) => copied,
    };
    let (all, left_out) = match copied {
        Ok(copied) => copied,
        Err(error) => {
            // No server need keep it.
            end(client, dump).await;
            return Err(error);
        }
    };
    dump.end(client).await.context(LOST)?;
    let copied = Copied { all, left_out, paused };
    tracing::info!("{copied}");
    Ok(copied)
}

/// Tells the servers that a dump is not continued. Servers that are away forget it by themselves.
async fn end(client: &Client, dump: client::Dump) {
    // Why there is no dump is said already.
    let _ = timeout(END_TIMEOUT, dump.end(client)).await;
}

async fn pages(
    client: &Client,
    dump: &mut client::Dump,
    out: impl Write,
    contents: bool,
) -> anyhow::Result<(Trailer, u64)> {
    let mut left_out = 0;
    let header = Header::from_bytes(&dump.header).context("cannot decode the server's answer")?;
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
        } else {
            // Chunks of one file may share a block.
            let blocks: HashSet<_> = page.blocks.into_iter().map(|(block, _)| block).collect();
            left_out += blocks.len() as u64;
        }
    }
    let trailer = file.frames.seen;
    file.put(&Frame::Trailer(trailer))?;
    file.out.flush().context(CANNOT_WRITE)?;
    file.bar.finish_and_clear();
    Ok((trailer, left_out))
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
                // A server that was started anew holds no blocks for the dump any more.
                let is_gone = matches!(
                    data,
                    Err(DumpError::Failed(client::Error::Fs(FsError::Stale | FsError::NotFound)))
                );
                let failed = || match is_gone {
                    true => {
                        format!("{LOST}: its server has started anew and removed block {block}")
                    }
                    false => format!("block {block} cannot be read"),
                };
                let data = data.with_context(failed)?;
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
