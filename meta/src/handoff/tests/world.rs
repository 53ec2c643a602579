//! The world of the tests: a small store for each end, the transaction as `transact` makes it,
//! clients, crashes.

mod clients;
mod messages;
mod source;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Encode as _, Ino, Layout, Moving, Splits, Subsets, Transfer};
use bytes::Bytes;
use wire::{Tally, TxnId};

use super::{
    super::{
        Change, HandoffRecord, Receiving,
        source::{Action, Event, Scan, Source},
        target::{Target, abandoned},
    },
    disk::{Disk, Promise, Share, name_key, pos_of},
};

const INO: Ino = Ino(77);
/// Number of names that can be there.
const NAMES: u64 = 24;
/// Number of steps after which a run counts as hanging.
const STEPS_MAX: u32 = 20_000;

/// Kind of the handoff under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Split,
    /// A split by a locked scan: names are frozen before they are copied.
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

    /// The layout before the handoff, and its transfer.
    fn start(self) -> (Layout, Transfer) {
        let whole = Layout::Extendible(Splits::new(1));
        let (split, merge) = (Transfer { source: 0, target: 1 }, Transfer { source: 1, target: 0 });
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
    /// Number of turns for which the action has waited for an answer; `None` when it does not wait.
    waits: Option<u32>,
    calls: u64,
    changed: Option<BTreeSet<Key>>,
    snapshot: VecDeque<Change>,
    frozen: bool,
    moving: Moving,
    /// The layout and the counts that the switch will commit at the source.
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
    // Requests carry the number of the call, which the answer repeats.
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
    /// State of the random numbers; 0 for the one directed schedule.
    seed: u64,
    transfer: Transfer,
    ends: [End; 2],
    /// Messages to each end.
    mail: [VecDeque<Message>; 2],
    /// The value that clients expect under each name, from the changes they made.
    expected: BTreeMap<u64, &'static str>,
    client: Layout,
    /// Whether the power was cut once, so that the client may know a switch that was lost.
    lost: bool,
    asked: u64,
    attempts: u32,
    step: u32,
    /// Number of background steps for which the open transaction at the target has waited.
    patience: u32,
}

impl Run {
    pub(super) fn new(kind: Kind, seed: u64, flaw: Option<Flaw>) -> Run {
        let (layout, transfer) = kind.start();
        let ends = [0, 1].map(|partition| End { partition, ..End::default() });
        let mut run = Run {
            kind,
            flaw,
            seed,
            transfer,
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

    fn source(&self) -> usize {
        self.transfer.source.into()
    }

    fn target(&self) -> usize {
        self.transfer.target.into()
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Runs one schedule, with a crash if one is given. Returns the number of steps.
    pub(super) fn directed(mut self, crash: Option<Crash>) -> Check<u32> {
        while !self.is_done() {
            if let Some(Crash { at, ends, power }) = crash
                && at == self.step
            {
                let (source, target) = (self.source(), self.target());
                match ends {
                    Ends::Source => self.crash(source, power),
                    Ends::Target => self.crash(target, power),
                    Ends::Both => {
                        self.crash(source, power);
                        self.crash(target, power);
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
            0 | 2 => self.drive_source()?,
            1 => self.deliver(self.target())?,
            3 => self.deliver(self.source())?,
            // Clients ask at the beginning, and now and then.
            _ if self.step < 60 && self.step.is_multiple_of(3) => self.ask()?,
            _ => self.background()?,
        }
        self.count()
    }

    /// Runs one schedule in which the target does nothing from the moment that it is asked to
    /// promise. Returns for how many steps the names stay frozen. Then the target is back, and the
    /// handoff is done.
    pub(super) fn target_away(mut self) -> Check<u32> {
        let source = self.source();
        let frozen = |run: &Run| run.ends[source].giving.as_ref().is_some_and(|own| own.frozen);
        let switches = |run: &Run| {
            let giving = run.ends[source].giving.as_ref();
            giving.is_some_and(|own| matches!(own.action, Action::Switch(_)) && own.waits.is_some())
        };
        while !switches(&self) {
            self.turn()?;
        }
        let mut steps = 0;
        while frozen(&self) {
            self.drive_source()?;
            self.deliver(source)?;
            self.count()?;
            steps += 1;
        }
        self.directed(None)?;
        Ok(steps)
    }

    /// Runs a random schedule, with crashes, lost messages and echoes.
    pub(super) fn random(mut self) -> Check {
        self.seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut crashes = self.draw(6);
        let asks = 1 + self.draw(30);
        while !self.is_done() {
            let calm = self.step > 3000;
            let end = usize::try_from(self.draw(2)).expect("0 or 1");
            match self.draw(200) {
                0..60 => self.drive_source()?,
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

    /// Whether the names have moved, and no work is left.
    fn is_done(&self) -> bool {
        let idle = |end: &End| {
            let left = [&b"H"[..], b"P", b"X"].iter().any(|key| end.disk.now.contains_key(*key));
            end.giving.is_none() && end.receiving.is_none() && !left
        };
        let moved = self.ends[self.source()]
            .share()
            .is_some_and(|share| share.layout.moving(self.transfer).is_none());
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
        // The end starts again: a handoff that was not promised ends with the run.
        if end.promise().is_none()
            && let Some(next) = end.handoff().as_ref().and_then(abandoned)
        {
            end.disk.write(vec![(b"H".to_vec(), Some(next.to_vec().into()))]);
        }
    }
}
