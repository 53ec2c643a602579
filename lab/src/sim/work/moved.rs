//! Immediate visibility: a directory is moved, closed and opened again, while other clients look at
//! what is below it. Each client looks at the same depth all the time, through its cache.
//!
//! A look that begins after a change was answered sees the change, whichever servers it asks and
//! whatever they have heard. A look shows a state that existed between its call and its answer.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use anyhow::{Context as _, ensure};
use base::{Cred, FsError};
use client::{Client, Error};
use futures::future::join_all;

use crate::{
    check::visible::{CLOSED, OPEN},
    sim::{
        plan::Aim,
        random::SimRandom,
        world::{Machine, World},
    },
};

/// Paths that the directory may have.
const PLACES: [&str; 3] = ["p/a", "p/b", "q/a"];
/// Directories below it, each in the one before.
const BELOW: [&str; 3] = ["x", "y", "z"];

/// The place of the directory, and whether it is closed.
#[derive(Debug, Clone, Copy)]
struct State {
    place: usize,
    closed: bool,
}

struct Moved {
    world: World,
    dir: String,
    /// All states that a change asked for.
    states: RefCell<Vec<State>>,
    /// Index of the latest state whose change was answered.
    answered: Cell<usize>,
    over: Cell<bool>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let dir = format!("/moved-{number}");
    let random = world.random(&dir);
    let aim = world.plan().aim;
    let mover = world.connect("moves").await?;
    let lookers = world.connect_all("looks", BELOW.len()).await?;
    let mut path = dir.clone();
    mover.client.mkdir(&path, 0o755).await?;
    world.divide(&mover.client, &path).await?;
    for parent in ["p", "q"] {
        mover.client.mkdir(format!("{dir}/{parent}"), 0o755).await?;
    }
    path = format!("{path}/{}", PLACES[0]);
    mover.client.mkdir(&path, OPEN).await?;
    for below in BELOW {
        path = format!("{path}/{below}");
        mover.client.mkdir(&path, OPEN).await?;
    }
    let moved = Rc::new(Moved {
        world: world.clone(),
        dir,
        states: RefCell::new(vec![State { place: 0, closed: false }]),
        answered: Cell::new(0),
        over: Cell::new(false),
    });
    Ok(async move {
        let changes = async {
            // Where leases end each change takes long, and the clients find the directory between
            // two changes.
            let (changes, pause) = if aim == Aim::Leases { (12, 1500) } else { (40, 60) };
            let changed = moved.change(&mover.client, &random, changes, pause).await;
            moved.over.set(true);
            changed
        };
        let looks = lookers.iter().enumerate().map(|(number, machine)| {
            // A client that looks at one thing only hears no news of other servers.
            let hands = if aim == Aim::Leases { 1 } else { BELOW.len() };
            let (moved, random) = (&moved, random.stream(&format!("looks {number}")));
            join_all((0..hands).map(move |hand| {
                let random = random.stream(&format!("hand {hand}"));
                moved.look_on(machine, (number + hand) % BELOW.len() + 1, random)
            }))
        });
        let (changed, looked) = futures::join!(changes, join_all(looks));
        changed?;
        looked.into_iter().flatten().collect::<anyhow::Result<Vec<()>>>()?;
        for machine in lookers.into_iter().chain([mover]) {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Moved {
    fn path(&self, place: usize) -> String {
        format!("{}/{}", self.dir, PLACES[place])
    }

    fn now(&self) -> State {
        *self.states.borrow().last().expect("there is a first one")
    }

    async fn change(
        &self,
        client: &Client,
        random: &SimRandom,
        changes: u64,
        pause_ms: u64,
    ) -> anyhow::Result<()> {
        for _ in 0..changes {
            self.world.wait(random.ms(0..pause_ms)).await;
            let now = self.now();
            let mut then = now;
            if random.one_in(6) {
                then.closed = !now.closed;
            } else {
                then.place = (now.place + 1 + random.index(PLACES.len() - 1)) % PLACES.len();
            }
            self.states.borrow_mut().push(then);
            let (from, to) = (self.path(now.place), self.path(then.place));
            if then.place == now.place {
                let mode = if then.closed { CLOSED } else { OPEN };
                client.chmod(&from, mode).await.with_context(|| format!("chmod {from}"))?;
            } else {
                client.rename(&from, &to).await.with_context(|| format!("rename {from} {to}"))?;
            }
            self.world.trace().say(format_args!("{} is {then:?}", self.dir));
            self.answered.set(self.states.borrow().len() - 1);
            self.world.count(|counts| counts.operations += 1);
        }
        Ok(())
    }

    /// Looks again and again until the changes end, at the place where the directory was found
    /// last, and checks each answer.
    async fn look_on(
        &self,
        machine: &Machine,
        depth: usize,
        random: SimRandom,
    ) -> anyhow::Result<()> {
        let user = machine.client.as_user(Cred { uid: 100, gid: 100, groups: Vec::new() });
        let mut place = 0;
        while !self.over.get() {
            let superuser = random.one_in(2);
            let client = if superuser { &machine.client } else { &user };
            let path = format!("{}/{}", self.path(place), BELOW[..depth].join("/"));
            let first = self.answered.get();
            let found = match client.lstat(&path).await {
                Ok(_) => None,
                Err(Error::Fs(error)) => Some(error),
                Err(error) => return Err(error).with_context(|| path),
            };
            let states = self.states.borrow()[first..].to_vec();
            self.world.trace().say(format_args!("{path} {superuser} {found:?} of {states:?}"));
            let explained = |state: &State| found == state.shown_at(place, superuser);
            ensure!(
                states.iter().any(explained),
                "{path} (superuser: {superuser}): {found:?}, and it was {states:?}"
            );
            self.world.count(|counts| counts.operations += 1);
            if found == Some(FsError::NotFound) {
                place = (place + 1) % PLACES.len();
            }
            self.world.wait(random.ms(1..100)).await;
        }
        Ok(())
    }
}

impl State {
    /// The error of a look at `place`, or `None` if it succeeds.
    fn shown_at(self, place: usize, superuser: bool) -> Option<FsError> {
        if place != self.place {
            Some(FsError::NotFound)
        } else if self.closed && !superuser {
            Some(FsError::Denied)
        } else {
            None
        }
    }
}
