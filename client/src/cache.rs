//! The access cache: directories that paths were resolved through, with what is needed to walk on
//! from them and to check permissions.
//!
//! `resolve` reads and fills it; `call` applies the events that a server sends when a request stood
//! on something outdated. It is optimistic: nothing here is believed until a server has accepted a
//! request that carries its version. It holds directories only, and never moves one: what changed
//! is dropped.
//!
//! Paper: InfiniFS §3.4 (a tree whose leaves are on an LRU list: a directory is never evicted
//! before those below it, so that what is near the root stays).
//!
//! Invariants, see [`AccessCache::check`]: each entry but the root hangs below another; exactly the
//! entries without children, the root apart, are on the list.

use std::time::Duration;

use base::{
    Access, Attr, Cred, DirId, EntryName, FsError, HashMap, Time, access::permits,
    acl::mode_decides,
};
use wire::{CacheEvents, DirRef, Way, way_mark};

/// Bytes that an entry takes besides its name: the entry, and its places in two maps.
const ENTRY_BYTES: u64 = 450;
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// A directory as the cache knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CachedDir {
    pub(crate) dir: DirRef,
    pub(crate) attr: Attr,
}

impl CachedDir {
    /// Whether `cred` may walk through, as far as is known here: not where an ACL decides.
    pub(crate) fn permits_walk(&self, cred: &Cred) -> Result<(), FsError> {
        if !mode_decides(&self.attr, cred) {
            return Err(FsError::Denied);
        }
        permits(&self.attr, cred, Access::EXECUTE)
    }
}

#[derive(Debug)]
struct Entry {
    found: CachedDir,
    parent: u32,
    name: Option<EntryName>,
    children: HashMap<EntryName, u32>,
    /// When it was asked for last; kept with a lease only.
    fetched: Time,
    /// Neighbours on the list of leaves, towards the least and the most recently used.
    colder: u32,
    warmer: u32,
}

/// The cache of one client.
#[derive(Debug)]
pub(crate) struct AccessCache {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_id: HashMap<DirId, u32>,
    coldest: u32,
    warmest: u32,
    bytes: u64,
    bytes_max: u64,
    /// The version of the server's list that everything here is at least as new as; 0 while nothing
    /// is known.
    version: u64,
    /// How often everything was dropped: versions of before say nothing of what came after.
    resets: u64,
    /// The root's own attributes may be outdated.
    root_stale: bool,
    /// Milliseconds after which an answer is no longer believed; and the present time.
    lease_ms: Option<u64>,
    now: Time,
}

impl AccessCache {
    /// A cache of `bytes_max` bytes below `root`, which came with a reply of `version`; 0 bytes
    /// turn it off.
    pub(crate) fn new(root: CachedDir, version: u64, bytes_max: u64) -> AccessCache {
        let mut cache = AccessCache {
            entries: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::default(),
            coldest: NONE,
            warmest: NONE,
            bytes: 0,
            bytes_max,
            version: 0,
            resets: 0,
            root_stale: false,
            lease_ms: None,
            now: Time::default(),
        };
        cache.reset(root, version);
        cache
    }

    /// Lets each entry expire by itself, `lease` after it was asked for; see
    /// [`crate::Config::cache_lease`].
    pub(crate) fn expire_after(&mut self, lease: Option<Duration>, now: Time) {
        self.lease_ms = lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        self.now = now;
        self.entry_mut(ROOT).fetched = now;
    }

    /// The present time, for a cache whose entries expire.
    pub(crate) fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    fn has_expired(&self, at: u32) -> bool {
        self.lease_ms.is_some_and(|ms| self.entry(at).fetched.plus_ms(ms) <= self.now)
    }

    /// Whether anything is kept at all.
    pub(crate) fn enabled(&self) -> bool {
        self.bytes_max > 0
    }

    /// Drops everything; `root` came with a reply of `version`.
    pub(crate) fn reset(&mut self, root: CachedDir, version: u64) {
        let entry = Entry {
            found: root,
            parent: NONE,
            name: None,
            children: HashMap::default(),
            fetched: self.now,
            colder: NONE,
            warmer: NONE,
        };
        self.entries = vec![Some(entry)];
        self.free.clear();
        self.by_id.clear();
        self.by_id.insert(root.dir.id, ROOT);
        self.coldest = NONE;
        self.warmest = NONE;
        self.bytes = 0;
        self.version = version;
        self.resets += 1;
        self.root_stale = false;
    }

    /// How often everything was dropped. The list of a server may have begun anew then, and its
    /// versions cannot be compared with those of before.
    pub(crate) fn resets(&self) -> u64 {
        self.resets
    }

    /// See [`AccessCache`]: what a request that stands on the cache carries.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The root; `None` when its attributes must be asked for first.
    pub(crate) fn root(&self) -> Option<CachedDir> {
        (!self.root_stale && !self.has_expired(ROOT)).then(|| self.entry(ROOT).found)
    }

    /// Takes in the root's attributes from a reply of `version`.
    pub(crate) fn set_root(&mut self, attr: Attr, version: u64) {
        if version >= self.version {
            let now = self.now;
            let root = self.entry_mut(ROOT);
            (root.found.attr, root.fetched) = (attr, now);
            self.root_stale = false;
        }
        if self.version == 0 {
            self.version = version;
        }
    }

    /// The directory `name` in `dir`, if it is here.
    pub(crate) fn child(&mut self, dir: &DirRef, name: &EntryName) -> Option<CachedDir> {
        let at = self.at(dir)?;
        let child = *self.entry(at).children.get(name)?;
        // An expired entry is asked for anew alone: the leases of entries below it go on.
        if self.has_expired(child) {
            return None;
        }
        if self.entry(child).children.is_empty() {
            self.unlist(child);
            self.list(child);
        }
        Some(self.entry(child).found)
    }

    /// The directory that `names` lead to from the root, if all on the way are here and let `cred`
    /// through. Adds the mark of each to `way`, also where the way ends too early.
    pub(crate) fn descend<'a>(
        &mut self,
        cred: &Cred,
        names: impl Iterator<Item = &'a [u8]>,
        way: &mut Way,
    ) -> Option<DirRef> {
        if self.root_stale || self.has_expired(ROOT) {
            return None;
        }
        let mut at = ROOT;
        way.push(way_mark(self.entry(at).found.dir.id));
        for name in names {
            let entry = self.entry(at);
            let child = *entry.children.get(name)?;
            if self.has_expired(child) || entry.found.permits_walk(cred).is_err() {
                return None;
            }
            at = child;
            way.push(way_mark(self.entry(at).found.dir.id));
        }
        if at != ROOT && self.entry(at).children.is_empty() {
            self.unlist(at);
            self.list(at);
        }
        Some(self.entry(at).found.dir)
    }

    /// Takes in what a reply of `version` found as `name` in `dir`. `false` when the reply is older
    /// than what is here, and must not be used.
    pub(crate) fn insert(
        &mut self,
        dir: &DirRef,
        name: &EntryName,
        found: CachedDir,
        version: u64,
    ) -> bool {
        if version < self.version && !crate::bugs::has(crate::bugs::Bug::LateLookupTaken) {
            return false;
        }
        let Some(parent) = self.at(dir).filter(|_| self.enabled()) else { return true };
        if self.version == 0 {
            self.version = version;
        }
        if let Some(child) = self.entry(parent).children.get(name).copied() {
            if self.entry(child).found.dir.same(&found.dir) {
                let now = self.now;
                let entry = self.entry_mut(child);
                (entry.found, entry.fetched) = (found, now);
                return true;
            }
            self.remove(child);
        }
        // A directory is in one place only: where it was seen last.
        if let Some(elsewhere) = self.by_id.get(&found.dir.id).copied() {
            if elsewhere == ROOT {
                return true;
            }
            self.remove(elsewhere);
        }
        if let Some(parent) = self.at(dir) {
            self.add(parent, name, found);
            self.evict();
        }
        true
    }

    /// Applies what a server says has changed since a version, that of the request which it
    /// refused. Who came to a newer version than the cache's without it, from the root, hears
    /// nothing of what was between: so the cache stays as old as it is, and the next that stands on
    /// it hears all of it.
    pub(crate) fn apply(&mut self, events: &CacheEvents, since: u64) {
        if events.version < self.version && !events.reset {
            return;
        }
        if events.reset {
            self.forget_all();
            return;
        }
        for id in &events.dirs {
            self.forget(*id);
        }
        if self.version == 0 || since <= self.version {
            self.version = events.version;
        }
    }

    /// Drops everything, because the client cannot tell which entries are still true.
    pub(crate) fn forget_all(&mut self) {
        let root = self.entry(ROOT).found;
        self.reset(root, 0);
        self.root_stale = true;
    }

    /// Drops a directory and all below it.
    pub(crate) fn forget(&mut self, id: DirId) {
        match self.by_id.get(&id).copied() {
            None => {}
            Some(ROOT) => {
                self.root_stale = true;
                let children: Vec<u32> = self.entry(ROOT).children.values().copied().collect();
                for child in children {
                    self.remove(child);
                }
            }
            Some(at) => self.remove(at),
        }
    }

    /// Drops what is cached as `name` in `dir`, and all below it.
    pub(crate) fn forget_name(&mut self, dir: &DirRef, name: &EntryName) {
        let child = self.at(dir).and_then(|at| self.entry(at).children.get(name).copied());
        if let Some(child) = child {
            self.remove(child);
        }
    }

    fn at(&self, dir: &DirRef) -> Option<u32> {
        let at = *self.by_id.get(&dir.id)?;
        self.entry(at).found.dir.same(dir).then_some(at)
    }

    fn entry(&self, at: u32) -> &Entry {
        self.entries[at as usize].as_ref().expect("places in the maps and the list are taken")
    }

    fn entry_mut(&mut self, at: u32) -> &mut Entry {
        self.entries[at as usize].as_mut().expect("places in the maps and the list are taken")
    }

    fn add(&mut self, parent: u32, name: &EntryName, found: CachedDir) {
        let entry = Entry {
            found,
            parent,
            name: Some(name.clone()),
            children: HashMap::default(),
            fetched: self.now,
            colder: NONE,
            warmer: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1)
                    .expect("the byte limit is reached long before")
            }
        };
        self.entries[at as usize] = Some(entry);
        self.by_id.insert(found.dir.id, at);
        if parent != ROOT && self.entry(parent).children.is_empty() {
            self.unlist(parent);
        }
        self.entry_mut(parent).children.insert(name.clone(), at);
        self.list(at);
        self.bytes += entry_bytes(name);
    }

    /// Removes an entry that is not the root, and all below it.
    fn remove(&mut self, at: u32) {
        let mut doomed = vec![at];
        let parent = self.entry(at).parent;
        if let Some(name) = self.entry(at).name.clone() {
            self.entry_mut(parent).children.remove(&name);
        }
        while let Some(at) = doomed.pop() {
            if self.entry(at).children.is_empty() {
                self.unlist(at);
            }
            let entry = self.entries[at as usize].take().expect("it hangs in the tree");
            doomed.extend(entry.children.values());
            self.by_id.remove(&entry.found.dir.id);
            self.bytes -= entry.name.as_ref().map_or(0, entry_bytes);
            self.free.push(at);
        }
        if parent != ROOT && self.entry(parent).children.is_empty() {
            self.list(parent);
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.bytes_max && self.coldest != NONE {
            self.remove(self.coldest);
        }
    }

    /// Puts a leaf at the warm end of the list.
    fn list(&mut self, at: u32) {
        let warmest = self.warmest;
        let entry = self.entry_mut(at);
        entry.colder = warmest;
        entry.warmer = NONE;
        if warmest == NONE {
            self.coldest = at;
        } else {
            self.entry_mut(warmest).warmer = at;
        }
        self.warmest = at;
    }

    /// Takes a leaf off the list.
    fn unlist(&mut self, at: u32) {
        let (colder, warmer) = (self.entry(at).colder, self.entry(at).warmer);
        if colder == NONE {
            self.coldest = warmer;
        } else {
            self.entry_mut(colder).warmer = warmer;
        }
        if warmer == NONE {
            self.warmest = colder;
        } else {
            self.entry_mut(warmer).colder = colder;
        }
    }

    /// Asserts the invariants.
    #[cfg(test)]
    fn check(&self) {
        let mut listed = Vec::new();
        let mut at = self.coldest;
        while at != NONE {
            listed.push(at);
            at = self.entry(at).warmer;
        }
        listed.sort_unstable();
        let taken = self.entries.iter().enumerate();
        let mut leaves = Vec::new();
        let mut bytes = 0;
        for (at, entry) in taken.filter_map(|(at, entry)| Some((at, entry.as_ref()?))) {
            let at = u32::try_from(at).unwrap();
            assert_eq!(self.by_id.get(&entry.found.dir.id), Some(&at));
            if at == ROOT {
                continue;
            }
            let name = entry.name.as_ref().unwrap();
            bytes += entry_bytes(name);
            assert_eq!(self.entry(entry.parent).children.get(name), Some(&at));
            if entry.children.is_empty() {
                leaves.push(at);
            }
        }
        assert_eq!(listed, leaves);
        assert_eq!(bytes, self.bytes);
        assert!(self.bytes <= self.bytes_max);
    }
}

fn entry_bytes(name: &EntryName) -> u64 {
    ENTRY_BYTES + 2 * name.as_bytes().len() as u64
}

#[cfg(test)]
mod tests {
    use base::{FileKind, Ino};
    use proptest::prelude::*;

    use super::*;

    fn dir(id: u128, ino: u64) -> CachedDir {
        let attr = Attr { mode: 0o755, ..Attr::blank(Ino(ino), FileKind::Directory) };
        CachedDir { dir: DirRef { id: DirId(id), ino: Ino(ino), home: DirId(id), ticket: 0 }, attr }
    }

    fn name(text: &str) -> EntryName {
        EntryName::new(text.as_bytes()).unwrap()
    }

    fn cache(bytes_max: u64) -> AccessCache {
        AccessCache::new(dir(1, 1), 0, bytes_max)
    }

    #[test]
    fn a_directory_is_never_evicted_before_those_below_it() {
        let mut cache = cache(3 * (ENTRY_BYTES + 2));
        let (a, b, c, d) = (dir(300, 2), dir(301, 3), dir(302, 4), dir(303, 5));
        assert!(cache.insert(&dir(1, 1).dir, &name("a"), a, 7));
        assert!(cache.insert(&a.dir, &name("b"), b, 7));
        assert!(cache.insert(&dir(1, 1).dir, &name("c"), c, 7));
        assert!(cache.insert(&dir(1, 1).dir, &name("d"), d, 7));
        cache.check();
        assert_eq!(cache.child(&a.dir, &name("b")), None, "the coldest leaf went");
        assert_eq!(cache.child(&dir(1, 1).dir, &name("a")), Some(a));
    }

    #[test]
    fn what_was_used_last_stays_longest() {
        let mut cache = cache(2 * (ENTRY_BYTES + 2));
        let root = dir(1, 1).dir;
        cache.insert(&root, &name("a"), dir(300, 2), 7);
        cache.insert(&root, &name("b"), dir(301, 3), 7);
        assert!(cache.child(&root, &name("a")).is_some());
        cache.insert(&root, &name("c"), dir(302, 4), 7);
        assert!(cache.child(&root, &name("a")).is_some());
        assert!(cache.child(&root, &name("b")).is_none());
    }

    #[test]
    fn what_is_cached_is_as_old_as_the_root_that_permits_the_way() {
        let mut cache = AccessCache::new(dir(1, 1), 5, 10_000);
        cache.insert(&dir(1, 1).dir, &name("a"), dir(300, 2), 7);
        assert_eq!(cache.version(), 5);
        cache.forget_all();
        cache.set_root(dir(1, 1).attr, 8);
        cache.insert(&dir(1, 1).dir, &name("a"), dir(300, 2), 9);
        assert_eq!(cache.version(), 8);
    }

    #[test]
    fn a_reply_older_than_the_cache_is_refused() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        assert!(cache.insert(&root, &name("a"), dir(300, 2), 7));
        assert_eq!(cache.version(), 7);
        cache.apply(&CacheEvents { version: 9, reset: false, dirs: vec![DirId(300)] }, 7);
        assert_eq!(cache.version(), 9);
        assert_eq!(cache.child(&root, &name("a")), None);
        assert!(!cache.insert(&root, &name("a"), dir(300, 2), 8));
        assert!(cache.insert(&root, &name("a"), dir(300, 2), 10));
        assert_eq!(cache.version(), 9, "a newer reply does not make the rest newer");
    }

    #[test]
    fn news_that_begin_after_the_cache_leave_it_as_old_as_it_is() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        cache.insert(&root, &name("moved"), dir(300, 2), 7);
        cache.insert(&root, &name("other"), dir(301, 3), 7);
        // Version 8 moved 300. Somebody has asked the root since, and then stood on that.
        cache.apply(&CacheEvents { version: 9, reset: false, dirs: vec![DirId(301)] }, 8);
        assert_eq!(cache.child(&root, &name("other")), None);
        assert_eq!(cache.version(), 7, "whoever stands on what is left must hear of 8");
        let dirs = vec![DirId(300), DirId(301)];
        cache.apply(&CacheEvents { version: 9, reset: false, dirs }, 7);
        assert_eq!((cache.version(), cache.child(&root, &name("moved"))), (9, None));
    }

    #[test]
    fn with_a_lease_what_was_asked_for_long_ago_is_not_believed() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        let at = |ms| Time::default().plus_ms(ms);
        cache.expire_after(Some(Duration::from_secs(1)), at(0));
        cache.set_now(at(500));
        cache.insert(&root, &name("a"), dir(300, 2), 0);
        cache.set_now(at(1499));
        assert_eq!(cache.root(), None);
        cache.set_root(dir(1, 1).attr, 0);
        assert!(cache.child(&root, &name("a")).is_some());
        cache.set_now(at(1500));
        assert_eq!(cache.child(&root, &name("a")), None);
        assert!(cache.root().is_some());
        cache.check();
    }

    #[test]
    fn a_directory_whose_lease_has_ended_is_renewed_by_itself() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        let (above, below) = (dir(300, 2), dir(301, 3));
        let at = |ms| Time::default().plus_ms(ms);
        cache.expire_after(Some(Duration::from_secs(1)), at(0));
        cache.insert(&root, &name("a"), above, 0);
        cache.set_now(at(900));
        cache.insert(&above.dir, &name("b"), below, 0);
        cache.set_now(at(1000));
        assert_eq!(cache.child(&root, &name("a")), None);
        cache.insert(&root, &name("a"), above, 0);
        assert_eq!(cache.child(&root, &name("a")), Some(above));
        assert_eq!(cache.child(&above.dir, &name("b")), Some(below));
        cache.set_now(at(1900));
        assert_eq!(cache.child(&above.dir, &name("b")), None);
        // Another directory of that name is not renewed by it.
        cache.insert(&root, &name("a"), dir(302, 4), 0);
        assert_eq!(cache.child(&above.dir, &name("b")), None);
        cache.check();
    }

    #[test]
    fn a_client_that_is_too_far_behind_drops_everything() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        cache.insert(&root, &name("a"), dir(300, 2), 7);
        cache.apply(&CacheEvents { version: 3, reset: true, dirs: Vec::new() }, 7);
        assert_eq!((cache.version(), cache.root()), (0, None));
        assert!(cache.child(&root, &name("a")).is_none());
        assert!(cache.insert(&root, &name("a"), dir(300, 2), 3));
    }

    #[test]
    fn another_directory_of_the_same_id_is_not_taken_for_it() {
        let mut cache = cache(10_000);
        let root = dir(1, 1).dir;
        cache.insert(&root, &name("a"), dir(300, 2), 7);
        cache.insert(&dir(300, 2).dir, &name("b"), dir(301, 3), 7);
        assert_eq!(cache.child(&dir(300, 9).dir, &name("b")), None);
        cache.insert(&root, &name("a"), dir(300, 9), 7);
        assert_eq!(cache.child(&dir(300, 9).dir, &name("b")), None);
        cache.check();
    }

    /// Returns where the cache gets to from the root, and the marks of the way.
    fn descend(cache: &mut AccessCache, names: &[&str]) -> (Option<DirRef>, Vec<u32>) {
        let mut way = Way::new();
        let names = names.iter().map(|name| name.as_bytes());
        let found = cache.descend(&Cred::ROOT, names, &mut way);
        (found, way.to_vec())
    }

    #[test]
    fn a_path_is_descended_as_it_is_walked_name_by_name() {
        let mut cache = cache(2 * (ENTRY_BYTES + 2));
        let (root, a, b, c) = (dir(1, 1), dir(300, 2), dir(301, 3), dir(302, 4));
        cache.insert(&root.dir, &name("a"), a, 7);
        cache.insert(&root.dir, &name("b"), b, 7);
        assert_eq!(descend(&mut cache, &[]), (Some(root.dir), vec![1]));
        assert_eq!(descend(&mut cache, &["a"]), (Some(a.dir), vec![1, 300]));
        assert_eq!(descend(&mut cache, &["a", "x"]).0, None);
        assert_eq!(descend(&mut cache, &[".."]).0, None);
        cache.insert(&root.dir, &name("c"), c, 7);
        cache.check();
        assert_eq!(descend(&mut cache, &["b"]).0, None, "the coldest was not the one descended to");
        assert_eq!(descend(&mut cache, &["a"]).0, Some(a.dir));
        cache.forget_all();
        assert_eq!(descend(&mut cache, &[]).0, None, "the root's attributes are not known");
    }

    #[test]
    fn a_directory_that_lets_nobody_through_is_not_descended_into() {
        let mut cache = cache(10_000);
        let (root, a, b) = (dir(1, 1), dir(300, 2), dir(301, 3));
        let closed = CachedDir { attr: Attr { mode: 0o700, ..a.attr }, ..a };
        cache.insert(&root.dir, &name("a"), closed, 7);
        cache.insert(&a.dir, &name("b"), b, 7);
        let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
        let mut found = |names: &[&str]| {
            let names = names.iter().map(|name| name.as_bytes());
            cache.descend(&user, names, &mut Way::new())
        };
        assert_eq!(
            found(&["a"]),
            Some(a.dir),
            "whether a name in it may be looked up says the server"
        );
        assert_eq!(found(&["a", "b"]), None);
    }

    proptest! {
        #[test]
        fn the_invariants_hold_whatever_is_done(
            steps in proptest::collection::vec((0u8..4, 0u64..12, 0u64..12), 0..200)
        ) {
            let mut cache = cache(6 * (ENTRY_BYTES + 4));
            for (step, a, b) in steps {
                let parent = dir(u128::from(a) + 1, a + 1).dir;
                let (child, called) = (dir(u128::from(b) + 1, b + 1), name(&b.to_string()));
                match step {
                    0 | 1 => { cache.insert(&parent, &called, child, 7); }
                    2 => { cache.child(&parent, &called); }
                    _ => cache.forget(child.dir.id),
                }
                cache.check();
            }
        }
    }
}
