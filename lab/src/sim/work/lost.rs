//! Power cuts: a client alone in its directory remembers every state that the directory went
//! through, and which of them were durable. After each power cut it compares.

use anyhow::{Context as _, ensure};
use base::{FileKind, FsError};
use client::{Client, Error, New, OpenOptions};
use meta::Durability;
use wire::RenameMode;

use crate::{
    check::durable::{Act, History, State, Thing},
    sim::{plan::Special, random::SimRandom, world::World},
};

const OPERATIONS: u64 = 200;
const NAMES: u64 = 6;

struct Lost {
    world: World,
    client: Client,
    random: SimRandom,
    dir: String,
    /// The path of the directory for the client. One whose token is limited to the directory has it
    /// as its root.
    root: String,
    history: History,
    /// Number of power cuts that were dealt with.
    cuts: u64,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let mut machine = world.connect("lost").await?;
    let dir = format!("/lost-{number}");
    machine.client.mkdir(&dir, 0o755).await?;
    let is_limited = world.plan().special == Special::Limited;
    if is_limited {
        let limited = world.connect_limited("lost", &dir).await?;
        std::mem::replace(&mut machine, limited).close().await?;
    }
    let mut lost = Lost {
        world: world.clone(),
        client: machine.client.clone(),
        random: world.random(&dir),
        root: if is_limited { String::new() } else { dir.clone() },
        dir,
        history: History::new(State::new()),
        cuts: 0,
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            lost.step().await?;
            lost.world.count(|counts| {
                counts.operations += 1;
                counts.limited += u64::from(is_limited);
            });
            if lost.random.one_in(10) {
                lost.world.wait(lost.random.ms(0..100)).await;
            }
        }
        lost.compare(None).await?;
        machine.close().await
    })
}

impl Lost {
    fn power_cuts(&self) -> u64 {
        self.world.happened().power_cuts
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        if self.power_cuts() != self.cuts {
            self.compare(None).await?;
        }
        if self.random.one_in(self.calm()) {
            match self.client.sync().await {
                // A successful sync makes all earlier answers durable, whatever power was cut
                // meanwhile. Otherwise it fails.
                Ok(()) => self.history.durable(),
                Err(Error::Fs(FsError::Io)) if self.world.plan().is_lossy() => {
                    self.compare(None).await?;
                }
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        let act = self.draw();
        let mut then = self.history.now().clone();
        let should = act.apply(&mut then);
        let synced = self.random.one_in(4);
        let answer = self.act(&act, synced).await;
        self.world.trace().say(format_args!("{} {act:?} {answer:?}", self.dir));
        if self.power_cuts() != self.cuts {
            return self.compare(Some(&act)).await;
        }
        if self.world.unless_full(answer.clone()).is_ok_and(|done| done.is_none()) {
            return self.is_unchanged().await.with_context(|| format!("{act:?} is refused"));
        }
        match (&answer, should) {
            (Ok(()), Ok(())) => {
                let synced = match &act {
                    Act::Fill(name, _) if synced => Some(name.clone()),
                    _ => None,
                };
                self.history.answered(act, then);
                let plan = self.world.plan();
                match synced {
                    _ if plan.durability == Durability::Strict => self.history.durable(),
                    Some(_) if plan.servers == 1 => self.history.durable(),
                    // Another server may not have answered, and may have some of the earlier
                    // changes.
                    Some(name) => self.history.durable_of(&name),
                    None => {}
                }
                Ok(())
            }
            (Err(Error::Fs(error)), Err(should)) if *error == should => Ok(()),
            (_, should) => anyhow::bail!("{}: {act:?} gave {answer:?}, not {should:?}", self.dir),
        }
    }

    /// One operation in this many is a sync. Syncs are rarer where a power cut takes blocks, so
    /// that there are some to take.
    fn calm(&self) -> u64 {
        if self.world.plan().volatile_blocks { 30 } else { 9 }
    }

    fn draw(&self) -> Act {
        let name = || self.random.below(NAMES).to_string();
        if self.world.plan().volatile_blocks && self.random.one_in(2) {
            let files = self.history.now().iter().filter(|(_, thing)| **thing != Thing::Directory);
            let files: Vec<_> = files.map(|(name, _)| name.clone()).collect();
            if !files.is_empty() {
                let name = files[self.random.index(files.len())].clone();
                let len = self.random.index(9000) + 1;
                return Act::Fill(name, vec![self.byte(); len]);
            }
        }
        match self.random.below(8) {
            0 | 1 => Act::Create(name()),
            2 => Act::Mkdir(name()),
            3 | 4 => {
                let len = if self.random.one_in(4) { 9000 } else { 40 };
                let byte = self.byte();
                Act::Fill(name(), vec![byte; self.random.index(len) + 1])
            }
            5 => Act::Rename(name(), name()),
            6 => Act::Unlink(name()),
            _ => Act::Rmdir(name()),
        }
    }

    fn byte(&self) -> u8 {
        u8::try_from(self.random.below(256)).expect("a byte")
    }

    async fn act(&self, act: &Act, synced: bool) -> Result<(), Error> {
        let (client, path) = (&self.client, |name: &String| format!("{}/{name}", self.root));
        match act {
            Act::Create(name) => {
                let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
                client.mknod(path(name), new).await.map(drop)
            }
            Act::Mkdir(name) => client.mkdir(path(name), 0o755).await.map(drop),
            Act::Fill(name, bytes) => {
                let file = client.open_with(path(name), OpenOptions::writing()).await?;
                file.write_at(0, bytes).await?;
                if synced {
                    file.sync_all().await?;
                }
                file.close().await
            }
            Act::Rename(from, to) => {
                client.rename_with(path(from), path(to), RenameMode::NoReplace).await
            }
            Act::Unlink(name) => client.unlink(path(name)).await,
            Act::Rmdir(name) => client.rmdir(path(name)).await,
        }
    }

    /// Checks the directory after a power cut, with `act` in flight when it came, and continues
    /// from what is found.
    async fn compare(&mut self, act: Option<&Act>) -> anyhow::Result<()> {
        loop {
            let cuts = self.power_cuts();
            let found = match self.look().await {
                Ok(found) => found,
                // Another power cut came while we looked.
                Err(Error::Fs(_)) if self.power_cuts() != cuts => continue,
                Err(error) => return Err(error).with_context(|| format!("look at {}", self.dir)),
            };
            match self.client.sync().await {
                Ok(()) => {}
                // The sync reports a loss that the look has already seen.
                Err(Error::Fs(FsError::Io)) if self.world.plan().is_lossy() => continue,
                Err(error) => return Err(error.into()),
            }
            if self.power_cuts() != cuts {
                continue;
            }
            self.world.trace().say(format_args!("{} after a cut {:?}", self.dir, found.keys()));
            let checked = match self.world.plan().loses_apart() {
                true => self.history.check_each(&found, act),
                false => self.history.check(&found, act),
            };
            checked.with_context(|| self.dir.clone())?;
            self.history = History::new(found);
            self.cuts = cuts;
            return Ok(());
        }
    }

    /// Checks that the directory is as it was before the last operation, unless a power cut came.
    async fn is_unchanged(&self) -> anyhow::Result<()> {
        let found = self.look().await;
        if self.power_cuts() != self.cuts {
            return Ok(());
        }
        let (found, should) = (found?, self.history.now());
        ensure!(found == *should, "{} has {found:?}, and had {should:?}", self.dir);
        Ok(())
    }

    async fn look(&self) -> Result<State, Error> {
        let mut state = State::new();
        let dir = if self.root.is_empty() { "/" } else { &self.root };
        for entry in self.client.read_dir(dir).await?.all().await? {
            let name = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
            let thing = match entry.kind {
                Some(FileKind::Directory) => Thing::Directory,
                Some(FileKind::File) | None => {
                    let bytes = self.client.read(format!("{}/{name}", self.root)).await?;
                    Thing::File(bytes.to_vec())
                }
                Some(_) => return Err(Error::Fs(FsError::Io)),
            };
            state.insert(name, thing);
        }
        Ok(state)
    }
}
