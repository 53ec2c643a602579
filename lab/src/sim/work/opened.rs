//! Open files outlive their names: what one client has open is removed, replaced and moved by another, and
//! is read and written on.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use client::{Client, Error, File, OpenOptions};

use crate::sim::{random::SimRandom, world::World};

const OPERATIONS: u64 = 150;
const OPEN_MAX: usize = 5;

/// A file that is open.
struct Open {
    file: File,
    bytes: Vec<u8>,
    /// Its name, while it has one.
    name: Option<String>,
    /// It never had one, and may get one.
    linkable: bool,
}

struct Opened {
    world: World,
    random: SimRandom,
    dir: String,
    /// Has the files open.
    holder: Client,
    /// Moves and removes their names.
    other: Client,
    open: Vec<Open>,
    /// Files with a name that nobody has open.
    closed: BTreeMap<String, Vec<u8>>,
    made: u64,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = [world.connect("holder").await?, world.connect("other").await?];
    let dir = format!("/opened-{number}");
    machines[0].client.mkdir(&dir, 0o755).await?;
    world.divide(&machines[0].client, &dir).await?;
    let mut opened = Opened {
        world: world.clone(),
        random: world.random(&dir),
        dir,
        holder: machines[0].client.clone(),
        other: machines[1].client.clone(),
        open: Vec::new(),
        closed: BTreeMap::new(),
        made: 0,
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            opened.step().await?;
            opened.world.count(|counts| counts.operations += 1);
            if opened.random.one_in(6) {
                opened.world.wait(opened.random.ms(0..60)).await;
            }
        }
        opened.end().await?;
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Opened {
    async fn step(&mut self) -> anyhow::Result<()> {
        let choice = self.random.below(20);
        if self.open.len() < OPEN_MAX && choice < 6 || self.open.is_empty() {
            return if choice < 3 || self.closed.is_empty() {
                self.make().await
            } else {
                self.open().await
            };
        }
        let index = self.random.index(self.open.len());
        match choice {
            0..=6 => self.look(index).await,
            7 => self.make_unnamed().await,
            8 => self.link(index).await,
            9 | 10 => self.write(index).await,
            11..=13 => self.unlink(index).await,
            14 | 15 => self.rename(index).await,
            16 => self.reopen(index).await,
            _ => self.close(index).await,
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn fresh(&mut self) -> String {
        self.made += 1;
        self.made.to_string()
    }

    fn say(&self, what: &str, name: Option<&String>) {
        self.world.trace().say(format_args!("{} {what} {name:?}", self.dir));
    }

    async fn make(&mut self) -> anyhow::Result<()> {
        let name = self.fresh();
        let len = self.random.pick(&[0, 50, 6000]);
        let bytes = self.random.bytes(len);
        let options = OpenOptions::both().create_new(0o644);
        let file = self.holder.open_with(self.path(&name), options).await?;
        file.write_at(0, &bytes).await?;
        if self.random.one_in(2) {
            file.flush().await?;
        }
        self.say("made", Some(&name));
        self.open.push(Open { file, bytes, name: Some(name), linkable: false });
        Ok(())
    }

    /// A file that never had a name.
    async fn make_unnamed(&mut self) -> anyhow::Result<()> {
        if self.open.len() >= OPEN_MAX {
            return Ok(());
        }
        let len = self.random.pick(&[0, 50, 6000]);
        let bytes = self.random.bytes(len);
        let linkable = self.random.one_in(2);
        let file = self.holder.tmpfile(&self.dir, 0o600, linkable).await.context("tmpfile")?;
        file.write_at(0, &bytes).await?;
        self.say("made without a name", None);
        self.open.push(Open { file, bytes, name: None, linkable });
        Ok(())
    }

    /// Gives a file without a name its first one, if it never had any and may.
    async fn link(&mut self, index: usize) -> anyhow::Result<()> {
        if self.open[index].name.is_some() {
            return Ok(());
        }
        let (name, linkable) = (self.fresh(), self.open[index].linkable);
        let linked = self.open[index].file.link(self.path(&name)).await;
        self.say("linked", Some(&name));
        match linked {
            Ok(()) => {
                let may = linkable || self.world.plan().trash;
                ensure!(may, "{name} was made of a file that may have no name");
                self.open[index].linkable = false;
                self.open[index].name = Some(name);
                Ok(())
            }
            Err(Error::Fs(base::FsError::NotFound)) if !linkable => Ok(()),
            Err(error) => Err(error).context("link"),
        }
    }

    async fn open(&mut self) -> anyhow::Result<()> {
        let index = self.random.index(self.closed.len());
        let name = self.closed.keys().nth(index).cloned().context("there is one")?;
        let bytes = self.closed.remove(&name).context("there is one")?;
        let options = OpenOptions::both();
        let file = self.holder.open_with(self.path(&name), options).await.context("open")?;
        self.say("opened", Some(&name));
        self.open.push(Open { file, bytes, name: Some(name), linkable: false });
        Ok(())
    }

    async fn look(&self, index: usize) -> anyhow::Result<()> {
        let Open { file, bytes, name, .. } = &self.open[index];
        let found = file.read_all().await.with_context(|| format!("read of {name:?}"))?;
        ensure!(found == bytes[..], "{name:?} has {} bytes, not its {}", found.len(), bytes.len());
        if self.random.one_in(3) {
            let attr = file.metadata().await.with_context(|| format!("stat of {name:?}"))?;
            // In the trash it has a name.
            let links = u32::from(name.is_some());
            let kept = self.world.plan().trash && attr.nlink == links + 1;
            ensure!(attr.nlink == links || kept, "{name:?} has {} links", attr.nlink);
            ensure!(attr.size == bytes.len() as u64, "{name:?} has size {}", attr.size);
        }
        Ok(())
    }

    async fn write(&mut self, index: usize) -> anyhow::Result<()> {
        let data = self.random.bytes(1 + self.random.index(3000));
        let Open { file, bytes, name, .. } = &mut self.open[index];
        file.write_at(bytes.len() as u64, &data)
            .await
            .with_context(|| format!("write {name:?}"))?;
        bytes.extend_from_slice(&data);
        if self.random.one_in(2) {
            file.flush().await.with_context(|| format!("flush {name:?}"))?;
        }
        Ok(())
    }

    /// Which client takes a name away.
    fn remover(&self) -> &Client {
        if self.random.one_in(4) { &self.holder } else { &self.other }
    }

    async fn unlink(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.open[index].name.take() else { return Ok(()) };
        let removed = self.remover().unlink(self.path(&name)).await;
        removed.with_context(|| format!("unlink {name}"))?;
        self.say("unlinked", Some(&name));
        Ok(())
    }

    /// Renames the open file to a free name, or over another one.
    async fn rename(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.open[index].name.clone() else { return Ok(()) };
        let over = (0..self.open.len()).find(|other| {
            *other != index && self.open[*other].name.is_some() && self.random.one_in(2)
        });
        let to = match over {
            Some(other) => self.open[other].name.take().context("it has one")?,
            None => self.fresh(),
        };
        let moved = self.remover().rename(self.path(&name), self.path(&to)).await;
        moved.with_context(|| format!("rename {name} {to}"))?;
        self.say("renamed to", Some(&to));
        self.open[index].name = Some(to);
        Ok(())
    }

    /// Closes a file and opens it at once again: the release is older than the open.
    async fn reopen(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.open[index].name.clone() else { return Ok(()) };
        self.close(index).await?;
        let bytes = self.closed.remove(&name).context("it has a name")?;
        self.world.wait(self.random.ms(0..15)).await;
        let options = OpenOptions::both();
        let file = self.holder.open_with(self.path(&name), options).await.context("reopen")?;
        self.say("reopened", Some(&name));
        self.open.push(Open { file, bytes, name: Some(name), linkable: false });
        let index = self.open.len() - 1;
        if self.random.one_in(2) { self.unlink(index).await } else { Ok(()) }
    }

    async fn close(&mut self, index: usize) -> anyhow::Result<()> {
        let Open { file, bytes, name, .. } = self.open.swap_remove(index);
        file.close().await.with_context(|| format!("close {name:?}"))?;
        self.say("closed", name.as_ref());
        if let Some(name) = name {
            self.closed.insert(name, bytes);
        }
        Ok(())
    }

    async fn end(&mut self) -> anyhow::Result<()> {
        while !self.open.is_empty() {
            self.look(0).await?;
            self.close(0).await?;
        }
        for (name, bytes) in &self.closed {
            let found = self.other.read(self.path(name)).await.with_context(|| name.clone())?;
            ensure!(
                found == bytes[..],
                "{name} has {} bytes, not its {}",
                found.len(),
                bytes.len()
            );
        }
        match self.other.stat(self.path("never")).await {
            Err(Error::Fs(base::FsError::NotFound)) => Ok(()),
            other => anyhow::bail!("a name that was never made: {other:?}"),
        }
    }
}
