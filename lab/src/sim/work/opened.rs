//! Open files outlive their names: files that one client has open are removed, replaced and moved
//! by another, and are still read and written.
//!
//! A power cut may lose answered changes. Then one of the clients is told so, by its next sync or
//! before, and files with names have contents that they once had, or their synced contents and
//! more. No client is told of a loss where nothing is lost.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use base::Ino;
use client::{Client, Error, File, OpenOptions};

use crate::sim::{random::SimRandom, world::World};

const OPERATIONS: u64 = 150;
const OPEN_MAX: usize = 5;

/// A file that is open.
struct Open {
    file: File,
    bytes: Vec<u8>,
    /// The name of the file, while it has one.
    name: Option<String>,
    /// The name by which it was made or opened.
    opened_as: Option<String>,
    /// Whether the file never had a name and may get one.
    linkable: bool,
}

struct Opened {
    world: World,
    random: SimRandom,
    dir: String,
    /// The client that has the files open.
    holder: Client,
    /// The client that moves and removes their names.
    other: Client,
    open: Vec<Open>,
    /// Files with a name that are not open.
    closed: BTreeMap<String, Vec<u8>>,
    made: u64,
    /// Number of power cuts that were dealt with.
    cuts: u64,
    /// All contents that files had at any time.
    said: Vec<Vec<u8>>,
    /// Synced contents of files, by their present names.
    synced: BTreeMap<String, Vec<u8>>,
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
        cuts: 0,
        said: Vec::new(),
        synced: BTreeMap::new(),
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            let done = opened.step().await;
            opened.survive(done).await?;
            opened.world.count(|counts| counts.operations += 1);
            if opened.random.one_in(6) {
                opened.world.wait(opened.random.ms(0..60)).await;
            }
        }
        loop {
            let ended = opened.end().await;
            let is_end = ended.is_ok();
            opened.survive(ended).await?;
            if is_end {
                break;
            }
        }
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

    /// Goes on after a step. If a power cut meanwhile lost answered changes, one of the clients is
    /// told. Then the workload goes on from what is left.
    async fn survive(&mut self, step: anyhow::Result<()>) -> anyhow::Result<()> {
        if !self.world.plan().is_lossy() || self.power_cuts() == self.cuts {
            return step;
        }
        let mut told = step.as_ref().is_err_and(|error| error.downcast_ref().is_some_and(tells));
        let mut step = Some(step);
        loop {
            let cuts = self.power_cuts();
            told |= self.sync_both().await?;
            if self.power_cuts() != cuts {
                continue;
            }
            if !told {
                self.cuts = cuts;
                return step.take().unwrap_or(Ok(())).context("nobody was told of a loss");
            }
            for Open { file, .. } in self.open.drain(..) {
                // Closing may report the loss once more.
                let _ = file.close().await;
            }
            let found = match self.find().await {
                Err(Error::Fs(_)) if self.power_cuts() != cuts => continue,
                found => found.context("look at what is left")?,
            };
            match self.take_second_names(&found).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(Error::Fs(_)) if self.power_cuts() != cuts => continue,
                Err(error) => return Err(error).context("remove second names"),
            }
            if self.sync_both().await? || self.power_cuts() != cuts {
                continue;
            }
            self.check_left(&found)?;
            self.say("lost", None);
            self.closed = found;
            self.synced.clear();
            self.cuts = cuts;
            return Ok(());
        }
    }

    fn power_cuts(&self) -> u64 {
        self.world.happened().power_cuts
    }

    /// Syncs both clients. Returns whether one of them is told of a loss.
    async fn sync_both(&self) -> anyhow::Result<bool> {
        let mut told = false;
        for client in [&self.holder, &self.other] {
            match client.sync().await {
                Ok(()) => {}
                Err(error) if tells(&error) => told = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(told)
    }

    /// Reads the contents of all names.
    async fn find(&self) -> client::Result<BTreeMap<String, Vec<u8>>> {
        let mut found = BTreeMap::new();
        for entry in self.other.read_dir(&self.dir).await?.all().await? {
            let name = entry.name.to_string();
            let bytes = self.other.read(self.path(&name)).await?;
            found.insert(name, bytes.to_vec());
        }
        Ok(found)
    }

    /// Removes names of files that have two: a cut took a removal back, and a link followed before
    /// anybody was told. Returns whether there were none.
    async fn take_second_names(&self, found: &BTreeMap<String, Vec<u8>>) -> client::Result<bool> {
        let mut names_of = BTreeMap::<Ino, Vec<&String>>::new();
        for name in found.keys() {
            let ino = self.other.stat(self.path(name)).await?.ino;
            names_of.entry(ino).or_default().push(name);
        }
        let mut none = true;
        for mut names in names_of.into_values() {
            names.sort_by_key(|name| !self.synced.contains_key(*name));
            for name in names.into_iter().skip(1) {
                self.other.unlink(self.path(name)).await?;
                none = false;
            }
        }
        Ok(none)
    }

    fn check_left(&self, found: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
        // A lost write leaves zeros: later writes stay at their offsets.
        let explains = |bytes: &[u8], said: &Vec<u8>| {
            bytes.len() <= said.len()
                && bytes.iter().zip(said).all(|(byte, said)| byte == said || *byte == 0)
        };
        for (name, bytes) in found {
            let was = self.said.iter().any(|said| explains(bytes, said));
            ensure!(was || bytes.is_empty(), "{name} has {} bytes that it never had", bytes.len());
        }
        for (name, synced) in &self.synced {
            let bytes =
                found.get(name).with_context(|| format!("{name} was synced, and is lost"))?;
            ensure!(
                bytes.starts_with(synced),
                "{name} has {} bytes, and others than the {} that were synced",
                bytes.len(),
                synced.len()
            );
        }
        Ok(())
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
        self.said.push(bytes.clone());
        self.hold(file, bytes, Some(name));
        Ok(())
    }

    /// Opens a file that never had a name.
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
        self.said.push(bytes.clone());
        self.hold(file, bytes, None);
        self.open.last_mut().context("it was pushed")?.linkable = linkable;
        Ok(())
    }

    /// Links a file without a name, which succeeds if it never had one and may get one.
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
        self.hold(file, bytes, Some(name));
        Ok(())
    }

    fn hold(&mut self, file: File, bytes: Vec<u8>, name: Option<String>) {
        self.open.push(Open { file, bytes, opened_as: name.clone(), name, linkable: false });
    }

    async fn look(&self, index: usize) -> anyhow::Result<()> {
        let Open { file, bytes, name, .. } = &self.open[index];
        let found = file.read_all().await.with_context(|| format!("read of {name:?}"))?;
        ensure!(found == bytes[..], "{name:?} has {} bytes, not its {}", found.len(), bytes.len());
        if self.random.one_in(3) {
            let attr = file.metadata().await.with_context(|| format!("stat of {name:?}"))?;
            // The trash adds a name.
            let links = u32::from(name.is_some());
            let kept = self.world.plan().trash && attr.nlink == links + 1;
            ensure!(attr.nlink == links || kept, "{name:?} has {} links", attr.nlink);
            ensure!(attr.size == bytes.len() as u64, "{name:?} has size {}", attr.size);
        }
        Ok(())
    }

    async fn write(&mut self, index: usize) -> anyhow::Result<()> {
        let data = self.random.bytes(1 + self.random.index(3000));
        let Open { file, bytes, name, opened_as, .. } = &mut self.open[index];
        file.write_at(bytes.len() as u64, &data)
            .await
            .with_context(|| format!("write {name:?}"))?;
        bytes.extend_from_slice(&data);
        self.said.push(bytes.clone());
        if self.random.one_in(2) {
            file.flush().await.with_context(|| format!("flush {name:?}"))?;
        }
        if self.world.plan().is_lossy() && self.random.one_in(2) {
            file.sync_all().await.with_context(|| format!("sync {name:?}"))?;
            // Another client may have given it this name, on a server that this client knows
            // nothing of.
            if let Some(name) = name.as_ref().filter(|name| opened_as.as_ref() == Some(name)) {
                self.synced.insert(name.clone(), bytes.clone());
            }
        }
        Ok(())
    }

    /// The client that removes or moves a name: mostly the one without the file open.
    fn remover(&self) -> &Client {
        if self.random.one_in(4) { &self.holder } else { &self.other }
    }

    async fn unlink(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.open[index].name.take() else { return Ok(()) };
        self.synced.remove(&name);
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
        for name in [&name, &to] {
            self.synced.remove(name);
        }
        let moved = self.remover().rename(self.path(&name), self.path(&to)).await;
        moved.with_context(|| format!("rename {name} {to}"))?;
        self.say("renamed to", Some(&to));
        self.open[index].name = Some(to);
        Ok(())
    }

    /// Closes a file and opens it again at once, so that the release is older than the open.
    async fn reopen(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.open[index].name.clone() else { return Ok(()) };
        self.close(index).await?;
        let bytes = self.closed.remove(&name).context("it has a name")?;
        self.world.wait(self.random.ms(0..15)).await;
        let options = OpenOptions::both();
        let file = self.holder.open_with(self.path(&name), options).await.context("reopen")?;
        self.say("reopened", Some(&name));
        self.hold(file, bytes, Some(name));
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

/// Whether an error tells a client of a loss.
fn tells(error: &Error) -> bool {
    // A file whose creation was lost cannot be written.
    matches!(error, Error::SessionLost | Error::Fs(base::FsError::Io | base::FsError::Stale))
}
