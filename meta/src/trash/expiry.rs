//! Removes for good, in the background, what has been in the trash for its days.
//!
//! Each server empties its own trash. Entries there may lead to inodes of other servers, so with
//! several servers a step runs as a transaction.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use base::{EntryName, FsError};
use parking_lot::Mutex;
use store::Batch;
use tokio::time::Instant;

use super::{
    file_leaves,
    hours::{self, DAY_SECONDS, HOUR_SECONDS},
    leave,
    place::{self, Above},
};
use crate::{
    Core, Problem,
    error::{Fault, Result, describe},
    lock, moves,
    record::{EntryRecord, Key, Lived, Record as _, key},
    server::Shared,
    space_guard::Level,
    step::Step,
    transact,
    txn::{Dir, Txn, removal},
};

/// Seconds by which the time of the trash advances at most per second that the server runs.
const CATCHES_UP: i64 = 2;
/// Interval between searches for hours that are over.
const INTERVAL: Duration = Duration::from_secs(60);
/// Number of names that one step removes.
const NAMES_A_STEP: usize = 64;

/// Removal of a part of an hour that is over, as a step of a core.
struct Expired {
    above: Above,
    hour: EntryName,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Key of the last name that was looked at.
    after: Option<Key>,
    /// Key after which the next step continues, if this step commits.
    next: Option<Key>,
    /// Whether there are more names.
    more: bool,
}

/// Empties the trash for as long as the server runs.
pub(crate) async fn run(core: Core) {
    moves::until_owner(&core.inner.shared).await;
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let ran = std::mem::replace(&mut looked, Instant::now()).elapsed();
        let now = match time(&core.inner.shared, ran) {
            Ok(Some(now)) => now,
            Ok(None) => continue,
            Err(error) => {
                core.inner.shared.halt(Problem::of(&error));
                continue;
            }
        };
        for (above, hour) in over(&core, now) {
            let expired = Arc::new(Expired { above, hour, progress: Mutex::default() });
            loop {
                expired.progress.lock().more = false;
                done(&core, &expired).await;
                let mut progress = expired.progress.lock();
                if !progress.more {
                    break;
                }
                progress.after = progress.next.take();
            }
        }
    }
}

async fn done(core: &Core, expired: &Arc<Expired>) {
    let expires = Arc::clone(expired);
    let run = move |txn: &mut Txn<'_>| step(txn, &expires);
    if core.inner.shared.cluster.is_none() {
        core.step(run).await;
        return;
    }
    core.inner.shared.space_guard.until(Level::Low).await;
    let fails = "some of the trash cannot be removed";
    if !transact::run::once(core, Step::new(run), fails).await {
        // The obstacle may be gone the next time.
        expired.progress.lock().more = false;
    }
}

/// The time of the trash, advanced by `ran`, the time that the server ran since the last call;
/// `None` when the trash is not to be emptied.
///
/// The wall clock may be wrong, above all after a machine has started, and removed files cannot be
/// restored. So the time of the trash is stored. It advances by no more than twice the time that
/// the server runs, and never beyond the wall clock. It falls behind while the server is off, and
/// catches up afterwards. Files stay in the trash for half of their days whatever the clock does.
fn time(shared: &Shared, ran: Duration) -> std::result::Result<Option<i64>, store::Error> {
    let stored = shared.engine.get(&key::lived())?;
    if shared.space_guard.level() == Level::Nothing {
        return Ok(None);
    }
    let (wall, mut batch) = (shared.clock.now().sec, Batch::default());
    let kept = shared.settings().trash.0;
    let time = match (&stored, kept) {
        (None, None) => return Ok(None),
        (Some(_), None) => None,
        // `fsck` mends a damaged record. Here the time begins anew.
        (stored, Some(_)) => {
            let stored = stored.as_ref().and_then(|stored| Lived::from_record(stored).ok());
            let ran = i64::try_from(ran.as_secs()).unwrap_or(i64::MAX);
            let on = |last: Lived| last.sec.saturating_add(ran.saturating_mul(CATCHES_UP));
            Some(stored.map_or(wall, |last| on(last).min(wall)))
        }
    };
    match time {
        Some(sec) => batch.put(&key::lived(), &Lived { sec }.to_record()),
        None => batch.delete(&key::lived()),
    }
    shared.put(batch)?;
    // With 0 days the trash is emptied at once.
    let empties = kept.is_some_and(|trash| trash.days == 0);
    Ok(if empties { Some(wall) } else { time })
}

/// Hours that are over, each with the directory that it is in.
fn over(core: &Core, now: i64) -> Vec<(Above, EntryName)> {
    let shared = &core.inner.shared;
    let Some(trash) = shared.settings().trash.0 else { return Vec::new() };
    let mut found = Vec::new();
    let kept = i64::from(trash.days) * DAY_SECONDS;
    let before = now.saturating_sub(kept + HOUR_SECONDS);
    let scanned = place::above(shared, &trash).and_then(|all| {
        all.into_iter().try_for_each(|above| {
            let shard = shared.config.placement().shard_of(above.home, 0);
            let prefix = key::names(shard, above.id);
            shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
                if let Some((_, name, 0)) = key::parse_name(key)
                    && let Ok(name) = EntryName::new(name)
                    && hours::begin_of(&name).is_some_and(|begin| begin <= before)
                    && place::is_here(shared, value)
                {
                    found.push((above, name));
                }
                ControlFlow::Continue(())
            })
        })
    });
    if let Err(error) = scanned {
        tracing::error!(error = describe(&error), "cannot list the trash");
    }
    found
}

/// Removes some of an hour's names for good, and the hour's directory once it is empty.
fn step(txn: &mut Txn<'_>, expired: &Expired) -> Result<()> {
    let Above { id, home } = expired.above;
    txn.lock(lock::dir_lock(id))?;
    let content = txn.get_content(&txn.content_key(home, id))?.ok_or(FsError::Io)?;
    let mut above = Dir::master(id, content);
    let Some(EntryRecord::Dir(access)) = txn.entry(&above, &expired.hour)? else { return Ok(()) };
    let mut at = txn.child_locked(&access)?;
    let after = expired.progress.lock().after.clone();
    let (mut found, mut last) = page(txn, &at, after)?;
    if txn.shared.cluster.is_none() {
        // Something may have been put into a directory in the trash: the deepest goes first.
        while let Some(inner) = inner(txn, &found)? {
            at = inner;
            (found, last) = page(txn, &at, None)?;
        }
    }
    let is_hour = at.id == access.id;
    if found.is_empty() && is_hour {
        return end(txn, &mut above, &expired.hour, &at);
    }
    let mut stay = false;
    for (name, entry) in &found {
        stay |= !remove(txn, &mut at, name, entry)?;
    }
    txn.touch(&mut at);
    txn.put_dir(&at);
    let mut progress = expired.progress.lock();
    // Only now: after a failure the next try comes in a while, not at once.
    progress.more = !found.is_empty();
    progress.next = if stay || progress.after.is_some() { last } else { None };
    Ok(())
}

/// Removes an empty hour.
fn end(txn: &mut Txn<'_>, above: &mut Dir, name: &EntryName, hour: &Dir) -> Result<()> {
    let others = match removal::others_empty(txn, hour) {
        Ok(others) => others,
        // Something stays in the hour, or has come meanwhile.
        Err(Fault::Answer(FsError::NotEmpty)) => return Ok(()),
        Err(fault) => return Err(fault),
    };
    removal::remove(txn, hour, &others)?;
    txn.delete_entry(above, name);
    above.content.entries = above.content.entries.saturating_sub(1);
    above.content.subdirs = above.content.subdirs.saturating_sub(1);
    txn.put_dir(above);
    Ok(())
}

type Page = Vec<(EntryName, EntryRecord)>;

/// Some names of a directory, after the key `after`, and the last key of them.
fn page(txn: &Txn<'_>, dir: &Dir, after: Option<Key>) -> Result<(Page, Option<Key>)> {
    let (mut found, mut last) = (Page::new(), None);
    let prefix = key::names(txn.shard(dir.content.home), dir.id);
    let from = after.map_or_else(
        || prefix.clone(),
        |mut after| {
            after.push(0);
            after
        },
    );
    txn.scan(&from, &key::end_of(&prefix), &mut |key, value| {
        if let Some((_, name, 0)) = key::parse_name(key) {
            let record = EntryRecord::from_record(&bytes::Bytes::copy_from_slice(value));
            // Damaged entries are left to `fsck`.
            found.extend(EntryName::new(name).ok().zip(record.ok()));
            last = Some(Key::from_slice(key));
        }
        if found.len() < NAMES_A_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok((found, last))
}

/// A directory among `found` that is not empty.
fn inner(txn: &mut Txn<'_>, found: &Page) -> Result<Option<Dir>> {
    for (_, entry) in found {
        if let EntryRecord::Dir(access) = entry {
            let child = txn.child_locked(access)?;
            if child.content.entries > 0 {
                return Ok(Some(child));
            }
        }
    }
    Ok(None)
}

/// Removes one entry; `false` for a directory that is not empty, because root has put something
/// there.
fn remove(txn: &mut Txn<'_>, dir: &mut Dir, name: &EntryName, entry: &EntryRecord) -> Result<bool> {
    match entry {
        EntryRecord::Dir(access) => {
            let child = txn.child_locked(access)?;
            let others = match removal::others_empty(txn, &child) {
                Ok(others) => others,
                Err(Fault::Answer(FsError::NotEmpty)) => return Ok(false),
                Err(fault) => return Err(fault),
            };
            removal::remove(txn, &child, &others)?;
            dir.content.subdirs = dir.content.subdirs.saturating_sub(1);
            txn.delete_entry(dir, name);
            leave(txn, dir, name);
        }
        EntryRecord::Node(_) | EntryRecord::Link(_) => {
            // Where cores share the locks the entry is read again, so it is deleted after that.
            let mut located = txn.entry_inode_locked(dir, name, entry)?;
            file_leaves(txn, dir, name, &mut located)?;
            txn.delete_entry(dir, name);
            txn.drop_name(located)?;
        }
    }
    dir.content.entries = dir.content.entries.saturating_sub(1);
    Ok(true)
}
