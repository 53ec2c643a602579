//! Inodes: the records of all nodes but directories.

use base::{
    Attr, BlockId, Decode, DecodeError, DirId, Encode, EntryName, FileKind, Ino, Reader, Time,
    attr::MODE_XATTRS, codec,
};
use bytes::Bytes;

use super::{Accounts, InlineMax, QuotaId, Record, Usage};

/// The four times. Persisted: a byte of flags, then only the times that differ from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
}

impl Times {
    /// Four equal times, of something that was just made.
    pub(crate) fn born(now: Time) -> Times {
        Times { atime: now, mtime: now, ctime: now, btime: now }
    }

    fn chain(&self) -> [(Time, Time, u8); 3] {
        [(self.atime, self.mtime, 1), (self.mtime, self.ctime, 2), (self.ctime, self.btime, 4)]
    }
}

impl Encode for Times {
    fn encode(&self, out: &mut Vec<u8>) {
        let flags =
            self.chain().iter().filter(|(a, b, _)| a == b).fold(0, |f, (_, _, bit)| f | bit);
        out.push(flags);
        self.atime.encode(out);
        for (before, time, _) in self.chain() {
            if before != time {
                time.encode(out);
            }
        }
    }
}

impl Decode for Times {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = u8::decode(input)?;
        if flags > 7 {
            return Err(DecodeError::Tag { what: "times", tag: flags });
        }
        let atime = Time::decode(input)?;
        let mut next =
            |before, bit| if flags & bit != 0 { Ok(before) } else { Time::decode(input) };
        let mtime = next(atime, 1)?;
        let ctime = next(mtime, 2)?;
        let btime = next(ctime, 4)?;
        Ok(Times { atime, mtime, ctime, btime })
    }
}

codec! {
    /// All extended attributes of one node, sorted by name.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct XattrSet {
        pub list: Vec<(Bytes, Bytes)>,
    }
}

impl Record for XattrSet {}

impl XattrSet {
    /// Number of bytes that count towards the limit of a node.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
    }
}

codec! {
    /// The place of a node's extended attributes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Xattrs {
        /// In this record.
        Embedded(XattrSet) = 1,
        /// In the record beside this one.
        Spilled = 2,
        /// The ACLs are here, the others in the record beside this one.
        Split(XattrSet) = 3,
    }
}

impl Xattrs {
    pub(crate) const NONE: Xattrs = Xattrs::Embedded(XattrSet { list: Vec::new() });
}

codec! {
    /// The contents of an inode.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Contents {
        /// A regular file's bytes, all of them.
        Inline(Bytes) = 1,
        /// A regular file's bytes are in `B` records.
        Blocks = 2,
        /// A symbolic link's target.
        Target(Bytes) = 3,
        /// A device's number; 0 for pipes and sockets.
        Device(u32) = 4,
    }
}

/// Whether one of a file's names is in the trash, with its origin beside it: the name that was the
/// last one when it was removed.
///
/// Persisted: nothing where none is, so it stands last in its record; otherwise a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InTrash(pub(crate) bool);

/// The tag of a file with a name in the trash. 1 and 3 are tags of the fields before it.
const TAG_IN_TRASH: u8 = 4;

impl Encode for InTrash {
    fn encode(&self, out: &mut Vec<u8>) {
        if self.0 {
            out.push(TAG_IN_TRASH);
        }
    }
}

impl Decode for InTrash {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let is_in_trash = input.peek() == Some(TAG_IN_TRASH);
        if is_in_trash {
            input.take(1)?;
        }
        Ok(InTrash(is_in_trash))
    }
}

codec! {
    /// An inode.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Inode {
        pub ino: Ino,
        pub kind: FileKind,
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub nlink: u32,
        /// The file's length; 0 unless it is a regular file.
        pub size: u64,
        /// Bytes that slices cover.
        pub allocated: u64,
        pub times: Times,
        /// Whether the inode was renamed once: then its slot at the shard of birth points here.
        pub moved: bool,
        pub xattrs: Xattrs,
        pub contents: Contents,
        /// The accounting root of the inode. Without one nothing is stored.
        pub quota: QuotaId,
        /// The limit on inline contents, from the directory that the file was made in. Nothing is
        /// stored where that sets none.
        pub inline_max: InlineMax,
        /// Whether a name is in the trash. Nothing is stored otherwise.
        pub in_trash: InTrash,
    }
}

impl Inode {
    /// The accounts to which the inode is charged. In the trash it counts for nobody.
    pub(crate) fn accounts(&self) -> Accounts {
        let owner = (!self.in_trash.0).then_some((self.uid, self.gid));
        Accounts { quota: self.quota, owner }
    }

    /// The amount that is charged to them.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(1, self.attr().allocated)
    }

    /// Whether kind, size and contents fit together.
    pub(crate) fn is_sound(&self) -> bool {
        use base::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
        match (&self.contents, self.kind) {
            (Contents::Inline(data), FileKind::File) => {
                self.size == data.len() as u64 && self.size <= u64::from(INLINE_BYTES_MAX)
            }
            (Contents::Blocks, FileKind::File) => self.size <= FILE_BYTES_MAX,
            (Contents::Target(_), FileKind::Symlink) => true,
            (Contents::Device(_), kind) => {
                !matches!(kind, FileKind::File | FileKind::Symlink | FileKind::Directory)
            }
            (Contents::Inline(_) | Contents::Blocks | Contents::Target(_), _) => false,
        }
    }

    /// The attributes that `stat` shows.
    pub(crate) fn attr(&self) -> Attr {
        let (size, allocated, rdev) = match &self.contents {
            Contents::Inline(data) => (self.size, data.len() as u64, 0),
            Contents::Blocks => (self.size, self.allocated, 0),
            Contents::Target(target) => (target.len() as u64, 0, 0),
            Contents::Device(rdev) => (0, 0, *rdev),
        };
        let xattrs = if self.xattrs.has_others() { MODE_XATTRS } else { 0 };
        Attr {
            ino: self.ino,
            kind: self.kind,
            mode: self.xattrs.shown_mode(self.mode) | xattrs,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size,
            allocated,
            atime: self.times.atime,
            mtime: self.times.mtime,
            ctime: self.times.ctime,
            btime: self.times.btime,
        }
    }

    /// Clears the bits that a writer without privilege may not leave: set-user-id, and set-group-id
    /// where the group may execute.
    pub(crate) fn clear_set_id(&mut self) {
        self.mode = base::attr::without_set_id(self.mode);
    }
}

codec! {
    /// A name in a directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Location {
        pub dir: DirId,
        pub home: DirId,
        pub name: EntryName,
    }
}

codec! {
    /// The note of an inode's shard of birth, if the inode is not embedded where it was born.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Slot {
        /// The inode is in the slot: it has, or had, several names, or none and is still open.
        Inode(Inode) = 1,
        /// The inode was renamed, and is embedded under this name.
        Moved(Location) = 2,
    }
}

impl Record for Slot {
    fn is_sound(&self) -> bool {
        match self {
            Slot::Inode(inode) => inode.is_sound(),
            Slot::Moved(_) => true,
        }
    }
}

/// The blocks that `slices` name, and the length of each.
pub(crate) fn blocks_with_bytes(slices: &[wire::Slice]) -> impl Iterator<Item = (BlockId, u32)> {
    slices.iter().filter_map(|slice| match &slice.source {
        wire::SliceSource::Block(part) => Some((part.block, part.block_bytes)),
        wire::SliceSource::Embedded(_) | wire::SliceSource::Zeros => None,
    })
}

/// The blocks that `slices` name.
pub(crate) fn blocks_of(slices: &[wire::Slice]) -> impl Iterator<Item = BlockId> {
    slices.iter().filter_map(|slice| match &slice.source {
        wire::SliceSource::Block(part) => Some(part.block),
        wire::SliceSource::Embedded(_) | wire::SliceSource::Zeros => None,
    })
}
