//! The changes that an operation has made, for the feed: from the records that it has written, and
//! the request.
//!
//! Names come and go with their records. Of a transaction over several servers each server describes
//! what it has itself. Only the server that has the request knows it; for a participant a name that
//! comes or goes is one that was renamed: every other request is done by the server that has the
//! name.

use base::{EntryName, FileKind, Ino, SessionId};
use wire::{Change, FileRef, NodeRef, Rename, RenameMode, Request};

use super::{Event, Logged, Named, Past, close_of};
use crate::{
    error::{Fault, Result},
    record::{
        Content, EntryRecord, Record as _,
        key::{self, Part},
    },
    txn::{Txn, written::Changed},
};

/// States the changes of a request that is about to commit.
pub(crate) fn of_request(txn: &mut Txn<'_>, request: &Request) {
    state(txn, Some(request));
}

/// States the changes that another server's transaction makes here.
pub(crate) fn of_participant(txn: &mut Txn<'_>) {
    state(txn, None);
}

/// States that a session has closed a file, if it has written it.
pub(crate) fn of_close(txn: &mut Txn<'_>, session: SessionId, ino: Ino) {
    let closed = txn.shared.feed.closed(session, ino);
    txn.facts.events.extend(closed.and_then(|named| close_of(ino, named, txn.now)));
}

fn state(txn: &mut Txn<'_>, request: Option<&Request>) {
    match described(txn, request) {
        Ok(events) => txn.facts.events.extend(events),
        // A record that was just read cannot be read any more.
        Err(Fault::Halt(problem)) => txn.shared.halt(problem),
        Err(fault) => tracing::error!(?fault, "a change is not in the change feed"),
    }
}

/// A name that the operation has written, with what is under it.
struct Entry {
    named: Named,
    ino: Ino,
    kind: Option<FileKind>,
}

/// The names that an operation has written.
#[derive(Default)]
struct Names {
    gone: Vec<(Entry, IsReplaced)>,
    came: Vec<Entry>,
    /// Names whose node is the same as before.
    kept: Vec<Entry>,
}

/// Whether another node has the name now.
type IsReplaced = bool;

fn described(txn: &mut Txn<'_>, request: Option<&Request>) -> Result<Vec<Logged>> {
    // On a single server a directory that is removed may move to the trash.
    let is_alone = txn.shared.cluster.is_none();
    let may_trash = is_alone && matches!(request, Some(Request::Rmdir(_) | Request::Rename(_)));
    let changed = txn.changed(|key, is_removed| {
        key::is_entry(key) || (is_removed || may_trash) && is_master(key)
    })?;
    let mut names = Names::default();
    let (entries, masters): (Vec<_>, Vec<_>) =
        changed.iter().partition(|record| key::is_entry(&record.key));
    for record in entries {
        names.add(txn, record)?;
    }
    let mut events = Vec::new();
    let now = txn.now;
    let add = |events: &mut Vec<Logged>, change, entry: Entry| {
        let Entry { named, ino, kind } = entry;
        events.push(Logged::Event(named.event(change, now, ino, kind)));
    };
    let Names { gone, came, kept } = names;
    let is_moved = |(entry, is_replaced): &(Entry, IsReplaced)| match request {
        Some(Request::Rename(req)) => moves_from(req, &entry.named),
        Some(_) => false,
        None => !is_replaced,
    };
    // Where a node comes from is told right before where it goes.
    let (moved, removed): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_moved);
    let mut past = Vec::new();
    for record in masters {
        let is_removed = |ino| removed.iter().any(|(entry, _)| entry.ino == ino);
        past.extend(kept_as_past(txn, record, is_removed)?);
    }
    for (entry, _) in removed {
        txn.shared.feed.removed(entry.ino, &entry.named);
        add(&mut events, Change::Removed, entry);
    }
    moved.into_iter().for_each(|(entry, _)| add(&mut events, Change::MovedFrom, entry));
    for entry in came {
        let change = match request {
            // A name that is removed may go to the trash.
            Some(Request::Rename(_) | Request::Unlink(_) | Request::Rmdir(_)) | None => {
                Change::MovedTo
            }
            Some(Request::Link(_)) => Change::Linked,
            Some(_) => Change::Created,
        };
        if matches!(change, Change::MovedTo | Change::Linked) {
            txn.shared.feed.renamed(entry.ino, &entry.named);
        }
        add(&mut events, change, entry);
    }
    if let Some(request) = request {
        let of_node = of_node(txn, request, kept)?.into_iter();
        events.extend(of_node.filter(|event| !event.is_of_nothing()).map(Logged::Event));
    }
    events.extend(past.into_iter().map(Logged::Past));
    Ok(events)
}

/// Whether a rename takes a node away from a name.
fn moves_from(req: &Rename, named: &Named) -> bool {
    let is_from = named.dir == req.from_dir.id && named.name == req.from_name;
    is_from || req.mode == RenameMode::Exchange
}

/// Whether this is the key of a directory's own content record, and not of another partition's.
fn is_master(key: &[u8]) -> bool {
    key::is_content(key) && key::parse_share(key) == Some((0, Part::Main as u8))
}

impl Names {
    fn add(&mut self, txn: &Txn<'_>, record: &Changed) -> Result<()> {
        let entry = |bytes| EntryRecord::from_record(bytes);
        let was = record.was.as_ref().map(entry).transpose()?;
        let now = record.now.as_ref().map(entry).transpose()?;
        if was.is_none() && now.is_none() {
            return Ok(());
        }
        let Some(named) = named(txn, &record.key)? else { return Ok(()) };
        let of = |entry: EntryRecord| Entry {
            named: named.clone(),
            ino: entry.ino(),
            kind: match &entry {
                EntryRecord::Node(inode) => Some(inode.attr().kind),
                EntryRecord::Dir(_) => Some(FileKind::Directory),
                EntryRecord::Link(_) => None,
            },
        };
        match (was, now) {
            (Some(was), Some(now)) if was.ino() == now.ino() => self.kept.push(of(now)),
            (was, now) => {
                let is_replaced = now.is_some();
                self.gone.extend(was.map(|was| (of(was), is_replaced)));
                self.came.extend(now.map(of));
            }
        }
        Ok(())
    }
}

/// The name in the key of an entry. The share of the directory beside it knows the directory.
fn named(txn: &Txn<'_>, at: &[u8]) -> Result<Option<Named>> {
    let Some(((_, name, _), dir)) = key::parse_name(at).zip(key::parse_dir(at)) else {
        return Ok(None);
    };
    let shard = key::shard_of(at);
    let share = key::content(shard, dir, txn.partition_on(shard, dir)?, Part::Main);
    let Some(content) = txn.left_content(&share)? else { return Ok(None) };
    let Ok(name) = EntryName::new(name) else { return Ok(None) };
    Ok(Some(Named { dir, dir_ino: content.ino, dir_home: content.home, name }))
}

/// Keeps a directory as it was, if the operation removes it, or its name.
fn kept_as_past(
    txn: &mut Txn<'_>,
    record: &Changed,
    is_removed: impl Fn(Ino) -> bool,
) -> Result<Option<Past>> {
    let was = record.was.as_ref().map(Content::from_record).transpose()?;
    let Some(was) = was.filter(|was| record.now.is_none() || is_removed(was.ino)) else {
        return Ok(None);
    };
    let Some(dir) = key::parse_dir(&record.key) else { return Ok(None) };
    let past = Past { dir, ino: was.ino, home: was.home, time: txn.now };
    let mut kept = was;
    kept.times.ctime = txn.now;
    txn.put(key::past(key::shard_of(&record.key), dir, kept.ino), &kept);
    Ok(Some(past))
}

/// The node that a request names, as an event about its attributes, and whether the node is known to
/// have that name. `kept` are the names that the request has written again, with the inode. `None`:
/// a session that must prove its walks is not believed that a file has a name.
fn node(txn: &Txn<'_>, of: &NodeRef, kept: Vec<Entry>) -> Result<Option<(Event, bool)>> {
    let change = Change::Attributes;
    let file = match of {
        NodeRef::Dir(dir) => {
            let event = Event {
                change,
                time: txn.now,
                dir: dir.id,
                dir_ino: dir.ino,
                dir_home: dir.home,
                name: None,
                ino: dir.ino,
                kind: Some(FileKind::Directory),
            };
            return Ok(Some((event, true)));
        }
        NodeRef::File(file) => file,
    };
    // The client may know the file by a name of before.
    let entry = kept.into_iter().find(|entry| entry.ino == file.ino);
    let (named, kind, is_sure) = match entry {
        Some(Entry { named, kind, .. }) => (named, kind, true),
        None => (Named::from(file), None, has_name(txn, file)?),
    };
    let event = named.event(change, txn.now, file.ino, kind);
    Ok((is_sure || txn.trusts()).then_some((event, is_sure)))
}

/// Whether a name of this server leads to a file.
fn has_name(txn: &Txn<'_>, file: &FileRef) -> Result<bool> {
    let shard = txn.shard_of(file.dir.home, txn.hint(&file.dir, &file.name));
    let at = txn.key_on(shard, file.dir.id, &file.name, Part::Main);
    let entry = match txn.is_here(&at) {
        true => txn.left(&at)?,
        false => None,
    };
    let entry = entry.map(|bytes| EntryRecord::from_record(&bytes)).transpose()?;
    Ok(entry.is_some_and(|entry| entry.ino() == file.ino))
}

/// The changes of a node itself that a request makes.
fn of_node(txn: &Txn<'_>, request: &Request, kept: Vec<Entry>) -> Result<Vec<Event>> {
    let attributes =
        |node: Option<(Event, bool)>| node.map(|(event, _)| event).into_iter().collect();
    let written = |node: Option<(Event, bool)>| {
        let node = node.filter(|(event, is_sure)| !is_told_at_close(txn, event, *is_sure));
        node.map(|(event, _)| Event { change: Change::Written, ..event })
    };
    let file = |file: &FileRef, kept| node(txn, &NodeRef::File(file.clone()), kept);
    Ok(match request {
        Request::Setattr(req) if !req.set.access_only => attributes(node(txn, &req.node, kept)?),
        Request::Setxattr(req) => attributes(node(txn, &req.node, kept)?),
        Request::Removexattr(req) => attributes(node(txn, &req.node, kept)?),
        Request::Write(req) => {
            let node = file(&req.file, kept)?;
            let set = node.as_ref().filter(|_| req.set.is_some()).map(|(event, _)| event.clone());
            let written = if req.chunks.is_empty() { None } else { written(node) };
            set.into_iter().chain(written).collect()
        }
        Request::Allocate(req) => written(file(&req.file, kept)?).into_iter().collect(),
        _ => Vec::new(),
    })
}

/// Puts the news of a write to a file off until the file is closed, if this server is told of that:
/// where the inode was born.
fn is_told_at_close(txn: &Txn<'_>, file: &Event, is_sure: bool) -> bool {
    let Event { dir, dir_ino, dir_home, ino, .. } = *file;
    let Some((session, name)) = txn.caller.session.zip(file.name.clone()) else { return false };
    let named = Named { dir, dir_ino, dir_home, name };
    txn.has_shard(ino.shard()) && txn.shared.feed.opened(session.id, ino, named, is_sure)
}

/// Notes that a session has had a file open for writing since before this server started.
pub(crate) fn of_claim(txn: &Txn<'_>, session: SessionId, file: &FileRef) -> Result<()> {
    let is_believed = txn.trusts() || has_name(txn, file)?;
    if is_believed && txn.has_shard(file.ino.shard()) {
        txn.shared.feed.opened(session, file.ino, Named::from(file), false);
    }
    Ok(())
}
