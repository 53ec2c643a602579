//! Listings of directories in permission tables: each change keeps them right in its own batch.
//!
//! The rules are those of [`base::permissions`]; this module applies them to records. No table is
//! built of the records yet, so the keys that a rule says are to be fenced or filled are not told
//! to anybody.
//!
//! Invariants, which fsck checks:
//! - An unlisted directory grants its bound, is where it was born with version 0, and has a bound
//!   that grants at least that of the directory above it. In the trash bounds promise nothing.
//! - A bound never changes after mkdir. Every partition of a directory repeats it.

use base::{
    AclKind, DirId, EntryName, HashKey, NameVersion, SearchClass,
    permissions::{Listing, Position},
};

use crate::{
    bugs::Bug,
    record::{Content, StoredListing},
    txn::{Dir, Txn},
};

impl Content {
    /// Users that may search the directory; nobody where its ACL is damaged, as for checks.
    pub(crate) fn search_class(&self) -> SearchClass {
        match self.xattrs.acl(AclKind::Access) {
            Ok(acl) => SearchClass::of(&self.attr(), acl.as_ref()),
            Err(_) => SearchClass::Nothing,
        }
    }
}

/// Lists a new directory, whose record is complete but for that, as `parent` demands.
pub(crate) fn born(txn: &Txn<'_>, parent: &Dir, child: &mut Dir) {
    let above = &parent.content.listing.0;
    let Some(at) = position(hash_key(txn), child) else { return };
    let listing = match txn.shared.bugs.has(Bug::StricterUnlisted) {
        true => Listing { listed: false, ..above.clone() },
        false => above.born(at, &child.content.search_class()).listing,
    };
    child.content.listing = StoredListing(listing);
}

/// Lists a directory whose permissions have changed, if it grants less than its bound now. `was` is
/// what it granted before.
pub(crate) fn changed(txn: &Txn<'_>, dir: &mut Dir, was: &SearchClass) {
    let Some(at) = position(hash_key(txn), dir) else { return };
    if txn.shared.bugs.has(Bug::ReducedUnlisted) {
        return;
    }
    let class = dir.content.search_class();
    dir.content.listing = StoredListing(dir.content.listing.0.changed(at, was, &class).listing);
}

/// Lists a directory that gets another name, before its record says so.
pub(crate) fn moves(txn: &Txn<'_>, dir: &mut Dir, parent: DirId, name: &EntryName) {
    let Some(at) = position(hash_key(txn), dir) else { return };
    if txn.shared.bugs.has(Bug::MovedUnlisted) {
        return;
    }
    let to = hash_key(txn).dir_id(parent, name, NameVersion(0));
    dir.content.listing = StoredListing(dir.content.listing.0.moved(at, to).listing);
}

/// The listing of a directory that a repair makes in `parent`: it promises nothing, as nobody knows
/// what it promised, and is listed where something above it does.
pub(crate) fn made_again(parent: &Content) -> StoredListing {
    let listed = parent.listing.0.below != SearchClass::Nothing;
    StoredListing(Listing { below: SearchClass::Nothing, listed })
}

/// Words for an error in the listing of a directory; `parent` is the bound of the directory above
/// it, if that is known.
pub(crate) fn wrong(dir: &Content, parent: Option<&SearchClass>) -> Option<&'static str> {
    let Listing { below, listed } = &dir.listing.0;
    if *listed {
        return None;
    }
    let elsewhere = dir.birth_version != NameVersion(0)
        || dir.parent != dir.birth_parent
        || dir.name != dir.birth_name;
    if !dir.search_class().covers(below) {
        Some("grants less than its bound and is not listed")
    } else if let Some(wrong) = parent.and_then(|parent| wrong_bound(below, parent)) {
        Some(wrong)
    } else if elsewhere && *below != SearchClass::Nothing {
        Some("is not where it is looked for by its name, and is not listed")
    } else {
        None
    }
}

fn hash_key(txn: &Txn<'_>) -> HashKey {
    txn.shared.config.hash_key
}

/// Words for an error in the bound of an unlisted directory below one with the bound `above`.
pub(crate) fn wrong_bound(below: &SearchClass, above: &SearchClass) -> Option<&'static str> {
    let wrong = "has a bound that grants less than the one above it, and is not listed";
    (!below.covers(above)).then_some(wrong)
}

/// The place of a directory; `None` for the root, which has none.
fn position(hash_key: HashKey, dir: &Dir) -> Option<Position> {
    let Content { parent, name, birth_version: version, birth_parent, birth_name, .. } =
        &dir.content;
    let at_birth = (parent, name) == (birth_parent, birth_name) && version.0 == 0;
    let key = match name {
        Some(_) if at_birth => dir.id,
        Some(name) => hash_key.dir_id(*parent, name, NameVersion(0)),
        None => return None,
    };
    Some(Position { key, id: dir.id, version: *version })
}
