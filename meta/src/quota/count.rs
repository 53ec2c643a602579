//! Counting what is below a directory that gets a quota, and releasing what was below one that loses it.
//!
//! A walk in small transactions, each of a page of one directory, beside everything else that goes on. It
//! gives what it finds to the new root, directories before what they hold: so whatever is made meanwhile is
//! charged rightly by itself, and nothing is passed over. Directories that would cross the border while the
//! walk is under way wait for its end (see `ops::rename`). After a crash the walk begins anew, and finds most
//! of it done.

use std::{ops::ControlFlow, sync::Arc};

use base::{DirId, EntryName, Ino};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    Core,
    core::Step,
    error::Result,
    lock,
    record::{
        Content, EntryRecord, Inode, Key, QuotaId, QuotaRecord, QuotaState, Record as _, Slot,
        Usage, key, key::Part,
    },
    txn::{Dir, Txn},
};

/// How many records of a directory one step takes.
const RECORDS_A_STEP: usize = 256;

/// What counts from now on for another root.
#[derive(Debug, Clone, Copy)]
struct Border {
    from: QuotaId,
    to: QuotaId,
}

/// A directory to walk through.
#[derive(Debug, Clone, Copy)]
struct DirAt {
    id: DirId,
    home: DirId,
    ino: Ino,
}

/// A page of a directory.
pub(crate) struct Page {
    border: Border,
    dir: DirAt,
    /// Where the page begins; `None`: with the directory itself.
    start: Option<Key>,
    found: Arc<Mutex<Option<Found>>>,
}

#[derive(Default)]
struct Found {
    dirs: Vec<DirAt>,
    /// Where the next page begins.
    next: Option<Key>,
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        let mut walks = shared.quotas.unfinished();
        walks.sort_unstable_by_key(|(id, _)| *id);
        for (id, record) in walks {
            let border = match record.state {
                QuotaState::Counting => Border { from: QuotaId(record.parent), to: id },
                QuotaState::Removing => Border { from: id, to: QuotaId(record.parent) },
                QuotaState::Active | QuotaState::Gone => continue,
            };
            if walk(&core, DirAt { id: record.dir, home: record.home, ino: id.0 }, border).await {
                core.step(Step::Counted(id)).await;
            } else {
                tracing::error!(root = %record.dir, "a quota could not be counted; run `pando fsck`");
            }
        }
        shared.quotas.wake.notified().await;
    }
}

/// Whether all of it could be done.
async fn walk(core: &Core, top: DirAt, border: Border) -> bool {
    let mut dirs = vec![top];
    while let Some(dir) = dirs.pop() {
        let mut start = None;
        loop {
            let found = Arc::new(Mutex::new(None));
            let page = Page { border, dir, start, found: found.clone() };
            core.step(Step::Count(Box::new(page))).await;
            let Some(page) = found.lock().take() else { return false };
            dirs.extend(page.dirs);
            if page.next.is_none() {
                break;
            }
            start = page.next;
        }
    }
    true
}

/// Does a page.
pub(crate) fn step(txn: &mut Txn<'_>, page: &Page) -> Result<()> {
    let DirAt { id, home, ino } = page.dir;
    txn.lock(lock::dir_lock(id))?;
    let content: Option<Content> = txn.get(&txn.content_key(home, id))?;
    let mut found = Found::default();
    if let Some(content) = content.filter(|content| content.ino == ino) {
        let (own, quota) = (QuotaId(content.ino), content.quota);
        if quota == page.border.from || quota == page.border.to {
            found = entries(txn, page, Dir::master(id, content))?;
        } else if quota == own {
            inner_root(txn, own, page.border);
        }
        // Otherwise it was moved away after it was found.
    }
    *page.found.lock() = Some(found);
    Ok(())
}

/// A root below keeps what it has; it only counts elsewhere.
fn inner_root(txn: &mut Txn<'_>, id: QuotaId, border: Border) {
    let Some(seen) = txn.shared.quotas.get(id) else { return };
    if seen.record.parent == border.from.0 {
        txn.put_quota(id, &QuotaRecord { parent: border.to.0, ..seen.record });
    }
}

fn entries(txn: &mut Txn<'_>, page: &Page, mut dir: Dir) -> Result<Found> {
    let mut found = Found::default();
    let names = key::names(txn.shard(dir.content.home), dir.id);
    let start = page.start.clone().unwrap_or_else(|| names.clone());
    let mut records: Vec<(Key, Bytes)> = Vec::new();
    txn.scan(&start, &key::end_of(&names), &mut |key, value| {
        records.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
        let more = records.len() < RECORDS_A_STEP;
        if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if records.len() == RECORDS_A_STEP {
        found.next = records.last().map(|(key, _)| {
            let mut next = key.clone();
            next.push(0);
            next
        });
    }
    if dir.content.quota == page.border.from {
        move_usage(txn, page.border, Usage::of(1, 0));
        dir.content.quota = page.border.to;
        txn.put_dir(&dir);
    }
    for (key, value) in records {
        let Some((_, name, part)) = key::parse_name(&key) else { continue };
        if part == Part::Main as u8 && EntryName::new(name).is_ok() {
            let entry = EntryRecord::from_record(&value)?;
            found.dirs.extend(one_entry(txn, page.border, key, &entry)?);
        }
    }
    Ok(found)
}

/// Moves what stands under a name; a directory is left for later.
fn one_entry(
    txn: &mut Txn<'_>,
    border: Border,
    key: Key,
    entry: &EntryRecord,
) -> Result<Option<DirAt>> {
    match entry {
        EntryRecord::Dir(access) => {
            return Ok(Some(DirAt { id: access.id, home: access.home, ino: access.ino }));
        }
        EntryRecord::Node(inode) => {
            txn.lock(lock::ino_lock(inode.ino))?;
            // Race: who writes to the file has locked only the inode, and may just have changed it.
            if let Some(EntryRecord::Node(mut inode)) = txn.get(&key)?
                && moves(txn, border, &mut inode)
            {
                txn.put(key, &EntryRecord::Node(inode));
            }
        }
        EntryRecord::Link(ino) => {
            // A file with several names counts where it was made, or where it is found first.
            txn.lock(lock::ino_lock(*ino))?;
            let key = key::inode(*ino, Part::Main);
            if let Some(Slot::Inode(mut inode)) = txn.get(&key)?
                && moves(txn, border, &mut inode)
            {
                txn.put(key, &Slot::Inode(inode));
            }
        }
    }
    Ok(None)
}

/// Moves what an inode uses; whether it did.
fn moves(txn: &mut Txn<'_>, border: Border, inode: &mut Inode) -> bool {
    let moves = inode.quota == border.from;
    if moves {
        move_usage(txn, border, Usage::of(1, inode.attr().allocated));
        inode.quota = border.to;
    }
    moves
}

fn move_usage(txn: &mut Txn<'_>, border: Border, usage: Usage) {
    txn.charge_freely(border.from, usage.minus());
    txn.charge_freely(border.to, usage);
}

/// All of it was counted: from now on the limits hold, or the root is no more.
pub(crate) fn counted(txn: &mut Txn<'_>, id: QuotaId) -> Result<()> {
    let quotas = &txn.shared.quotas;
    let Some(root) = quotas.get(id) else { return Ok(()) };
    // Race: another core may be changing its limits.
    txn.lock(lock::dir_lock(root.record.dir))?;
    let Some(seen) = quotas.get(id) else { return Ok(()) };
    let state = match seen.record.state {
        QuotaState::Counting => QuotaState::Active,
        QuotaState::Removing => QuotaState::Gone,
        QuotaState::Active | QuotaState::Gone => return Ok(()),
    };
    txn.put_quota(id, &QuotaRecord { state, ..seen.record });
    Ok(())
}
