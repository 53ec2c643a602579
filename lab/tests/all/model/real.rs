//! The native client and a server answer as the model does, for any sessions, servers and sequence
//! of operations.
//!
//! After each sequence both hold the same tree, and a check of the server finds nothing. When the
//! clients have left, only inodes with a name are left.

use std::cell::RefCell;

use base::Locality;
use client::{Client, model::Model};
use lab::{
    clock::HandClock,
    ops::{Answer, Difference, Rules, Step, Tallies, Tally, User, compare, search},
    sim::jail::Jail,
};
use meta::Durability;
use wire::Token;

use super::{
    START, STEPS_MAX, model,
    tree::{Tree, tree},
    world::{Setup, World, in_world, settle},
};

/// Kinds of the two clients' sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sessions {
    /// Mounts whose kernels check permissions.
    Mounts,
    /// Programs that act as any user, and whose permissions the server checks.
    Checked,
    /// A mount and a program.
    Mixed,
    /// Mounts of a subtree that may not see anything outside it.
    LimitedMounts,
    /// Programs that may see only a subtree; the second one acts as one user only.
    Limited,
}

/// One comparison of a real server with the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    sessions: Sessions,
    pub(super) setup: Setup,
    page_entries: u32,
    /// See [`Rules::flush`]. Where it is not set, only the first client does anything.
    flush: bool,
}

pub(super) const USUAL: Case = Case {
    sessions: Sessions::Mounts,
    setup: Setup {
        servers: 1,
        shards: 8,
        locality: Locality::Directory,
        durability: Durability::Relaxed,
        inline_bytes_max: 4096,
        read_cache: true,
        access_cache_bytes: 64 << 20,
    },
    page_entries: 2,
    flush: true,
};

impl Sessions {
    /// Connects the clients to the server.
    async fn open(self, world: &World) -> [Client; 2] {
        let everything = Token::administrator();
        let subtree = Token { path: "/sub".to_owned(), ..everything.clone() };
        let (ann, bound) = (User::Ann.cred(), subtree.clone());
        let gids = [&[ann.gid], &ann.groups[..]].concat();
        let bound = Token { uid: Some(ann.uid), gids, ..bound };
        let (tokens, kernel_checks) = match self {
            Sessions::Mounts => ([&everything, &everything], [true, true]),
            Sessions::Checked => ([&everything, &everything], [false, false]),
            Sessions::Mixed => ([&everything, &everything], [true, false]),
            Sessions::LimitedMounts => ([&subtree, &subtree], [true, true]),
            Sessions::Limited => ([&subtree, &bound], [false, false]),
        };
        if self.is_limited() {
            world.mkdir("sub").await;
        }
        [
            world.client(tokens[0], kernel_checks[0]).await,
            world.client(tokens[1], kernel_checks[1]).await,
        ]
    }

    /// Makes the same clients of a model.
    fn of_model(self, clock: &HandClock) -> [Model; 2] {
        let [one, other] = model(clock, [true, true], 4096);
        match self {
            Sessions::Mounts => [one, other],
            Sessions::Checked => model(clock, [false, false], 4096),
            Sessions::Mixed => model(clock, [true, false], 4096),
            Sessions::LimitedMounts => [one.limited(), other.limited()],
            Sessions::Limited => model(clock, [false, false], 4096).map(Model::limited),
        }
    }

    fn is_limited(self) -> bool {
        match self {
            Sessions::LimitedMounts | Sessions::Limited => true,
            Sessions::Mounts | Sessions::Checked | Sessions::Mixed => false,
        }
    }

    /// Changes the steps of a client that may act as one user only, so that it does.
    fn steps(self, steps: &[Step]) -> Vec<Step> {
        let mut steps = steps.to_vec();
        if self == Sessions::Limited {
            steps.iter_mut().filter(|step| step.client == 1).for_each(|step| step.user = User::Ann);
        }
        steps
    }
}

/// Runs one sequence.
fn run(case: Case, steps: &[Step], tallies: &mut Tallies) -> Result<(), Difference> {
    let clock = HandClock::at(START);
    in_world(case.setup, &clock, async |world| {
        let clients = case.sessions.open(world).await;
        let left = clients.clone().map(Jail::over);
        let right = case.sessions.of_model(&clock);
        let rules =
            Rules { page_entries: (case.page_entries, 100), flush: case.flush, ..Rules::default() };
        let steps = case.sessions.steps(steps);
        compare(&clock, rules, (&left, &right), &steps, tallies, settle).await?;
        let (mut mine, mut models) = (tree(&left[0]).await, tree(&right[0]).await);
        if !case.flush {
            (mine, models) = (mine.without_mtimes(), models.without_mtimes());
        }
        same("the whole tree", &mine.unlike(&models), &models.unlike(&mine))?;
        same("a check", &world.fsck().await.findings, &Vec::new())?;
        drop(left);
        for client in clients {
            client.close().await.expect("everything is flushed");
        }
        leaves_nothing(world, case.sessions.is_limited(), &mine).await
    })
}

/// Checks that only inodes with a name are left once the clients have closed.
pub(super) async fn leaves_nothing(
    world: &World,
    is_limited: bool,
    tree: &Tree,
) -> Result<(), Difference> {
    world.reclaimed().await;
    let progress = world.fsck().await;
    same("a check when everybody has left", &progress.findings, &Vec::new())?;
    let count = |name| progress.counts.iter().find(|(other, _)| other == name).map(|(_, n)| *n);
    let counts = ["files", "directories", "orphans", "blocks_unreferenced"].map(count);
    let above = u64::from(is_limited);
    let expected = [Some(tree.files()), Some(tree.directories() + above), Some(0), Some(0)];
    same("what is left when everybody has left", &counts, &expected)
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    left: &T,
    right: &T,
) -> Result<(), Difference> {
    if left == right {
        return Ok(());
    }
    let answer = |value| Box::new(Answer::Broken(format!("{value:?}")));
    let (left, right) = (answer(left), answer(right));
    Err(Difference { index: None, step: what.to_owned(), left, right, names: None })
}

/// Draws sequences for each case, and says how often each operation was done and refused.
fn answers_as_the_model(cases: &[Case], sequences: u32) {
    let tallies = RefCell::new(Tallies::new());
    for case in cases {
        let found = search(sequences, if case.flush { 2 } else { 1 }, STEPS_MAX, |steps| {
            run(*case, steps, &mut tallies.borrow_mut())
        });
        assert!(found.is_none(), "{case:?}\n{}", found.expect("checked"));
    }
    for (kind, tally) in tallies.borrow().iter() {
        let Tally { done, refused, skipped } = tally;
        println!("{kind:12} done={done} refused={refused} skipped={skipped}");
        assert!(*done > 0, "{kind} was never done");
        let never_refused = ["Close", "Read", "Sync"].contains(&kind.as_str());
        assert!(*refused > 0 || never_refused, "{kind} was never refused");
    }
}

#[test]
fn what_is_not_sent_yet_shows_to_nobody_who_wrote_it() {
    let mount = Case { flush: false, ..USUAL };
    let checked = Case { sessions: Sessions::Checked, ..mount };
    answers_as_the_model(&[mount, checked], 600);
}

fn with(change: impl FnOnce(&mut Setup)) -> Case {
    let mut case = USUAL;
    change(&mut case.setup);
    case
}

#[test]
fn mounts_answer_as_the_model() {
    let cases = [
        USUAL,
        with(|setup| setup.inline_bytes_max = 0),
        with(|setup| setup.inline_bytes_max = 100),
        with(|setup| setup.shards = 1),
        with(|setup| setup.locality = Locality::Subtree),
        with(|setup| setup.locality = Locality::Hybrid),
        with(|setup| setup.durability = Durability::Strict),
        with(|setup| setup.read_cache = false),
        Case { page_entries: 1, ..USUAL },
        Case { page_entries: 100, ..USUAL },
    ];
    answers_as_the_model(&cases, 200);
}

#[test]
fn checked_clients_answer_as_the_model() {
    let checked = Case { sessions: Sessions::Checked, ..USUAL };
    let mixed = Case { sessions: Sessions::Mixed, ..USUAL };
    answers_as_the_model(&[checked, mixed], 800);
}

#[test]
fn limited_clients_answer_as_the_model() {
    let mounts = Case { sessions: Sessions::LimitedMounts, ..USUAL };
    let checked = Case { sessions: Sessions::Limited, ..USUAL };
    answers_as_the_model(&[mounts, checked], 600);
}

#[test]
fn clients_of_several_servers_answer_as_the_model() {
    let cluster = with(|setup| setup.servers = 3);
    let subtrees = Setup { locality: Locality::Subtree, ..cluster.setup };
    let hybrid = Setup { locality: Locality::Hybrid, ..cluster.setup };
    let strict = Setup { durability: Durability::Strict, inline_bytes_max: 0, ..cluster.setup };
    let cases = [
        cluster,
        Case { setup: hybrid, ..cluster },
        Case { setup: subtrees, ..cluster },
        Case { setup: strict, sessions: Sessions::Mixed, ..cluster },
        Case { sessions: Sessions::Checked, ..cluster },
        Case { sessions: Sessions::LimitedMounts, ..cluster },
        Case { sessions: Sessions::Limited, ..cluster },
    ];
    answers_as_the_model(&cases, 60);
}
