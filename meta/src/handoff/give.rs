//! Drives the source's side of a handoff: does what [`Source`] says, one thing after the other.
//!
//! [`when`](super::when) starts it for a partition that is to give names away. Copying reads the
//! store page by page while requests go on. Changes since its beginning are noted and sent
//! afterwards. Where splits are by a locked scan, for comparison, all of the partition is frozen
//! first, and then all of it is read.
//!
//! With either scan, inodes leave the names that are to move when the target has agreed, and before
//! anything is copied. No name is frozen meanwhile, except names that got an inode since. So a
//! target that is busy costs nothing.
//!
//! Paper: SFS §3.4 has the locked scan: lock the partition, scan all of its entries, migrate those
//! that move, unlock.
//!
//! The target may be another server or this one.

use std::{ops::ControlFlow, time::Duration};

use base::{DirId, Ino, Moving, Spread, Transfer, layout::POS_MAX};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use wire::{Decide, HandoffBegin, HandoffPut, Reply, Request, Tally, TxnId};

use super::{
    Change,
    finish::{read, tell},
    source::{Action, Event, Scan, Source},
    steps::{self, NAMES_A_STEP, inode_in},
    switch::{self, Switch},
    table::Partition,
    take,
};
use crate::{
    Core,
    bugs::Bug,
    error,
    peer::Unanswered,
    record::{Content, EntryRecord, Key, Record as _, key},
    server::Counters,
    step::Step,
    transact::{self, participant},
    txn::{Remote, Txn},
};

/// Bytes of one message at most, except for one larger record.
const PUT_BYTES_MAX: usize = 256 << 10;
/// Number of changes in one message at most.
const ROUND_MAX: usize = 2000;
/// Number of records that are looked at for one message at most.
const SEEN_MAX: usize = 8000;
/// Longest time for which a locked scan freezes the names that it copies.
const LOCKED_MAX: Duration = Duration::from_secs(5);
/// Pause before the next attempt to freeze names that a transaction holds.
const HELD_PAUSE: Duration = Duration::from_millis(1);

/// One handoff that this server gives.
pub(super) struct Giving {
    core: Core,
    txn: TxnId,
    ino: Ino,
    home: DirId,
    source: Partition,
    target: Partition,
    moving: Moving,
    scan: Scan,
    spread: Spread,
    /// Key at which copying goes on; `None` at the first name.
    next: Option<Key>,
    frozen: Option<Instant>,
    /// Records of the target that the switch needs, read before the names are frozen.
    foreseen: Box<Remote>,
    /// Until this moment, new transactions that would hold the names to be frozen are kept off.
    wanted_until: Option<Instant>,
    /// Whether the target refused: it has no time for the handoff, or no room.
    refused: bool,
}

/// How a handoff ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parted {
    /// The names have moved.
    Moved,
    /// The target did not let it begin.
    Refused,
    /// Something else was in the way.
    Failed,
}

/// Why a handoff is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stops {
    /// Something cannot be read here.
    Unreadable,
    /// Names would be frozen for too long.
    Late,
}

impl Giving {
    /// A handoff by `transfer` from the partition `source`, whose content record is `share`.
    pub(super) fn new(
        core: &Core,
        source: Partition,
        share: &Content,
        (transfer, spread): (Transfer, Spread),
        moving: Moving,
    ) -> Option<Giving> {
        let shared = &core.inner.shared;
        let txn = shared.cluster.as_ref()?.next_txn();
        let target =
            Partition::of(share.home, source.dir, transfer.target, shared.config.placement());
        let (ino, home) = (share.ino, share.home);
        let (core, scan) = (core.clone(), shared.options.limits.scan());
        let (next, frozen, wanted_until) = (None, None, None);
        Some(Giving {
            core,
            txn,
            ino,
            home,
            source,
            target,
            moving,
            scan,
            spread,
            next,
            frozen,
            foreseen: Box::default(),
            wanted_until,
            refused: false,
        })
    }

    /// Runs the handoff to its end.
    pub(super) async fn run(mut self) -> Parted {
        let shared = self.core.inner.shared.clone();
        Counters::add(&shared.counters.handoffs_begun);
        shared.initiated.begin(self.txn);
        let (mut source, mut action) = Source::begin(self.scan);
        let moved = loop {
            if let Action::End(moved) = action {
                break moved;
            }
            let event = self.act(action).await;
            action = source.next(event);
        };
        shared.prepared.no_longer_wanted(self.txn);
        shared.handoffs.unwatch(self.txn);
        shared.initiated.end(self.txn);
        let refused = self.refused;
        if moved {
            Counters::add(&shared.counters.handoffs_done);
        } else {
            self.give_up();
        }
        match moved {
            true => Parted::Moved,
            false if refused => Parted::Refused,
            false => Parted::Failed,
        }
    }

    /// Tells the target that the handoff will not happen. A target that does not hear it finds out
    /// by itself.
    fn give_up(self) {
        let Some(server) = self.server() else { return };
        tokio::task::spawn_local(async move {
            let decide = Decide { txn: self.txn, commit: false };
            if self.is_me(server) {
                let decides = move |txn: &mut Txn<'_>| participant::decide(txn, &decide);
                self.core.step_of(self.txn, decides).await;
            } else {
                // The answer does not matter: the target also finds out by itself.
                let _ = self.core.inner.peers.ask(server, &Request::Decide(decide)).await;
            }
        });
    }

    async fn act(&mut self, action: Action) -> Event {
        let shared = self.core.inner.shared.clone();
        match action {
            Action::Begin => {
                let event = self.begin().await;
                self.refused = event == Event::Refused;
                event
            }
            Action::Watch => match self.watch().await {
                Ok(()) => Event::Watching,
                Err(stops) => self.gives_up(stops),
            },
            Action::Copy { records_max } => match self.copy(records_max).await {
                Ok((changes, end)) => Event::Copied(changes, end),
                Err(stops) => self.gives_up(stops),
            },
            Action::Put { number, changes, stable } => self.put(number, changes, stable).await,
            Action::Collect { slow_ms } => match self.collect(slow_ms).await {
                Ok(changes) => Event::Collected(changes),
                Err(stops) => self.gives_up(stops),
            },
            Action::Freeze => self.freeze().await,
            Action::Switch(tally) => Event::Switched(self.switch(tally).await),
            Action::Thaw => {
                shared.prepared.free(self.txn);
                if let Some(since) = self.frozen.take() {
                    let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    shared.observed.frozen.record(nanos);
                }
                Event::Thawed
            }
            Action::End(_) => unreachable!("it has ended"),
        }
    }

    /// Takes the inodes out of their names, then begins to note changes. The order matters: every
    /// noted change is sent.
    async fn watch(&mut self) -> Result<(), Stops> {
        self.detach_all().await?;
        let Giving { txn: id, source, moving, .. } = *self;
        self.in_time(self.core.step(move |txn| steps::watch(txn, id, source, moving))).await?;
        Ok(())
    }

    /// Freezes the names, and keeps new transactions off for as long as names may be frozen.
    /// Otherwise a sequence of transactions could prevent the freeze for ever; and a transaction
    /// that nobody ends must not keep others off for longer.
    async fn freeze(&mut self) -> Event {
        let limit = self.core.inner.shared.options.limits.frozen_max;
        if self.core.inner.shared.bugs.has(Bug::LayoutPublishedEarly) {
            self.publish().await;
        }
        let until = *self.wanted_until.get_or_insert_with(|| Instant::now() + limit);
        let switch = self.switching(Tally::default());
        self.foreseen = transact::run::foresee(&self.core, switch, until).await;
        let (id, names) = (self.txn, (self.source, self.scanned()));
        let freeze = self.core.step(move |txn| steps::freeze(txn, id, names, until));
        if self.in_time(freeze).await == Ok(Some(true)) {
            self.frozen = Some(Instant::now());
            return Event::Frozen;
        }
        tokio::time::sleep(HELD_PAUSE).await;
        Event::Held
    }

    /// [`Bug::LayoutPublishedEarly`].
    async fn publish(&self) {
        let (at, transfer) =
            (self.source, Transfer { source: self.source.number, target: self.target.number });
        let share = read::<Content>(&self.core.inner.shared, &at.share());
        let Ok(Some(share)) = share else { return };
        let layout = share.layout.turned(self.spread);
        if let Some(after) = layout.as_ref().unwrap_or(&share.layout).after(transfer) {
            tell(&self.core, at.dir, &share, at.number, &after).await;
        }
    }

    /// Until when others wait for frozen names at most, except for a commit that is decided.
    fn frozen_until(&self) -> Option<Instant> {
        let limit = match self.scan {
            Scan::Open => self.core.inner.shared.options.limits.frozen_max,
            Scan::Locked => LOCKED_MAX,
        };
        self.frozen.map(|since| since + limit)
    }

    /// Names that cannot be read here end the handoff as a refusal of the target does, and a freeze
    /// that takes too long ends it as a lost answer does.
    fn gives_up(&self, stops: Stops) -> Event {
        match stops {
            Stops::Unreadable => {
                tracing::error!(
                    id = %self.source.dir,
                    "names that are to move cannot be read; run `pando fsck`"
                );
                Event::Refused
            }
            Stops::Late => Event::Lost,
        }
    }

    /// Waits for a step, which may wait for other transactions or for room on the disk. While names
    /// are frozen the wait is bounded: then the step may still happen later, as a request sent to
    /// another server may.
    async fn in_time<T>(&self, step: impl Future<Output = T>) -> Result<T, Stops> {
        match self.frozen_until() {
            Some(until) => timeout_at(until, step).await.map_err(|_| Stops::Late),
            None => Ok(step.await),
        }
    }

    async fn begin(&self) -> Event {
        let request = HandoffBegin {
            txn: self.txn,
            dir: self.source.dir,
            ino: self.ino,
            home: self.home,
            source: self.source.number,
            target: self.target.number,
            moving: self.moving,
        };
        match self.server() {
            None => Event::Lost,
            Some(server) if self.is_me(server) => {
                self.take_here(move |txn| take::begin(txn, &request)).await
            }
            Some(server) => self.ask(server, &Request::HandoffBegin(request)).await,
        }
    }

    async fn put(&self, number: u64, changes: Vec<Change>, stable: bool) -> Event {
        let (dir, home, target) = (self.source.dir, self.home, self.target.number);
        let request = HandoffPut { txn: self.txn, dir, home, target, number, changes, stable };
        match self.server() {
            None => Event::Lost,
            Some(server) if self.is_me(server) => {
                self.take_here(move |txn| take::put(txn, &request)).await
            }
            Some(server) => {
                let request = Request::HandoffPut(request);
                let asked = self.ask(server, &request);
                match self.frozen_until() {
                    Some(until) => timeout_at(until, asked).await.unwrap_or(Event::Lost),
                    None => asked.await,
                }
            }
        }
    }

    fn server(&self) -> Option<u16> {
        self.core.inner.shared.cluster.as_ref()?.server_of_key(&self.target.share())
    }

    fn is_me(&self, server: u16) -> bool {
        self.core.inner.shared.cluster.as_ref().is_some_and(|cluster| cluster.me == server)
    }

    /// Has this server take the step as the target.
    async fn take_here(
        &self,
        take: impl Fn(&mut Txn<'_>) -> error::Result<Option<Tally>> + 'static,
    ) -> Event {
        match self.in_time(self.core.step(take)).await {
            Ok(taken) => taken.flatten().map_or(Event::Refused, Event::Taken),
            Err(stops) => self.gives_up(stops),
        }
    }

    async fn ask(&self, server: u16, request: &Request) -> Event {
        match self.core.inner.peers.ask(server, request).await {
            Ok(Reply::Taken(Some(tally))) => Event::Taken(tally),
            Ok(Reply::Taken(None)) | Err(Unanswered::Failed(_)) => Event::Refused,
            Ok(_) | Err(Unanswered::Lost) => Event::Lost,
        }
    }

    /// Takes the inodes out of all names that are to move.
    async fn detach_all(&mut self) -> Result<(), Stops> {
        loop {
            let (page, end) = self.page(ROUND_MAX)?;
            self.detach(&page).await?;
            tokio::task::yield_now().await;
            if end {
                self.next = None;
                return Ok(());
            }
        }
    }

    /// Takes the inodes out of those names that still embed one. Returns whether there were any.
    async fn detach(&self, page: &[(Key, Bytes)]) -> Result<bool, Stops> {
        let has_inode = |(at, value): &(Key, Bytes)| inode_in(at, value);
        let names: Vec<(Key, Ino)> = page.iter().filter_map(has_inode).collect();
        #[cfg(test)]
        tests::detaches(self, names.len());
        for names in names.chunks(NAMES_A_STEP) {
            let (source, names) = (self.source, names.to_vec());
            let detach = move |txn: &mut Txn<'_>| steps::detach(txn, source, &names);
            self.in_time(self.core.step_of(self.txn, detach)).await?;
        }
        Ok(!names.is_empty())
    }

    /// The names that are looked at and frozen: those that move, or with a locked scan all.
    fn scanned(&self) -> Moving {
        match self.scan {
            Scan::Open => self.moving,
            Scan::Locked => Moving::Range((0, POS_MAX)),
        }
    }

    /// Reads the next records that are to move, and returns whether there are no more.
    fn page(&mut self, records_max: usize) -> Result<(Vec<(Key, Bytes)>, bool), Stops> {
        let Partition { shard, dir, .. } = self.source;
        let (first, last) = self.scanned().bounds();
        let from = self.next.take().unwrap_or_else(|| key::names_from(shard, dir, first));
        let end = key::names_to(shard, dir, last);
        let (mut page, mut bytes, mut seen, mut next) = (Vec::new(), 0, 0, None);
        let engine = &self.core.inner.shared.engine;
        let scanned = engine.scan(&from, &end, &mut |key, value| {
            if page.len() >= records_max || bytes >= PUT_BYTES_MAX || seen >= SEEN_MAX {
                next = Some(Key::from_slice(key));
                return ControlFlow::Break(());
            }
            seen += 1;
            if key::parse_moving(key).is_some_and(|pos| self.moving.contains(pos)) {
                bytes += key.len() + value.len();
                page.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
            }
            ControlFlow::Continue(())
        });
        scanned.map_err(|_| Stops::Unreadable)?;
        self.next = next;
        let end = self.next.is_none();
        Ok((page, end))
    }

    async fn copy(&mut self, records_max: usize) -> Result<(Vec<Change>, bool), Stops> {
        let (mut page, end) = self.page(records_max)?;
        if self.detach(&page).await? {
            let keys: Vec<Key> = page.into_iter().map(|(at, _)| at).collect();
            page = self.present(keys)?.into_iter().filter_map(|(at, is)| Some((at, is?))).collect();
        }
        is_bare(page.iter().map(|(at, is)| (at, is)))?;
        let changes = page.into_iter().map(|(at, is)| (self.at_target(&at), Some(is)));
        Ok((changes.collect(), end))
    }

    async fn collect(&self, slow_ms: u32) -> Result<Vec<Change>, Stops> {
        let slow = Duration::from_millis(slow_ms.into());
        let keys = self.core.inner.shared.handoffs.take_changed(self.txn, ROUND_MAX, slow);
        let mut found = self.present(keys)?;
        let there = |(at, is): &(Key, Option<Bytes>)| Some((at.clone(), is.clone()?));
        if self.detach(&found.iter().filter_map(there).collect::<Vec<_>>()).await? {
            found = self.present(found.into_iter().map(|(at, _)| at).collect())?;
        }
        is_bare(found.iter().filter_map(|(at, is)| Some((at, is.as_ref()?))))?;
        Ok(found.into_iter().map(|(at, is)| (self.at_target(&at), is)).collect())
    }

    /// Reads records as they are stored now.
    fn present(&self, keys: Vec<Key>) -> Result<Vec<(Key, Option<Bytes>)>, Stops> {
        let refs: Vec<&[u8]> = keys.iter().map(|at| &at[..]).collect();
        let found =
            self.core.inner.shared.engine.multi_get(&refs).map_err(|_| Stops::Unreadable)?;
        Ok(keys.into_iter().zip(found).collect())
    }

    /// The key of a record at the target: it begins with the target's shard.
    fn at_target(&self, at: &[u8]) -> Bytes {
        let shard = self.target.shard.0.to_be_bytes();
        [&shard[..], &at[shard.len()..]].concat().into()
    }

    fn switching(&self, tally: Tally) -> Step {
        let Giving { txn: id, source, target, ino, spread, .. } = *self;
        let switch = Switch { txn: id, source, target, ino, spread, tally };
        Step::new(move |txn| switch::run(txn, &switch)).part_of(id)
    }

    async fn switch(&mut self, tally: Tally) -> bool {
        let Some(until) = self.frozen_until() else { return false };
        let (switch, foreseen) = (self.switching(tally), std::mem::take(&mut self.foreseen));
        let target = self.target;
        let moved = transact::run::once_as(&self.core, (self.txn, switch), foreseen, until).await;
        if moved {
            self.core.inner.shared.handoffs.has_come(&target.handoff());
            Counters::add_many(&self.core.inner.shared.counters.handoff_names, tally.entries);
        }
        moved
    }
}

/// Fails when a record still embeds its inode, which must stay: its inode could not be taken out.
fn is_bare<'a>(records: impl Iterator<Item = (&'a Key, &'a Bytes)>) -> Result<(), Stops> {
    let stays = |(at, is): (&Key, &Bytes)| {
        key::is_entry(at)
            && !matches!(
                EntryRecord::from_record(is),
                Ok(EntryRecord::Link(_) | EntryRecord::Dir(_))
            )
    };
    let mut records = records;
    if records.any(stays) { Err(Stops::Unreadable) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use base::{EntryName, FileKind, Layout, ShardId, Splits, Time};
    use store::Batch;

    use super::*;
    use crate::{
        FreeBytes, Limits, ServerOptions,
        coordinator::tests::several::in_cluster_of,
        format::root_content,
        record::{Contents, InTrash, InlineMax, Inode, QuotaId, Times, Xattrs, key::Part},
    };

    thread_local! {
        static FREE: Cell<u64> = const { Cell::new(u64::MAX) };
        /// Number of inodes that left their names: before any were frozen, and while they were.
        static LEFT: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
    }

    /// Counts inodes that leave their names now.
    pub(super) fn detaches(giving: &Giving, inodes: usize) {
        let mut left = LEFT.get();
        left[usize::from(giving.frozen.is_some())] += inodes;
        LEFT.set(left);
    }

    fn locked(address: &str) -> ServerOptions {
        let options = ServerOptions::simulated(address);
        let limits = Limits { split_by_locked_scan: true, ..options.limits.clone() };
        ServerOptions { limits, ..options }
    }

    fn file(ino: Ino) -> Inode {
        Inode {
            ino,
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            allocated: 0,
            times: Times::born(Time::default()),
            moved: false,
            xattrs: Xattrs::NONE,
            contents: Contents::Inline(Bytes::new()),
            quota: QuotaId::NONE,
            inline_max: InlineMax::NONE,
            in_trash: InTrash(false),
        }
    }

    #[test]
    fn a_locked_scan_takes_inodes_out_of_their_names_before_it_locks() {
        const FILES: u64 = 40;
        in_cluster_of(locked, async |three| {
            let core = &three.node(1).core;
            let (shard, dir) = (ShardId(1), DirId(77));
            let source = Partition { shard, dir, number: 0 };
            let (layout, first) = (Layout::Whole, Splits::new(1));
            let share = Content {
                ino: Ino::new(shard, 7),
                home: dir,
                layout,
                entries: FILES,
                ..root_content(Time::default())
            };
            let mut batch = Batch::new();
            batch.put(&source.share(), &share.to_record());
            let transfer = first.split(0, 64).expect("it can split");
            let moving = Layout::Extendible(first).moving(transfer).expect("it is its transfer");
            let (low, high) = moving.bounds();
            for number in 0..FILES {
                let pos = if number % 2 == 0 { low + number } else { high - number };
                let name = EntryName::new(format!("file{number}").as_bytes()).expect("a name");
                let record = EntryRecord::Node(file(Ino::new(shard, 100 + number)));
                let at = key::name(shard, dir, pos, &name, Part::Main);
                batch.put(&at, &record.to_record());
            }
            core.inner.shared.engine.write(batch).expect("memory takes it");
            let giving = Giving::new(core, source, &share, (transfer, Spread::Extendible), moving);
            giving.expect("a server of several").run().await;
            let files = usize::try_from(FILES).expect("a few");
            assert_eq!(LEFT.get(), [files, 0]);
        });
    }

    #[test]
    fn names_do_not_stay_frozen_until_there_is_room_again() {
        let options = |address: &str| {
            let options = ServerOptions::simulated(address);
            let free: FreeBytes = Arc::new(|| FREE.get());
            let limits = Limits { free, reserve: 64 << 20, ..options.limits.clone() };
            ServerOptions { limits, ..options }
        };
        in_cluster_of(options, async |three| {
            let core = &three.node(1).core;
            let frozen_max = core.inner.shared.options.limits.frozen_max;
            let dir = DirId(77);
            let source = Partition { shard: ShardId(1), dir, number: 0 };
            let share = Content { ino: Ino(7), home: dir, ..root_content(Time::default()) };
            let transfer = (Transfer { source: 0, target: 1 }, Spread::Extendible);
            let giving = Giving::new(core, source, &share, transfer, Moving::Range((0, POS_MAX)));
            let mut giving = giving.expect("a server of several");
            FREE.set(0);
            tokio::time::sleep(Duration::from_secs(1)).await;
            let began = Instant::now();
            giving.frozen = Some(began);
            let name = (Key::from_slice(&source.share()), Ino(8));
            let acts = async {
                assert!(matches!(giving.put(0, Vec::new(), false).await, Event::Lost));
                let names = vec![name];
                let step = core.step(move |txn| steps::detach(txn, source, &names));
                assert_eq!(giving.in_time(step).await, Err(Stops::Late));
            };
            let ended = tokio::time::timeout(Duration::from_secs(60), acts).await;
            ended.expect("it waits for room while names are frozen");
            assert_eq!(began.elapsed(), frozen_max);
        });
    }
}
