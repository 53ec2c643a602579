//! Granting a directory that exists to a mount that works in it.
//!
//! The mount is told all names of the directory, with the inodes that stand with them: from then on
//! it answers for the directory as for one that it has made. What others have seen of the directory
//! before stays as good as it was, as the mount changes nothing before it holds the directory, and
//! they ask the server again.
//!
//! Cost: a scan of the names and one record. No other core has a group under way meanwhile.

use std::ops::ControlFlow;

use base::{DirId, EntryName, FsError, limits::HELD_NAMES_MAX};
use wire::{Delegate, DelegatedEntry, DelegatedFile, DelegatedName, DelegatedPage, Reply, Retry};

use super::grant;
use crate::{
    error::{Fault, Result},
    record::{Content, ContentState, Contents, EntryRecord, Inode, Record as _, Xattrs, key},
    txn::{Dir, Txn},
};

/// Most names of one page.
const PAGE_NAMES_MAX: usize = 2048;
/// One name in so many may be that of a file with several.
const LINKS_SHARE: usize = 4;
/// Most bytes of records of one page.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// A page of names; nothing when the session does not get the directory, nor perhaps others.
pub(crate) fn run(txn: &mut Txn<'_>, req: &Delegate) -> Result<Reply> {
    let session = txn.caller.session.ok_or(FsError::Invalid)?.id;
    let holder = txn.shared.delegations.holder(req.dir.id);
    let begins = req.after == 0;
    match holder {
        Some(holder) if holder == session => {
            if begins {
                txn.alone()?;
            }
            let dir = txn.share_asked(&req.dir)?;
            let page = page(txn, &dir, req.after)?.ok_or(FsError::Io)?;
            if begins {
                // The client has not heard of the grant, and asks again.
                grant::give(txn, &dir, session)?;
            }
            return Ok(Reply::Delegated(page));
        }
        None if begins => {}
        Some(_) | None => return Err(Fault::Retry(Retry::NotHeld)),
    }
    if !grant::is_wanted(txn, session) || !may_change_holder(txn, req.dir.id) {
        return Ok(Reply::Nothing);
    }
    let dir = txn.share_asked(&req.dir)?;
    if !grant::is_simple(txn, &dir)? {
        return Ok(Reply::Nothing);
    }
    if !is_settled(txn, &dir) {
        return Err(Fault::Retry(Retry::NotHeld));
    }
    if dir.content.entries > HELD_NAMES_MAX.min(req.names_max.into()) {
        return Ok(Reply::Delegated(head(&dir)));
    }
    // Another core may have changed something in the directory that it has not written yet, or have
    // looked at it for a change that it is about to write. Then all this is looked at again.
    txn.alone()?;
    let page = page(txn, &dir, 0)?.filter(|page| !has_many_links(page));
    let page = page.ok_or(Fault::Retry(Retry::NotHeld))?;
    grant::give(txn, &dir, session)?;
    Ok(Reply::Delegated(page))
}

/// Whether nothing is under way that looks at whole directories. The root has entries that are not
/// listed.
fn may_change_holder(txn: &Txn<'_>, dir: DirId) -> bool {
    let shared = txn.shared;
    dir != DirId::ROOT && !shared.pauses.holds() && !shared.handoffs.any()
}

/// Whether no transaction of several servers has a part in the directory.
fn is_settled(txn: &Txn<'_>, dir: &Dir) -> bool {
    let Dir { id, partition, content } = dir;
    let shard = txn.shard(content.home);
    let is_in_doubt = [key::names(shard, *id), key::shares(shard, *id)]
        .iter()
        .any(|prefix| txn.shared.prepared.holds(prefix, &key::end_of(prefix)).is_some());
    *partition == 0 && content.state == ContentState::Live && content.confirmed && !is_in_doubt
}

/// Whether the directory is where it was made, so that no other directory has a note of it.
fn is_moved(content: &Content) -> bool {
    content.birth_parent != content.parent || content.birth_name != content.name
}

/// Whether many names are those of files of which the holder would have to ask each time.
fn has_many_links(page: &DelegatedPage) -> bool {
    let links = page.names.iter().filter(|name| matches!(name.entry, DelegatedEntry::Link(_)));
    links.count() * LINKS_SHARE > page.names.len()
}

/// The names after a position; `None` if any of them cannot be read.
fn page(txn: &Txn<'_>, dir: &Dir, after: u64) -> Result<Option<DelegatedPage>> {
    let shard = txn.shard(dir.content.home);
    let from = key::names_from(shard, dir.id, after.saturating_add(1));
    let to = key::end_of(&key::names(shard, dir.id));
    let (mut names, mut bytes, mut end, mut is_sound) = (Vec::new(), 0, true, true);
    let mut last = after;
    txn.scan(&from, &to, &mut |key, value| {
        let Some((pos, name, _)) = key::parse_name(key) else {
            is_sound = false;
            return ControlFlow::Break(());
        };
        if !key::is_entry(key) {
            return ControlFlow::Continue(());
        }
        let is_full = names.len() >= PAGE_NAMES_MAX || bytes >= PAGE_BYTES_MAX;
        // A page ends between two positions, so that the next one goes on after its last one.
        if is_full && pos != last {
            end = false;
            return ControlFlow::Break(());
        }
        let record = bytes::Bytes::copy_from_slice(value);
        match (EntryName::new(name), EntryRecord::from_record(&record)) {
            (Ok(name), Ok(record)) => {
                (last, bytes) = (pos, bytes + value.len());
                names.push(DelegatedName { name, entry: entry(txn, &record) });
                ControlFlow::Continue(())
            }
            // The check reports them.
            (Err(_), _) | (_, Err(_)) => {
                is_sound = false;
                ControlFlow::Break(())
            }
        }
    })?;
    let reach = if end { None } else { Some(last) };
    Ok(is_sound.then(|| DelegatedPage { names, reach, ..head(dir) }))
}

/// A page without names.
fn head(dir: &Dir) -> DelegatedPage {
    let content = &dir.content;
    DelegatedPage {
        attr: dir.attr(),
        parent_ino: content.parent_ino,
        is_moved: is_moved(content),
        is_plain: is_plain(&content.xattrs),
        names: Vec::new(),
        reach: None,
    }
}

fn entry(txn: &Txn<'_>, record: &EntryRecord) -> DelegatedEntry {
    match record {
        EntryRecord::Node(inode) => DelegatedEntry::File(file(inode)),
        EntryRecord::Dir(access) => {
            DelegatedEntry::Dir(txn.dir_ref(access.id, access.ino, access.home))
        }
        EntryRecord::Link(ino) => DelegatedEntry::Link(*ino),
    }
}

fn file(inode: &Inode) -> DelegatedFile {
    let target = match &inode.contents {
        Contents::Target(target) => Some(target.clone()),
        Contents::Inline(_) | Contents::Blocks | Contents::Device(_) => None,
    };
    DelegatedFile { attr: inode.attr(), target, is_plain: is_plain(&inode.xattrs) }
}

fn is_plain(xattrs: &Xattrs) -> bool {
    !xattrs.is_spilled() && xattrs.here().is_empty()
}
