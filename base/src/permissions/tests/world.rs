//! A file system of directories as its records have it: the unmerged tree, beside a table that
//! learns of changes by fences and refills.

use std::collections::BTreeMap;

use super::*;
use crate::{Access, Acl, Attr, FileKind, Ino, acl::permits_with, attr::MODE_SETGID};

/// A directory's records.
#[derive(Debug, Clone)]
pub(super) struct Dir {
    id: DirId,
    version: NameVersion,
    parent: DirId,
    name: Option<EntryName>,
    pub attr: Attr,
    pub acl: Option<Acl>,
    default: Option<Acl>,
    pub listing: Listing,
}

impl Dir {
    pub(super) fn class(&self) -> SearchClass {
        SearchClass::of(&self.attr, self.acl.as_ref())
    }
}

pub(super) struct World {
    pub dirs: BTreeMap<DirId, Dir>,
    names: BTreeMap<(DirId, EntryName), DirId>,
    /// Places by their keys.
    places: BTreeMap<DirId, (DirId, EntryName)>,
    pub table: PermissionTable,
    fences: Fences,
    tokens: Vec<FenceToken>,
    asked: Vec<(Question, Option<Published>)>,
}

pub(super) fn creds() -> Vec<Cred> {
    let of = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: groups.to_vec() };
    vec![of(1, 10, &[]), of(2, 11, &[10]), of(3, 11, &[]), of(4, 12, &[]), Cred::ROOT]
}

impl World {
    pub(super) fn new(mode: u32) -> World {
        let attr = Attr { mode, ..Attr::blank(Ino::ROOT, FileKind::Directory) };
        let listing = Listing::of_root(&SearchClass::of(&attr, None));
        let root = Dir {
            id: DirId::ROOT,
            version: NameVersion(0),
            parent: DirId::ROOT,
            name: None,
            attr,
            acl: None,
            default: None,
            listing,
        };
        let mut world = World {
            dirs: BTreeMap::from([(DirId::ROOT, root)]),
            names: BTreeMap::new(),
            places: BTreeMap::new(),
            table: PermissionTable::new(SEED, 1 << 20),
            fences: Fences::default(),
            tokens: Vec::new(),
            asked: Vec::new(),
        };
        world.table = world.rebuilt(false);
        world
    }

    fn key(&mut self, parent: DirId, name: &EntryName) -> DirId {
        let key = HASH.dir_id(parent, name, NameVersion(0));
        self.places.insert(key, (parent, name.clone()));
        key
    }

    fn position(&mut self, id: DirId) -> Position {
        let dir = self.dirs[&id].clone();
        let key = dir.name.map_or(DirId::ROOT, |name| self.key(dir.parent, &name));
        Position { key, id, version: dir.version }
    }

    /// The change commits between its fences and its refills, or is given up.
    fn change(&mut self, listed: Listed, aborts: bool, commit: impl FnOnce(&mut World, Listing)) {
        if !listed.fenced.is_empty() {
            listed.fenced.iter().for_each(|key| self.table.fence(*key).unwrap());
            self.tokens.push(self.fences.open(listed.fenced));
        }
        if !aborts {
            commit(self, listed.listing);
            for key in listed.refilled {
                self.asked.extend(self.fences.refill(key).map(|question| (question, None)));
            }
        }
    }

    pub(super) fn mkdir(&mut self, parent: DirId, name: &EntryName, cred: &Cred, mode: u32) {
        if self.names.contains_key(&(parent, name.clone())) || self.dirs.len() > 24 {
            return;
        }
        let above = self.dirs[&parent].clone();
        let versions =
            (0..).map(|at| (NameVersion(at), HASH.dir_id(parent, name, NameVersion(at))));
        let free = versions.into_iter().find(|(_, id)| !self.dirs.contains_key(id));
        let (version, id) = free.unwrap();
        let setgid = above.attr.mode & MODE_SETGID;
        let gid = if setgid == 0 { cred.gid } else { above.attr.gid };
        let (mut mode, mut acl, mut default) = (mode | setgid, None, None);
        if let Some(of) = &above.default {
            let inherited = of.inherit(mode, FileKind::Directory);
            (mode, acl, default) = (inherited.mode, inherited.access, inherited.default);
        }
        let attr = Attr { mode, uid: cred.uid, gid, ..Attr::blank(Ino(9), FileKind::Directory) };
        let at = Position { key: self.key(parent, name), id, version };
        let listed = above.listing.born(at, &SearchClass::of(&attr, acl.as_ref()));
        self.change(listed, false, |world, listing| {
            world.names.insert((parent, name.clone()), id);
            let name = Some(name.clone());
            world.dirs.insert(id, Dir { id, version, parent, name, attr, acl, default, listing });
        });
    }

    /// chmod, chown or setfacl.
    pub(super) fn set(&mut self, id: DirId, aborts: bool, set: impl FnOnce(&mut Dir)) {
        let at = self.position(id);
        let mut dir = self.dirs[&id].clone();
        let before = dir.class();
        set(&mut dir);
        let listed = dir.listing.changed(at, &before, &dir.class());
        self.change(listed, aborts, |world, listing| {
            world.dirs.insert(id, Dir { listing, ..dir });
        });
    }

    pub(super) fn set_default(&mut self, id: DirId, acl: Option<Acl>) {
        self.dirs.get_mut(&id).unwrap().default = acl;
    }

    fn is_empty(&self, id: DirId) -> bool {
        self.names.keys().all(|(parent, _)| *parent != id)
    }

    pub(super) fn rmdir(&mut self, id: DirId, aborts: bool) {
        if id == DirId::ROOT || !self.is_empty(id) {
            return;
        }
        let at = self.position(id);
        let fenced = self.dirs[&id].listing.removed(at);
        let listing = Listing::default();
        let listed = Listed { listing, fenced, refilled: Keys::new() };
        self.change(listed, aborts, |world, _| world.remove(id));
    }

    fn remove(&mut self, id: DirId) {
        let dir = self.dirs.remove(&id).unwrap();
        self.names.remove(&(dir.parent, dir.name.unwrap()));
    }

    fn is_within(&self, id: DirId, top: DirId) -> bool {
        id == top || (id != DirId::ROOT && self.is_within(self.dirs[&id].parent, top))
    }

    pub(super) fn rename(&mut self, id: DirId, to: DirId, name: &EntryName, aborts: bool) {
        let there = self.names.get(&(to, name.clone())).copied();
        if self.is_within(to, id) || there.is_some_and(|there| there == id || !self.is_empty(there))
        {
            return;
        }
        let from = self.position(id);
        let key = self.key(to, name);
        let mut listed = self.dirs[&id].listing.moved(from, key);
        if let Some(there) = there {
            let at = self.position(there);
            listed.fenced.extend(self.dirs[&there].listing.removed(at));
        }
        listed.fenced.sort();
        listed.fenced.dedup();
        self.change(listed, aborts, |world, listing| {
            if let Some(there) = there {
                world.remove(there);
            }
            world.place(id, (to, name.clone()), listing, true);
        });
    }

    pub(super) fn exchange(&mut self, one: DirId, other: DirId, aborts: bool) {
        if self.is_within(one, other) || self.is_within(other, one) {
            return;
        }
        let (from, to) = (self.position(one), self.position(other));
        let mut listed = self.dirs[&one].listing.moved(from, to.key);
        let back = self.dirs[&other].listing.moved(to, from.key);
        listed.fenced.extend(back.fenced);
        listed.fenced.sort();
        listed.fenced.dedup();
        self.change(listed, aborts, |world, listing| {
            let (from, to) = (world.places[&from.key].clone(), world.places[&to.key].clone());
            world.place(one, to, listing, true);
            world.place(other, from, back.listing, false);
        });
    }

    fn place(&mut self, id: DirId, (to, name): (DirId, EntryName), listing: Listing, leaves: bool) {
        let dir = self.dirs.get_mut(&id).unwrap();
        if leaves {
            self.names.remove(&(dir.parent, dir.name.clone().unwrap()));
        }
        (dir.parent, dir.name, dir.listing) = (to, Some(name.clone()), listing);
        self.names.insert((to, name), id);
    }

    /// Lists by use each directory on a path whose rights a slow walk grants.
    pub(super) fn walk_slowly(&mut self, path: &[EntryName], cred: &Cred) {
        let mut id = DirId::ROOT;
        for name in path {
            let (at, dir) = (self.position(id), self.dirs[&id].clone());
            if let Some(listed) = dir.listing.used(at, &dir.class(), cred) {
                self.change(listed, false, |world, listing| {
                    world.dirs.get_mut(&id).unwrap().listing = listing;
                });
            }
            let Some(next) = self.names.get(&(id, name.clone())) else { return };
            id = *next;
        }
    }

    /// A fence ends, or a question is read or answered.
    pub(super) fn advance(&mut self, at: usize) {
        let all = self.tokens.len() + self.asked.len();
        if all == 0 {
            return;
        }
        let at = at % all;
        if at < self.tokens.len() {
            let token = self.tokens.remove(at);
            self.asked.extend(self.fences.end(token).into_iter().map(|question| (question, None)));
            return;
        }
        let at = at - self.tokens.len();
        let question = self.asked[at].0;
        match self.asked[at].1.take() {
            None => self.asked[at].1 = Some(self.value(question.key)),
            Some(value) => {
                self.asked.remove(at);
                if self.fences.answered(question) {
                    self.table.publish(question.key, &value).unwrap();
                }
            }
        }
    }

    pub(super) fn settle(&mut self) {
        while self.tokens.len() + self.asked.len() > 0 {
            self.advance(0);
        }
        self.table.check();
    }

    /// The value of a key by the records.
    fn value(&self, key: DirId) -> Published {
        let there = match self.places.get(&key) {
            Some(place) => self.names.get(place),
            None => Some(&DirId::ROOT),
        };
        match there.map(|id| &self.dirs[id]) {
            Some(dir) if dir.listing.listed => Published::Listed(World::placed(dir)),
            Some(_) => Published::Clear,
            None if self.dirs.contains_key(&key) => Published::Gone,
            None => Published::Clear,
        }
    }

    fn placed(dir: &Dir) -> PlacedDir {
        let (own, below) = (dir.class(), dir.listing.below.clone());
        PlacedDir { id: dir.id, home: dir.id, own, below }
    }

    /// A table built of the records, read in either order.
    pub(super) fn rebuilt(&mut self, backwards: bool) -> PermissionTable {
        let mut listed: Vec<Dir> =
            self.dirs.values().filter(|dir| dir.listing.listed).cloned().collect();
        if backwards {
            listed.reverse();
        }
        let records = listed.iter().map(|dir| {
            let at = self.position(dir.id);
            ListedDir { key: at.key, dir: World::placed(dir), birth: at.birth_elsewhere() }
        });
        built(&records.collect::<Vec<_>>())
    }

    /// The directory of a path by the unmerged tree, if all above it grant search.
    pub(super) fn walk(&self, path: &[EntryName], cred: &Cred) -> Option<DirId> {
        path.iter().try_fold(DirId::ROOT, |id, name| {
            let dir = &self.dirs[&id];
            let permits = permits_with(&dir.attr, dir.acl.as_ref(), cred, Access::EXECUTE);
            permits.ok().and_then(|()| self.names.get(&(id, name.clone())).copied())
        })
    }

    /// The step of the target server: its record proves the path that a table has granted.
    pub(super) fn target_accepts(&self, found: &Granted, path: &[EntryName]) -> bool {
        let Some(dir) = self.dirs.get(&found.id()) else { return false };
        let Some(last) = path.last() else { return found.id() == DirId::ROOT };
        let is_there = dir.parent == found.above() && dir.name.as_ref() == Some(last);
        let born = HASH.dir_id(found.above(), last, NameVersion(0));
        is_there && (found.listed || dir.version == NameVersion(0) && dir.id == born)
    }

    pub(super) fn path(&self, id: DirId) -> Vec<EntryName> {
        let dir = &self.dirs[&id];
        let Some(name) = dir.name.clone() else { return Vec::new() };
        let mut path = self.path(dir.parent);
        path.push(name);
        path
    }

    /// Granted by records, if tables were told everything: listed directories by their class, the
    /// others by their bound.
    pub(super) fn known(&self, path: &[EntryName], cred: &Cred) -> bool {
        let mut id = DirId::ROOT;
        path.iter().all(|name| {
            let dir = &self.dirs[&id];
            let class = if dir.listing.listed { dir.class() } else { dir.listing.below.clone() };
            id = self.names[&(id, name.clone())];
            class.grants(cred)
        })
    }

    /// Compares listings with their invariants.
    pub(super) fn check(&mut self) {
        let ids: Vec<DirId> = self.dirs.keys().copied().collect();
        for id in ids {
            let (at, dir) = (self.position(id), self.dirs[&id].clone());
            if !dir.listing.listed {
                assert!(dir.class().covers(&dir.listing.below), "{dir:?}");
                assert_eq!(dir.listing.below, self.dirs[&dir.parent].listing.below);
                assert_eq!((at.key, dir.version), (id, NameVersion(0)));
            }
        }
    }
}
