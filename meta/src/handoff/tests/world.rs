//! The world of the tests: a small store for each end, the transaction as `transact` makes it, clients, crashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Encode as _, Ino, Layout, Moving, Shift, Splits, Subsets};
use bytes::Bytes;
use wire::{Tally, TxnId};

use super::{
    super::{
        Change, HandoffRecord, Receiving,
        source::{Action, Event, Scan, Source},
        target::{Taking, Target, abandoned, told},
    },
    disk::{Disk, Promise, Share, name_key, pos_in, pos_of, weigh},
};

const INO: Ino = Ino(77);
/// How many names there can be.
const NAMES: u64 = 24;
/// After so many steps something hangs.
const STEPS_MAX: u32 = 20_000;

/// Which handoff it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Split,
    /// Names are frozen before they are copied.
    LockedSplit,
    Merge,
    Subset,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Split, Kind::LockedSplit, Kind::Merge, Kind::Subset];

    fn scan(self) -> Scan {
        match self {
            Kind::Split | Kind::Merge | Kind::Subset => Scan::Open,
            Kind::LockedSplit => Scan::Locked,
        }
    }

    /// The layout before it, and the shift.
    fn start(self) -> (Layout, Shift) {
        let whole = Layout::Extendible(Splits::new(1));
        let (split, merge) = (Shift { giver: 0, taker: 1 }, Shift { giver: 1, taker: 0 });
        let subsets = Layout::Subsets(Subsets::new(1).begin(2, 8).expect("a second subset"));
        match self {
            Kind::Split | Kind::LockedSplit => (whole, split),
            Kind::Merge => (whole.after(split).expect("it splits"), merge),
            Kind::Subset => (subsets, split),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    ChangesForgotten,
    NotFrozen,
    PublishedEarly,
    PromiseNotStable,
    ToldEarly,
    PromiseTimesOut,
    PromiseForgotten,
    EchoTaken,
    LossNotNoticed,
    OwnedSwept,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    Source,
    Target,
    Both,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Crash {
    pub(super) at: u32,
    pub(super) ends: Ends,
    pub(super) power: bool,
}

pub(super) type Key = Vec<u8>;
pub(super) type Batch = Vec<(Key, Option<Bytes>)>;
type Check<T = ()> = Result<T, String>;

/// One server.
#[derive(Default)]
struct End {
    partition: u16,
    disk: Disk,
    giving: Option<Giving>,
    receiving: Option<Target>,
    /// Transactions of this run whose outcome is open.
    open: BTreeSet<TxnId>,
    run: u64,
    number: u64,
}

/// A handoff under way at its source.
struct Giving {
    txn: TxnId,
    machine: Source,
    action: Action,
    /// The action waits for an answer; so long.
    waits: Option<u32>,
    calls: u64,
    changed: Option<BTreeSet<Key>>,
    snapshot: VecDeque<Change>,
    frozen: bool,
    moving: Moving,
    /// What is to be committed here.
    after: Option<(Layout, Tally)>,
}

impl End {
    fn share(&self) -> Option<Share> {
        self.disk.get(b"D")
    }

    fn handoff(&self) -> Option<HandoffRecord> {
        self.disk.get(b"H")
    }

    fn promise(&self) -> Option<Promise> {
        self.disk.get(b"P")
    }

    fn owns(&self, pos: u64) -> bool {
        self.share().is_some_and(|share| share.layout.partition(pos) == self.partition)
    }
}

#[derive(Debug, Clone)]
enum Message {
    // With the number of the call, which its answer has, too.
    Begin(u64, Receiving),
    Put(u64, TxnId, u64, Vec<Change>, bool),
    Prepare(Promise),
    Decide(TxnId, bool),
    Ask(TxnId),
    // Answers.
    Answer(u64, TxnId, Event),
    Vote(TxnId, bool),
    Known(TxnId),
    Outcome(TxnId, Option<bool>),
}

pub(super) struct Run {
    kind: Kind,
    flaw: Option<Flaw>,
    /// 0: one schedule for all.
    seed: u64,
    shift: Shift,
    ends: [End; 2],
    /// Messages to each end.
    mail: [VecDeque<Message>; 2],
    /// What clients expect of each name, and of what they asked.
    expected: BTreeMap<u64, &'static str>,
    client: Layout,
    /// The power was cut once: so the client may know a switch that was lost.
    lost: bool,
    asked: u64,
    attempts: u32,
    step: u32,
    /// How long what was promised waits.
    patience: u32,
}

impl Run {
    pub(super) fn new(kind: Kind, seed: u64, flaw: Option<Flaw>) -> Run {
        let (layout, shift) = kind.start();
        let ends = [0, 1].map(|partition| End { partition, ..End::default() });
        let mut run = Run {
            kind,
            flaw,
            seed,
            shift,
            ends,
            mail: Default::default(),
            expected: BTreeMap::new(),
            client: layout.clone(),
            lost: false,
            asked: 0,
            attempts: 0,
            step: 0,
            patience: 0,
        };
        for name in (0..NAMES).step_by(2) {
            let owner = usize::from(layout.partition(pos_of(name)));
            run.ends[owner].disk.write(vec![(name_key(name), Some(Bytes::from_static(b"f")))]);
            run.expected.insert(name, "f");
        }
        for end in &mut run.ends {
            if layout.is_active(end.partition) {
                let entries = end.disk.names().count() as u64;
                let share = Share { layout: layout.clone(), entries };
                end.disk.write(vec![(b"D".to_vec(), Some(share.to_vec().into()))]);
            }
            end.disk.sync();
        }
        run
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn giver(&self) -> usize {
        self.shift.giver.into()
    }

    fn taker(&self) -> usize {
        self.shift.taker.into()
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// One schedule, with a crash; how many steps it took.
    pub(super) fn directed(mut self, crash: Option<Crash>) -> Check<u32> {
        while !self.is_done() {
            if let Some(Crash { at, ends, power }) = crash
                && at == self.step
            {
                let (giver, taker) = (self.giver(), self.taker());
                match ends {
                    Ends::Source => self.crash(giver, power),
                    Ends::Target => self.crash(taker, power),
                    Ends::Both => {
                        self.crash(giver, power);
                        self.crash(taker, power);
                    }
                }
            }
            self.turn()?;
        }
        self.check()?;
        Ok(self.step)
    }

    fn turn(&mut self) -> Check {
        match self.step % 5 {
            0 | 2 => self.source()?,
            1 => self.deliver(self.taker())?,
            3 => self.deliver(self.giver())?,
            // Clients are there at the beginning, and now and then.
            _ if self.step < 60 && self.step.is_multiple_of(3) => self.ask()?,
            _ => self.background()?,
        }
        self.count()
    }

    /// One schedule in which the taker does nothing from the moment that it is asked to promise: so long the names are
    /// frozen. It is there again later, and the handoff is done in the end.
    pub(super) fn taker_away(mut self) -> Check<u32> {
        let giver = self.giver();
        let frozen = |run: &Run| run.ends[giver].giving.as_ref().is_some_and(|own| own.frozen);
        let switches = |run: &Run| {
            let giving = run.ends[giver].giving.as_ref();
            giving.is_some_and(|own| matches!(own.action, Action::Switch(_)) && own.waits.is_some())
        };
        while !switches(&self) {
            self.turn()?;
        }
        let mut steps = 0;
        while frozen(&self) {
            self.source()?;
            self.deliver(giver)?;
            self.count()?;
            steps += 1;
        }
        self.directed(None)?;
        Ok(steps)
    }

    /// Any schedule, with crashes, lost messages and echoes.
    pub(super) fn random(mut self) -> Check {
        self.seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut crashes = self.draw(6);
        let asks = 1 + self.draw(30);
        while !self.is_done() {
            let calm = self.step > 3000;
            let end = usize::try_from(self.draw(2)).expect("0 or 1");
            match self.draw(200) {
                0..60 => self.source()?,
                60..110 => self.deliver(end)?,
                110..140 => self.background()?,
                140..144 if crashes > 0 && !calm => {
                    crashes -= 1;
                    let power = self.draw(2) == 0;
                    self.crash(end, power);
                    if self.draw(3) == 0 {
                        self.crash(1 - end, power);
                    }
                }
                144..148 if !calm => drop(self.mail[end].pop_front()),
                148..160 if !calm => {
                    // An echo, in some other place.
                    if let Some(message) = self.mail[end].front().cloned() {
                        self.mail[end].push_back(message);
                    }
                }
                160 if self.step < 300 => self.ends[end].disk.sync(),
                161.. if self.step < 400 && self.asked < asks => self.ask()?,
                _ => {}
            }
            self.count()?;
        }
        self.check()
    }

    fn count(&mut self) -> Check {
        self.step += 1;
        if self.step < STEPS_MAX { Ok(()) } else { Err("it hangs".into()) }
    }

    /// The names have moved, and nothing is left to do.
    fn is_done(&self) -> bool {
        let idle = |end: &End| {
            let left = [&b"H"[..], b"P", b"X"].iter().any(|key| end.disk.now.contains_key(*key));
            end.giving.is_none() && end.receiving.is_none() && !left
        };
        let moved = self.ends[self.giver()]
            .share()
            .is_some_and(|share| share.layout.moving(self.shift).is_none());
        moved && self.ends.iter().all(idle)
    }

    fn crash(&mut self, at: usize, power: bool) {
        let end = &mut self.ends[at];
        if power {
            end.disk.now = end.disk.stable.clone();
            self.lost = true;
        }
        (end.giving, end.receiving) = (None, None);
        end.open.clear();
        end.run += 1;
        // Connections break.
        self.mail = Default::default();
        let forgets = self.has(Flaw::PromiseForgotten);
        let end = &mut self.ends[at];
        if forgets {
            end.disk.write(vec![(b"P".to_vec(), None)]);
        }
        // It starts again: what was not promised ends with the run.
        if end.promise().is_none()
            && let Some(next) = end.handoff().as_ref().and_then(abandoned)
        {
            end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
        }
    }

    /// What the source does next.
    fn source(&mut self) -> Check {
        let (at, taker) = (self.giver(), self.taker());
        let held = self.seed != 0 && self.draw(4) == 0;
        let end = &mut self.ends[at];
        let Some(giving) = &mut end.giving else {
            let share = end.share().ok_or("the giver has no share")?;
            let Some(moving) = share.layout.moving(self.shift) else { return Ok(()) };
            if end.handoff().is_some() || end.promise().is_some() {
                return Ok(());
            }
            self.attempts += 1;
            end.number += 1;
            let txn = TxnId { server: end.partition, run: end.run, number: end.number };
            end.open.insert(txn);
            let (machine, action) = Source::begin(self.kind.scan());
            end.giving = Some(Giving {
                txn,
                machine,
                action,
                waits: None,
                calls: 0,
                changed: None,
                snapshot: VecDeque::new(),
                frozen: false,
                moving,
                after: None,
            });
            return Ok(());
        };
        if let Some(waited) = &mut giving.waits {
            *waited += 1;
            if *waited > 60 {
                giving.waits = None;
                return match &giving.action {
                    Action::Switch(_) => self.switched(false),
                    _ => self.happened(Event::Lost),
                };
            }
            return Ok(());
        }
        let txn = giving.txn;
        giving.calls += 1;
        let call = giving.calls;
        match giving.action.clone() {
            Action::Begin => {
                let what =
                    Receiving { txn, ino: INO, giver: self.shift.giver, moving: giving.moving };
                giving.waits = Some(0);
                self.mail[taker].push_back(Message::Begin(call, what));
            }
            Action::Put { number, changes, stable } => {
                giving.waits = Some(0);
                self.mail[taker].push_back(Message::Put(call, txn, number, changes, stable));
            }
            Action::Watch => {
                giving.changed = Some(BTreeSet::new());
                let (moving, own) = (giving.moving, end.share().expect("it was looked at").layout);
                let moves = |key: &Key| {
                    moving.contains(pos_in(key)) && own.partition(pos_in(key)) == end.partition
                };
                let moved = end.disk.names().filter(|(key, _)| moves(key));
                let all = moved
                    .map(|(key, value)| (Bytes::from(key.clone()), Some(value.clone())))
                    .collect();
                if let Some(giving) = &mut end.giving {
                    giving.snapshot = all;
                }
                return self.happened(Event::Watching);
            }
            Action::Copy { .. } => {
                let some = giving.snapshot.len().min(4);
                let run = giving.snapshot.drain(..some).collect();
                let last = giving.snapshot.is_empty();
                return self.happened(Event::Copied(run, last));
            }
            Action::Collect { .. } => {
                let changed = giving.changed.as_mut().map(std::mem::take).unwrap_or_default();
                let now = |key: Key| {
                    let value = end.disk.now.get(&key).cloned();
                    (Bytes::from(key), value)
                };
                let changes = changed.into_iter().map(now).collect();
                return self.happened(Event::Collected(changes));
            }
            // Some transaction holds one of them.
            Action::Freeze if held => return self.happened(Event::Held),
            Action::Freeze => {
                giving.frozen = self.flaw != Some(Flaw::NotFrozen);
                if self.flaw == Some(Flaw::PublishedEarly) {
                    let mut share = end.share().expect("it was looked at");
                    share.layout = share.layout.after(self.shift).expect("it is next");
                    end.disk.write(vec![(b"D".to_vec(), Some(share.to_vec().into()))]);
                }
                return self.happened(Event::Frozen);
            }
            Action::Switch(tally) => {
                let mut layout = end.share().expect("it was looked at").layout;
                // A record of another server; it must be so when it prepares.
                if let Some(theirs) = self.ends[taker].share() {
                    layout.learn(&theirs.layout);
                }
                let Some(after) = layout.after(self.shift) else {
                    return self.switched(false);
                };
                let giving = self.ends[at].giving.as_mut().expect("it was looked at");
                giving.after = Some((after.clone(), tally));
                giving.waits = Some(0);
                let promise = Promise { txn, layout: after, entries: tally.entries };
                self.mail[taker].push_back(Message::Prepare(promise));
            }
            Action::Thaw => {
                giving.frozen = false;
                return self.happened(Event::Thawed);
            }
            Action::End(_) => {
                end.open.remove(&txn);
                end.giving = None;
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) -> Check {
        let at = self.giver();
        if let Some(giving) = &mut self.ends[at].giving {
            giving.waits = None;
            giving.action = giving.machine.next(event);
        }
        Ok(())
    }

    /// The transaction is decided: the source's write, if it commits.
    fn switched(&mut self, commit: bool) -> Check {
        let (at, taker) = (self.giver(), self.taker());
        let early = self.has(Flaw::ToldEarly);
        let end = &mut self.ends[at];
        let Some(giving) = &mut end.giving else { return Ok(()) };
        let txn = giving.txn;
        end.open.remove(&txn);
        if commit {
            let (layout, tally) = giving.after.take().ok_or("nothing was prepared")?;
            let entries = end.share().ok_or("no share")?.entries.saturating_sub(tally.entries);
            let share = Share { layout, entries };
            end.disk.write(vec![
                (b"D".to_vec(), Some(share.to_vec().into())),
                (b"X".to_vec(), Some(txn.to_vec().into())),
                (b"H".to_vec(), Some(HandoffRecord::Given(INO).to_vec().into())),
            ]);
            if early {
                self.mail[taker].push_back(Message::Decide(txn, true));
            }
        } else {
            self.mail[taker].push_back(Message::Decide(txn, false));
        }
        self.happened(Event::Switched(commit))
    }

    /// What goes on besides: a commit is told, sweeping, asking for outcomes.
    fn background(&mut self) -> Check {
        let (giver, taker) = (self.giver(), self.taker());
        if let Some(txn) = self.ends[giver].disk.get::<TxnId>(b"X") {
            // It is told when it is stable.
            if !self.has(Flaw::ToldEarly) {
                self.ends[giver].disk.sync();
            }
            self.mail[taker].push_back(Message::Decide(txn, true));
        }
        for at in [giver, taker] {
            self.sweep(at);
        }
        let patience = self.has(Flaw::PromiseTimesOut);
        let end = &mut self.ends[taker];
        let asked = end.promise().map(|promise| promise.txn);
        let received = || match end.handoff() {
            Some(HandoffRecord::Receiving(what)) => Some(what.txn),
            Some(HandoffRecord::Given(_) | HandoffRecord::Sweeping(_)) | None => None,
        };
        if let Some(txn) = asked.or_else(received) {
            self.patience += 1;
            if patience && asked.is_some() && self.patience > 12 {
                return self.decide(txn, false);
            }
            if self.patience.is_multiple_of(4) {
                self.mail[giver].push_back(Message::Ask(txn));
            }
        } else {
            self.patience = 0;
        }
        Ok(())
    }

    fn sweep(&mut self, at: usize) {
        let careless = self.has(Flaw::OwnedSwept);
        let end = &mut self.ends[at];
        match end.handoff() {
            // The master, which is told of it and answers, is not a part of this.
            Some(record @ HandoffRecord::Given(_)) => {
                let next = told(&record).expect("it was given");
                end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
            }
            Some(HandoffRecord::Sweeping(_)) if end.promise().is_none() => {
                let stray = |key: &Key| careless || !end.owns(pos_in(key));
                let some = end.disk.names().filter(|(key, _)| stray(key)).take(5);
                let gone: Batch = some.map(|(key, _)| (key.clone(), None)).collect();
                let done = gone.is_empty();
                end.disk.write(gone);
                if done {
                    end.disk.write(vec![(b"H".to_vec(), None)]);
                }
            }
            Some(HandoffRecord::Sweeping(_) | HandoffRecord::Receiving(_)) | None => {}
        }
    }

    fn deliver(&mut self, to: usize) -> Check {
        let Some(message) = self.mail[to].pop_front() else { return Ok(()) };
        let from = 1 - to;
        match message {
            Message::Begin(call, what) => {
                let end = &mut self.ends[to];
                let free = end.promise().is_none();
                let comes = |key: &Key| what.moving.contains(pos_in(key));
                let empty = !end.disk.names().any(|(key, _)| comes(key));
                let received = end.receiving.as_ref();
                let begun = Target::begin(what, end.handoff().as_ref(), received, empty);
                let event = match begun.filter(|_| free) {
                    Some(target) => {
                        let record = target.record().to_vec().into();
                        end.disk.write(vec![(b"H".to_vec(), Some(record))]);
                        end.receiving = Some(target);
                        Event::Taken(Tally::default())
                    }
                    None => Event::Refused,
                };
                self.mail[from].push_back(Message::Answer(call, what.txn, event));
            }
            Message::Put(call, txn, number, changes, stable) => {
                let event = self.take(to, txn, number, changes, stable);
                self.mail[from].push_back(Message::Answer(call, txn, event));
            }
            Message::Prepare(promise) => {
                let vote = self.prepare(to, &promise);
                self.mail[from].push_back(Message::Vote(promise.txn, vote));
            }
            Message::Decide(txn, commit) => {
                self.decide(txn, commit)?;
                self.ends[to].disk.sync();
                if commit {
                    self.mail[from].push_back(Message::Known(txn));
                }
            }
            Message::Ask(txn) => {
                let end = &self.ends[to];
                let outcome = match end.open.contains(&txn) {
                    true => None,
                    false => Some(end.disk.get::<TxnId>(b"X") == Some(txn)),
                };
                if outcome == Some(true) && !self.has(Flaw::ToldEarly) {
                    self.ends[to].disk.sync();
                }
                self.mail[from].push_back(Message::Outcome(txn, outcome));
            }
            Message::Answer(call, txn, event) => {
                let giving = self.ends[to].giving.as_ref();
                let asked = giving.is_some_and(|giving| {
                    (giving.txn, giving.calls) == (txn, call) && giving.waits.is_some()
                });
                let answers = giving.is_some_and(|giving| match giving.action {
                    Action::Begin | Action::Put { .. } => true,
                    Action::Watch
                    | Action::Copy { .. }
                    | Action::Collect { .. }
                    | Action::Freeze
                    | Action::Switch(_)
                    | Action::Thaw
                    | Action::End(_) => false,
                });
                if asked && answers {
                    return self.happened(event);
                }
            }
            Message::Vote(txn, vote) => {
                let giving = self.ends[to].giving.as_ref();
                let asked =
                    giving.is_some_and(|giving| giving.txn == txn && giving.after.is_some());
                if asked && giving.is_some_and(|giving| giving.waits.is_some()) {
                    return self.switched(vote);
                }
            }
            Message::Known(txn) => {
                let end = &mut self.ends[to];
                if end.disk.get::<TxnId>(b"X") == Some(txn) {
                    end.disk.write(vec![(b"X".to_vec(), None)]);
                }
            }
            Message::Outcome(txn, outcome) => {
                if let Some(commit) = outcome {
                    self.decide(txn, commit)?;
                }
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        to: usize,
        txn: TxnId,
        number: u64,
        changes: Vec<Change>,
        stable: bool,
    ) -> Event {
        let (echoes, careless) = (self.has(Flaw::EchoTaken), self.has(Flaw::LossNotNoticed));
        let end = &mut self.ends[to];
        let here = matches!(end.handoff(), Some(HandoffRecord::Receiving(what)) if what.txn == txn);
        if careless && end.receiving.is_none() {
            // It was restarted: it goes on where the source is.
            let write = changes.into_iter().map(|(key, value)| (key.into(), value));
            end.disk.write(write.collect());
            return Event::Taken(Tally { entries: end.disk.names().count() as u64, subdirs: 0 });
        }
        if !here || end.promise().is_some() {
            return Event::Refused;
        }
        let Some(target) = end.receiving.as_mut() else { return Event::Refused };
        let disk = &end.disk.now;
        let new = target.are_new(&changes);
        let was = |key: &[u8]| disk.get(key).filter(|_| !new).cloned();
        let tally = match target.put(number, &changes, was, weigh) {
            Taking::Store(tally) => tally,
            Taking::Again(tally) if echoes => tally,
            Taking::Again(tally) => return Event::Taken(tally),
            Taking::Refuse => return Event::Refused,
        };
        end.disk.write(changes.into_iter().map(|(key, value)| (key.into(), value)).collect());
        if stable {
            end.disk.sync();
        }
        Event::Taken(tally)
    }

    /// What stands there must be what the source has begun.
    fn prepare(&mut self, to: usize, promise: &Promise) -> bool {
        let (unstable, careless) =
            (self.has(Flaw::PromiseNotStable), self.has(Flaw::LossNotNoticed));
        let end = &mut self.ends[to];
        if end.promise().is_some_and(|held| held == *promise) {
            return true;
        }
        let here = matches!(end.handoff(), Some(HandoffRecord::Receiving(what)) if what.txn == promise.txn);
        let share = end.share();
        let same = share.is_none_or(|share| {
            let mut joined = share.layout.clone();
            !joined.learn(&promise.layout)
                || share.layout.after(self.shift).is_some_and(|mut after| {
                    after.learn(&promise.layout);
                    after == promise.layout
                })
        });
        if end.promise().is_some() || !(here || careless) || !same {
            return false;
        }
        end.disk.write(vec![(b"P".to_vec(), Some(promise.to_vec().into()))]);
        if !unstable {
            end.disk.sync();
        }
        true
    }

    fn decide(&mut self, txn: TxnId, commit: bool) -> Check {
        let taker = self.taker();
        let end = &mut self.ends[taker];
        let record = end.handoff();
        match end.promise() {
            Some(promise) if promise.txn == txn => {
                let mut batch: Batch = vec![(b"P".to_vec(), None)];
                if commit {
                    let entries = end.share().map_or(0, |share| share.entries) + promise.entries;
                    let mut layout = promise.layout;
                    if let Some(share) = end.share() {
                        layout.learn(&share.layout);
                    }
                    let share = Share { layout, entries };
                    batch.push((b"D".to_vec(), Some(share.to_vec().into())));
                    batch.push((b"H".to_vec(), None));
                } else {
                    let next = record.as_ref().and_then(abandoned);
                    batch.extend(next.map(|next| (b"H".to_vec(), Some(next.to_vec().into()))));
                }
                end.disk.write(batch);
                end.receiving = None;
            }
            Some(_) => {}
            None => {
                // It was never promised: whatever the outcome, nothing of it counts here.
                if let Some(record @ HandoffRecord::Receiving(what)) = record
                    && what.txn == txn
                {
                    let next = abandoned(&record).expect("it was being received");
                    end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
                    end.receiving = None;
                }
            }
        }
        Ok(())
    }

    /// A client makes, removes or looks up a name; it finds its way as clients do.
    fn ask(&mut self) -> Check {
        self.asked += 1;
        let name = if self.seed == 0 { self.asked * 7 % NAMES } else { self.draw(NAMES) };
        let what = if self.seed == 0 { self.asked % 4 } else { self.draw(4) };
        let (pos, key) = (pos_of(name), name_key(name));
        for _ in 0..8 {
            let at = usize::from(self.client.partition(pos));
            let Some(share) = self.ends[at].share() else {
                // It was never there, or is not yet: the master knows.
                if at == 0 {
                    return Err("the master is not there".into());
                }
                let Some(master) = self.ends[0].share() else { return Err("no master".into()) };
                if master.layout.partition(pos) == self.ends[at].partition {
                    // It is prepared there, and the client waits.
                    return Ok(());
                }
                self.corrected(&master.layout, (pos, at))?;
                continue;
            };
            let forgotten = self.has(Flaw::ChangesForgotten);
            let end = &mut self.ends[at];
            if end.promise().is_some() {
                return Ok(());
            }
            if share.layout.partition(pos) != end.partition {
                self.corrected(&share.layout, (pos, at))?;
                continue;
            }
            let giving = end.giving.as_mut().filter(|giving| giving.moving.contains(pos));
            if what != 0 && giving.as_ref().is_some_and(|giving| giving.frozen) {
                return Ok(());
            }
            let found = end.disk.now.get(&key).cloned();
            let expected =
                self.expected.get(&name).map(|value| Bytes::from_static(value.as_bytes()));
            if found != expected {
                return Err(format!(
                    "name {name} is {found:?} at {at}, and should be {expected:?}"
                ));
            }
            let value = match (what, &found) {
                (0, _) => return Ok(()),
                (1, Some(_)) => None,
                (2, Some(_)) => Some("g"),
                (_, None) => Some(if name % 5 == 0 { "d" } else { "f" }),
                (_, Some(_)) => return Ok(()),
            };
            if let Some(changed) = giving.and_then(|giving| giving.changed.as_mut())
                && !(forgotten && self.asked.is_multiple_of(2))
            {
                changed.insert(key.clone());
            }
            let more = u64::from(found.is_none() && value.is_some());
            let less = u64::from(found.is_some() && value.is_none());
            let share = Share { entries: share.entries + more - less, ..share };
            let stored = value.map(|value| Bytes::from_static(value.as_bytes()));
            end.disk.write(vec![(key, stored), (b"D".to_vec(), Some(share.to_vec().into()))]);
            end.disk.sync();
            match value {
                Some(value) => drop(self.expected.insert(name, value)),
                None => drop(self.expected.remove(&name)),
            }
            return Ok(());
        }
        Err(format!("a client does not find name {name}"))
    }

    /// Partition `asked` does not have what stands at `pos`, and says what it knows. Who would go there again knows a switch
    /// that a power cut has taken, and believes the master, as `client::layouts` has it.
    fn corrected(&mut self, news: &Layout, (pos, asked): (u64, usize)) -> Check {
        self.client.learn(news);
        if usize::from(self.client.partition(pos)) == asked {
            if !self.lost {
                return Err("a client that knows all is sent away".into());
            }
            self.client = self.ends[0].share().ok_or("no master")?.layout;
        }
        Ok(())
    }

    fn check(&self) -> Check {
        let views: Vec<Layout> =
            self.ends.iter().filter_map(End::share).map(|share| share.layout).collect();
        for name in 0..NAMES {
            let owners: Vec<&End> = self.ends.iter().filter(|end| end.owns(pos_of(name))).collect();
            let [owner] = owners[..] else {
                return Err(format!("name {name} has {} owners: {views:?}", owners.len()));
            };
            let found = owner.disk.now.get(&name_key(name)).cloned();
            let expected =
                self.expected.get(&name).map(|value| Bytes::from_static(value.as_bytes()));
            if found != expected {
                return Err(format!("name {name} is {found:?}, and should be {expected:?}"));
            }
        }
        for end in &self.ends {
            let (names, share) = (end.disk.names().count() as u64, end.share());
            let counted = share.map_or(0, |share| share.entries);
            if names != counted {
                return Err(format!("partition {} counts {counted} of {names}", end.partition));
            }
        }
        if self.attempts > 40 {
            return Err(format!("{:?} took {} attempts", self.kind, self.attempts));
        }
        Ok(())
    }
}
