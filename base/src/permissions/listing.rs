//! Rules of listing: which directories have an entry in permission tables, and which keys a change
//! fences.
//!
//! Servers call these functions with what is in their records, before they commit. The functions
//! decide; they change nothing.
//!
//! Always true of records that follow them:
//! - An unlisted directory covers its bound `below`, which is that of its parent, and is at the
//!   place where it was born, with version 0; or it lies in the trash.
//! - `below` never changes, so nothing races with it. `listed` is never taken back.
//! - The keys that a change fences are all those at which a table would otherwise say more than the
//!   records do after it.

use smallvec::SmallVec;

use crate::{Cred, DirId, NameVersion, SearchClass};

/// Listing of a directory, in its records: absent there means the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Bound of what is made in the directory: a class that each unlisted directory below it
    /// covers. Set when the directory is made.
    pub below: SearchClass,
    /// Whether the directory has an entry of its own in permission tables.
    pub listed: bool,
}

/// The default is right for each directory of a file system that had no listings: it promises
/// nothing.
impl Default for Listing {
    fn default() -> Listing {
        Listing { below: SearchClass::Nothing, listed: false }
    }
}

/// Keys that a change touches: mostly one, at most three for each directory.
pub type Keys = SmallVec<[DirId; 3]>;

/// Position of a directory in the tree, as keys of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Key of the place where it is: `dir_id(parent, name, 0)`.
    pub key: DirId,
    /// The directory's id.
    pub id: DirId,
    /// Version in its birth triple. With version 0 the key of its birth place is its id.
    pub version: NameVersion,
}

impl Position {
    /// Key of the place where the directory was born, if that is another one than where it is and
    /// a client would predict this directory there.
    #[must_use]
    pub fn birth_elsewhere(&self) -> Option<DirId> {
        (self.version == NameVersion(0) && self.id != self.key).then_some(self.id)
    }

    fn keys(&self) -> impl Iterator<Item = DirId> {
        std::iter::once(self.key).chain(self.birth_elsewhere())
    }
}

/// Outcome of a rule: what the record says after the change, and the keys to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Listing of the directory after the change.
    pub listing: Listing,
    /// Keys that must be fenced at every server before the change commits.
    pub fenced: Keys,
    /// Keys to be filled again after the change is stable, without a fence: tables may say less
    /// until then, and never too much.
    pub refilled: Keys,
}

impl Listed {
    fn quietly(listing: Listing) -> Listed {
        Listed { listing, fenced: Keys::new(), refilled: Keys::new() }
    }
}

impl Listing {
    /// Listing of a root directory, which is always listed.
    #[must_use]
    pub fn of_root(class: &SearchClass) -> Listing {
        Listing { below: class.floor(), listed: true }
    }

    /// A directory of `class` is made in one with this listing. `at.key` is the key of the name.
    ///
    /// - Where it is predicted and covers the bound, it inherits, and nothing is fenced.
    /// - Where the bound is `Nothing` and the floor of `class` is more, it is listed without a fence:
    ///   tables grant nobody there until they are told. Homes that root made have such children.
    /// - Else it is stricter than tables would say, or has another id: listed and fenced.
    #[must_use]
    pub fn born(&self, at: Position, class: &SearchClass) -> Listed {
        let predicted = at.version == NameVersion(0);
        let covers = class.covers(&self.below);
        let floor = class.floor();
        let begins_anew = self.below == SearchClass::Nothing && floor != SearchClass::Nothing;
        if predicted && covers && !begins_anew {
            return Listed::quietly(Listing { below: self.below.clone(), listed: false });
        }
        let born = Listed::quietly(Listing { below: floor, listed: true });
        if predicted && covers { born.refill(at.key) } else { born.fence([at.key]) }
    }

    /// The class of a directory with this listing changes: chmod, chown, or its access ACL.
    #[must_use]
    pub fn changed(&self, at: Position, before: &SearchClass, after: &SearchClass) -> Listed {
        let same = Listed::quietly(self.clone());
        if !self.listed {
            let covers = after.covers(&self.below);
            return if covers { same } else { self.listed().fence([at.key]) };
        }
        match (before == after, after.covers(before)) {
            (true, _) => same,
            (false, true) => same.refill(at.key),
            (false, false) => same.fence([at.key]),
        }
    }

    /// A directory with this listing moves from its position to another key; so does one that is
    /// exchanged, put back from the trash or rescued. What it replaces is [`removed`](Self::removed)
    /// besides.
    #[must_use]
    pub fn moved(&self, from: Position, to: DirId) -> Listed {
        let after = Position { key: to, ..from };
        self.listed().fence(from.keys().chain(after.keys()))
    }

    /// A directory with this listing is removed. An unlisted one leaves nothing in tables: the
    /// server of its id has no record of it.
    #[must_use]
    pub fn removed(&self, at: Position) -> Keys {
        if self.listed { at.keys().collect() } else { Keys::new() }
    }

    /// A slow walk of `cred` went through the directory, which has `class`: listed by use, where
    /// the class grants the walk and the bound would not. Otherwise `None`.
    #[must_use]
    pub fn used(&self, at: Position, class: &SearchClass, cred: &Cred) -> Option<Listed> {
        let more = !self.listed && class.grants(cred) && !self.below.grants(cred);
        more.then(|| self.listed().refill(at.key))
    }

    fn listed(&self) -> Listed {
        Listed::quietly(Listing { below: self.below.clone(), listed: true })
    }
}

impl Listed {
    fn fence(mut self, keys: impl IntoIterator<Item = DirId>) -> Listed {
        for key in keys {
            if !self.fenced.contains(&key) {
                self.fenced.push(key);
            }
        }
        self
    }

    fn refill(mut self, key: DirId) -> Listed {
        self.refilled.push(key);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Position = Position { key: DirId(1000), id: DirId(1000), version: NameVersion(0) };
    const MOVED: Position = Position { key: DirId(2000), ..AT };
    const LATER: Position = Position { id: DirId(3000), version: NameVersion(1), ..AT };

    fn mode(mode: u32) -> SearchClass {
        SearchClass::of_mode(mode, 7, 8)
    }

    fn of(below: SearchClass, listed: bool) -> Listing {
        Listing { below, listed }
    }

    #[test]
    fn a_directory_that_grants_its_bound_inherits_and_a_stricter_one_is_fenced() {
        let (all, group) = (of(SearchClass::All, true), of(mode(0o750).floor(), true));
        let inherits = Listed::quietly(of(SearchClass::All, false));
        assert_eq!(all.born(AT, &mode(0o755)), inherits);
        let inherits = Listed::quietly(of(mode(0o750).floor(), false));
        assert_eq!(group.born(AT, &SearchClass::of_mode(0o770, 99, 8)), inherits);
        assert_eq!(group.born(AT, &mode(0o755)), inherits);
        let stricter = all.born(AT, &mode(0o700));
        assert_eq!(stricter.listing, of(mode(0o700), true));
        assert_eq!(stricter.fenced[..], [AT.key]);
        let later = all.born(LATER, &mode(0o755));
        assert_eq!(later.listing, of(SearchClass::All, true));
        assert_eq!(later.fenced[..], [LATER.key]);
    }

    #[test]
    fn where_nothing_is_promised_a_new_bound_begins_without_a_fence() {
        let home = of(SearchClass::Nothing, true).born(AT, &mode(0o700));
        assert_eq!(home.listing, of(mode(0o700), true));
        assert!(home.fenced.is_empty() && home.refilled[..] == [AT.key]);
        let private = of(SearchClass::Nothing, true).born(AT, &SearchClass::Nothing);
        assert_eq!(private, Listed::quietly(Listing::default()));
    }

    #[test]
    fn a_change_fences_what_it_takes_and_tells_what_it_gives() {
        let unlisted = of(SearchClass::All, false);
        let stricter = unlisted.changed(AT, &SearchClass::All, &mode(0o700));
        assert_eq!((stricter.listing.listed, &stricter.fenced[..]), (true, &[AT.key][..]));
        let listed = stricter.listing;
        let wider = listed.changed(AT, &mode(0o700), &mode(0o750));
        assert!(wider.fenced.is_empty() && wider.refilled[..] == [AT.key]);
        assert_eq!(listed.changed(AT, &mode(0o750), &mode(0o700)).fenced[..], [AT.key]);
        assert_eq!(listed.changed(AT, &mode(0o750), &mode(0o705)).fenced[..], [AT.key]);
        assert_eq!(listed.changed(AT, &mode(0o750), &mode(0o750)), Listed::quietly(listed));
        let group = of(mode(0o750).floor(), false);
        assert_eq!(group.changed(AT, &SearchClass::All, &mode(0o750)), Listed::quietly(group));
    }

    #[test]
    fn a_move_fences_both_places_and_the_birth_place() {
        let listing = of(SearchClass::All, false);
        let away = listing.moved(AT, DirId(2000));
        assert!(away.listing.listed && away.fenced[..] == [DirId(1000), DirId(2000)]);
        let on = listing.moved(MOVED, DirId(4000));
        assert_eq!(on.fenced[..], [DirId(2000), DirId(1000), DirId(4000)]);
        let back = listing.moved(MOVED, DirId(1000));
        assert_eq!(back.fenced[..], [DirId(2000), DirId(1000)]);
        let later = listing.moved(LATER, DirId(4000));
        assert_eq!(later.fenced[..], [DirId(1000), DirId(4000)]);
    }

    #[test]
    fn only_listed_directories_are_fenced_when_they_are_removed() {
        assert!(of(SearchClass::All, false).removed(AT).is_empty());
        let listed = of(SearchClass::All, true);
        assert_eq!(listed.removed(AT)[..], [AT.key]);
        assert_eq!(listed.removed(MOVED)[..], [MOVED.key, MOVED.id]);
        assert_eq!(listed.removed(LATER)[..], [LATER.key]);
    }

    #[test]
    fn use_lists_where_the_class_grants_more_than_the_bound() {
        let (unpacked, all) = (of(SearchClass::Nothing, false), SearchClass::All);
        let user = Cred { uid: 5, gid: 6, groups: Vec::new() };
        let used = unpacked.used(AT, &all, &user).unwrap();
        assert!(used.listing.listed && used.fenced.is_empty() && used.refilled[..] == [AT.key]);
        assert_eq!(used.listing.used(AT, &all, &user), None);
        assert_eq!(unpacked.used(AT, &all, &Cred::ROOT), None);
        assert_eq!(unpacked.used(AT, &mode(0o700), &user), None);
        assert_eq!(of(all.clone(), false).used(AT, &all, &user), None);
    }
}
