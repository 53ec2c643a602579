//! Contents: a file is written at random places, truncated, grown and read back, and always equals
//! a vector of bytes. Two clients take turns; a client that opens the file sees what the other
//! flushed (close-to-open).

use anyhow::{Context as _, ensure};
use base::limits::CHUNK_BYTES;
use client::{Client, File, OpenOptions};

use crate::sim::{random::SimRandom, world::World};

const OPERATIONS: u64 = 120;

/// The distribution of offsets and lengths.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// The lowest offset, unless an offset starts at 0.
    around: u64,
    /// The range of offsets, in bytes.
    spread: u64,
    /// Maximum length of a write, in bytes.
    len: u64,
}

const SIZES: [Sizes; 5] = [
    Sizes { around: 0, spread: 300, len: 200 },
    Sizes { around: 0, spread: 9000, len: 3000 },
    Sizes { around: 0, spread: 300_000, len: 40_000 },
    Sizes { around: 0, spread: 20_000, len: 70_000 },
    Sizes { around: CHUNK_BYTES as u64 - 50_000, spread: 100_000, len: 30_000 },
];

struct Contents {
    clients: [Client; 2],
    random: SimRandom,
    world: World,
    path: String,
    sizes: Sizes,
    /// The expected contents of the file.
    bytes: Vec<u8>,
    /// The client that writes, and its open file.
    writer: usize,
    file: Option<File>,
    /// Whether everything written is at the server.
    flushed: bool,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = [world.connect("contents").await?, world.connect("contents").await?];
    let path = format!("/contents-{number}");
    let random = world.random(&path);
    let sizes = random.pick(&SIZES);
    let mut contents = Contents {
        clients: [machines[0].client.clone(), machines[1].client.clone()],
        random,
        world: world.clone(),
        path,
        sizes,
        bytes: Vec::new(),
        writer: 0,
        file: None,
        flushed: true,
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            let path = contents.path.clone();
            contents.step().await.with_context(|| path)?;
            contents.world.count(|counts| counts.operations += 1);
            if contents.random.one_in(8) {
                contents.world.wait(contents.random.ms(0..60)).await;
            }
        }
        contents.close().await?;
        contents.compare(0).await?;
        contents.compare(1).await?;
        drop(contents);
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Contents {
    async fn step(&mut self) -> anyhow::Result<()> {
        let choice = self.random.below(20);
        self.world.trace().note("contents", &[choice, self.bytes.len() as u64]);
        if self.file.is_none() {
            return self.open(choice < 3).await;
        }
        match choice {
            0..=7 => self.write().await,
            8..=9 => self.resize().await,
            10..=13 => self.read().await,
            14 => {
                self.file()?.flush().await?;
                self.flushed = true;
                Ok(())
            }
            15 => {
                self.file()?.sync_all().await?;
                self.flushed = true;
                Ok(())
            }
            16 => {
                let size = self.file()?.metadata().await?.size;
                ensure!(size == self.bytes.len() as u64, "size {size}, not {}", self.bytes.len());
                Ok(())
            }
            17 => self.compare(1 - self.writer).await,
            18 => self.close().await,
            _ => {
                self.close().await?;
                self.writer = 1 - self.writer;
                Ok(())
            }
        }
    }

    fn file(&self) -> anyhow::Result<&File> {
        self.file.as_ref().context("it is open")
    }

    fn offset(&self) -> u64 {
        let from = if self.random.one_in(8) { 0 } else { self.sizes.around };
        from + self.random.below(self.sizes.spread)
    }

    async fn open(&mut self, truncate: bool) -> anyhow::Result<()> {
        let options = OpenOptions::both().create(0o644);
        let options = if truncate { options.truncate() } else { options };
        self.file = Some(self.clients[self.writer].open_with(&self.path, options).await?);
        if truncate {
            self.bytes.clear();
        }
        Ok(())
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        let at_end = self.random.one_in(3);
        let offset = if at_end { self.bytes.len() as u64 } else { self.offset() };
        let data = self.random.bytes(usize::try_from(1 + self.random.below(self.sizes.len))?);
        self.file()?.write_at(offset, &data).await?;
        let start = usize::try_from(offset)?;
        if self.bytes.len() < start + data.len() {
            self.bytes.resize(start + data.len(), 0);
        }
        self.bytes[start..start + data.len()].copy_from_slice(&data);
        self.flushed = false;
        Ok(())
    }

    async fn resize(&mut self) -> anyhow::Result<()> {
        let size = if self.random.one_in(6) { 0 } else { self.offset() };
        self.file()?.set_len(size).await?;
        self.bytes.resize(usize::try_from(size)?, 0);
        Ok(())
    }

    async fn read(&self) -> anyhow::Result<()> {
        let offset = self.offset();
        let len = u32::try_from(1 + self.random.below(self.sizes.len * 2))?;
        let found = self.file()?.read_at(offset, len).await?;
        let start = usize::try_from(offset)?.min(self.bytes.len());
        let end = (start + len as usize).min(self.bytes.len());
        same(&found, &self.bytes[start..end], offset)
    }

    async fn close(&mut self) -> anyhow::Result<()> {
        if let Some(file) = self.file.take() {
            file.close().await?;
            self.flushed = true;
        }
        Ok(())
    }

    /// Compares the contents that a client reads, which opens the file now. Does nothing while
    /// there is unflushed data.
    async fn compare(&self, client: usize) -> anyhow::Result<()> {
        if self.flushed && (self.file.is_some() || !self.bytes.is_empty()) {
            let found = self.clients[client].read(&self.path).await?;
            same(&found, &self.bytes, 0).with_context(|| format!("read by client {client}"))?;
        }
        Ok(())
    }
}

fn same(found: &[u8], should: &[u8], offset: u64) -> anyhow::Result<()> {
    ensure!(found.len() == should.len(), "{} bytes at {offset}, not {}", found.len(), should.len());
    if let Some(at) = found.iter().zip(should).position(|(found, should)| found != should) {
        anyhow::bail!("byte {} is {:#x}, not {:#x}", offset + at as u64, found[at], should[at]);
    }
    Ok(())
}
