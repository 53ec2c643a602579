//! Partitions of a directory within a transaction: which of them has a name, and which fields they
//! share.
//!
//! Each partition of a directory has a content record on a shard of its own: its *share*. That of
//! partition 0 is the *master*. The layout of a share is always right about its own partition, and
//! may be behind about others. So a name is looked for from one share to the one that its layout
//! names, and so on; each knows more than the one before.
//!
//! The layout, times and counts are each share's own. The fields that decide about permissions, and
//! about where the directory is, are the same in all shares, and change in all of them in one
//! transaction. Extended attributes but for ACLs are the master's, and so are the rename lists of
//! all names.
//!
//! Invariant: an operation that reads or writes an entry has read the share that has the name in
//! the same run. So a transaction over several servers expects that share as it was. Only an
//! embedded inode needs none: it becomes a link before its name goes to another partition.

use std::collections::BTreeMap;

use std::ops::ControlFlow;

use base::{DirId, EntryName, Ino, Layout, Locality, ShardId, limits::SHARDS_MAX};
use wire::{DirRef, LayoutNews, Retry};

use super::{Dir, Txn};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    lock,
    record::{Content, Key, key, key::Part},
    transact::locks::Want,
};

/// Longest way from share to share: each share that has split off others knows them, and so do
/// those that it was split off from.
const STEPS_MAX: u32 = 2 * SHARDS_MAX.ilog2() + 2;

/// A search for a share of a directory.
#[derive(Clone, Copy)]
struct Search<'a> {
    dir: &'a DirRef,
    sought: Sought<'a>,
    start: Start,
    reach: Reach,
}

/// The share that is looked for.
#[derive(Clone, Copy)]
enum Sought<'a> {
    /// The share that has a name.
    Name(&'a EntryName),
    /// The share that has a position in the listing.
    Pos(u64),
    /// Any share.
    Any,
}

/// The partition at which a search begins.
#[derive(Clone, Copy)]
enum Start {
    /// The partition that the request was sent to. A single server is sent everything, and begins
    /// at the master.
    Asked,
    At(u16),
}

/// The shares to which a search may lead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Only the partition where the search begins: the request was sent for it.
    Asked,
    /// Only shares of this server: a request that was sent here for a share elsewhere is told where
    /// to go.
    Here,
    /// Any share, wherever it is.
    Anywhere,
}

impl Dir {
    /// The master of a directory.
    pub(crate) fn master(id: DirId, content: Content) -> Dir {
        Dir { id, partition: 0, content }
    }

    /// Whether the directory has several partitions.
    pub(crate) fn is_divided(&self) -> bool {
        is_divided(&self.content.layout)
    }
}

/// Whether a layout has several partitions.
pub(crate) fn is_divided(layout: &Layout) -> bool {
    *layout != Layout::Whole && layout.active().nth(1).is_some()
}

impl Txn<'_> {
    /// The shard of a partition.
    pub(crate) fn shard_of(&self, home: DirId, partition: u16) -> ShardId {
        self.shared.config.placement().shard_of(home, partition)
    }

    /// The shard of a share, and of the names that it has.
    pub(crate) fn shard_of_share(&self, dir: &Dir) -> ShardId {
        self.shard_of(dir.content.home, dir.partition)
    }

    /// The key of a share.
    pub(crate) fn share_key(&self, home: DirId, dir: DirId, partition: u16) -> Key {
        key::content(self.shard_of(home, partition), dir, partition, Part::Main)
    }

    /// The share of a directory that has a name, and that the request was sent for.
    pub(crate) fn dir_for(&self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        self.check_dir_ticket(dir)?;
        self.search(self.for_request(dir, Sought::Name(name)))
    }

    /// Like [`Txn::dir_for`], for a directory to be changed, or to be kept from being removed.
    pub(crate) fn dir_for_locked(&mut self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        self.lock(lock::dir_lock(dir.id))?;
        self.check_dir_ticket(dir)?;
        self.search(self.for_request(dir, Sought::Name(name)))
    }

    /// Like [`Txn::dir_for`], for a directory that the request was not sent for: only if this
    /// server has the share.
    pub(crate) fn dir_here(&self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        self.check_dir_ticket(dir)?;
        let search = self.for_request(dir, Sought::Name(name));
        self.search(Search { start: Start::At(0), ..search })
    }

    /// The share that has a name, wherever it is.
    pub(crate) fn dir_anywhere(&self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        self.check_dir_ticket(dir)?;
        self.owner(dir, name)
    }

    /// Like [`Txn::dir_anywhere`], for a directory to be changed. The search begins at the
    /// partition `start`.
    pub(crate) fn dir_anywhere_locked(
        &mut self,
        dir: &DirRef,
        name: &EntryName,
        start: u16,
    ) -> Result<Dir> {
        self.lock(lock::dir_lock(dir.id))?;
        self.check_dir_ticket(dir)?;
        let (sought, reach) = (Sought::Name(name), Reach::Anywhere);
        self.search(Search { dir, sought, start: Start::At(start), reach })
    }

    /// Like [`Txn::dir_anywhere`], for a directory that the session need not have been shown.
    pub(crate) fn owner(&self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        let (sought, start) = (Sought::Name(name), Start::At(self.hint(dir, name)));
        self.search(Search { dir, sought, start, reach: Reach::Anywhere })
    }

    /// Like [`Txn::dir_for`], for a directory that the session need not have been shown.
    pub(crate) fn owner_for(&self, dir: &DirRef, name: &EntryName) -> Result<Dir> {
        self.search(self.for_request(dir, Sought::Name(name)))
    }

    /// Any share of a directory: the one that the request was sent to, or the master.
    pub(crate) fn any_share(&self, dir: &DirRef, beside: bool) -> Result<Dir> {
        let start = if beside { Start::Asked } else { Start::At(0) };
        let (sought, reach) = (Sought::Any, Reach::Anywhere);
        self.search(Search { dir, sought, start, reach })
    }

    /// The share for the listing of a directory from a position on, if the request was sent for it.
    /// Where names are scattered, each share has some: then it is the share that was asked.
    pub(crate) fn share_from(&self, dir: &DirRef, pos: u64) -> Result<Dir> {
        let asked = self.share_asked(dir)?;
        if asked.content.layout.scatters() {
            return Ok(asked);
        }
        if asked.content.layout.partition(pos) == asked.partition {
            return Ok(asked);
        }
        self.search(self.for_request(dir, Sought::Pos(pos)))
    }

    /// The share of a directory that was asked, whatever names it has.
    pub(crate) fn share_asked(&self, dir: &DirRef) -> Result<Dir> {
        self.check_dir_ticket(dir)?;
        let search = self.for_request(dir, Sought::Any);
        let found = self.search(Search { reach: Reach::Asked, ..search })?;
        if self.shared.cluster.is_some() || !found.is_divided() {
            return Ok(found);
        }
        let asked = self.asked.map_or(0, |asked| self.partition_at(dir.home, asked));
        if asked == 0 || !found.content.layout.is_active(asked) {
            return Ok(found);
        }
        self.search(Search { start: Start::At(asked), ..search })
    }

    /// The master of a directory, wherever it is.
    pub(crate) fn master(&self, dir: &DirRef) -> Result<Dir> {
        self.check_dir_ticket(dir)?;
        let (sought, reach) = (Sought::Any, Reach::Anywhere);
        self.search(Search { dir, sought, start: Start::At(0), reach })
    }

    /// Like [`Txn::master`], for a directory to be changed, or to be kept from being removed.
    pub(crate) fn master_locked(&mut self, dir: &DirRef) -> Result<Dir> {
        self.lock(lock::dir_lock(dir.id))?;
        self.check_dir_ticket(dir)?;
        let (sought, reach) = (Sought::Any, Reach::Anywhere);
        self.search(Search { dir, sought, start: Start::At(0), reach })
    }

    fn for_request<'a>(&self, dir: &'a DirRef, sought: Sought<'a>) -> Search<'a> {
        let reach = if self.asked.is_some() { Reach::Here } else { Reach::Anywhere };
        Search { dir, sought, start: Start::Asked, reach }
    }

    /// The partition of a directory that the request was sent to. A single server is sent
    /// everything.
    pub(crate) fn asked_partition(&self, home: DirId) -> u16 {
        self.asked_after(self.shard(home))
    }

    /// Like [`Txn::asked_partition`], for a directory whose master is on the shard `first`.
    fn asked_after(&self, first: ShardId) -> u16 {
        match self.asked {
            Some(asked) if self.shared.cluster.is_some() => self.distance(first, asked),
            Some(_) | None => 0,
        }
    }

    /// The partition of a directory that is on a shard of this server.
    pub(crate) fn partition_on(&self, shard: ShardId, dir: DirId) -> Result<u16> {
        let home = match self.shared.config.locality {
            Locality::Directory => dir,
            Locality::Subtree => DirId::ROOT,
            // The id does not say whose home it has. All but divided directories are of one
            // partition.
            Locality::Hybrid => {
                let is_there = self.left(&key::content(shard, dir, 0, Part::Main))?.is_some();
                return if is_there { Ok(0) } else { self.share_on(shard, dir) };
            }
        };
        Ok(self.partition_at(home, shard))
    }

    /// The partition of a divided directory that is on a shard of this server, by the key of its
    /// share.
    fn share_on(&self, shard: ShardId, dir: DirId) -> Result<u16> {
        let shares = key::shares(shard, dir);
        let number = |key: &[u8]| key::parse_share(key).map_or(0, |(number, _)| number);
        let pending = self.group.pending_keys().map(|(key, _)| key);
        let mut written = pending.chain(self.group.changes.dirs().map(|(key, _)| key));
        if let Some(key) = written.find(|key| key.starts_with(&shares)) {
            return Ok(number(key));
        }
        let mut found = 0;
        self.shared.engine.scan(&shares, &key::end_of(&shares), &mut |key, _| {
            found = number(key);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The partition of a directory that a shard has, or would have.
    fn partition_at(&self, home: DirId, shard: ShardId) -> u16 {
        self.distance(self.shard(home), shard)
    }

    fn distance(&self, first: ShardId, shard: ShardId) -> u16 {
        let shards = self.shared.config.shards;
        (shard.0 % shards + shards - first.0) % shards
    }

    /// The partition that has a name, as far as this server knows.
    pub(crate) fn hint(&self, dir: &DirRef, name: &EntryName) -> u16 {
        self.shared.layouts.partition(dir.id, dir.ino, || self.position(name))
    }

    /// The partition that has a name, by the layout of a share.
    pub(crate) fn owner_by(&self, dir: &Dir, name: &EntryName) -> u16 {
        match &dir.content.layout {
            Layout::Whole => 0,
            layout => layout.partition(self.position(name)),
        }
    }

    fn search(&self, search: Search<'_>) -> Result<Dir> {
        let Search { dir, sought, start, reach } = search;
        let (first, shards) = (self.shard(dir.home), self.shared.config.shards);
        let shard = |partition: u16| ShardId((first.0 + partition) % shards);
        let mut partition = match start {
            Start::Asked => self.asked_after(first),
            Start::At(partition) => partition,
        };
        for _ in 0..STEPS_MAX {
            let known;
            (partition, known) = match self.share(&search, partition, shard(partition))? {
                // The partition has given all its names away, and says so until the master knows.
                Some(found) if reach == Reach::Asked && !found.content.is_live() => {
                    return Err(stale_layout(dir, Some(found.content.layout)));
                }
                Some(found) => {
                    let layout = &found.content.layout;
                    let owner = match (sought, layout) {
                        (Sought::Any, _) if !found.content.is_live() => 0,
                        (Sought::Any, _) => partition,
                        (_, Layout::Whole) => 0,
                        (Sought::Name(name), layout) => layout.partition(self.position(name)),
                        (Sought::Pos(pos), layout) => layout.partition(pos),
                    };
                    if owner == partition {
                        return Ok(found);
                    }
                    self.shared.layouts.learn(dir.id, dir.ino, layout);
                    (owner, Some(found.content.layout))
                }
                None if partition == 0 => return Err(self.no_dir(first, dir.ino)),
                None if reach == Reach::Asked => return Err(stale_layout(dir, None)),
                // The partition has been merged into another one since the layout that led here was
                // read.
                None => (0, None),
            };
            if reach == Reach::Here && !self.has_shard(shard(partition)) {
                return Err(stale_layout(dir, known));
            }
        }
        Err(self.unfit(|| {
            tracing::error!(id = %dir.id, "no partition has what others say it has; run `pando fsck`");
        }))
    }

    /// A share, if it exists and is of the directory that is meant.
    fn share(&self, search: &Search<'_>, partition: u16, shard: ShardId) -> Result<Option<Dir>> {
        let Search { dir, sought, reach, .. } = *search;
        let key = key::content(shard, dir.id, partition, Part::Main);
        self.means(&key, dir.ino);
        if reach == Reach::Anywhere
            && let Sought::Name(name) = sought
            && !self.is_here(&key)
        {
            let name = key::name(shard, dir.id, self.position(name), name, Part::Main);
            self.want(&[key.clone(), name])?;
        }
        let Some(content) = self.get_content(&key)? else { return Ok(None) };
        self.meant(dir, partition, content).map(Some)
    }

    /// The fault for a name without an entry, in a share that has the name and was read without its
    /// directory's lock.
    pub(crate) fn missing(&self, dir: &Dir) -> Fault {
        self.still_has(dir).err().unwrap_or_else(|| base::FsError::NotFound.into())
    }

    /// Checks that a share that was read without the directory's lock still has the same names, and
    /// had them all the time.
    ///
    /// Race: another core may have given names away, and swept them, since then; and may have got
    /// them back.
    pub(crate) fn still_has(&self, dir: &Dir) -> Result<()> {
        if !self.may_have_given(dir) {
            return Ok(());
        }
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        let now = self.get_content(&key)?.filter(|now| now.ino == dir.content.ino);
        let now = now.map(|now| now.layout);
        if now.as_ref() == Some(&dir.content.layout) {
            return Ok(());
        }
        if now.is_none() && dir.partition == 0 {
            return Err(Fault::Retry(Retry::StaleDir));
        }
        let news = LayoutNews { dir: dir.id, ino: dir.content.ino, layout: now };
        Err(Fault::Retry(Retry::StaleLayout(news)))
    }

    /// Whether another core may have given names away since a share was read.
    pub(super) fn may_have_given(&self, dir: &Dir) -> bool {
        dir.is_divided() || (self.shared.cluster.is_some() && self.shared.options.cores > 1)
    }

    /// All shares of a directory but the master, which the caller has; none for nearly every
    /// directory.
    ///
    /// No share is missed: each partition was split off by one whose own layout says so, and so on
    /// back to the master. None comes meanwhile: a split changes a share that is locked, or
    /// expected as it was.
    pub(crate) fn all_shares(&self, master: &Dir) -> Result<Vec<Dir>> {
        if !master.is_divided() {
            return Ok(Vec::new());
        }
        let (id, home) = (master.id, master.content.home);
        let mut layout = master.content.layout.clone();
        let mut found = BTreeMap::new();
        loop {
            let new = |partition: &u16| *partition > 0 && !found.contains_key(partition);
            let new: Vec<u16> = layout.active().filter(new).collect();
            if new.is_empty() {
                return Ok(found.into_values().collect());
            }
            let keys: Vec<Key> = new.iter().map(|new| self.share_key(home, id, *new)).collect();
            self.want(&keys)?;
            for (partition, key) in new.into_iter().zip(keys) {
                self.settle_read(&key, Want::ReadCounts)?;
                let content = self.get_content(&key)?;
                let content = content.filter(|content| content.ino == master.content.ino);
                let Some(content) = content else {
                    return Err(self.unfit(|| {
                        tracing::error!(%id, partition, "a directory lacks a partition; run `pando fsck`");
                    }));
                };
                if !self.shared.bugs.has(Bug::ClosureStops) {
                    layout.learn(&content.layout);
                }
                if !content.is_live() {
                    continue;
                }
                found.insert(partition, Dir { id, partition, content });
            }
        }
    }

    /// Stores a master, and repeats it in all other shares of its directory. The caller has locked
    /// the directory.
    pub(crate) fn put_everywhere(&mut self, master: &Dir) -> Result<()> {
        for mut share in self.all_shares(master)? {
            share.content.repeat(&master.content);
            self.put_dir(&share);
        }
        self.put_dir(master);
        Ok(())
    }

    /// Divides a directory without entries as `layout` says: puts all its shares, and removes its
    /// other ones. The caller has locked the directory.
    pub(crate) fn divide(&mut self, master: &mut Dir, layout: Layout) -> Result<()> {
        let before = self.all_shares(master)?;
        master.content.layout = layout;
        let (home, id) = (master.content.home, master.id);
        // Race: a name made in a partition after it was read here may then belong to another one.
        before.iter().for_each(|share| self.keep_counts(share));
        for share in before.iter().filter(|had| !master.content.layout.is_active(had.partition)) {
            let key = self.share_key(home, id, share.partition);
            self.delete(key);
        }
        let others = |partition: &u16| *partition > 0;
        for partition in master.content.layout.active().filter(others).collect::<Vec<_>>() {
            if !before.iter().any(|had| had.partition == partition) {
                self.assume_no_share(master, partition)?;
            }
            self.put_dir(&Dir { id, partition, content: master.content.share() });
        }
        self.put_dir(master);
        Ok(())
    }

    /// Makes the operation depend on a share's counts: no entry may come or go before the commit.
    /// The caller has locked the directory.
    pub(crate) fn keep_counts(&self, share: &Dir) {
        let key = self.share_key(share.content.home, share.id, share.partition);
        if !self.is_here(&key) {
            self.with_remote(|remote| remote.keep_counts(key));
        }
    }

    fn assume_no_share(&mut self, master: &Dir, partition: u16) -> Result<()> {
        let key = self.share_key(master.content.home, master.id, partition);
        let handoff = key::handoff(key::shard_of(&key), master.id, partition);
        self.assume_absent(&key);
        self.assume_absent(&handoff);
        // Names of an earlier directory with this id may be left there.
        if self.get_bytes(&handoff)?.is_some() {
            return Err(Fault::Retry(Retry::Busy));
        }
        if self.get_content(&key)?.is_none() {
            return Ok(());
        }
        let id = master.id;
        Err(self.unfit(|| {
            tracing::error!(%id, partition, "a partition is there already; run `pando fsck`");
        }))
    }

    /// The attributes that `stat` shows of a whole directory, with this master.
    ///
    /// Race: a transaction that is prepared here may be committed, and others may have been told.
    /// Counts and times would lack its change, and its time would come after one that is set now.
    /// Therefore the request waits, for as long as `stat` does.
    pub(crate) fn whole_attr(&self, master: &Dir) -> Result<base::Attr> {
        self.settle_shown_counts(master)?;
        let mut attr = master.attr();
        for share in self.all_shares(master)? {
            attr.size = attr.size.saturating_add(share.content.entries);
            attr.nlink = attr.nlink.saturating_add(share.content.subdirs);
            attr.mtime = attr.mtime.max(share.content.times.mtime);
            attr.ctime = attr.ctime.max(share.content.times.ctime);
        }
        Ok(attr)
    }
}

impl Content {
    /// Repeats the fields of the directory's master. The layout, times and counts stay its own.
    fn repeat(&mut self, master: &Content) {
        *self = Content {
            layout: self.layout.clone(),
            times: self.times,
            entries: self.entries,
            subdirs: self.subdirs,
            ..master.repeated()
        };
    }
}

/// A reference, without a ticket, to a directory that holds an entry.
pub(crate) fn unshown(id: DirId, ino: Ino, home: DirId) -> DirRef {
    DirRef { id, ino, home, ticket: 0 }
}

fn stale_layout(dir: &DirRef, layout: Option<Layout>) -> Fault {
    let news = LayoutNews { dir: dir.id, ino: dir.ino, layout };
    Fault::Retry(Retry::StaleLayout(news))
}
