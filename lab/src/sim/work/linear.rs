//! Concurrency: several clients work in one small tree at once, by paths. Some order of all their
//! operations must explain all their answers (`check::linear`).
//!
//! Some clients do several things at once. Now and then one of them dies in the middle of an
//! operation. At the end, when no other client works, one looks at the whole tree.

use std::{cell::RefCell, rc::Rc};

use anyhow::{Context as _, anyhow, bail};
use base::{Attr, Cred, FileKind, FsError};
use client::{Client, Error, New};
use futures::future::join_all;
use tokio::time::timeout;
use wire::RenameMode;

use crate::{
    check::linear::{
        self, Answer, Attributes, By, Call, Extent, History, Names, Path, Seen, Verdict,
    },
    sim::{
        plan::{Aim, Special},
        random::SimRandom,
        world::World,
    },
};

/// Maximum depth of a path.
const DEPTH_MAX: u64 = 3;
/// Number of clients that work.
const CLIENTS: usize = 4;
/// Number of them whose tokens are limited to the directory, where there are such clients.
const LIMITED: usize = 2;

struct Linear {
    world: World,
    dir: String,
    names: &'static [u8],
    history: RefCell<History>,
}

/// One of the clients that work.
struct Worker {
    seat: Seat,
    random: SimRandom,
    operations: u64,
}

/// A client, with its view of the directory.
struct Seat {
    name: String,
    client: Client,
    user: Client,
    /// The path of the directory. A client whose token is limited to it has it as its root.
    root: String,
}

impl Seat {
    fn new(name: String, client: &Client, root: &str) -> Seat {
        let user = client.as_user(Cred { uid: 100, gid: 100, groups: Vec::new() });
        Seat { name, client: client.clone(), user, root: root.to_owned() }
    }

    fn path(&self, path: &Path) -> String {
        let names = path.0.iter();
        let path =
            names.fold(self.root.clone(), |text, name| format!("{text}/{}", char::from(*name)));
        if path.is_empty() { "/".to_owned() } else { path }
    }

    async fn ask(&self, call: &Call) -> Result<Seen, Error> {
        let Seat { client, user, .. } = self;
        let at = |path: &Path| self.path(path);
        match call {
            Call::Mkdir(path) => client.mkdir(at(path), 0o755).await.map(made),
            Call::Create(path) => {
                let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
                client.mknod(at(path), new).await.map(made)
            }
            Call::Unlink(path) => client.unlink(at(path)).await.map(nothing),
            Call::Rmdir(path) => client.rmdir(at(path)).await.map(nothing),
            Call::Rename(from, to, mode) => {
                client.rename_with(at(from), at(to), *mode).await.map(nothing)
            }
            Call::Link(from, to) => client.link(at(from), at(to)).await.map(nothing),
            Call::Chmod(path, mode) => client.chmod(at(path), *mode).await.map(made),
            Call::Stat(path, by) => {
                let client = if *by == By::Root { client } else { user };
                client.stat(at(path)).await.map(|attr| Seen::Found(attributes(&attr)))
            }
            Call::List(path, by) => {
                let client = if *by == By::Root { client } else { user };
                list(client, at(path)).await.map(Seen::Names)
            }
        }
    }
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let dir = format!("/linear-{number}");
    let random = world.random(&dir);
    let limited = if world.plan().special == Special::Limited { LIMITED } else { 0 };
    let mut machines = world.connect_all("linear", CLIENTS - limited).await?;
    let witness = world.connect("linear").await?;
    let root = witness.client.mkdir(&dir, 0o755).await?;
    world.divide(&witness.client, &dir).await?;
    for _ in 0..limited {
        machines.push(world.connect_limited("linear", &dir).await?);
    }
    let extent = match world.plan().servers {
        1 => Extent::Server,
        _ if world.plan().may_divide() => Extent::Partitions,
        _ => Extent::Servers,
    };
    let linear = Rc::new(Linear {
        world: world.clone(),
        dir,
        names: random.pick(&[b"ab", b"abc"]),
        history: RefCell::new(History::new(root.ino, extent)),
    });
    let aim = world.plan().aim;
    Ok(async move {
        let operations = random.within(8..16);
        let mut workers: Vec<Vec<Worker>> = Vec::new();
        for (number, machine) in machines.iter().enumerate() {
            let at_once = match aim {
                Aim::Answers => random.within(1..4),
                Aim::Nothing | Aim::Promises | Aim::Leases | Aim::Away | Aim::Machines => {
                    if random.one_in(3) { 2 } else { 1 }
                }
            };
            let is_limited = number >= CLIENTS - limited;
            let root = if is_limited { "" } else { &linear.dir };
            let workers_of = (0..at_once).map(|hand| Worker {
                seat: Seat::new(format!("{number}.{hand}"), &machine.client, root),
                random: random.stream(&format!("{number} {hand}")),
                operations,
            });
            workers.push(workers_of.collect());
        }
        let witness_at = Seat::new("w".to_owned(), &witness.client, &linear.dir);
        linear.begin(&witness_at).await?;
        let mortal = random.one_in(3).then(|| random.ms(5..800));
        let runs = workers.into_iter().enumerate().map(|(number, workers)| {
            let linear = Rc::clone(&linear);
            let run =
                async move { join_all(workers.iter().map(|worker| linear.run(worker))).await };
            async move {
                match mortal.filter(|_| number == 0) {
                    Some(life) => timeout(life, run).await.unwrap_or_default(),
                    None => run.await,
                }
            }
        });
        let ended = join_all(runs).await;
        for (number, machine) in machines.into_iter().enumerate() {
            if number == 0 && mortal.is_some() {
                machine.die(random.one_in(2));
            } else {
                machine.close().await?;
            }
        }
        ended.into_iter().flatten().collect::<anyhow::Result<Vec<()>>>()?;
        linear.look_at_all(&witness_at).await?;
        witness.close().await?;
        linear.check()
    })
}

impl Linear {
    /// Makes a few directories and a file to move about.
    async fn begin(&self, witness: &Seat) -> anyhow::Result<()> {
        for path in ["a", "aa", "b"] {
            self.operate(witness, Call::Mkdir(Path(path.into()))).await?;
        }
        self.operate(witness, Call::Create(Path(b"ab".into()))).await
    }

    async fn run(&self, worker: &Worker) -> anyhow::Result<()> {
        for _ in 0..worker.operations {
            let call = self.draw(&worker.random);
            self.operate(&worker.seat, call).await?;
            if worker.random.one_in(6) {
                self.world.wait(worker.random.ms(0..60)).await;
            }
        }
        Ok(())
    }

    /// Does an operation, and records it.
    async fn operate(&self, by: &Seat, call: Call) -> anyhow::Result<()> {
        self.answer_of(by, call).await.map(drop)
    }

    /// Does and records an operation. Returns the answer; `None` if nobody knows whether it
    /// happened.
    async fn answer_of(&self, by: &Seat, call: Call) -> anyhow::Result<Option<Answer>> {
        let operation = self.history.borrow_mut().call(&by.name, call.clone());
        self.world.count(|counts| {
            counts.operations += 1;
            counts.limited += u64::from(by.root.is_empty());
        });
        let answer = by.ask(&call).await;
        self.world.trace().say(format_args!("{} {operation} {call:?} {answer:?}", self.dir));
        let answer = match answer {
            Ok(seen) => Ok(seen),
            Err(Error::Fs(FsError::NoSpace)) => {
                self.world.unless_full(answer).with_context(|| format!("{call:?}"))?;
                Err(FsError::NoSpace)
            }
            Err(Error::Fs(error)) => Err(error),
            Err(Error::SessionLost) => {
                self.world.count(|counts| counts.unknown += 1);
                return Ok(None);
            }
            Err(error) => return Err(anyhow!(error)).with_context(|| format!("{call:?}")),
        };
        self.history.borrow_mut().answer(operation, answer.clone());
        Ok(Some(answer))
    }

    fn some_path(&self, random: &SimRandom) -> Path {
        let depth = random.within(1..DEPTH_MAX + 1);
        Path((0..depth).map(|_| random.pick(self.names)).collect())
    }

    fn draw(&self, random: &SimRandom) -> Call {
        let path = || self.some_path(random);
        let by = || if random.one_in(3) { By::User } else { By::Root };
        match random.below(25) {
            0..=2 => Call::Mkdir(path()),
            3..=5 => Call::Create(path()),
            6..=7 => Call::Unlink(path()),
            8..=9 => Call::Rmdir(path()),
            10..=15 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ];
                Call::Rename(path(), path(), random.pick(&modes))
            }
            16..=17 => Call::Link(path(), path()),
            18 => Call::Chmod(path(), random.pick(&[0o755, 0o755, 0o700])),
            19..=20 => {
                let mut path = path();
                path.0.truncate(random.index(path.0.len() + 1));
                Call::List(path, by())
            }
            _ => Call::Stat(path(), by()),
        }
    }

    /// Looks at the whole tree once no other client works.
    async fn look_at_all(&self, witness: &Seat) -> anyhow::Result<()> {
        let mut left = vec![Path(Vec::new())];
        while let Some(path) = left.pop() {
            self.operate(witness, Call::Stat(path.clone(), By::Root)).await?;
            let listing = Call::List(path.clone(), By::Root);
            let names = match self.answer_of(witness, listing.clone()).await? {
                Some(Ok(Seen::Names(names))) => names,
                // A request of a dead client may still change the tree. The history says whether it
                // may.
                Some(Err(FsError::NotFound | FsError::NotDirectory | FsError::Stale)) => continue,
                other => bail!("{listing:?} gave {other:?}"),
            };
            for (name, (_, directory)) in names {
                let mut below = path.clone();
                below.0.push(name);
                if directory {
                    left.push(below);
                } else {
                    self.operate(witness, Call::Stat(below, By::Root)).await?;
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        let history = self.history.borrow();
        let verdict = linear::check(&history);
        self.world.count(|counts| {
            counts.histories += 1;
            counts.history_operations += history.len() as u64;
        });
        match verdict {
            Ok(Verdict::Linearizable { states }) => {
                self.world.count(|counts| counts.history_states += states as u64);
                Ok(())
            }
            Ok(Verdict::GaveUp) => {
                self.world.count(|counts| counts.histories_given_up += 1);
                Ok(())
            }
            Err(refused) => bail!("{}: {}", self.dir, refused.why),
        }
    }
}

fn nothing((): ()) -> Seen {
    Seen::Nothing
}

fn made(attr: Attr) -> Seen {
    Seen::Made(attributes(&attr))
}

fn attributes(attr: &Attr) -> Attributes {
    let dir = (attr.kind == FileKind::Directory).then_some((attr.mode & 0o777, attr.size));
    Attributes { ino: attr.ino, dir, nlink: attr.nlink }
}

async fn list(client: &Client, path: String) -> Result<Names, Error> {
    let entries = client.read_dir(path).await?.all().await?;
    let named = entries.into_iter().map(|entry| {
        let name = entry.name.as_bytes().first().copied().unwrap_or(b'?');
        (name, (entry.ino, entry.is_dir()))
    });
    Ok(named.collect())
}
