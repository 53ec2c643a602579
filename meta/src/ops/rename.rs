//! `rename`: move an entry, over an existing one, only to a free name, or in exchange for another.
//!
//! A directory keeps its id: only its access record moves, and its back pointer changes. A file's
//! inode moves along with its name, and leaves word at its shard of birth. All shards are in one
//! store, so all of it is one batch; renames of directories are serialised, so that no two of them
//! can make a loop.
//!
//! Cost: one batch, and three locked reads for a file in its directory, five for a directory. A
//! second directory adds one, a replaced directory two. A directory that gets another parent adds
//! one for each directory between the new parent and the root that was not read yet. Where cores
//! share the locks, a file that moves or is replaced is read once more. Where the new directory is
//! another server's, its records are read once, and assumed from then on while new names in it are
//! free.
//! POSIX: rename(2). EINVAL into its own subtree, ENOTEMPTY, EISDIR, ENOTDIR, EEXIST. EXDEV for a
//! directory that is not empty and would leave its quota, or enter one; EDQUOT.

use base::{Access as Permission, DirId, EntryName, FsError, Predicted};
use wire::{DirRef, Rename, RenameMode, Renamed, Retry};

use super::{rmdir, unlink};
use crate::{
    bugs::Bug,
    coordinator::ancestry_hints::{HomedDir, Moved},
    error::{Fault, Result},
    lock,
    record::{Access, EntryRecord, QuotaId, QuotaRecord, Usage, XattrSet, key::Part},
    trash,
    txn::{Dir, Located, Place, Txn, birthplace, removal},
};

/// The one or two directories of a rename, or shares of one directory.
struct Sides {
    from: Dir,
    /// `None` when both names are in `from`.
    to: Option<Dir>,
}

impl Sides {
    fn to(&self) -> &Dir {
        self.to.as_ref().unwrap_or(&self.from)
    }

    /// Whether both names are in one directory, if not in one partition of it.
    fn is_one(&self) -> bool {
        self.to().id == self.from.id
    }

    /// Waits for births: an entry from another directory may not be lost with its new one.
    fn settle_early_mkdirs(&self, txn: &Txn<'_>, mode: RenameMode) -> Result<()> {
        if self.is_one() {
            return Ok(());
        }
        txn.settle_early_mkdir(self.to())?;
        if mode == RenameMode::Exchange { txn.settle_early_mkdir(&self.from) } else { Ok(()) }
    }

    /// Reads the source's directory again: a replaced entry may have gone to the trash, which may
    /// be that directory.
    fn reread(&mut self, txn: &Txn<'_>) -> Result<()> {
        if self.to.is_some() && txn.shared.settings().trash.0.is_some() {
            let Dir { id, partition, content } = &self.from;
            let key = txn.share_key(content.home, *id, *partition);
            if let Some(content) = txn.get_content(&key)? {
                self.from.content = content;
            }
        }
        Ok(())
    }

    fn to_mut(&mut self) -> &mut Dir {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// An entry on its way, lifted from its old place.
#[expect(clippy::large_enum_variant, reason = "two of them live for one rename, on the stack")]
enum Moving {
    Dir(Access),
    File { located: Located, link: bool, xattrs: Option<XattrSet> },
}

pub(crate) fn run(txn: &mut Txn<'_>, req: &Rename) -> Result<Renamed> {
    want_all(txn, req)?;
    let mut sides = sides_locked(txn, req)?;
    sides.settle_early_mkdirs(txn, req.mode)?;
    txn.dir_permits(&sides.from, Permission::EXECUTE)?;
    txn.dir_permits(sides.to(), Permission::EXECUTE)?;
    let source = txn.entry(&sides.from, &req.from_name)?.ok_or(FsError::NotFound)?;
    let target = txn.entry(sides.to(), &req.to_name)?;
    txn.meets(sides.to(), target.is_none());
    match (req.mode, &target) {
        (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists.into()),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound.into()),
        (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, _) => {}
    }
    for (above, entry) in [(&sides.from, Some(&source)), (sides.to(), target.as_ref())] {
        if matches!(entry, Some(EntryRecord::Dir(access)) if trash::stays(txn, above, access.id)) {
            return Err(FsError::Busy.into());
        }
    }
    if let EntryRecord::Dir(access) = &source {
        txn.coordinate(access.id)?;
    }
    if let (RenameMode::Exchange, Some(EntryRecord::Dir(access))) = (req.mode, &target) {
        txn.coordinate(access.id)?;
    }
    keeps_a_tree(txn, &sides, req.mode, &source, target.as_ref())?;
    if target.as_ref().is_some_and(|target| target.ino() == source.ino()) {
        // Both names lead to one file: POSIX says that nothing happens.
        return Ok(Renamed { moved: source.ino(), replaced_dir: None });
    }
    permit(txn, &sides, req, &source, target.as_ref())?;

    match (req.mode, &target) {
        (RenameMode::Exchange, Some(target)) => {
            let forth = lift(txn, &sides.from, &req.from_name, &source)?;
            let back = lift(txn, sides.to(), &req.to_name, target)?;
            settle(txn, &mut sides, forth, &req.to_name, true)?;
            settle(txn, &mut sides, back, &req.from_name, false)?;
        }
        (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, target) => {
            if let Some(target) = target {
                replace(txn, &mut sides, req, target)?;
                sides.reread(txn)?;
            }
            let moving = lift(txn, &sides.from, &req.from_name, &source)?;
            txn.delete_entry(&sides.from, &req.from_name);
            sides.from.content.entries = sides.from.content.entries.saturating_sub(1);
            settle(txn, &mut sides, moving, &req.to_name, true)?;
            sides.to_mut().content.entries += 1;
        }
    }
    txn.touch(&mut sides.from);
    if let Some(to) = &mut sides.to {
        txn.touch(to);
        txn.put_dir(to);
        txn.note_dir(to);
    }
    txn.put_dir(&sides.from);
    txn.note_dir(&sides.from);
    let replaced_dir = match (req.mode, target) {
        (RenameMode::Replace, Some(EntryRecord::Dir(access))) => Some(access.ino),
        (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange, _) => None,
    };
    Ok(Renamed { moved: source.ino(), replaced_dir })
}

/// Asks for the records that every rename reads and, at the coordinator, for those that a
/// directory's rename reads besides, as far as they are known in advance.
fn want_all(txn: &Txn<'_>, req: &Rename) -> Result<()> {
    if txn.shared.cluster.is_none() {
        return Ok(());
    }
    let from = (&req.from_dir, from_partition(txn, req));
    let to = (&req.to_dir, txn.hint(&req.to_dir, &req.to_name));
    let is_here = |(dir, at): (&DirRef, u16)| txn.has_shard(txn.shard_of(dir.home, at));
    if is_here(from) && is_here(to) && txn.ancestry_hints().is_none() {
        // Both names are here: the records are read one after the other.
        return Ok(());
    }
    // The tickets come first: without them nothing is told.
    txn.check_dir_ticket(&req.from_dir)?;
    txn.check_dir_ticket(&req.to_dir)?;
    let content = |(dir, at): (&DirRef, u16)| txn.share_key(dir.home, dir.id, at);
    let entry = |(dir, at): (&DirRef, u16), name| {
        txn.key_on(txn.shard_of(dir.home, at), dir.id, name, Part::Main)
    };
    for (dir, at) in [from, to] {
        txn.means(&content((dir, at)), dir.ino);
    }
    let source = entry(from, &req.from_name);
    let moves_dir = if is_here(from) {
        let source: Option<EntryRecord> = txn.get(&source)?;
        match source {
            Some(EntryRecord::Dir(access)) => {
                txn.is_coordinators()?;
                Some(Some(HomedDir { id: access.id, home: access.home }))
            }
            Some(EntryRecord::Node(_) | EntryRecord::Link(_)) | None => None,
        }
    } else {
        // The rename was sent to the coordinator because it moves a directory.
        txn.ancestry_hints().is_some().then_some(None)
    };
    let target = entry(to, &req.to_name);
    if moves_dir.is_none() {
        txn.assume_free(&content(to), &target);
    }
    let mut keys = vec![content(from), source.clone(), content(to), target.clone()];
    if let (Some(hints), Some(moved)) = (txn.ancestry_hints(), moves_dir) {
        let config = &txn.shared.config;
        let predicted = || {
            let above = Predicted::known(req.from_dir.id, req.from_dir.home);
            let of = above.child(config.locality, &config.hash_key, &req.from_name);
            let group = HomedDir { id: of.id, home: of.home };
            let (home, dir) = (req.from_dir.home, req.from_dir.id);
            let birth = txn.name_key(home, dir, &req.from_name, Part::RenameList);
            Moved { group, birth }
        };
        let hint = hints.moved(req.from_dir.id, &req.from_name).unwrap_or_else(predicted);
        let group = moved.unwrap_or(hint.group);
        // All records of the move that walks may see.
        let moving = [source, target, txn.content_key(group.home, group.id), hint.birth];
        txn.want_held(&moving);
        keys.extend(moving);
        if !req.from_dir.same(&req.to_dir) {
            keys.extend(hints.up(req.to_dir.id).map(|up| txn.content_key(up.home, up.id)));
        }
    }
    txn.want(&keys)
}

/// The partition of the old name, as far as is known: a rename is sent to that partition, or to the
/// coordinator.
fn from_partition(txn: &Txn<'_>, req: &Rename) -> u16 {
    if txn.is_for_coordinator() {
        txn.hint(&req.from_dir, &req.from_name)
    } else {
        txn.asked_partition(req.from_dir.home)
    }
}

fn sides_locked(txn: &mut Txn<'_>, req: &Rename) -> Result<Sides> {
    let from = if txn.is_for_coordinator() {
        let start = txn.hint(&req.from_dir, &req.from_name);
        txn.dir_anywhere_locked(&req.from_dir, &req.from_name, start)?
    } else {
        txn.dir_for_locked(&req.from_dir, &req.from_name)?
    };
    let to = if req.from_dir.same(&req.to_dir) {
        match txn.owner_by(&from, &req.to_name) {
            other if other == from.partition => None,
            other => Some(txn.dir_anywhere_locked(&req.to_dir, &req.to_name, other)?),
        }
    } else {
        let start = txn.hint(&req.to_dir, &req.to_name);
        Some(txn.dir_anywhere_locked(&req.to_dir, &req.to_name, start)?)
    };
    Ok(Sides { from, to })
}

/// Checks that no directory goes below itself, and that none is replaced by an entry below it.
fn keeps_a_tree(
    txn: &mut Txn<'_>,
    sides: &Sides,
    mode: RenameMode,
    source: &EntryRecord,
    target: Option<&EntryRecord>,
) -> Result<()> {
    if sides.is_one() {
        // Neither of two names in one directory is above the other.
        return Ok(());
    }
    if let EntryRecord::Dir(access) = source
        && is_above(txn, access, sides.to())?
    {
        return Err(FsError::Invalid.into());
    }
    if let Some(EntryRecord::Dir(access)) = target
        && is_above(txn, access, &sides.from)?
    {
        let error = if mode == RenameMode::Exchange { FsError::Invalid } else { FsError::NotEmpty };
        return Err(error.into());
    }
    Ok(())
}

/// Whether a directory is `dir` or above it; `dir` has the other name of the rename.
fn is_above(txn: &mut Txn<'_>, access: &Access, dir: &Dir) -> Result<bool> {
    if dir.id == DirId::ROOT {
        return Ok(false);
    }
    // Race: no directory may move while we walk up, nor until we commit.
    txn.lock(lock::DIRECTORY_RENAME)?;
    txn.is_within(dir, access.id)
}

/// Whether the caller may rename. The order of the checks is that of Linux' `vfs_rename`.
fn permit(
    txn: &mut Txn<'_>,
    sides: &Sides,
    req: &Rename,
    source: &EntryRecord,
    target: Option<&EntryRecord>,
) -> Result<()> {
    let source_owner = removal::owner(txn, &sides.from, &req.from_name, source)?;
    txn.removal_permits(&sides.from, source_owner)?;
    match target {
        None => txn.dir_permits(sides.to(), Permission::CHANGE)?,
        Some(target) => {
            let target_owner = removal::owner(txn, sides.to(), &req.to_name, target)?;
            txn.removal_permits(sides.to(), target_owner)?;
            if req.mode != RenameMode::Exchange {
                same_kind(source, target)?;
            }
        }
    }
    // A directory that gets a new parent changes its `..`.
    let exchanged = target.filter(|_| req.mode == RenameMode::Exchange);
    for moved in [Some(source), exchanged] {
        if let (Some(EntryRecord::Dir(access)), false) = (moved, sides.is_one()) {
            let child = txn.child_locked(access)?;
            txn.dir_permits(&child, Permission::WRITE)?;
        }
    }
    Ok(())
}

/// Checks that a directory replaces only a directory, and anything else only what is none.
fn same_kind(source: &EntryRecord, target: &EntryRecord) -> Result<()> {
    let is_dir = |entry: &EntryRecord| matches!(entry, EntryRecord::Dir(_));
    match (is_dir(source), is_dir(target)) {
        (true, false) => Err(FsError::NotDirectory.into()),
        (false, true) => Err(FsError::IsDirectory.into()),
        (true, true) | (false, false) => Ok(()),
    }
}

/// Removes the entry that the rename replaces.
fn replace(txn: &mut Txn<'_>, sides: &mut Sides, req: &Rename, target: &EntryRecord) -> Result<()> {
    match target {
        EntryRecord::Dir(access) => {
            let mut child = txn.child_locked(access)?;
            let others = removal::others_empty(txn, &child)?;
            rmdir::discard(txn, sides.to(), &req.to_name, &mut child, &others)?;
            let to = &mut sides.to_mut().content;
            to.subdirs = to.subdirs.saturating_sub(1);
        }
        EntryRecord::Node(_) | EntryRecord::Link(_) => {
            unlink::remove(txn, sides.to(), &req.to_name, target)?;
        }
    }
    let to = &mut sides.to_mut().content;
    to.entries = to.entries.saturating_sub(1);
    Ok(())
}

/// Takes an entry, with its inode and attributes, from its old place.
fn lift(txn: &mut Txn<'_>, dir: &Dir, name: &EntryName, entry: &EntryRecord) -> Result<Moving> {
    if let EntryRecord::Dir(access) = entry {
        trash::leave(txn, dir, name);
        return Ok(Moving::Dir(*access));
    }
    let mut located = txn.entry_inode_locked(dir, name, entry)?;
    trash::file_leaves(txn, dir, name, &mut located)?;
    let link = located.place == Place::Slot;
    let xattrs = if link { None } else { txn.lift_xattrs(&located)? };
    Ok(Moving::File { located, link, xattrs })
}

/// Puts an entry under its new name: `forth` into the new directory, or back into the old one.
fn settle(
    txn: &mut Txn<'_>,
    sides: &mut Sides,
    moving: Moving,
    name: &EntryName,
    forth: bool,
) -> Result<()> {
    let new = if forth { sides.to() } else { &sides.from };
    match moving {
        Moving::File { mut located, link, xattrs } => {
            located.inode.times.ctime = txn.now;
            // Any file may be in its slot. A file with several names is charged where it was made,
            // or is found: its name may be on its way past a walk that counts.
            let (from, to) = (located.inode.quota, new.content.quota);
            if located.inode.nlink == 1 || txn.shared.quotas.is_counted_from(from, to) {
                txn.count_for(&mut located.inode, to)?;
            }
            if link {
                txn.put_inode(&located);
                txn.put_entry(new, name, &EntryRecord::Link(located.inode.ino));
            } else if txn.shard_of_share(new) == located.inode.ino.shard() {
                let place = Place::under(txn, new, name);
                txn.settle_inode(&mut located, place, xattrs);
            } else {
                // The contents of a file, and its opens, stay on its shard of birth: so does the
                // inode.
                let ino = located.inode.ino;
                txn.settle_inode(&mut located, Place::Slot, xattrs);
                txn.put_entry(new, name, &EntryRecord::Link(ino));
            }
        }
        Moving::Dir(access) => {
            let mut child = txn.child_locked(&access)?;
            if sides.is_one() {
                is_not_passed_over(txn, &child, new.content.quota)?;
            } else {
                change_quota(txn, sides, &mut child, new.content.quota)?;
            }
            birthplace::note_move(txn, &mut child, new, name)?;
            child.content.times.ctime = txn.now;
            txn.put_entry(new, name, &EntryRecord::Dir(Txn::access_of(&child)));
            txn.put_everywhere(&child)?;
            if !txn.shared.bugs.has(Bug::MoveNotAnnounced) {
                txn.facts.moved.push(child.id);
            }
            if let Sides { from, to: Some(to) } = sides {
                let (less, more) = if forth { (from, to) } else { (to, from) };
                less.content.subdirs = less.content.subdirs.saturating_sub(1);
                more.content.subdirs = more.content.subdirs.saturating_add(1);
            }
        }
    }
    Ok(())
}

/// Refuses for now while a walk that counts may have been where the new name is, and not yet where
/// the old one is.
fn is_not_passed_over(txn: &Txn<'_>, child: &Dir, to: QuotaId) -> Result<()> {
    let (quotas, own) = (&txn.shared.quotas, QuotaId(child.content.ino));
    let root = quotas.root(own).filter(|_| child.content.quota == own);
    let from = root.map_or(child.content.quota, |root| QuotaId(root.record.parent));
    let waits = match from == to {
        true => root.is_none() && quotas.is_counted_again(from),
        false => quotas.is_moving(from, to),
    };
    if waits { Err(Fault::Retry(Retry::Busy)) } else { Ok(()) }
}

/// Charges a directory to the quota of its new place: an empty one, or one that accounts for
/// itself. Any other may not leave its quota, as all below it would have to be charged anew.
fn change_quota(txn: &mut Txn<'_>, sides: &Sides, child: &mut Dir, to: QuotaId) -> Result<()> {
    let (quotas, from) = (&txn.shared.quotas, child.content.quota);
    let (one, other) = (sides.from.content.quota, sides.to().content.quota);
    if one == other && from == to {
        // The directory may move from where the counting walk has not been to where it has.
        return if quotas.is_counted_again(from) { Err(Fault::Retry(Retry::Busy)) } else { Ok(()) };
    }
    // The tree that is being counted may not change under the walk.
    let own = quotas.root(QuotaId(child.content.ino));
    let begins = own.is_some_and(|own| own.record.state.is_moving());
    if begins || quotas.is_moving(one, other) || quotas.is_moving(from, to) {
        return Err(Fault::Retry(Retry::Busy));
    }
    if from == QuotaId(child.content.ino) {
        let Some(seen) = quotas.get(from) else { return Ok(()) };
        if seen.record.parent == to.0 {
            return Ok(());
        }
        quotas.could_move(from, to)?;
        txn.put_quota(from, &QuotaRecord { parent: to.0, ..seen.record });
        return Ok(());
    }
    if from != to {
        match removal::others_empty(txn, child) {
            Err(Fault::Answer(FsError::NotEmpty)) => return Err(FsError::CrossDevice.into()),
            others => others?.iter().for_each(|share| txn.keep_counts(share)),
        }
        txn.keep_counts(child);
    }
    let was = child.content.accounts();
    child.content.quota = to;
    txn.recharge(was, child.content.accounts(), Usage::of(1, 0))?;
    Ok(())
}
