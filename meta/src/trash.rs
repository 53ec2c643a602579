//! Trash: what is removed is kept for some days, and can be put back where it was.
//!
//! `ops::{unlink, rmdir, rename}` hand it what loses its last name; it moves that to `/.trash/YYYY-MM-DD-HH/` in
//! the same transaction, under `PARENT-INO-NAME`, with a record beside the entry that says where it was. An inode
//! stays what it is, and a directory keeps its id, so a tree that was removed name by name finds together again.
//! What is removed within the trash is removed; a background task does it when the days are over.
//!
//! Without a setting nothing of this reads or writes anything.
//!
//! Invariant: an entry in a directory of an hour has its origin beside it, and no other entry has one.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use base::{DirId, EntryName, FsError, Ino, Time, limits::NAME_BYTES_MAX};
use parking_lot::Mutex;

use crate::{
    Core,
    core::Step,
    error::{Result, describe},
    lock,
    ops::{mkdir, rename, rmdir},
    record::{
        EntryRecord, QuotaId, QuotaRecord, QuotaState, Record as _, Trash, TrashSetting, Usage,
        key, key::Part, system::Origin,
    },
    txn::{Caller, Dir, Located, Place, Steps, Txn},
};

/// What the trash is called in the root directory, which does not list it.
pub(crate) const NAME: &[u8] = b".trash";
/// How often it is looked for what is too old.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many names one step removes.
const NAMES_A_STEP: usize = 64;
/// Of how many directories that were born under one name and are not there any more an empty one is still kept:
/// `mkdir` passes by all of them.
const ELSEWHERE_MAX: usize = 16;

const HOUR_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;

/// Where something is thrown: the directory of the hour, and where it was.
struct Thrown {
    hour: Dir,
    name: EntryName,
}

/// Moves a file, of which `entry` is the last name, to the trash; the entry in `dir` is then removed, and the rest is
/// the caller's. `false` when there is no trash, or it is where it is removed from.
pub(crate) fn file(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    located: &mut Located,
) -> Result<bool> {
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, located.inode.ino)? else {
        return Ok(false);
    };
    let used = Usage::of(1, located.inode.attr().allocated);
    if located.place != Place::Slot {
        txn.charge_freely(located.inode.quota, used.minus());
        txn.charge_freely(hour.content.quota, used);
        located.inode.quota = hour.content.quota;
    }
    located.inode.times.ctime = txn.now;
    let xattrs = if located.place == Place::Slot { None } else { txn.lift_xattrs(located)? };
    txn.delete_entry(dir, name);
    if located.place == Place::Slot {
        txn.put_inode(located);
        txn.put_entry(&hour, &called, &EntryRecord::Link(located.inode.ino));
    } else {
        txn.settle_inode(located, Place::under(txn, &hour, &called), xattrs);
    }
    hour.content.entries += 1;
    txn.touch(&mut hour);
    txn.put_dir(&hour);
    Ok(true)
}

/// Moves an empty directory to the trash; as [`file`]. `false` too where [`ELSEWHERE_MAX`] of its name are elsewhere.
pub(crate) fn directory(
    txn: &mut Txn<'_>,
    dir: &Dir,
    name: &EntryName,
    child: &mut Dir,
) -> Result<bool> {
    let keeps = txn.settings().trash.0.is_some_and(|trash| trash.days > 0);
    if !keeps || rename::others_elsewhere(txn, child)? >= ELSEWHERE_MAX {
        return Ok(false);
    }
    let Some(Thrown { mut hour, name: called }) = throw(txn, dir, name, child.content.ino)? else {
        return Ok(false);
    };
    let was = child.content.quota;
    if was == QuotaId(child.content.ino)
        && let Some(seen) = txn.shared.quotas.get(was)
    {
        txn.put_quota(was, &QuotaRecord { state: QuotaState::Gone, ..seen.record });
    }
    txn.charge_freely(was, Usage::of(1, 0).minus());
    txn.charge_freely(hour.content.quota, Usage::of(1, 0));
    child.content.quota = hour.content.quota;
    child.content.times.ctime = txn.now;
    txn.delete_entry(dir, name);
    rename::note_move(txn, child, &hour, &called)?;
    txn.put_entry(&hour, &called, &EntryRecord::Dir(Txn::access_of(child)));
    txn.put_everywhere(child)?;
    txn.events.push(child.id);
    hour.content.entries += 1;
    hour.content.subdirs = hour.content.subdirs.saturating_add(1);
    txn.touch(&mut hour);
    txn.put_dir(&hour);
    Ok(true)
}

/// An entry leaves `dir`: if that is the directory of an hour, its origin goes.
pub(crate) fn leave(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName) {
    if txn.settings().trash.0.is_some_and(|trash| trash.dir == dir.content.parent) {
        let key = txn.entry_key(dir, name, Part::Origin);
        txn.delete(key);
    }
}

/// Whether it is the trash itself, which stays where it is.
pub(crate) fn is_trash(txn: &Txn<'_>, dir: DirId) -> bool {
    txn.settings().trash.0.is_some_and(|trash| trash.dir == dir)
}

/// Sets for how many days things are kept; 0: they are removed as ever, and so is what is there, in the background.
pub(crate) fn set(txn: &mut Txn<'_>, root: &Dir, days: u32) -> Result<()> {
    let mut settings = txn.settings();
    let trash = match settings.trash.0 {
        Some(trash) => Trash { days, ..trash },
        None if days == 0 => return Ok(()),
        None => {
            let name = EntryName::new(NAME).expect("it is a name");
            let made = make(txn, root, &name)?;
            Trash { days, dir: made.id, home: made.content.home, ino: made.content.ino }
        }
    };
    settings.trash = TrashSetting(Some(trash));
    txn.set_settings(settings)
}

/// Makes a directory for root alone.
fn make(txn: &mut Txn<'_>, above: &Dir, name: &EntryName) -> Result<Dir> {
    let caller = std::mem::replace(&mut txn.caller, Caller::SERVER);
    let dir = txn.dir_ref(above.id, above.content.ino, above.content.home);
    let request = wire::Mkdir { dir, name: name.clone(), mode: 0o700 };
    let made =
        mkdir::run(txn, &request).and_then(|made| txn.master_locked(&made.dir.ok_or(FsError::Io)?));
    txn.caller = caller;
    made
}

/// Where to, and writes down where from.
fn throw(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName, ino: Ino) -> Result<Option<Thrown>> {
    let Some(trash) = txn.settings().trash.0.filter(|trash| trash.days > 0) else {
        return Ok(None);
    };
    let Some(mut path) = path_outside(txn, &trash, dir)? else { return Ok(None) };
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    let hour = hour(txn, &trash)?;
    let called = free_name(txn, &hour, (dir.content.ino, ino, name))?;
    let origin = Origin {
        dir: dir.id,
        home: dir.content.home,
        ino: dir.content.ino,
        name: name.clone(),
        path: path.into(),
        removed: txn.now,
    };
    let key = txn.entry_key(&hour, &called, Part::Origin);
    txn.put(key, &origin);
    Ok(Some(Thrown { hour, name: called }))
}

/// The path of a directory without a `/` at its end; `None` within the trash.
fn path_outside(txn: &Txn<'_>, trash: &Trash, dir: &Dir) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let (mut at, mut steps) = (dir.clone(), Steps::from(dir.id));
    while at.id != DirId::ROOT {
        if at.id == trash.dir {
            return Ok(None);
        }
        names.push(at.content.name.clone());
        at = txn.settled(|txn| txn.parent(&at))?;
        steps.step(at.id)?;
    }
    let mut path = Vec::new();
    for name in names.iter().rev().flatten() {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    Ok(Some(path))
}

/// The directory of this hour.
fn hour(txn: &mut Txn<'_>, trash: &Trash) -> Result<Dir> {
    txn.lock(lock::dir_lock(trash.dir))?;
    let content = txn.get_content(&txn.content_key(trash.home, trash.dir))?.ok_or(FsError::Io)?;
    let above = Dir::master(trash.dir, content);
    let name = name_of_hour(txn.now);
    match txn.entry(&above, &name)? {
        Some(EntryRecord::Dir(access)) => txn.child_locked(&access),
        // Root has made something else of it.
        Some(EntryRecord::Node(_) | EntryRecord::Link(_)) => Err(FsError::Io.into()),
        None => make(txn, &above, &name),
    }
}

/// What it is called in the hour. What was put back and is removed again may find its name taken by what was put
/// there since: it gets a number more.
fn free_name(txn: &Txn<'_>, hour: &Dir, of: (Ino, Ino, &EntryName)) -> Result<EntryName> {
    let mut count = 1;
    loop {
        let name = called(of, count);
        if txn.entry(hour, &name)?.is_none() {
            return Ok(name);
        }
        count += 1;
    }
}

/// `PARENT-INO-NAME`, or `PARENT-INO-NAME~COUNT` for all but the first; of a long name only the beginning.
fn called((parent, ino, name): (Ino, Ino, &EntryName), count: u64) -> EntryName {
    let mut called = format!("{}-{}-", parent.0, ino.0).into_bytes();
    called.extend_from_slice(name.as_bytes());
    let suffix = if count > 1 { format!("~{count}") } else { String::new() };
    called.truncate(NAME_BYTES_MAX - suffix.len());
    called.extend_from_slice(suffix.as_bytes());
    EntryName::new(&called).expect("numbers before a part of a name are a name")
}

/// `YYYY-MM-DD-HH`, in UTC.
fn name_of_hour(now: Time) -> EntryName {
    let days = now.sec.div_euclid(DAY_SECONDS);
    let hour = now.sec.rem_euclid(DAY_SECONDS) / HOUR_SECONDS;
    let (year, month, day) = civil(days);
    let text = format!("{year:04}-{month:02}-{day:02}-{hour:02}");
    EntryName::new(text.as_bytes()).expect("digits and dashes are a name")
}

/// When an hour began; `None` for a name that is none.
fn begin_of_hour(name: &EntryName) -> Option<i64> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let numbers: Vec<i64> =
        text.split('-').map(|part| part.parse().ok()).collect::<Option<Vec<i64>>>()?;
    let [year, month, day, hour] = numbers[..] else { return None };
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day) && (0..24).contains(&hour);
    (is_date && (0..10_000).contains(&year))
        .then(|| days_to(year, month, day) * DAY_SECONDS + hour * HOUR_SECONDS)
}

/// Year, month and day of a day since 1970 (Hinnant, `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// The opposite (`days_from_civil`).
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Where something in the trash goes when it is put back, and when it was removed.
pub(crate) fn origin(
    txn: &Txn<'_>,
    (dir, home): (DirId, DirId),
    name: &EntryName,
) -> Result<Option<(Vec<u8>, Time)>> {
    let Some(trash) = txn.settings().trash.0 else { return Ok(None) };
    let key = txn.name_key(home, dir, name, Part::Origin);
    let Some(origin) = txn.get::<Origin>(&key)? else { return Ok(None) };
    let removed = origin.removed;
    let content = txn.get_content(&txn.content_key(origin.home, origin.dir))?;
    let content = content.filter(|content| content.ino == origin.ino);
    let Some(content) = content else { return Ok(Some((origin.path.to_vec(), removed))) };
    let above = Dir::master(origin.dir, content);
    // It may have been moved since. If it is in the trash itself, it was where the path says.
    let path = match path_outside(txn, &trash, &above)? {
        None => origin.path.to_vec(),
        Some(path) => [&path[..], b"/", origin.name.as_bytes()].concat(),
    };
    Ok(Some((path, removed)))
}

/// A part of an hour that is over, as a step of a core.
pub(crate) struct Expired {
    hour: EntryName,
    /// Whether there is more.
    more: Mutex<bool>,
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        for hour in over(&core) {
            loop {
                let expired = Arc::new(Expired { hour: hour.clone(), more: Mutex::new(false) });
                core.step(Step::Expire(expired.clone())).await;
                if !*expired.more.lock() {
                    break;
                }
            }
        }
    }
}

/// The hours that are over.
fn over(core: &Core) -> Vec<EntryName> {
    let shared = &core.inner.shared;
    let Some(trash) = shared.settings().trash.0 else { return Vec::new() };
    let shard = base::placement::shard_of(trash.home, 0, shared.config.shards);
    let prefix = key::names(shard, trash.dir);
    let kept = i64::from(trash.days) * DAY_SECONDS;
    let before = shared.clock.now().sec.saturating_sub(kept + HOUR_SECONDS);
    let mut found = Vec::new();
    let scanned = shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, _| {
        if let Some((_, name, 0)) = key::parse_name(key)
            && let Ok(name) = EntryName::new(name)
            && begin_of_hour(&name).is_some_and(|begin| begin <= before)
        {
            found.push(name);
        }
        ControlFlow::Continue(())
    });
    if let Err(error) = scanned {
        tracing::error!(error = describe(&error), "cannot list the trash");
    }
    found
}

/// Removes some of what is in an hour, for good; the hour when it is empty.
pub(crate) fn step(txn: &mut Txn<'_>, expired: &Expired) -> Result<()> {
    *expired.more.lock() = false;
    let Some(trash) = txn.settings().trash.0 else { return Ok(()) };
    txn.lock(lock::dir_lock(trash.dir))?;
    let content = txn.get_content(&txn.content_key(trash.home, trash.dir))?.ok_or(FsError::Io)?;
    let mut above = Dir::master(trash.dir, content);
    let Some(EntryRecord::Dir(access)) = txn.entry(&above, &expired.hour)? else { return Ok(()) };
    let mut at = txn.child_locked(&access)?;
    let mut found = page(txn, &at)?;
    // Something may have been put into a directory that is in the trash: the deepest goes first.
    while let Some(inner) = inner(txn, &found)? {
        at = inner;
        found = page(txn, &at)?;
    }
    let is_hour = at.id == access.id;
    if found.is_empty() && is_hour {
        rmdir::remove(txn, &at, &[])?;
        txn.delete_entry(&above, &expired.hour);
        above.content.entries = above.content.entries.saturating_sub(1);
        above.content.subdirs = above.content.subdirs.saturating_sub(1);
        txn.put_dir(&above);
        return Ok(());
    }
    for (name, entry) in &found {
        remove(txn, &mut at, name, entry)?;
    }
    txn.touch(&mut at);
    txn.put_dir(&at);
    // Only now: after a failure it is tried again in a while, not at once.
    *expired.more.lock() = !found.is_empty();
    Ok(())
}

type Page = Vec<(EntryName, EntryRecord)>;

fn page(txn: &Txn<'_>, dir: &Dir) -> Result<Page> {
    let mut found = Page::new();
    let prefix = key::names(txn.shard(dir.content.home), dir.id);
    txn.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        if let Some((_, name, 0)) = key::parse_name(key) {
            let record = EntryRecord::from_record(&bytes::Bytes::copy_from_slice(value));
            // What is damaged is `fsck`'s.
            found.extend(EntryName::new(name).ok().zip(record.ok()));
        }
        if found.len() < NAMES_A_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// A directory among them that is not empty.
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

fn remove(txn: &mut Txn<'_>, dir: &mut Dir, name: &EntryName, entry: &EntryRecord) -> Result<()> {
    match entry {
        EntryRecord::Dir(access) => {
            let child = txn.child_locked(access)?;
            let others = rmdir::others_empty(txn, &child)?;
            rmdir::remove(txn, &child, &others)?;
            dir.content.subdirs = dir.content.subdirs.saturating_sub(1);
            txn.delete_entry(dir, name);
        }
        EntryRecord::Node(_) | EntryRecord::Link(_) => {
            // Where cores share the locks the entry is read again, so it goes after that.
            let located = txn.entry_inode_locked(dir, name, entry)?;
            txn.delete_entry(dir, name);
            txn.drop_name(located)?;
        }
    }
    leave(txn, dir, name);
    dir.content.entries = dir.content.entries.saturating_sub(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_named_and_read_again() {
        let named = |sec| name_of_hour(Time { sec, nsec: 0 }).to_string();
        assert_eq!(named(0), "1970-01-01-00");
        assert_eq!(named(951_782_400 + 23 * 3600 + 59), "2000-02-29-23");
        assert_eq!(named(1_795_280_400), "2026-11-21-17");
        for sec in (0..4_000_000_000).step_by(99_991) {
            let begin = begin_of_hour(&name_of_hour(Time { sec, nsec: 0 }));
            assert_eq!(begin, Some(sec - sec % HOUR_SECONDS));
        }
        for none in ["x", "2026-11-21", "2026-13-01-00", "2026-01-01-24", "2026-01-01-00-1"] {
            assert_eq!(begin_of_hour(&EntryName::new(none.as_bytes()).unwrap()), None);
        }
    }
}
