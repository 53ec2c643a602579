//! Concurrent renames of directories over several servers leave a tree, whatever the order and
//! whoever crashes.
//!
//! A model of the cluster, explored over every order of its steps: the real graph at the
//! coordinator, which initiates all renames, and servers that keep the entries and the parents of
//! directories, prepare and apply. A step is what one server does at once; a message that is late,
//! or lost and sent again, is a step that comes later. Each server has a shown state and the part
//! of it that a power cut leaves. A crash of the coordinator also takes the graph, the stages of
//! its renames, and whatever it has not synced. A prepared rename without a commit record is
//! aborted.
//!
//! The search is exhaustive: every state that can be reached is visited once.

#![expect(clippy::print_stdout, reason = "how many states were visited is a result")]

use std::hash::Hash;

use base::{DirId, HashSet};

use super::{Begun, Graph, Token};

const DIRS: usize = 4;
/// The same as [`DIRS`], in the type of a directory's number.
const DIR_NUMBERS: u8 = 4;
const SERVERS: usize = 3;
const RENAMES: usize = 3;
/// Number of attempts of one rename that come as far as preparing; then it is given up.
const ATTEMPTS: usize = 2;
const ROOT: u8 = 0;

/// The safeguard that is left out, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// No rename asks the graph.
    Graph,
    /// A chain that was read before another rename ended is believed.
    Generation,
    /// A record that is prepared to change is read as it was.
    Waiting,
    /// Outcomes are told before the commit record is stable.
    SyncOfCommit,
}

/// A rename of `dir` from one parent to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Move {
    dir: u8,
    from: u8,
    to: u8,
}

/// A case to explore.
#[derive(Debug, Clone)]
struct Case {
    /// The parent of each directory, to begin with.
    tree: [u8; DIRS],
    /// The server of each directory.
    places: [u8; DIRS],
    moves: Vec<Move>,
    /// Number of attempts of a rename that may come as far as preparing; at most [`ATTEMPTS`].
    attempts: u8,
    crashes: u8,
    without: Without,
    /// The graph lets go of a rename when it is committed, and not when it is applied everywhere.
    end_at_commit: bool,
}

/// The records of a server. A directory's bit is its number; a transaction's bit is [`bit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Store {
    /// `entries[parent]`: the directories that have a name in `parent`, a directory of this server.
    entries: [u8; DIRS],
    /// The parent of each directory of this server, by its own record.
    parents: [u8; DIRS],
    /// Prepared transactions.
    prepared: u8,
    /// Commit records, of the coordinator only.
    committed: u8,
}

/// The stage of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// To be tried, or to be tried again.
    Begin,
    /// The rename reads the chain above the new parent: the directories read, as bits, and the
    /// next.
    Reading { chain: u8, next: u8 },
    /// The graph has granted the rename, or is not asked; the servers prepare it.
    Preparing { chain: u8 },
    /// The rename has a commit record.
    Committed { chain: u8 },
    /// The rename has ended.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Rename {
    stage: Stage,
    attempt: u8,
    /// Whether no rename has ended since this one began to read its chain.
    fresh: bool,
    /// Whether the graph holds the rename.
    held: bool,
}

/// The parts of a state that tell it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    shown: [Store; SERVERS],
    stable: [Store; SERVERS],
    /// Requests to prepare that have not arrived, of each server.
    asked: [u8; SERVERS],
    renames: [Rename; RENAMES],
    crashes: u8,
}

#[derive(Debug, Clone)]
struct State {
    key: Key,
    graph: Graph,
    tokens: [Option<Token>; RENAMES],
}

/// The bit of an attempt of a rename.
fn bit(rename: usize, attempt: u8) -> u8 {
    1 << (rename * ATTEMPTS + usize::from(attempt))
}

fn id(dir: u8) -> DirId {
    DirId(u128::from(dir))
}

/// The directories of a set of bits.
fn dirs(bits: u8) -> Vec<DirId> {
    (0..DIR_NUMBERS).filter(|dir| bits & 1 << dir != 0).map(id).collect()
}

impl Case {
    fn server(&self, dir: u8) -> usize {
        usize::from(self.places[usize::from(dir)])
    }

    fn begin(&self) -> State {
        let mut shown = [Store::default(); SERVERS];
        for dir in 1..DIR_NUMBERS {
            let parent = self.tree[usize::from(dir)];
            shown[self.server(parent)].entries[usize::from(parent)] |= 1 << dir;
            shown[self.server(dir)].parents[usize::from(dir)] = parent;
        }
        let begin = Rename { stage: Stage::Begin, attempt: 0, fresh: true, held: false };
        let mut renames = [Rename { stage: Stage::Done, ..begin }; RENAMES];
        renames[..self.moves.len()].fill(begin);
        let asked = [0; SERVERS];
        let key = Key { shown, stable: shown, asked, renames, crashes: self.crashes };
        State { key, graph: Graph::default(), tokens: [None; RENAMES] }
    }

    /// The servers besides the coordinator whose records a rename changes.
    fn participants(&self, moved: Move) -> Vec<usize> {
        let mut servers: Vec<_> =
            [moved.dir, moved.from, moved.to].map(|dir| self.server(dir)).to_vec();
        servers.sort_unstable();
        servers.dedup();
        servers.retain(|server| *server != 0);
        servers
    }

    /// Whether the records that a rename stands on are unchanged on a server.
    fn stands(&self, store: &Store, server: usize, moved: Move) -> bool {
        let Move { dir, from, to } = moved;
        let has = |parent: u8| store.entries[usize::from(parent)] & 1 << dir != 0;
        (self.server(from) != server || has(from))
            && (self.server(to) != server || !has(to))
            && (self.server(dir) != server || store.parents[usize::from(dir)] == from)
    }

    fn apply(&self, store: &mut Store, server: usize, moved: Move) {
        let Move { dir, from, to } = moved;
        if self.server(from) == server {
            store.entries[usize::from(from)] &= !(1 << dir);
        }
        if self.server(to) == server {
            store.entries[usize::from(to)] |= 1 << dir;
        }
        if self.server(dir) == server {
            store.parents[usize::from(dir)] = to;
        }
    }

    /// The rename of a bit.
    fn of(&self, bit_at: usize) -> Move {
        self.moves[bit_at / ATTEMPTS]
    }

    /// Whether a prepared transaction changes the record, or a name, of `dir` on a server.
    fn is_prepared(&self, store: &Store, dir: u8) -> bool {
        (0..self.moves.len() * ATTEMPTS)
            .any(|at| store.prepared & 1 << at != 0 && self.of(at).dir == dir)
    }

    /// All states that one step leads to.
    fn next(&self, state: &State, then: &mut Vec<State>) {
        for rename in 0..self.moves.len() {
            self.initiate(state, rename, then);
        }
        for server in 0..SERVERS {
            self.participate(state, server, then);
        }
        // Without further crashes stable and unstable states cannot be told apart.
        for next in then.iter_mut().filter(|next| next.key.crashes == 0) {
            next.key.stable = next.key.shown;
        }
    }

    /// Adds the states after a step of the coordinator for a rename.
    fn initiate(&self, state: &State, rename: usize, then: &mut Vec<State>) {
        let moved = self.moves[rename];
        let Rename { stage, attempt, fresh, held } = state.key.renames[rename];
        let shown = &state.key.shown;
        let waits = |dir: u8, server: usize| {
            self.without != Without::Waiting && self.is_prepared(&shown[server], dir)
        };
        let mut go = |change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            then.push(next);
        };
        match stage {
            Stage::Begin => {
                let at = self.server(moved.from);
                if waits(moved.dir, at) {
                    return;
                }
                let there = shown[at].entries[usize::from(moved.from)] & 1 << moved.dir != 0;
                let stage = if there && attempt < self.attempts {
                    Stage::Reading { chain: 0, next: moved.to }
                } else {
                    Stage::Done
                };
                go(&|next| {
                    next.key.renames[rename].stage = stage;
                    next.key.renames[rename].fresh = true;
                });
            }
            Stage::Reading { chain, next: dir } => {
                let chain = chain | 1 << dir;
                if dir != ROOT {
                    let at = self.server(dir);
                    if waits(dir, at) {
                        return;
                    }
                    let parent = shown[at].parents[usize::from(dir)];
                    // A chain without an end was read while it changed: the reader begins anew.
                    let stage = if chain & 1 << parent != 0 {
                        Stage::Begin
                    } else {
                        Stage::Reading { chain, next: parent }
                    };
                    return go(&|next| next.key.renames[rename].stage = stage);
                }
                go(&|next| self.enter(next, rename, chain, fresh));
            }
            Stage::Preparing { chain } => {
                let transaction = bit(rename, attempt);
                let participants = self.participants(moved);
                let voted = |server: &usize| state.key.stable[*server].prepared & transaction != 0;
                if participants.iter().all(voted) {
                    go(&|next| {
                        let own = &mut next.key.shown[0];
                        if self.stands(own, 0, moved) {
                            self.apply(own, 0, moved);
                            own.committed |= transaction;
                            next.key.renames[rename].stage = Stage::Committed { chain };
                            if self.end_at_commit {
                                next.let_go(rename);
                            }
                        } else {
                            next.abort(rename);
                        }
                    });
                }
                // The initiator may give up at any time, whatever it waits for.
                go(&|next| next.abort(rename));
            }
            Stage::Committed { .. } => {
                let transaction = bit(rename, attempt);
                let stable = &state.key.stable;
                let applied = |server: &usize| {
                    (stable[*server].prepared | shown[*server].prepared) & transaction == 0
                };
                let told = stable[0].committed & transaction != 0;
                if told && self.participants(moved).iter().all(applied) {
                    go(&|next| {
                        next.key.shown[0].committed &= !transaction;
                        next.key.renames[rename].stage = Stage::Done;
                        next.let_go(rename);
                    });
                }
            }
            Stage::Done => debug_assert!(!held, "whoever is done lets go"),
        }
    }

    /// Asks the graph, and then the servers to prepare: the chain was read to the root.
    fn enter(&self, next: &mut State, rename: usize, chain: u8, fresh: bool) {
        let moved = self.moves[rename];
        if chain & 1 << moved.dir != 0 {
            // The directory would go below itself, and the caller is told. An outdated chain may
            // say so, too.
            let again = !fresh && self.without == Without::Nothing;
            next.key.renames[rename].stage = if again { Stage::Begin } else { Stage::Done };
            return;
        }
        if self.without != Without::Graph {
            let Begun::Granted(token) = next.graph.begin(&[id(moved.dir)], &dirs(chain)) else {
                next.key.renames[rename].stage = Stage::Begin;
                return;
            };
            next.tokens[rename] = Some(token);
            next.key.renames[rename].held = true;
            if !fresh && self.without != Without::Generation {
                next.let_go(rename);
                next.key.renames[rename].stage = Stage::Begin;
                return;
            }
        }
        next.key.renames[rename].stage = Stage::Preparing { chain };
        let transaction = bit(rename, next.key.renames[rename].attempt);
        for server in self.participants(moved) {
            next.key.asked[server] |= transaction;
        }
    }

    /// Adds the states after a step of a server: on its own, or when a message arrives.
    fn participate(&self, state: &State, server: usize, then: &mut Vec<State>) {
        let key = &state.key;
        let mut go = |change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            then.push(next);
        };
        for at in 0..self.moves.len() * ATTEMPTS {
            let (transaction, moved) = (1 << at, self.of(at));
            if key.asked[server] & transaction != 0 {
                let free = !self.is_prepared(&key.shown[server], moved.dir)
                    && self.stands(&key.shown[server], server, moved);
                go(&|next| {
                    next.key.asked[server] &= !transaction;
                    // If it is refused, the initiator gives up.
                    next.key.shown[server].prepared |= if free { transaction } else { 0 };
                });
            }
            if key.shown[server].prepared & transaction != 0 {
                let record =
                    if self.without == Without::SyncOfCommit { &key.shown } else { &key.stable };
                let rename = &key.renames[at / ATTEMPTS];
                let under_way = bit(at / ATTEMPTS, rename.attempt) == transaction
                    && matches!(rename.stage, Stage::Preparing { .. } | Stage::Committed { .. });
                if record[0].committed & transaction != 0 {
                    go(&|next| {
                        let store = &mut next.key.shown[server];
                        store.prepared &= !transaction;
                        self.apply(store, server, moved);
                    });
                } else if !under_way {
                    go(&|next| next.key.shown[server].prepared &= !transaction);
                }
            }
        }
        if key.crashes > 0 {
            if key.stable[server] != key.shown[server] {
                go(&|next| next.key.stable[server] = next.key.shown[server]);
            }
            go(&|next| {
                next.key.crashes -= 1;
                next.key.shown[server] = next.key.stable[server];
                if server == 0 {
                    self.forget(next);
                }
            });
        }
    }

    /// Drops what a crash of the coordinator takes.
    fn forget(&self, next: &mut State) {
        next.graph = Graph::default();
        next.tokens = [None; RENAMES];
        for rename in 0..self.moves.len() {
            let now = &mut next.key.renames[rename];
            now.held = false;
            match now.stage {
                Stage::Begin | Stage::Reading { .. } => now.stage = Stage::Begin,
                Stage::Preparing { .. } | Stage::Committed { .. } => {
                    // The client asks again, unless the commit record is there.
                    if next.key.shown[0].committed & bit(rename, now.attempt) == 0 {
                        now.stage = Stage::Begin;
                        now.attempt += 1;
                    } else {
                        now.stage = Stage::Committed { chain: 0 };
                    }
                }
                Stage::Done => {
                    // The removal of its commit record may not have been stable.
                    if usize::from(now.attempt) < ATTEMPTS
                        && next.key.shown[0].committed & bit(rename, now.attempt) != 0
                    {
                        now.stage = Stage::Committed { chain: 0 };
                    }
                }
            }
        }
    }

    /// Says how the tree is wrong, once no rename is under way.
    fn wrong(&self, key: &Key) -> Option<String> {
        let mut seen = 1u8;
        let mut names = 0;
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let below = key.shown[self.server(dir)].entries[usize::from(dir)];
            for child in (1..DIR_NUMBERS).filter(|child| below & 1 << child != 0) {
                names += 1;
                let parent = key.shown[self.server(child)].parents[usize::from(child)];
                if seen & 1 << child != 0 || parent != dir {
                    return Some(format!("{child} is in {dir} and says that it is in {parent}"));
                }
                seen |= 1 << child;
                todo.push(child);
            }
        }
        let reached = seen.count_ones() as usize == DIRS && names == DIRS - 1;
        (!reached).then(|| format!("reached are {seen:04b}"))
    }

    /// Visits every state. Returns their number, and what is wrong in the first final state that is
    /// no tree.
    fn explore(&self) -> (usize, Option<String>) {
        let first = self.begin();
        let mut seen = HashSet::default();
        seen.insert(first.key);
        let (mut todo, mut then) = (vec![first], Vec::new());
        while let Some(state) = todo.pop() {
            self.next(&state, &mut then);
            let key = &state.key;
            let moves_on =
                then.iter().any(|next| next.key.crashes == key.crashes && next.key != *key);
            if !moves_on {
                let stuck = key.renames.iter().any(|rename| rename.stage != Stage::Done);
                let wrong = if stuck { Some(format!("stuck: {key:?}")) } else { self.wrong(key) };
                if wrong.is_some() {
                    return (seen.len(), wrong);
                }
            }
            for next in then.drain(..) {
                if seen.insert(next.key) {
                    todo.push(next);
                }
            }
        }
        (seen.len(), None)
    }
}

impl State {
    /// Ends an attempt without effect; servers that have prepared it will hear so.
    fn abort(&mut self, rename: usize) {
        self.let_go(rename);
        let now = &mut self.key.renames[rename];
        now.stage = Stage::Begin;
        now.attempt += 1;
    }

    fn let_go(&mut self, rename: usize) {
        let Some(token) = self.tokens[rename].take() else { return };
        self.graph.end(token);
        self.key.renames[rename].held = false;
        // Any rename that reads a chain now began before this end.
        for other in &mut self.key.renames {
            if matches!(other.stage, Stage::Reading { .. }) {
                other.fresh = false;
            }
        }
    }
}

/// Trees: all directories below the root; one below the other; a mixture.
const TREES: [[u8; DIRS]; 3] = [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1]];
/// Places of directories: on three servers; again on three; all but the root on one.
const PLACES: [[u8; DIRS]; 3] = [[0, 1, 2, 0], [0, 0, 1, 2], [0, 1, 1, 1]];

/// All renames of one directory of a tree.
fn all_moves(tree: [u8; DIRS]) -> Vec<Move> {
    let all = (1..DIR_NUMBERS).flat_map(|dir| (0..DIR_NUMBERS).map(move |to| (dir, to)));
    let moves = all.map(|(dir, to)| Move { dir, from: tree[usize::from(dir)], to });
    moves.filter(|moved| moved.to != moved.from && moved.to != moved.dir).collect()
}

/// Every pair of renames on every tree. With `everywhere` each pair is placed in every way, and
/// otherwise in one.
fn pairs(everywhere: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for tree in TREES {
        let moves = all_moves(tree);
        let firsts = 0..moves.len();
        let pairs =
            firsts.flat_map(|first| (first..moves.len()).map(move |second| (first, second)));
        for (number, (first, second)) in pairs.enumerate() {
            let one = number % PLACES.len();
            for places in PLACES.iter().skip(if everywhere { 0 } else { one }) {
                let moves = vec![moves[first], moves[second]];
                cases.push(Case { moves, ..loop_of_two(tree, *places) });
                if !everywhere {
                    break;
                }
            }
        }
    }
    cases
}

/// A case in which each of two directories goes below the other.
fn loop_of_two(tree: [u8; DIRS], places: [u8; DIRS]) -> Case {
    let to = |dir, to| Move { dir, from: ROOT, to };
    let (moves, without) = (vec![to(1, 2), to(2, 1)], Without::Nothing);
    Case { tree, places, moves, attempts: 1, crashes: 1, without, end_at_commit: false }
}

/// Three renames that would make a loop of three.
fn ring() -> Case {
    let to = |dir, to| Move { dir, from: ROOT, to };
    let moves = vec![to(1, 2), to(2, 3), to(3, 1)];
    Case { moves, crashes: 0, ..loop_of_two(TREES[0], [0, 1, 2, 1]) }
}

fn all_are_trees(cases: impl IntoIterator<Item = Case>) -> usize {
    let mut states = 0;
    for case in cases {
        let (visited, wrong) = case.explore();
        assert_eq!(wrong, None, "{case:?}");
        states += visited;
    }
    states
}

#[test]
fn every_end_of_two_renames_is_a_tree_whoever_crashes() {
    let once = all_are_trees(pairs(true));
    let loops = PLACES.map(|places| loop_of_two(TREES[0], places));
    let again = all_are_trees(loops.clone().map(|case| Case { attempts: 2, ..case }));
    let twice = all_are_trees(loops.map(|case| Case { crashes: 2, ..case }));
    println!("{once} states, {again} with second attempts, {twice} with two crashes");
}

#[test]
fn the_graph_may_let_go_when_a_rename_is_committed() {
    let cases = pairs(false).into_iter().map(|case| Case { end_at_commit: true, ..case });
    println!("{} states", all_are_trees(cases));
}

#[test]
fn every_end_of_a_ring_of_three_renames_is_a_tree() {
    println!("{} states", all_are_trees([ring(), Case { crashes: 1, ..ring() }]));
}

#[test]
fn whatever_is_left_out_is_missed() {
    for without in [Without::Graph, Without::Generation, Without::Waiting, Without::SyncOfCommit] {
        let cases = pairs(true).into_iter();
        let mut cases = cases.map(|case| Case { without, end_at_commit: true, ..case });
        let found = cases.find_map(|case| Some((case.explore().1?, case)));
        let (wrong, case) = found.unwrap_or_else(|| panic!("{without:?} is not missed"));
        println!("{without:?}: {wrong}, of {:?} on {:?}", case.moves, case.tree);
    }
}

#[test]
fn without_the_graph_there_is_a_loop_of_three() {
    let (_, wrong) = Case { without: Without::Graph, ..ring() }.explore();
    println!("{}", wrong.expect("a loop"));
}
