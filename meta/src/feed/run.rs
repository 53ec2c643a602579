//! The feed's own work: it is switched on for the first watcher, off when none has come for long,
//! and its oldest changes are removed when there are too many.

use std::{ops::ControlFlow, time::Duration};

use bytes::Bytes;
use tokio::time::sleep;

use super::{FeedState, Logged};
use crate::{
    Core,
    error::Result,
    record::{Content, Record as _, key},
    server::Shared,
    txn::Txn,
};

/// Between two looks at a feed that is on.
const PAUSE: Duration = Duration::from_secs(1);
/// The time for which a watcher that waits will be back, in seconds.
const WAITING_SECS: u32 = 60;
/// Looks after which the state is stored, if it has changed.
const STORED_EVERY: u32 = 5;
/// Most records that one step removes.
const REMOVED_MAX: usize = 1024;

/// Looks after the feed for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = &core.inner.shared;
    let feed = &shared.feed;
    let mut stored = feed.state.lock().stored;
    loop {
        if !feed.is_on() {
            clear(&core).await;
            feed.wanted.notified().await;
            if !begin(&core).await {
                continue;
            }
            stored = feed.state.lock().stored;
        }
        for look in 1.. {
            sleep(PAUSE).await;
            let now = shared.clock.now();
            if feed.told.receiver_count() > 0 {
                feed.watched(now, WAITING_SECS);
            }
            while let Some(more) = too_many(shared) {
                if !remove(&core, more.min(REMOVED_MAX)).await {
                    break;
                }
            }
            let state = feed.state.lock().stored;
            let state = FeedState { whole: feed.told(), ..state };
            if now >= state.until {
                feed.end();
                break;
            }
            if look % STORED_EVERY == 0 && state != stored {
                store(&core, state).await;
                stored = state;
            }
        }
    }
}

/// How many changes more there are than are kept, if there are.
fn too_many(shared: &Shared) -> Option<usize> {
    let count = shared.feed.state.lock().stored.count;
    let more = count.checked_sub(shared.options.limits.feed_events_max).filter(|more| *more > 0);
    more.map(|more| usize::try_from(more).unwrap_or(usize::MAX))
}

/// Stores the state of the feed; `None` when the step was refused.
async fn store(core: &Core, state: FeedState) -> Option<()> {
    let puts = move |txn: &mut Txn<'_>| {
        txn.put(key::feed(), &state);
        Ok(())
    };
    core.step(puts).await
}

/// Begins to record changes. `false`: not now.
async fn begin(core: &Core) -> bool {
    let shared = &core.inner.shared;
    let feed = &shared.feed;
    let begun = feed.state.lock().stored.begun(shared.clock.now());
    let first = super::begin_of(begun.run);
    let begun = FeedState { pruned: first, count: 0, whole: first, ..begun };
    if store(core, begun).await.is_none() {
        return false;
    }
    // A watcher may have asked for more meanwhile.
    let until = feed.state.lock().stored.until;
    feed.begin(FeedState { until, ..begun }, first);
    feed.record();
    // Race: another core may have executed something unrecorded that is not written yet.
    shared.gate.settled().await;
    feed.open();
    tracing::info!("the change feed is on: somebody watches");
    true
}

/// Removes all changes of a feed that is off.
async fn clear(core: &Core) {
    let shared = &core.inner.shared;
    // A group that began while the feed was on may still write changes.
    shared.gate.settled().await;
    let any = matches!(oldest(shared, 1), Ok(oldest) if !oldest.is_empty());
    if !any {
        return;
    }
    let state = shared.feed.state.lock().stored;
    let clears = move |txn: &mut Txn<'_>| {
        txn.delete_prefix(&key::feed())?;
        txn.delete_prefix(&key::works(b'V'))?;
        txn.put(key::feed(), &FeedState { count: 0, ..state });
        Ok(())
    };
    if core.step(clears).await.is_some() {
        tracing::info!("the change feed is off: nobody has watched for long");
    }
}

/// Removes the oldest changes, `max` at most. Returns whether there were any.
async fn remove(core: &Core, max: usize) -> bool {
    let shared = &core.inner.shared;
    let oldest = match oldest(shared, max) {
        Ok(oldest) => oldest,
        Err(error) => {
            tracing::error!(?error, "the change feed cannot be read");
            return false;
        }
    };
    let Some((last, _)) = oldest.last() else { return false };
    let removed = u64::try_from(oldest.len()).unwrap_or(u64::MAX);
    let state = {
        // Before they are removed: a reader must not take what is gone for what never was.
        let mut state = shared.feed.state.lock();
        state.stored.pruned = state.stored.pruned.max(*last);
        FeedState { count: state.stored.count.saturating_sub(removed), ..state.stored }
    };
    let state = FeedState { whole: shared.feed.told(), ..state };
    let removes = move |txn: &mut Txn<'_>| {
        for (position, logged) in &oldest {
            txn.delete(key::feed_event(*position));
            if let Some(logged) = logged {
                forget(txn, logged)?;
            }
        }
        txn.put(key::feed(), &state);
        Ok(())
    };
    let is_done = core.step(removes).await.is_some();
    if is_done {
        let mut state = shared.feed.state.lock();
        state.stored.count = state.stored.count.saturating_sub(removed);
    }
    is_done
}

/// Forgets a directory of the past with the change that says when it was removed, unless it was
/// removed again since.
fn forget(txn: &mut Txn<'_>, logged: &Logged) -> Result<()> {
    let Logged::Past(past) = logged else { return Ok(()) };
    let at = key::past(txn.shard(past.home), past.dir, past.ino);
    let kept = txn.get::<Content>(&at)?;
    if kept.is_some_and(|kept| kept.times.ctime <= past.time) {
        txn.delete(at);
    }
    Ok(())
}

/// The oldest changes, `max` at most; `None` in place of one that is damaged.
fn oldest(shared: &Shared, max: usize) -> Result<Vec<(u64, Option<Logged>)>> {
    let mut records = Vec::new();
    let first = shared.feed.state.lock().stored.pruned + 1;
    let (from, to) = (key::feed_event(first), key::end_of(&key::feed()));
    shared.engine.scan(&from, &to, &mut |at, value| {
        let Some(position) = key::parse_feed_event(at) else { return ControlFlow::Continue(()) };
        let logged = Logged::from_record(&Bytes::copy_from_slice(value)).ok();
        records.push((position, logged));
        if records.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(records)
}
