//! The birth place of a directory: it says whether the directory lives elsewhere.

use base::{DirId, EntryName, FsError, NameVersion};

use super::{Dir, Txn};
use crate::{
    coordinator::ancestry_hints::{HomedDir, Moved},
    error::{Fault, Result},
    lock, permissions, placing,
    record::{Content, Key, RenameList, key::Part},
};

/// Notes a directory's new place, in its back pointer and at its birth place.
///
/// Paper: InfiniFS §3.3, rename list and back pointer.
pub(crate) fn note_move(
    txn: &mut Txn<'_>,
    child: &mut Dir,
    new: &Dir,
    name: &EntryName,
) -> Result<()> {
    permissions::moves(txn, child, new.id, name);
    child.content.parent = new.id;
    child.content.parent_ino = new.content.ino;
    child.content.parent_home = new.content.home;
    child.content.name = Some(name.clone());
    note_birthplace(txn, child)?;
    if let (Some(birth), Some(mut hints)) = (birth_key(txn, child), txn.ancestry_hints()) {
        let group = HomedDir { id: child.id, home: child.content.home };
        hints.has_moved(new.id, name, Moved { group, birth });
        hints.is_below(child.id, HomedDir { id: new.id, home: new.content.home });
    }
    Ok(())
}

/// The key of the rename list of the name that a directory was born under.
fn birth_key(txn: &Txn<'_>, child: &Dir) -> Option<Key> {
    let name = child.content.birth_name.as_ref()?;
    // No directory's home ever changes.
    let parent = child.content.birth_parent;
    let home = placing::birth_home(&txn.shared.config, &child.content);
    Some(txn.name_key(home, parent, name, Part::RenameList))
}

/// Notes at a directory's birth place whether it lives elsewhere. Returns whether that was news.
pub(crate) fn note_birthplace(txn: &mut Txn<'_>, child: &Dir) -> Result<bool> {
    let Content { birth_parent, birth_name, parent, name, .. } = &child.content;
    let is_here = parent == birth_parent && name == birth_name;
    change_rename_list(txn, child, |versions, version| {
        if is_here {
            versions.retain(|other| *other != version);
        } else if !versions.contains(&version) {
            versions.push(version);
        }
    })
}

/// Forgets, at the birth place, that the directory lives elsewhere: it is back, or gone.
pub(crate) fn forget_move(txn: &mut Txn<'_>, child: &Dir) -> Result<()> {
    change_rename_list(txn, child, |versions, version| versions.retain(|other| *other != version))
        .map(drop)
}

/// Number of other directories born under the same name that live elsewhere.
pub(crate) fn others_elsewhere(txn: &mut Txn<'_>, child: &Dir) -> Result<usize> {
    let mut others = 0;
    change_rename_list(txn, child, |versions, version| {
        others = versions.iter().filter(|other| **other != version).count();
    })?;
    Ok(others)
}

fn change_rename_list(
    txn: &mut Txn<'_>,
    child: &Dir,
    change: impl FnOnce(&mut Vec<NameVersion>, NameVersion),
) -> Result<bool> {
    let Some(key) = birth_key(txn, child) else {
        // The root; or a directory whose birth name a repair could not find out: nobody expects it
        // anywhere.
        let root = child.id == DirId::ROOT;
        return if root { Err(Fault::Answer(FsError::Busy)) } else { Ok(false) };
    };
    txn.lock(lock::dir_lock(child.content.birth_parent))?;
    let old: RenameList = txn.get(&key)?.unwrap_or_default();
    let mut list = old.clone();
    change(&mut list.versions, child.content.birth_version);
    if list == old {
        return Ok(false);
    }
    if list.versions.is_empty() {
        txn.delete(key);
    } else {
        txn.put(key, &list);
    }
    Ok(true)
}
