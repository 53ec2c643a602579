//! The table of exceptions, its look-up, and its events.
//!
//! Invariants, compared with the content by [`PermissionTable::check`]:
//! - Each class is counted once for each place that holds it, and gone when none does.
//! - Each *elsewhere* is of one entry.
//! - *Unset* entries are fenced.
//! - A table that is not complete and not being built has no entries.

use smallvec::SmallVec;

use super::{
    classes::{ALL, ClassNumber, Classes, NOTHING},
    slots::{Slot, Slots},
};
use crate::{Cred, DirId, EntryName, HashKey, HashSet, NameVersion, SearchClass, codec};

codec! {
    /// Listed directory, as a table has it at the place where the directory is.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PlacedDir {
        /// The directory's id.
        pub id: DirId,
        /// Home of the directory, which places its records.
        pub home: DirId,
        /// Search class of the directory.
        pub own: SearchClass,
        /// Bound of what is below it.
        pub below: SearchClass,
    }
}

codec! {
    /// The record of a listed directory, of which tables are built. Stored beside what it repeats.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ListedDir {
        /// Key of the place where the directory is.
        pub key: DirId,
        /// The directory.
        pub dir: PlacedDir,
        /// Key of its birth place, where that is another one and a client would predict the
        /// directory there.
        pub birth: Option<DirId>,
    }
}

codec! {
    /// Value of a key, read from stable records.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Published {
        /// A listed directory is there.
        Listed(PlacedDir) = 1,
        /// The place is empty, and the directory whose id is the key lives elsewhere.
        Gone = 2,
        /// No exception: the place is empty, or has a directory that is not listed.
        Clear = 3,
    }
}

/// The table has no room left. It has dropped all entries and answers unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the permission table is full and was dropped; raise --permissions-memory and rebuild it")]
pub struct Full;

/// A path to be looked up, and the user for whom.
#[derive(Debug, Clone, Copy)]
pub struct Walk<'a> {
    /// The file system's hash key.
    pub hash: &'a HashKey,
    /// Names from the root directory to the target.
    pub names: &'a [EntryName],
    /// The user whose rights are checked; `None` for a session whose kernel checks them.
    pub cred: Option<&'a Cred>,
    /// Number of names before the directory where checks begin: the length of the path to the root
    /// of a session that is bound to a subtree. Only where they lead is checked of those.
    pub unchecked: usize,
}

/// One directory on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Key of its place.
    pub key: DirId,
    /// Id of the directory.
    pub id: DirId,
}

/// A path whose directories are known, and each one above the last grants search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The root, and the directory of each name.
    path: SmallVec<[Step; 17]>,
    /// Home of the last directory; `None` where it is as for a directory at its birth place.
    pub home: Option<DirId>,
    /// Whether the last directory has an entry. One without was born where it is.
    pub listed: bool,
}

impl Granted {
    /// The root and the directory of each name, in their order; at least one.
    #[must_use]
    pub fn path(&self) -> &[Step] {
        &self.path
    }

    /// The id of the last directory.
    #[must_use]
    pub fn id(&self) -> DirId {
        self.path.last().map_or(DirId::ROOT, |step| step.id)
    }

    /// The id of the directory above the last one; the root's is the root.
    #[must_use]
    pub fn above(&self) -> DirId {
        let above = self.path.len().checked_sub(2);
        above.map_or(DirId::ROOT, |at| self.path[at].id)
    }
}

/// The table does not say that a path is granted. That is no answer for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    /// Reason.
    pub why: UnknownWhy,
    /// Number of names whose directories are known, from the first.
    pub known: usize,
}

/// Why a path is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnknownWhy {
    /// The table is not built.
    Incomplete,
    /// A change of a directory on the path is under way.
    Fenced,
    /// The directory that was born at a place on the path lives elsewhere.
    Gone,
    /// A directory on the path is not known to grant search.
    NotGranted,
}

/// Size of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableSize {
    /// Number of entries.
    pub entries: usize,
    /// Number of different classes that entries use, without the two that are always there.
    pub classes: usize,
    /// Bytes of memory, allocated; those of classes are estimated.
    pub bytes: usize,
}

/// Kind of an entry, above the 28 bits of a number.
const KIND_SHIFT: u32 = 28;
const NUMBER: u32 = (1 << KIND_SHIFT) - 1;
/// The directory is at the place where it was born; the number is of its class.
const HERE: u32 = 0;
/// Another id or home; the number is an index of [`Elsewhere`].
const ELSEWHERE: u32 = 1;
/// The place is empty, and the directory of this id is elsewhere.
const GONE: u32 = 2;
/// Only fenced.
const UNSET: u32 = 3;
/// In the other word, above the number of a class.
const FENCED: u32 = 1 << 31;

/// Percentage of the limit up to which directories are listed by use.
const LIST_BY_USE_PERCENT: usize = 90;
/// Bytes of a key that had an event during a build (estimated).
const TOUCHED_BYTES: usize = 32;

/// A directory with another id or home than its key predicts. 36 bytes.
#[derive(Debug, Clone, Copy)]
struct Elsewhere {
    id: [u8; 16],
    home: [u8; 16],
    own: ClassNumber,
}

const _: () = assert!(size_of::<Elsewhere>() == 36, "no padding");

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// No events are taken in.
    Empty,
    /// Events and records come in; the keys of events are kept, so that no record overwrites them.
    Building(HashSet<DirId>),
    Complete,
}

/// All exceptions of a file system, or a part of them while it is built.
#[derive(Debug, Clone)]
pub struct PermissionTable {
    slots: Slots,
    classes: Classes,
    elsewhere: Vec<Elsewhere>,
    free: Vec<u32>,
    phase: Phase,
    limit: usize,
    seed: [u64; 2],
}

impl PermissionTable {
    /// A table without entries that is not built. `seed` is secret and random; places depend on it,
    /// answers do not. `limit` is in bytes.
    #[must_use]
    pub fn new(seed: [u64; 2], limit: usize) -> PermissionTable {
        PermissionTable {
            slots: Slots::new(seed, limit),
            classes: Classes::new(),
            elsewhere: Vec::new(),
            free: Vec::new(),
            phase: Phase::Empty,
            limit,
            seed,
        }
    }

    /// Looks up a path, from the root directory.
    ///
    /// The keys are computed as if nothing on the path was elsewhere, and the place of each is
    /// fetched while the next key is hashed. Behind an entry that is elsewhere this begins anew.
    ///
    /// # Errors
    /// `Unknown`, with the number of names that are known.
    ///
    /// Cost: one hash for each name, and one more for each name behind a directory elsewhere; an
    /// access to memory for each, which overlaps with hashing. The rights of a class are computed
    /// once for a run of directories that share it.
    pub fn look_up(&self, walk: &Walk<'_>) -> Result<Granted, Unknown> {
        let unknown = |why, known| Err(Unknown { why, known });
        if self.phase != Phase::Complete {
            return unknown(UnknownWhy::Incomplete, 0);
        }
        let names = walk.names;
        let mut path: SmallVec<[Step; 17]> = SmallVec::with_capacity(names.len() + 1);
        path.push(Step { key: DirId::ROOT, id: DirId::ROOT });
        self.slots.touch(DirId::ROOT);
        self.predict(walk, &mut path);

        let (mut below, mut granted) = (NOTHING, ALL);
        let (mut home, mut listed) = (None, false);
        for at in 0..path.len() {
            let entry = self.slots.get(path[at].key);
            (home, listed) = (None, entry.is_some());
            let mut own = below;
            if let Some(slot) = entry {
                // The mapping of this name is not known, only those before it.
                let known = at.saturating_sub(1);
                if slot.below & FENCED != 0 {
                    return unknown(UnknownWhy::Fenced, known);
                }
                let number = slot.own & NUMBER;
                match slot.own >> KIND_SHIFT {
                    HERE => own = number,
                    ELSEWHERE => {
                        let other = &self.elsewhere[number as usize];
                        own = other.own;
                        home = Some(DirId(u128::from_le_bytes(other.home)));
                        let id = DirId(u128::from_le_bytes(other.id));
                        if id != path[at].id {
                            path[at].id = id;
                            path.truncate(at + 1);
                            self.predict(walk, &mut path);
                        }
                    }
                    GONE => return unknown(UnknownWhy::Gone, known),
                    _ => return unknown(UnknownWhy::Fenced, known),
                }
                below = slot.below & NUMBER;
            }
            // The last directory is the target's to check, which has its record.
            let checks = at < names.len() && at >= walk.unchecked && own != granted;
            if checks && let Some(cred) = walk.cred {
                if !self.classes.get(own).grants(cred) {
                    return unknown(UnknownWhy::NotGranted, at);
                }
                granted = own;
            }
        }
        Ok(Granted { path, home, listed })
    }

    /// Appends the rest of a path as if each directory were where it was born.
    #[inline]
    fn predict(&self, walk: &Walk<'_>, path: &mut SmallVec<[Step; 17]>) {
        let known = path.len() - 1;
        let mut above = path[known].id;
        for name in &walk.names[known..] {
            let key = walk.hash.dir_id(above, name, NameVersion(0));
            self.slots.touch(key);
            path.push(Step { key, id: key });
            above = key;
        }
    }

    /// Forgets all and takes in events and records from now on. Answers stay unknown until
    /// [`complete`](Self::complete).
    pub fn begin_build(&mut self) {
        self.clear(Phase::Building(HashSet::default()));
    }

    /// A record of a listed directory, read for a build. Keys that had an event since the build
    /// began keep what the event said. Records may come in any order, and twice.
    ///
    /// # Errors
    /// `Full`, after which the table is empty.
    pub fn load(&mut self, listed: &ListedDir) -> Result<(), Full> {
        if self.may_load(listed.key) {
            self.put(listed.key, &Published::Listed(listed.dir.clone()))?;
        }
        if let Some(birth) = listed.birth
            && self.may_load(birth)
            // A directory that is there now was born or moved there later.
            && self.slots.get(birth).is_none()
        {
            self.put(birth, &Published::Gone)?;
        }
        Ok(())
    }

    /// A key whose value is in doubt at its owner, read for a build: fenced until it is published.
    ///
    /// # Errors
    /// `Full`, after which the table is empty.
    pub fn load_fenced(&mut self, key: DirId) -> Result<(), Full> {
        if self.may_load(key) { self.fence(key) } else { Ok(()) }
    }

    fn may_load(&self, key: DirId) -> bool {
        match &self.phase {
            Phase::Building(touched) => !touched.contains(&key),
            Phase::Empty | Phase::Complete => false,
        }
    }

    /// All records were loaded: the table answers.
    pub fn complete(&mut self) {
        if matches!(self.phase, Phase::Building(_)) {
            self.phase = Phase::Complete;
        }
    }

    /// Whether the table answers.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Forgets all; everything is unknown until the table is built again.
    pub fn drop_all(&mut self) {
        self.clear(Phase::Empty);
    }

    fn clear(&mut self, phase: Phase) {
        *self = PermissionTable { phase, ..PermissionTable::new(self.seed, self.limit) };
    }

    /// The event that a key is fenced: paths through it are unknown until a value is published.
    ///
    /// # Errors
    /// `Full`, after which the table is empty.
    pub fn fence(&mut self, key: DirId) -> Result<(), Full> {
        if !self.touch_event(key)? {
            return Ok(());
        }
        let slot = match self.slots.get_mut(key) {
            Some(slot) => slot,
            None => {
                let slot = self.insert(key)?;
                slot.own = UNSET << KIND_SHIFT;
                slot.below = NOTHING;
                slot
            }
        };
        slot.below |= FENCED;
        Ok(())
    }

    /// The event that a value is published, whatever was there; the key is not fenced any more.
    ///
    /// # Errors
    /// `Full`, after which the table is empty.
    pub fn publish(&mut self, key: DirId, value: &Published) -> Result<(), Full> {
        if !self.touch_event(key)? {
            return Ok(());
        }
        self.put(key, value)
    }

    /// Remembers during a build that the key had an event. `false` where the table takes none in.
    fn touch_event(&mut self, key: DirId) -> Result<bool, Full> {
        match &mut self.phase {
            Phase::Empty => Ok(false),
            Phase::Building(touched) => {
                touched.insert(key);
                if self.bytes() > self.limit {
                    return Err(self.overflow());
                }
                Ok(true)
            }
            Phase::Complete => Ok(true),
        }
    }

    fn put(&mut self, key: DirId, value: &Published) -> Result<(), Full> {
        self.release(key);
        match value {
            Published::Clear => {
                self.slots.remove(key);
                Ok(())
            }
            Published::Gone => self.set(key, GONE << KIND_SHIFT, NOTHING),
            Published::Listed(dir) => {
                let own = self.take_class(&dir.own)?;
                let below = self.take_class(&dir.below)?;
                // An id that is not predicted, or a home that a client would not look at.
                let own = if dir.id == key && dir.home == key {
                    HERE << KIND_SHIFT | own
                } else {
                    ELSEWHERE << KIND_SHIFT | self.put_elsewhere(dir, own)?
                };
                self.set(key, own, below)
            }
        }
    }

    fn set(&mut self, key: DirId, own: u32, below: u32) -> Result<(), Full> {
        let slot = match self.slots.get_mut(key) {
            Some(slot) => slot,
            None => self.insert(key)?,
        };
        (slot.own, slot.below) = (own, below);
        Ok(())
    }

    fn insert(&mut self, key: DirId) -> Result<&mut Slot, Full> {
        let room = self.room();
        if self.slots.insert(key, room).is_err() {
            return Err(self.overflow());
        }
        Ok(self.slots.get_mut(key).expect("just inserted"))
    }

    fn take_class(&mut self, class: &SearchClass) -> Result<ClassNumber, Full> {
        let room = self.room();
        let number = self.classes.take(class, room);
        number.ok_or_else(|| self.overflow())
    }

    fn put_elsewhere(&mut self, dir: &PlacedDir, own: ClassNumber) -> Result<u32, Full> {
        let kept = Elsewhere { id: dir.id.0.to_le_bytes(), home: dir.home.0.to_le_bytes(), own };
        if let Some(index) = self.free.pop() {
            self.elsewhere[index as usize] = kept;
            return Ok(index);
        }
        // The list grows by an eighth, not by half of what it will have.
        if self.elsewhere.len() == self.elsewhere.capacity() {
            let more = (self.elsewhere.len() / 8).max(64);
            if more * size_of::<Elsewhere>() > self.room() {
                return Err(self.overflow());
            }
            self.elsewhere.reserve_exact(more);
        }
        let index = u32::try_from(self.elsewhere.len()).ok().filter(|index| *index <= NUMBER);
        let Some(index) = index else { return Err(self.overflow()) };
        self.elsewhere.push(kept);
        Ok(index)
    }

    /// Gives back the classes of an entry; its words are as if it held none.
    fn release(&mut self, key: DirId) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let (own, below) = (slot.own, slot.below & NUMBER);
        (slot.own, slot.below) = (GONE << KIND_SHIFT, NOTHING);
        self.classes.put_back(below);
        let number = own & NUMBER;
        match own >> KIND_SHIFT {
            HERE => self.classes.put_back(number),
            ELSEWHERE => {
                self.classes.put_back(self.elsewhere[number as usize].own);
                self.free.push(number);
            }
            _ => {}
        }
    }

    fn overflow(&mut self) -> Full {
        self.drop_all();
        Full
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes())
    }

    fn bytes(&self) -> usize {
        let touched = match &self.phase {
            Phase::Building(touched) => touched.len() * TOUCHED_BYTES,
            Phase::Empty | Phase::Complete => 0,
        };
        let elsewhere = self.elsewhere.capacity() * size_of::<Elsewhere>();
        let free = self.free.capacity() * size_of::<u32>();
        self.slots.bytes() + self.classes.bytes() + elsewhere + free + touched
    }

    /// Whether there is room to list directories by use. Those that must be listed have the rest.
    #[must_use]
    pub fn lists_by_use(&self) -> bool {
        self.is_complete() && self.bytes() / LIST_BY_USE_PERCENT < self.limit / 100
    }

    /// Size of the table.
    #[must_use]
    pub fn size(&self) -> TableSize {
        TableSize { entries: self.slots.len(), classes: self.classes.len(), bytes: self.bytes() }
    }

    /// All entries by key, in the order of the keys; `None` for a fenced one. For digests and
    /// tests.
    #[must_use]
    pub fn entries(&self) -> Vec<(DirId, Option<Published>)> {
        let mut all: Vec<_> =
            self.slots.iter().map(|slot| (slot.key(), self.value(slot))).collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }

    fn value(&self, slot: &Slot) -> Option<Published> {
        if slot.below & FENCED != 0 {
            return None;
        }
        let (key, number) = (slot.key(), slot.own & NUMBER);
        let class = |number| self.classes.get(number).clone();
        let (id, home, own) = match slot.own >> KIND_SHIFT {
            HERE => (key, key, number),
            ELSEWHERE => {
                let Elsewhere { id, home, own } = self.elsewhere[number as usize];
                (DirId(u128::from_le_bytes(id)), DirId(u128::from_le_bytes(home)), own)
            }
            GONE => return Some(Published::Gone),
            _ => return None,
        };
        let (own, below) = (class(own), class(slot.below & NUMBER));
        Some(Published::Listed(PlacedDir { id, home, own, below }))
    }

    /// Compares all counts with the entries.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn check(&self) {
        self.slots.check();
        let mut used = std::collections::BTreeMap::<ClassNumber, u32>::new();
        let mut count = |number| {
            if number != NOTHING && number != ALL {
                *used.entry(number).or_default() += 1;
            }
        };
        let mut indexes: Vec<u32> = self.free.clone();
        for slot in self.slots.iter() {
            let number = slot.own & NUMBER;
            match slot.own >> KIND_SHIFT {
                HERE => count(number),
                ELSEWHERE => {
                    indexes.push(number);
                    count(self.elsewhere[number as usize].own);
                }
                GONE => {}
                _ => assert!(slot.below & FENCED != 0, "an unset entry is fenced"),
            }
            count(slot.below & NUMBER);
        }
        let mut counted: Vec<_> = self.classes.uses().collect();
        counted.sort_unstable();
        assert_eq!(counted, used.into_iter().collect::<Vec<_>>());
        indexes.sort_unstable();
        let all: Vec<u32> = (0..).take(self.elsewhere.len()).collect();
        assert_eq!(indexes, all, "each index is used once or free");
        assert!(self.phase != Phase::Empty || self.slots.len() == 0, "a dropped table is empty");
    }
}
