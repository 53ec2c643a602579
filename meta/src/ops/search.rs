//! `search`: find the node of an inode number, for a file handle of which a client knows no more.
//!
//! An inode that has been linked or moved is in its slot. Any other is embedded under a name, on
//! its shard of birth. A directory is on that shard, too, by its content record or by its entry,
//! unless the entry was moved away and the content record never was there. So the records of that
//! shard are searched, some in each request.
//!
//! Cost: one read; a scan of as many records as a shard has, in pages.
//! Linux: open_by_handle_at(2). ESTALE.

use std::ops::ControlFlow;

use base::{DirId, EntryName, FsError, Ino, ShardId};
use bytes::Bytes;
use wire::{DirRef, FileRef, NodeRef, Search, Searched};

use crate::{
    error::{Fault, Result},
    record::{
        Content, ContentState, EntryRecord, Record as _, Slot, key,
        key::{Key, Part},
    },
    txn::Txn,
};

/// Most records that one request looks at.
const RECORDS_MAX: usize = 4096;

pub(crate) fn run(txn: &mut Txn<'_>, req: &Search) -> Result<Searched> {
    // A session that must prove its walks, or has them checked, has no walk to show for a bare
    // number.
    let walks = !txn.trusts() || (txn.checks() && !txn.caller.cred.is_root());
    let shard = req.ino.shard();
    if walks || shard.0 >= txn.shared.config.shards {
        return Err(FsError::Stale.into());
    }
    if !txn.has_shard(shard) {
        return Err(Fault::Retry(wire::Retry::Busy));
    }
    if req.from.is_empty() && txn.get::<Slot>(&key::inode(req.ino, Part::Main))?.is_some() {
        return Ok(found(NodeRef::File(FileRef::unnamed(req.dir, req.ino))));
    }
    let (contents, names) = (key::kind(shard, b'D'), key::kind(shard, b'N'));
    let from = if req.from.is_empty() { contents.clone() } else { Key::from_slice(&req.from) };
    let mut page = Page { ino: req.ino, records: 0, last: None, met: None };
    for kind in [contents, names] {
        let (start, end) = (from.clone().max(kind.clone()), key::end_of(&kind));
        if start < end && page.goes_on() {
            // A client that has a handle was told of stored records only. Another request reads the
            // node then, so this one need not wait for changes that are under way.
            txn.shared.engine.scan(&start, &end, &mut |key, value| page.visit(key, value))?;
        }
    }
    match page.met {
        Some(Met::Dir(dir)) => Ok(found(NodeRef::Dir(dir))),
        Some(Met::Name(dir, name)) => {
            let dir = holder(txn, shard, dir)?.ok_or(FsError::Stale)?;
            Ok(found(NodeRef::File(FileRef { dir, name, ino: req.ino })))
        }
        None if page.goes_on() => Err(FsError::Stale.into()),
        None => {
            let next = page.last.map(|mut last| {
                // The key right after the last one.
                last.push(0);
                Bytes::copy_from_slice(&last)
            });
            Ok(Searched { node: None, next })
        }
    }
}

/// The reference to a directory that has an embedded file on a shard: it has a share there.
fn holder(txn: &Txn<'_>, shard: ShardId, id: DirId) -> Result<Option<DirRef>> {
    let mut dir = None;
    let shares = key::shares(shard, id);
    txn.shared.engine.scan(&shares, &key::end_of(&shares), &mut |key, value| {
        dir = dir_of(key, value);
        if dir.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(dir)
}

/// The directory of a content record, if it is one.
fn dir_of(key: &[u8], value: &[u8]) -> Option<DirRef> {
    let (_, part) = key::parse_share(key)?;
    if part != Part::Main as u8 {
        return None;
    }
    let content = Content::from_record(&Bytes::copy_from_slice(value)).ok()?;
    let (id, ino, home) = (key::parse_dir(key)?, content.ino, content.home);
    (content.state == ContentState::Live).then_some(DirRef { id, ino, home, ticket: 0 })
}

fn found(node: NodeRef) -> Searched {
    Searched { node: Some(node), next: None }
}

/// The node that a record shows for the number.
enum Met {
    Dir(DirRef),
    /// The inode is embedded under this name.
    Name(DirId, EntryName),
}

/// A walk along the records of a shard.
struct Page {
    ino: Ino,
    records: usize,
    last: Option<Key>,
    met: Option<Met>,
}

impl Page {
    fn goes_on(&self) -> bool {
        self.met.is_none() && self.records < RECORDS_MAX
    }

    fn visit(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        self.records += 1;
        // A record that cannot be read is for fsck to report.
        self.met =
            if key::is_name(key) { self.entry(key, value) } else { self.content(key, value) };
        if self.goes_on() {
            return ControlFlow::Continue(());
        }
        self.last = Some(Key::from_slice(key));
        ControlFlow::Break(())
    }

    fn content(&self, key: &[u8], value: &[u8]) -> Option<Met> {
        dir_of(key, value).filter(|dir| dir.ino == self.ino).map(Met::Dir)
    }

    fn entry(&self, key: &[u8], value: &[u8]) -> Option<Met> {
        if !key::is_entry(key) {
            return None;
        }
        match EntryRecord::from_record(&Bytes::copy_from_slice(value)).ok()? {
            EntryRecord::Node(inode) if inode.ino == self.ino => {
                let (_, name, _) = key::parse_name(key)?;
                Some(Met::Name(key::parse_dir(key)?, EntryName::new(name).ok()?))
            }
            EntryRecord::Dir(access) if access.ino == self.ino => Some(Met::Dir(DirRef {
                id: access.id,
                ino: access.ino,
                home: access.home,
                ticket: 0,
            })),
            EntryRecord::Node(_) | EntryRecord::Dir(_) | EntryRecord::Link(_) => None,
        }
    }
}
