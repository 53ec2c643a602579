//! Inodes, their slots, and the chunks of their contents.

use std::ops::ControlFlow;

use base::{
    AclKind, Ino, ShardId,
    attr::MODE_BITS,
    limits::{CHUNK_BYTES, XATTRS_EMBEDDED_BYTES_MAX},
};
use bytes::Bytes;

use super::{
    fix::Fix,
    names::Namer,
    report::Report,
    sweep::{Sweep, Where},
};
use crate::record::{
    ChunkRecord, Contents, EntryRecord, Inode, Reclaim, Record as _, Slot, Tail, XattrSet, key,
    key::Part,
};

/// The slot that was read last.
pub(super) struct SlotSeen {
    ino: Ino,
    /// Whether its extended attributes must come next.
    spilled: bool,
}

impl<'a> Sweep<'a> {
    /// Checks an inode slot, or the extended attributes beside one.
    pub(super) fn slot(&mut self, shard: ShardId, key: &[u8], value: &[u8]) {
        let (Some(ino), Some(part)) = (key::parse_ino(key), key.last()) else {
            return self.find(format!("shard {}: a slot's key is damaged", shard.0));
        };
        if ino.shard() != shard {
            self.find(format!("the slot of inode {ino} is on shard {}", shard.0));
        }
        match part {
            0 => self.slot_main(ino, value),
            2 => {
                let seen = self.slot.take();
                if seen.is_none_or(|slot| slot.ino != ino || !slot.spilled) {
                    self.find(format!("inode {ino}: extended attributes of nothing"));
                }
                self.xattrs(value, &|_: &Self| format!("inode {ino}"));
            }
            _ => self.find(format!("inode {ino}: a part of no known kind: part={part}")),
        }
    }

    fn slot_main(&mut self, ino: Ino, value: &[u8]) {
        self.close_slot();
        let Some(slot) = self.decode::<Slot>(value, || format!("the slot of inode {ino}")) else {
            return;
        };
        match slot {
            Slot::Moved(at) => {
                let Some(shard) = self.shard_of_name(at.home, at.dir, &at.name) else { return };
                let key = self.name_key(shard, at.dir, &at.name, Part::Main);
                let there = || self.path(Where { id: at.dir, home: at.home }, Some(&at.name));
                match self.get(&key, there) {
                    Some(EntryRecord::Node(inode)) if inode.ino == ino && inode.moved => {}
                    Some(EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_))
                    | None => {
                        self.find(format!("inode {ino} is said to be at {}, but is not", there()));
                    }
                }
            }
            Slot::Inode(inode) => {
                let spilled = inode.xattrs.is_spilled();
                self.slot = Some(SlotSeen { ino, spilled });
                if inode.ino != ino {
                    self.find(format!("the slot of inode {ino} holds inode {}", inode.ino));
                }
                let linked = self.linked.entry(ino).or_default();
                (linked.nlink, linked.in_slot) = (inode.nlink, true);
                linked.changed = inode.times.ctime;
                let reclaimed = inode.nlink == 0 && self.is_there(&key::reclaim(ino));
                if reclaimed {
                    Report::count(&self.report.orphans);
                } else if inode.nlink == 0 {
                    self.find(format!("inode {ino} has no name, and nothing will reclaim it"));
                }
                self.inode(&inode, &|_: &Self| format!("inode {ino}"));
            }
        }
    }

    /// Checks a slot of which all parts were read.
    pub(super) fn close_slot(&mut self) {
        if let Some(SlotSeen { ino, spilled: true }) = self.slot.take() {
            let line = format!("inode {ino}: its extended attributes are missing");
            self.find_to_fix(line, Fix::Look(key::inode(ino, Part::Main)));
        }
    }

    /// Checks an inode by itself, in an entry or a slot, and its contents.
    pub(super) fn inode(&mut self, inode: &Inode, what: Namer<'_, 'a>) {
        Report::count(&self.report.files);
        self.charged_inode(inode);
        let ino = inode.ino;
        self.use_ino(ino, what);
        let uncounted = matches!(inode.contents, Contents::Blocks) || inode.allocated == 0;
        if !uncounted || inode.mode & !MODE_BITS != 0 {
            self.find(format!("{}: its mode or its count of bytes is impossible", what(self)));
        }
        let here = inode.xattrs.here().iter();
        let embedded = XattrSet {
            list: here.filter(|(name, _)| AclKind::of(name).is_none()).cloned().collect(),
        };
        if [AclKind::Access, AclKind::Default].iter().any(|kind| inode.xattrs.acl(*kind).is_err()) {
            self.find(format!("{}: its ACL is none", what(self)));
        }
        if embedded.bytes() > XATTRS_EMBEDDED_BYTES_MAX {
            self.find(format!(
                "{}: its extended attributes are too long to be embedded",
                what(self)
            ));
        }
        if inode.contents == Contents::Blocks {
            self.in_blocks.insert(ino);
            self.chunks(inode, what);
        }
    }

    fn chunks(&mut self, inode: &Inode, what: Namer<'_, 'a>) {
        let (snapshot, prefix) = (self.snapshot, key::chunks(inode.ino));
        let mut allocated = 0;
        let tail =
            self.get::<Tail>(&key::tail(inode.ino), || format!("the tail of {}", what(self)));
        let tail = tail.map_or(u32::MAX, |tail| tail.first);
        let scanned = snapshot.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
            let Some((ino, chunk)) = key::parse_chunk(key) else {
                return ControlFlow::Continue(());
            };
            let named = |sweep: &Self| format!("{}: chunk {chunk} of inode {ino}", what(sweep));
            let damaged = || named(self);
            let Some(record) = self.decode::<ChunkRecord>(value, damaged) else {
                return ControlFlow::Continue(());
            };
            let start = u64::from(chunk) * u64::from(CHUNK_BYTES);
            let end = record
                .slices
                .iter()
                .map(|slice| start + u64::from(slice.start) + u64::from(slice.len));
            if record.slices.is_empty() {
                self.find(format!("{} is empty", named(self)));
            } else if chunk < tail && end.max().is_some_and(|end| end > inode.size) {
                self.find(format!("{} goes beyond the end of the file", named(self)));
            } else {
                allocated += record.allocated();
            }
            self.name_blocks(ino, chunk, &record, &named);
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            self.find(format!("{}: its contents cannot be read: {error}", what(self)));
        } else if allocated != inode.allocated {
            let noted = inode.allocated;
            self.find(format!("{} counts {noted} bytes, but has {allocated}", what(self)));
        }
    }

    fn name_blocks(&mut self, ino: Ino, chunk: u32, record: &ChunkRecord, what: Namer<'_, 'a>) {
        let mut here: Vec<(base::BlockId, u32)> = Vec::new();
        for slice in &record.slices {
            let wire::SliceSource::Block(part) = &slice.source else { continue };
            let block = (part.block, part.block_bytes);
            if !here.contains(&block) {
                here.push(block);
            }
        }
        for (block, bytes) in here {
            Report::count(&self.report.blocks);
            if let Some((wrong, fix)) = self.blocks.name(block, bytes, (ino, chunk)) {
                let line = format!("{}: block {block} {wrong}", what(self));
                match fix {
                    Some(fix) => self.find_to_fix(line, fix),
                    None => self.report.find(line),
                }
            }
        }
    }

    /// Checks a chunk whose inode was not seen: it must belong to one that is being reclaimed.
    pub(super) fn stray_chunk(&mut self, key: &[u8], value: &[u8]) {
        let Some((ino, chunk)) = key::parse_chunk(key) else {
            return self.find("a chunk's key is damaged".into());
        };
        if self.in_blocks.contains(ino) {
            return;
        }
        // The file of a shard that moves is another server's.
        let note = || format!("the note to reclaim inode {ino}");
        if self.owns(ino.shard()) && self.get::<Reclaim>(&key::reclaim(ino), note).is_none() {
            let line = format!("chunk {chunk} of inode {ino} belongs to no file");
            self.find_to_fix(line, Fix::Stray(ino, self.inos.contains(ino)));
        }
        if let Ok(record) = ChunkRecord::from_record(&Bytes::copy_from_slice(value)) {
            self.name_blocks(ino, chunk, &record, &|_: &Self| format!("inode {ino}"));
        }
    }

    /// Checks that every inode in a slot has as many names as it counts.
    pub(super) fn count_names(&mut self) {
        // An inode without a slot was reported already, at each of its names.
        let mut wrong: Vec<(Ino, u32, u32)> = self
            .linked
            .iter()
            // Names on other servers are not found here: on a cluster the client that asked
            // compares the counts.
            .filter(|_| !self.is_one_of_several())
            .filter(|(_, linked)| linked.in_slot && linked.found != linked.nlink)
            .map(|(ino, linked)| (*ino, linked.nlink, linked.found))
            .collect();
        wrong.sort_unstable();
        for (ino, nlink, found) in wrong {
            let line = format!("inode {ino} counts {nlink} names, but has {found}");
            self.find_to_fix(line, Fix::Links { ino, found, nlink, changed: None });
        }
    }

    /// Checks a set of extended attributes that has a record of its own.
    pub(super) fn xattrs(&self, value: &[u8], what: Namer<'_, 'a>) {
        let damaged = || format!("the extended attributes of {}", what(self));
        let Some(set) = self.decode::<XattrSet>(value, damaged) else { return };
        let sorted = set.list.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !sorted || set.bytes() <= XATTRS_EMBEDDED_BYTES_MAX {
            self.find(format!("{} are out of order, or too few to stand by themselves", damaged()));
        }
    }
}
