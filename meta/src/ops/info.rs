//! `info`: what `pando info` prints: where something is and how it is kept.
//!
//! A session that may not leave a directory is told of nothing above it, nor which machines there
//! are.

use base::{DirId, EntryName};
use wire::{Info, NodeRef, SliceSource};

use crate::{
    error::Result,
    paths::Steps,
    record::{ChunkRecord, Contents, key},
    txn::{Dir, Located, Node, Place, Txn},
};

/// Most chunks that are described.
const CHUNKS_SHOWN: usize = 16;

type Lines = Vec<(String, String)>;

pub(crate) fn run(txn: &mut Txn<'_>, req: &Info) -> Result<Lines> {
    let (mut lines, at) = match txn.node(&req.node)? {
        Node::Dir(dir) => {
            let name = dir.content.name.clone();
            let above = (dir.content.parent, dir.content.parent_home);
            (directory(txn, &dir)?, name.map(|name| (above, name)))
        }
        Node::File(file) => (other(txn, &file)?, named(&req.node)),
    };
    if let Some((above, name)) = at
        && txn.caller.standing.within.is_none()
        && let Some((path, removed)) = crate::trash::origin(txn, above, &name)?
    {
        line(&mut lines, "trash.path", String::from_utf8_lossy(&path));
        let removed = format!("{}.{:09}", removed.sec, removed.nsec);
        line(&mut lines, "trash.removed", removed);
    }
    Ok(lines)
}

/// The name under which a file was asked about.
fn named(node: &NodeRef) -> Option<((DirId, DirId), EntryName)> {
    match node {
        NodeRef::Dir(_) => None,
        NodeRef::File(file) => Some(((file.dir.id, file.dir.home), file.name.clone())),
    }
}

fn line(lines: &mut Lines, name: &str, value: impl ToString) {
    lines.push((name.to_owned(), value.to_string()));
}

fn server(txn: &Txn<'_>, lines: &mut Lines, shard: base::ShardId) {
    if txn.caller.standing.within.is_some() {
        return;
    }
    let map = &txn.shared.map();
    let server = map.server_of(shard);
    line(lines, "server", server.map_or("", |server| &map.servers[usize::from(server)]));
}

fn directory(txn: &Txn<'_>, dir: &Dir) -> Result<Lines> {
    let content = &dir.content;
    let shard = txn.shard(content.home);
    let mut lines = Lines::new();
    let attr = txn.whole_attr(dir)?;
    line(&mut lines, "kind", "directory");
    line(&mut lines, "ino", content.ino);
    line(&mut lines, "dir_id", dir.id);
    line(&mut lines, "name_version", content.birth_version);
    line(&mut lines, "home", content.home);
    line(&mut lines, "shard", shard.0);
    server(txn, &mut lines, shard);
    line(&mut lines, "entries", attr.size);
    line(&mut lines, "subdirectories", attr.nlink.saturating_sub(2));
    if dir.is_divided() {
        line(&mut lines, "partitions", content.layout.active().count());
    }
    line(&mut lines, "path", path(txn, dir)?);
    super::settings::of_directory(txn, dir, &mut |name, value| line(&mut lines, name, value))?;
    Ok(lines)
}

fn other(txn: &Txn<'_>, file: &Located) -> Result<Lines> {
    let inode = &file.inode;
    let mut lines = Lines::new();
    line(&mut lines, "kind", format!("{:?}", inode.kind).to_lowercase());
    line(&mut lines, "ino", inode.ino);
    line(&mut lines, "links", inode.nlink);
    let shard = match &file.place {
        Place::Entry(_, shard) => *shard,
        Place::Slot => inode.ino.shard(),
    };
    line(&mut lines, "shard", shard.0);
    server(txn, &mut lines, shard);
    match &inode.contents {
        Contents::Inline(data) => {
            line(&mut lines, "contents", format!("inline bytes={}", data.len()))
        }
        Contents::Target(target) => line(&mut lines, "target", target.escape_ascii()),
        Contents::Device(rdev) => line(&mut lines, "device", rdev),
        Contents::Blocks => {
            line(&mut lines, "contents", format!("blocks allocated={}", inode.allocated));
            for (key, value) in txn.scan_prefix(&key::chunks(inode.ino), CHUNKS_SHOWN)? {
                let record = <ChunkRecord as crate::record::Record>::from_record(&value)?;
                if let Some((_, chunk)) = key::parse_chunk(&key) {
                    line(&mut lines, &format!("chunk {chunk}"), describe(&record));
                }
            }
        }
    }
    Ok(lines)
}

fn describe(record: &ChunkRecord) -> String {
    let slices = record.slices.iter().map(|slice| {
        let range = format!("{}+{}", slice.start, slice.len);
        match &slice.source {
            SliceSource::Embedded(_) => format!("{range} embedded"),
            SliceSource::Zeros => format!("{range} zeros"),
            SliceSource::Block(part) => format!("{range} block {}", part.block),
        }
    });
    slices.collect::<Vec<_>>().join(", ")
}

/// The directory's path, by its back pointers, as the caller sees it.
pub(super) fn path(txn: &Txn<'_>, dir: &Dir) -> Result<String> {
    let mut names = Vec::new();
    let (mut at, mut steps) = (dir.clone(), Steps::from(dir.id));
    let top = txn.caller.standing.within.map_or(DirId::ROOT, |(id, _)| id);
    while at.id != top && at.id != DirId::ROOT {
        names.push(at.content.name.as_ref().map_or_else(String::new, ToString::to_string));
        at = txn.settled(|txn| txn.parent(&at))?;
        steps.step(at.id)?;
    }
    names.reverse();
    Ok(format!("/{}", names.join("/")))
}
