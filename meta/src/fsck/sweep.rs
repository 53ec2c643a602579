//! The walk over all records: the form of each by itself, and its place.

use std::{cell::RefCell, collections::BTreeMap, ops::ControlFlow};

use base::{Decode as _, DirId, EntryName, HashMap, HashSet, Ino, ShardId, Time};
use bytes::Bytes;
use store::Snapshot;
use wire::{NamesOf, QuotaOf};

use super::{
    blocks::Listing,
    files::SlotSeen,
    fix::Fix,
    hex::hex,
    inos::InoSet,
    names::{Group, Namer},
    quotas::AccountSums,
    report::Report,
};
use crate::record::{
    Config, Content, Key, Lived, Reclaim, ReclaimKind, Record, SessionRecord, Settings, Slot, Tail,
    key,
    key::{Part, Zone},
    system::{Reserved, StoredAnswers},
};
use crate::{
    cluster::member::Member,
    coordinator::{balance::Balancing, roster::Roster},
    delegations::DelegationRecord,
    feed::{FeedState, Logged},
    handoff::HandoffRecord,
    keys::ring::KeyRing,
    transact::{CommittedRecord, EndedRecord, PreparedRecord},
    unsynced::Unsynced,
};

/// The state of a check.
pub(super) struct Sweep<'a> {
    pub(super) snapshot: &'a dyn Snapshot,
    pub(super) config: &'a Config,
    pub(super) report: &'a Report,
    pub(super) blocks: Listing,
    /// Inode numbers in use.
    pub(super) inos: InoSet,
    /// Inode numbers of files whose contents are in blocks.
    pub(super) in_blocks: InoSet,
    /// Inodes in slots: names that were found, and names that they count.
    pub(super) linked: HashMap<Ino, Linked>,
    /// Directories that are known to reach the root.
    pub(super) rooted: HashSet<DirId>,
    /// The directory whose names are being read.
    pub(super) group: Option<Group>,
    /// The slot that was read last.
    pub(super) slot: Option<SlotSeen>,
    /// The directory whose content record was read last, and whether it has spilled xattrs.
    pub(super) content: Option<(DirId, bool)>,
    /// Quotas, and what is charged to each.
    pub(super) accounts: AccountSums,
    /// Inodes whose contents are noted to be reclaimed.
    pub(super) reclaiming: HashSet<Ino>,
    /// The repair to attach to findings.
    at: RefCell<Option<Fix>>,
    /// First unreserved number of each shard.
    reserved: BTreeMap<ShardId, u64>,
    /// Shards owned, on a server of a cluster.
    owned: Option<Vec<bool>>,
    /// Whether records may be here of shards that are moving, or have moved.
    moves: bool,
    /// Why the walk cannot go on.
    failed: Option<store::Error>,
}

/// Names of an inode in a slot.
#[derive(Default)]
pub(super) struct Linked {
    pub(super) found: u32,
    pub(super) nlink: u32,
    pub(super) in_slot: bool,
    pub(super) changed: Time,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        snapshot: &'a dyn Snapshot,
        config: &'a Config,
        report: &'a Report,
        blocks: Listing,
        owned: Option<Vec<bool>>,
    ) -> Sweep<'a> {
        Sweep {
            snapshot,
            config,
            report,
            blocks,
            inos: InoSet::default(),
            in_blocks: InoSet::default(),
            linked: HashMap::default(),
            rooted: HashSet::default(),
            group: None,
            slot: None,
            content: None,
            accounts: AccountSums::default(),
            reclaiming: HashSet::default(),
            at: RefCell::default(),
            reserved: BTreeMap::new(),
            owned,
            moves: false,
            failed: None,
        }
    }

    /// Checks all records.
    pub(super) fn run(&mut self) -> store::Result<()> {
        self.moves = self.snapshot.get(&key::elsewhere())?.is_some();
        for shard in (0..self.config.shards).map(ShardId) {
            if !self.owns(shard) {
                continue;
            }
            self.look_at(Some(Fix::Look(key::counter(shard))));
            if let Some(Reserved { end }) = self.get(&key::counter(shard), || "a counter".into()) {
                self.reserved.insert(shard, end);
            } else {
                self.find(format!(
                    "shard {}: nothing says which inode numbers are reserved",
                    shard.0
                ));
            }
        }
        self.scan_prefix(&key::works(b'G'), Self::garbage)?;
        self.scan_prefix(&key::own(b'A'), Self::quota)?;
        self.scan_prefix(&key::works(b'R'), Self::reclaiming)?;
        if self.owns(self.config.placement().shard_of(DirId::ROOT, 0)) {
            self.root();
        }
        self.scan(&[], &[u8::MAX; 8], Self::record)?;
        self.close_group();
        self.close_slot();
        // All inodes must have been seen before these checks.
        for shard in (0..self.config.shards).map(ShardId) {
            self.scan_prefix(&key::kind(shard, b'B'), Self::stray_chunk)?;
        }
        self.look_at(None);
        self.count_names();
        self.count_quotas();
        Ok(())
    }

    fn scan_prefix(
        &mut self,
        prefix: &[u8],
        visit: impl Fn(&mut Self, &[u8], &[u8]),
    ) -> store::Result<()> {
        self.scan(prefix, &key::end_of(prefix), visit)
    }

    fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        visit: impl Fn(&mut Self, &[u8], &[u8]),
    ) -> store::Result<()> {
        let snapshot = self.snapshot;
        snapshot.scan(from, to, &mut |key, value| {
            if !self.report.goes_on() {
                return ControlFlow::Break(());
            }
            self.look_at(Some(Fix::Look(Key::from_slice(key))));
            visit(self, key, value);
            if self.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.failed.take().map_or(Ok(()), Err)
    }

    fn record(&mut self, key: &[u8], value: &[u8]) {
        let known = key::zone_among(key, self.config.shards);
        let Some((zone, shard)) = known else { return self.unknown(key) };
        // Of shards that move or have moved: the sweep of moves removes them. Notes of blocks stay
        // where the blocks are.
        let is_of_move = key.starts_with(&key::elsewhere()) || key::block_noted(key).is_some();
        if is_of_move && zone == Zone::Server || !self.owns(shard) && (self.moves || is_of_move) {
            return;
        }
        if !self.owns(shard) {
            let line = "a record of a shard that another server has";
            // The server of the shard has another record under the key.
            return self.report.find(format!("{line}: key={}", hex(key)));
        }
        let several = self.owned.is_some();
        match (zone, key[2], key.len()) {
            (Zone::Users, b'N', _) => self.name(shard, key, value),
            (Zone::Users, b'D', 22) => self.directory(shard, key, value),
            (Zone::Users, b'I', 12) => self.slot(shard, key, value),
            // Chunks are read with their inode, and once more when all inodes were seen.
            (Zone::Users, b'B', 15) => {}
            (Zone::Work, b'C', 5) => self.alone::<Reserved>(key, value, "counter"),
            (Zone::Work, b'R', 13) => self.reclaim(shard, key, value),
            (Zone::Work, b'T', 13) => self.alone::<Tail>(key, value, "cut file"),
            // Garbage and quotas were read before everything else.
            (Zone::Work, b'G', 21) | (Zone::Server, b'A', 13) => {}
            (Zone::Work, b'U', 21) => self.alone::<Unsynced>(key, value, "unsynced block"),
            // Until the handoff is over, names may be stored where they do not belong.
            (Zone::Work, b'H', 23) if several => {
                self.alone::<HandoffRecord>(key, value, "handoff");
            }
            (Zone::Work, b'V', 29) => self.alone::<Content>(key, value, "directory of the feed"),
            (Zone::Server, b'Q', 13) => self.answer(key, value),
            (Zone::Server, b'S', 11) => self.alone::<SessionRecord>(key, value, "session"),
            (Zone::Server, b'F', 3) => self.alone::<Config>(key, value, "configuration"),
            (Zone::Server, b'O', 3) => self.alone::<Settings>(key, value, "settings"),
            (Zone::Server, b'L', 19) => self.alone::<DelegationRecord>(key, value, "delegation"),
            (Zone::Server, b'K', 3) => self.alone::<KeyRing>(key, value, "key ring"),
            (Zone::Server, b'W', 3) => self.alone::<FeedState>(key, value, "state of the feed"),
            (Zone::Server, b'W', 11) => self.alone::<Logged>(key, value, "change in the feed"),
            (Zone::Server, b'M', 3) => self.alone::<Member>(key, value, "membership"),
            (Zone::Server, b'M', 4) if *key == key::lived()[..] => {
                self.alone::<Lived>(key, value, "time of the trash");
            }
            (Zone::Server, b'M', 4) if *key == key::balancing()[..] => {
                self.alone::<Balancing>(key, value, "mode of balancing");
            }
            (Zone::Server, b'M', 4) => self.alone::<Roster>(key, value, "roster"),
            (Zone::Server, b'P', 21) if several => {
                self.alone::<PreparedRecord>(key, value, "prepared transaction");
            }
            (Zone::Server, b'E', 21) if several => {
                self.alone::<EndedRecord>(key, value, "transaction that has ended");
            }
            (Zone::Server, b'X', 21) if several => {
                self.alone::<CommittedRecord>(key, value, "committed transaction");
            }
            _ => self.unknown(key),
        }
    }

    /// Whether this server has a shard.
    pub(super) fn owns(&self, shard: ShardId) -> bool {
        let has = |owned: &Vec<bool>| owned.get(usize::from(shard.0)) == Some(&true);
        shard == ShardId::SERVER || self.owned.as_ref().is_none_or(has)
    }

    /// On a server of a cluster: counts of names, for a client that adds up all servers.
    pub(super) fn names(&mut self) -> Vec<NamesOf> {
        if !self.is_one_of_several() {
            return Vec::new();
        }
        let linked = std::mem::take(&mut self.linked).into_iter().map(|(ino, linked)| {
            let counted = linked.in_slot.then_some((linked.nlink, linked.changed));
            NamesOf { ino, found: linked.found, counted }
        });
        let mut names: Vec<NamesOf> = linked.collect();
        names.sort_unstable_by_key(|names| names.ino);
        names
    }

    /// On a server of a cluster: usage of quotas, for a client that adds up all servers.
    pub(super) fn quotas(&self) -> Vec<QuotaOf> {
        if self.is_one_of_several() { self.accounts.told() } else { Vec::new() }
    }

    /// On a server of a cluster: the inode numbers in use.
    pub(super) fn inos(&mut self) -> InoSet {
        if self.is_one_of_several() { std::mem::take(&mut self.inos) } else { InoSet::default() }
    }

    /// Whether the server is one of several.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.owned.is_some()
    }

    /// Whether another server has a key, so that its record is not checked here.
    pub(super) fn is_elsewhere(&self, key: &[u8]) -> bool {
        !self.owns(key::shard_of(key))
    }

    fn unknown(&self, key: &[u8]) {
        self.find(format!("a record of no known kind: key={}", hex(key)));
    }

    fn alone<R: Record>(&self, key: &[u8], value: &[u8], what: &str) {
        let what = || format!("the {what} record {}", hex(&key[3..]));
        self.decode::<R>(value, what);
    }

    fn answer(&self, key: &[u8], value: &[u8]) {
        let what = || format!("the stored answer {}", hex(&key[3..]));
        let Some(stored) = self.decode::<StoredAnswers>(value, what) else { return };
        for (seq, answer) in stored.answers {
            if wire::Answer::from_bytes(&answer).is_err() {
                self.find(format!("{} holds no answer to request {}", what(), seq.0));
            }
        }
    }

    fn garbage(&mut self, key: &[u8], value: &[u8]) {
        self.alone::<crate::reclaim::notes::Garbage>(key, value, "garbage");
        if let Some(block) = key::parse_garbage(key) {
            self.blocks.note_garbage(block);
        }
    }

    fn reclaim(&self, shard: ShardId, key: &[u8], value: &[u8]) {
        let Some(ino) = key::parse_ino(key) else { return self.unknown(key) };
        let what = || format!("the note to reclaim inode {ino}");
        let Some(reclaim) = self.decode::<Reclaim>(value, what) else { return };
        if ino.shard() != shard {
            self.find(format!("{} is on shard {}", what(), shard.0));
        }
        let orphan = |slot| matches!(slot, Slot::Inode(inode) if inode.nlink == 0);
        let slot = || {
            self.get::<Slot>(&key::inode(ino, Part::Main), || format!("the slot of inode {ino}"))
        };
        let nameless = match reclaim.kind {
            ReclaimKind::Orphan | ReclaimKind::Unnamed => true,
            ReclaimKind::Contents | ReclaimKind::Rest(_) => false,
        };
        if nameless && !slot().is_some_and(orphan) {
            self.find(format!("{} says that it has no name, but it is no orphan", what()));
        }
    }

    fn reclaiming(&mut self, key: &[u8], value: &[u8]) {
        let note = Reclaim::from_record(&Bytes::copy_from_slice(value));
        if note.is_ok_and(|note| note.kind.chunks_from().is_some()) {
            self.reclaiming.extend(key::parse_ino(key));
        }
    }

    /// Notes an inode number in use, which must have been given out, be used only once, and not be
    /// noted for reclaim.
    pub(super) fn use_ino(&mut self, ino: Ino, what: Namer<'_, 'a>) {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let end = self.reserved.get(&ino.shard()).copied();
        let at = self.at.borrow().clone();
        let here = if let Some(Fix::Look(key)) = at { Some(key) } else { None };
        // Another server knows which of its numbers it has given out.
        let given = !self.owns(ino.shard()) || end.is_some_and(|end| counter < end);
        if counter == 0 || !given {
            let line = format!("{}: inode number {ino} was never given out", what(self));
            match here {
                Some(key) => self.find_to_fix(line, Fix::Reserve(ino, key)),
                None => self.report.find(line),
            }
        } else if !self.inos.insert(ino) {
            let line = format!("{}: inode number {ino} is used twice", what(self));
            match here {
                Some(key) if key::is_name(&key) => self.find_to_fix(line, Fix::Renumber(key)),
                Some(_) | None => self.report.find(line),
            }
        } else if self.reclaiming.contains(&ino) {
            let line = format!("inode {ino} is in use, but its contents are noted to be reclaimed");
            match here {
                Some(key) => self.find_to_fix(line, Fix::InUse(ino, key)),
                None => self.report.find(line),
            }
        }
    }

    /// The record under `key`, if it exists and is sound.
    pub(super) fn get<R: Record>(&self, key: &[u8], what: impl Fn() -> String) -> Option<R> {
        match self.snapshot.get(key) {
            Ok(value) => self.decode(&value?, what),
            Err(error) => {
                self.find(format!("{} cannot be read: {error}", what()));
                None
            }
        }
    }

    /// Decodes a record, or adds a finding.
    pub(super) fn decode<R: Record>(&self, value: &[u8], what: impl Fn() -> String) -> Option<R> {
        match R::from_record(&Bytes::copy_from_slice(value)) {
            Ok(record) => Some(record),
            Err(error) => {
                self.find(format!("{} is damaged: {error}", what()));
                None
            }
        }
    }

    /// Adds a finding about the current record.
    pub(super) fn find(&self, line: String) {
        match &*self.at.borrow() {
            Some(fix) => self.report.find_to_fix(line, fix.clone()),
            None => self.report.find(line),
        }
    }

    /// Adds a finding with a repair elsewhere.
    pub(super) fn find_to_fix(&self, line: String, fix: Fix) {
        self.report.find_to_fix(line, fix);
    }

    /// Sets the repair of findings from now on.
    pub(super) fn look_at(&self, fix: Option<Fix>) {
        *self.at.borrow_mut() = fix;
    }

    /// The path of a name in a directory, or of a directory, by its back pointers: for people to
    /// read.
    pub(super) fn path(&self, dir: Where, name: Option<&EntryName>) -> String {
        let mut names: Vec<String> = name.into_iter().map(ToString::to_string).collect();
        let mut at = dir;
        while at.id != DirId::ROOT {
            let stored = self.snapshot.get(&self.content_key(at.home, at.id)).ok().flatten();
            let content = stored.and_then(|stored| Content::from_record(&stored).ok());
            let Some(content) = content.filter(|_| names.len() < DEPTH_MAX) else {
                names.push(format!("(directory {})", at.id));
                break;
            };
            names.push(content.name.as_ref().map_or_else(String::new, ToString::to_string));
            at = Where { id: content.parent, home: content.parent_home };
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}

/// A directory and how it is placed.
#[derive(Clone, Copy)]
pub(super) struct Where {
    pub(super) id: DirId,
    pub(super) home: DirId,
}

/// Longer paths are not shown whole.
const DEPTH_MAX: usize = 100;
