//! Decides which partitions give names away, and when.
//!
//! A part of the background of one core. A partition that is too large or too small is known from
//! the write that made it so ([`Handoffs::want`](super::table::Handoffs::want)), or is told by
//! another partition. Splits and merges are decided by the source alone. The number of subsets is
//! decided by the master, which tells all sources at once. Each gives to one target after the
//! other, and where one is busy with another source it goes on with the next. A handoff that failed
//! is tried again, later each time; a partition that cannot give rests.
//!
//! Paper: SFS §3.3, §3.5; Duplex §III-C.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use base::{HashMap, Layout, Splits, Spread, Subsets, Transfer};
use bytes::Bytes;
use futures::future::join_all;
use tokio::sync::Semaphore;
use wire::{PeerRead, Reply, Request};

use super::{
    HandoffRecord,
    finish::{finish, read, tell},
    give::{Giving, Parted},
    table::Partition,
};
use crate::{
    Core,
    cluster::Cluster,
    record::{Content, Record as _},
};

/// Number of handoffs that a server gives at a time.
const GIVEN_MAX: usize = 2;
/// The pause before a partition that could not give tries again, at first and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest pause where targets only have no time, as a multiple of the first pause: a handoff takes
/// some 20 ms.
const PAUSES_MAX_BUSY: u32 = 4;
/// Number of sources that a master tells at a time that a step has begun.
const TOLD_MAX: usize = 16;
/// The pause before a partition that need not give is looked at again.
const REST: Duration = Duration::from_secs(1);
/// The pause before a partition that has no target is looked at again.
const FULL_REST: Duration = Duration::from_secs(30);

/// Runs the handoffs of partitions that should give names away.
pub(super) async fn run(core: &Core) {
    let shared = core.inner.shared.clone();
    let slots = Arc::new(Semaphore::new(GIVEN_MAX));
    let failed: Rc<RefCell<HashMap<Partition, u32>>> = Rc::default();
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("it is never closed");
        let at = loop {
            match shared.handoffs.next() {
                Some(at) => break at,
                None => shared.handoffs.wake.notified().await,
            }
        };
        let (core, failed) = (core.clone(), Rc::clone(&failed));
        tokio::task::spawn_local(async move {
            let did = see_to(&core, at).await;
            drop(slot);
            let handoffs = &core.inner.shared.handoffs;
            if !matches!(did, Did::Failed | Did::Refused) {
                failed.borrow_mut().remove(&at);
            }
            match did {
                Did::Gave => {
                    finish(core.clone(), at).await;
                    handoffs.done(at, true);
                }
                Did::Changed => handoffs.done(at, true),
                Did::Fits => {
                    handoffs.pause(at, REST).await;
                    handoffs.done(at, false);
                }
                Did::Full => {
                    handoffs.pause(at, FULL_REST).await;
                    handoffs.done(at, false);
                }
                Did::Failed | Did::Refused => {
                    let times = {
                        let mut failed = failed.borrow_mut();
                        let times = failed.entry(at).or_default();
                        *times += 1;
                        *times
                    };
                    let pause = match did {
                        Did::Refused => PAUSE_FIRST * times.min(PAUSES_MAX_BUSY),
                        _ => PAUSE_FIRST * 2_u32.saturating_pow(times.min(8) - 1),
                    };
                    handoffs.pause(at, pause.min(PAUSE_MAX)).await;
                    handoffs.done(at, true);
                }
            }
        });
    }
}

/// The result of a look at a partition.
enum Did {
    /// Names have moved away.
    Gave,
    /// The layout was changed, and no names have moved.
    Changed,
    /// No change: the partition is as it should be, or another partition was told.
    Fits,
    /// No change: something was in the way.
    Failed,
    /// No change: no target has time now.
    Refused,
    /// No change: the partition cannot be divided further, however large it is.
    Full,
}

async fn see_to(core: &Core, at: Partition) -> Did {
    let shared = &core.inner.shared;
    if !shared.owns(at.shard) {
        return Did::Fits;
    }
    let (share, record) =
        (read::<Content>(shared, &at.share()), read::<HandoffRecord>(shared, &at.handoff()));
    let (Ok(share), Ok(record)) = (share, record) else { return Did::Failed };
    let Some(share) = share.filter(Content::is_live) else { return Did::Fits };
    if record.is_some() {
        return Did::Failed;
    }
    let seen = Seen {
        core,
        at,
        threshold: share.policy.threshold(shared.options.limits.split_threshold),
        share,
    };
    match (&seen.share.layout, seen.share.policy.spread()) {
        (Layout::Subsets(subsets), _) => seen.subsets(&subsets.clone()).await,
        (Layout::Extendible(splits), Spread::Extendible | Spread::None) => {
            seen.splits(&splits.clone()).await
        }
        (Layout::Whole, Spread::Extendible) => {
            let first = Splits::new(seen.share.layout.turn().saturating_add(1));
            seen.splits(&first).await
        }
        (Layout::Whole | Layout::Extendible(_), Spread::Subsets) => seen.turn().await,
        (Layout::Whole, Spread::None) => Did::Full,
    }
}

/// A partition as it was seen.
struct Seen<'a> {
    core: &'a Core,
    at: Partition,
    share: Content,
    threshold: u64,
}

impl Seen<'_> {
    fn shards(&self) -> u16 {
        self.core.inner.shared.config.shards
    }

    /// Number of partitions that splits may come to.
    fn partitions_max(&self) -> u16 {
        let servers = self.core.inner.shared.cluster.as_ref().map_or(1, Cluster::members);
        Splits::partitions_max(servers, self.shards())
    }

    fn is_large(&self) -> bool {
        self.share.is_large(self.at.number, self.threshold)
    }

    fn is_small(&self) -> bool {
        self.share.is_small(self.threshold)
    }

    async fn give(&self, transfer: Transfer, spread: Spread) -> Did {
        let layout = self.share.layout.turned(spread);
        let layout = layout.as_ref().unwrap_or(&self.share.layout);
        let Some(moving) = layout.moving(transfer) else { return Did::Fits };
        let Some(_under_way) = self.core.inner.shared.pauses.handoff() else { return Did::Failed };
        let giving = Giving::new(self.core, self.at, &self.share, (transfer, spread), moving);
        let Some(giving) = giving else { return Did::Failed };
        match giving.run().await {
            Parted::Moved => Did::Gave,
            Parted::Refused => Did::Refused,
            Parted::Failed => Did::Failed,
        }
    }

    /// Splits the partition, or merges it, by `transfer`. There is no other target.
    async fn give_alone(&self, transfer: Transfer) -> Did {
        match self.give(transfer, Spread::Extendible).await {
            Did::Refused => Did::Failed,
            did => did,
        }
    }

    /// Makes the first of these transfers whose target has time.
    async fn give_one(&self, transfers: &[Transfer]) -> Did {
        for transfer in transfers {
            match self.give(*transfer, Spread::Subsets).await {
                Did::Refused => {}
                did => return did,
            }
        }
        Did::Refused
    }

    /// Splits the partition when it is too large. Merges it into the one that it was split off from
    /// when both are small.
    async fn splits(&self, splits: &Splits) -> Did {
        let (number, policy) = (self.at.number, self.share.policy);
        if self.is_large() {
            let transfer = splits.split(number, self.partitions_max());
            let transfer = transfer.filter(|_| policy.spread() == Spread::Extendible);
            return match transfer {
                Some(transfer) => self.give_alone(transfer).await,
                None => Did::Full,
            };
        }
        if !self.is_small() {
            return Did::Fits;
        }
        if let Some(transfer) = splits.merge(number).filter(|_| number >= policy.partitions()) {
            let Some(theirs) = self.share_of(transfer.target).await else { return Did::Failed };
            let entries = theirs.entries.saturating_add(self.share.entries);
            let mut layout = self.share.layout.clone();
            layout.learn(&theirs.layout);
            // The target may have split since.
            let merges = layout.moving(transfer).is_some();
            if merges && entries.saturating_mul(4) <= self.threshold {
                return self.give_alone(transfer).await;
            }
            return Did::Fits;
        }
        // The partition that was split off last may be small as well, and must be told to look.
        let into_this =
            |from: &u16| splits.merge(*from).is_some_and(|transfer| transfer.target == number);
        let youngest = self.share.layout.active().find(into_this);
        if let Some(youngest) = youngest.filter(|youngest| *youngest >= policy.partitions()) {
            self.tell(youngest, &self.share.layout).await;
        }
        Did::Fits
    }

    /// Gives what a step of subsets asks of this partition. The master also decides on steps.
    async fn subsets(&self, subsets: &Subsets) -> Did {
        let is_master = self.at.number == 0;
        let mine: Vec<Transfer> = subsets.transfers_of(self.at.number).collect();
        if !mine.is_empty() {
            let did = self.give_one(&mine).await;
            if is_master && !matches!(did, Did::Gave) {
                self.tell_sources(subsets).await;
            }
            return did;
        }
        if !is_master {
            if self.is_large() || self.is_small() {
                self.tell(0, &self.share.layout).await;
            }
            return Did::Fits;
        }
        if !subsets.is_settled() {
            // A source that has heard of the step goes on until it has given everything. The
            // others, and those that were not there, hear again.
            self.tell_sources(subsets).await;
            return Did::Failed;
        }
        let mut entries = self.share.entries;
        for other in 1..subsets.count() {
            let Some(theirs) = self.share_of(other).await else { return Did::Failed };
            entries = entries.saturating_add(theirs.entries);
        }
        let least = self.share.policy.partitions();
        let wanted = Subsets::wanted(subsets.count(), entries, self.threshold, least);
        let Some(begun) = subsets.begin(wanted, self.shards()) else { return Did::Fits };
        let did = self.change(Layout::Subsets(begun.clone())).await;
        if matches!(did, Did::Changed) {
            self.tell_sources(&begun).await;
        }
        did
    }

    /// Tells all other sources of the step that is under way.
    async fn tell_sources(&self, subsets: &Subsets) {
        let layout = Layout::Subsets(subsets.clone());
        let gives = |source: &u16| subsets.transfers_of(*source).next().is_some();
        let others: Vec<u16> =
            layout.active().filter(|other| *other != self.at.number).filter(gives).collect();
        for some in others.chunks(TOLD_MAX) {
            join_all(some.iter().map(|other| self.tell(*other, &layout))).await;
        }
    }

    /// Begins to divide the directory into subsets, if the partition is too large.
    async fn turn(&self) -> Did {
        if !self.is_large() {
            return Did::Fits;
        }
        match self.share.layout.turned(Spread::Subsets) {
            Some(turned) => self.change(turned).await,
            None => Did::Full,
        }
    }

    async fn change(&self, layout: Layout) -> Did {
        if self.tell(self.at.number, &layout).await { Did::Changed } else { Did::Failed }
    }

    /// Tells another partition, or this one, how the directory is divided, so that it looks for
    /// names to give.
    async fn tell(&self, partition: u16, layout: &Layout) -> bool {
        tell(self.core, self.at.dir, &self.share, partition, layout).await
    }

    /// Reads the share of another partition; `None` when it cannot be known now.
    async fn share_of(&self, number: u16) -> Option<Content> {
        let shared = &self.core.inner.shared;
        let placement = shared.config.placement();
        let at = Partition::of(self.share.home, self.at.dir, number, placement);
        let cluster = shared.cluster.as_ref()?;
        let server = cluster.server_of_key(&at.share())?;
        let found = if server == cluster.me {
            read::<Content>(shared, &at.share()).ok()?
        } else {
            let keys = vec![Bytes::copy_from_slice(&at.share())];
            let request = Request::PeerRead(PeerRead {
                keys,
                inos: vec![self.share.ino],
                hold: None,
                confirmed: false,
                session: None,
            });
            let Ok(Reply::Values(values)) = self.core.inner.peers.ask(server, &request).await
            else {
                return None;
            };
            let value = values.into_iter().next().flatten();
            value.map(|value| Content::from_record(&value)).transpose().ok()?
        };
        found.filter(|found| found.ino == self.share.ino)
    }
}
