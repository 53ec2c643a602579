//! `pando load`: a file system made from a dump.

use std::{
    fs::File,
    io::{self, BufReader, ErrorKind, IsTerminal as _, Read},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::value_parser;
use indicatif::{ProgressBar, ProgressStyle};
use meta::dump::{DUMP_FRAME_BYTES_MAX, DUMP_OPENING, Frame, Frames, Header, Loader};
use store::{Compression, Engine};

use super::format::{blocks_url, compression};
use crate::{
    connect,
    data::{self, Target},
    output,
    system::SystemRandom,
};

const BUFFER_BYTES: usize = 1 << 20;

/// Make a file system from what `pando dump` wrote, in new data directories.
///
/// The new file system has the name and the id of the dumped one, and a new administrator's token
/// in DIR/admin.token; tokens of the old one are not valid. A dump made with --metadata-only names
/// blocks and does not hold them: give --blocks, or copy the blocks to DIR/blocks before serving. A
/// dump that was cut off or changed is refused. After an interrupted load, run the same command
/// again.
///
/// With --servers, the directory of server I is DIR/server-I, with an admin.token in it. `pando dev
/// --servers N --dir DIR` serves all of them on this machine; elsewhere `pando serve --coordinator`
/// serves the first, and `pando serve --join` each other one. The number of servers of the dumped
/// file system does not matter. Quotas keep their limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory for metadata, keys and (by default) contents. A missing one is created; an
    /// existing one must be empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Number of servers, at most one per shard of the file system.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    servers: u16,
    /// Block store that has the contents, or receives them: as for `pando format` [default:
    /// DIR/blocks].
    #[arg(long, value_name = "URL")]
    blocks: Option<String>,
    /// Compression of contents from now on: as for `pando format`. Existing blocks stay as they
    /// are.
    #[arg(long, default_value_t, value_name = "none|lz4|zstd", value_parser = compression)]
    compression: Compression,
    /// The dump; `-` is stdin.
    file: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file);
        Box::new(file.with_context(|| format!("cannot read {}", args.file.display()))?)
    };
    let mut dump = Dump::open(BufReader::with_capacity(BUFFER_BYTES, input))?;
    let blocks = args.blocks.as_deref().map(blocks_url).transpose()?;
    let (name, shards, servers) = (dump.header.name.clone(), dump.header.shards, args.servers);
    ensure!(servers <= shards, "--servers {servers}: the file system has only {shards} shards");
    let data = if servers == 1 {
        vec![args.data.clone()]
    } else {
        (0..servers).map(|server| args.data.join(format!("server-{server}"))).collect()
    };
    let mut chunks = 0;
    data::load_all(&data, &name, (blocks.as_deref(), args.compression), |targets| {
        chunks = fill(&mut dump, targets)?;
        Ok(())
    })?;
    let (seen, data) = (dump.frames.seen, args.data.display());
    let (records, blocks) = (seen.records, seen.blocks);
    let of = if servers == 1 { String::new() } else { format!(" for {servers} servers") };
    output::print(&format!("loaded {name} in {data}{of}: {records} records, {blocks} blocks"))?;
    if blocks == 0 && chunks > 0 {
        tracing::warn!(chunks, "the dump names blocks that it does not hold");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fills what there will be; how many chunks name blocks.
fn fill(dump: &mut Dump<impl Read>, targets: &[Target<'_>]) -> anyhow::Result<u64> {
    let runtime = connect::runtime()?;
    let bar = bar();
    let header = dump.header.clone();
    let engines: Vec<_> = targets.iter().map(|target| target.engine as &dyn Engine).collect();
    let mut loader = Loader::begin(&engines, &header)?;
    loop {
        let seen = dump.frames.seen;
        match dump.next()? {
            Frame::Header(_) | Frame::FirstHeader(_) => {
                bail!("the dump is damaged: it has two headers")
            }
            Frame::Records(records) => loader.records(records)?,
            Frame::Block((block, data)) => {
                let target = &targets[usize::from(loader.server_of_block(block)?)];
                let put = runtime.block_on(target.blocks.restore(block, data));
                put.with_context(|| format!("cannot store block {block}"))?;
            }
            Frame::Trailer(trailer) => {
                ensure!(trailer == seen, "the dump is damaged: a frame is missing");
                dump.ends()?;
                for target in targets {
                    target.blocks.sync().context("cannot make the blocks stable")?;
                }
                let [Target { url, signing_key, .. }, ..] = targets else {
                    bail!("a file system has a server")
                };
                let chunks_named = loader.chunks_in_blocks();
                loader.finish(&header, url, signing_key, &SystemRandom::default())?;
                bar.finish_and_clear();
                return Ok(chunks_named);
            }
        }
        bar.set_message(format!("loaded {} records", dump.frames.seen.records));
    }
}

/// A dump that is being read.
struct Dump<R> {
    input: R,
    frames: Frames,
    header: Header,
}

impl<R: Read> Dump<R> {
    fn open(mut input: R) -> anyhow::Result<Dump<R>> {
        let mut opening = [0; DUMP_OPENING.len()];
        input.read_exact(&mut opening).context("the file is not a dump of pando")?;
        let (name, version) = opening.split_at(DUMP_OPENING.len() - 2);
        let (known, known_version) = DUMP_OPENING.split_at(DUMP_OPENING.len() - 2);
        ensure!(name == known, "the file is not a dump of pando");
        let [version, last] =
            [version, known_version].map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        ensure!(
            (1..=last).contains(&version),
            "the dump has version {version}, this program knows 1 to {last}"
        );
        let mut frames = Frames::default();
        let header = match take(&mut input, &mut frames)? {
            Frame::Header(header) => header,
            Frame::FirstHeader(header) => header.into(),
            _ => bail!("the dump is damaged: it has no header"),
        };
        Ok(Dump { input, frames, header })
    }

    fn next(&mut self) -> anyhow::Result<Frame> {
        take(&mut self.input, &mut self.frames)
    }

    /// Checks that no bytes follow the trailer.
    fn ends(&mut self) -> anyhow::Result<()> {
        match self.input.read_exact(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error).context("cannot read the dump"),
            Ok(()) => bail!("the dump is damaged: bytes follow its end"),
        }
    }
}

fn take(input: &mut impl Read, frames: &mut Frames) -> anyhow::Result<Frame> {
    let mut read = |bytes: &mut [u8]| match input.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            bail!("the dump is cut off: it has no end")
        }
        read => read.context("cannot read the dump"),
    };
    let mut len = [0; 4];
    read(&mut len)?;
    let len = u32::from_le_bytes(len);
    ensure!(len <= DUMP_FRAME_BYTES_MAX, "the dump is damaged: a frame of {len} bytes");
    let mut body = vec![0; len as usize];
    read(&mut body)?;
    let mut sum = [0; 4];
    read(&mut sum)?;
    Ok(frames.take(&Bytes::from(body), sum)?)
}

fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg}");
    ProgressBar::new_spinner().with_style(style.expect("the template is well-formed"))
}
