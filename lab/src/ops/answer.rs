//! Answers in a form in which two file systems can be compared.

use std::collections::{BTreeMap, BTreeSet};

use base::{Attr, EntryName, FileKind, FsError, Ino, Time};
use bytes::Bytes;
use wire::Entry;

/// Answer of an operation, without details in which two correct file systems may differ: inodes are
/// numbered in the order in which they were seen, and `allocated` is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The operation did not apply: its slot is empty.
    Skipped,
    /// The operation was done, and returned nothing.
    Done,
    /// The operation was refused.
    Failed(FsError),
    /// An error that a file system should not give, or an answer that contradicts itself.
    Broken(String),
    /// Attributes.
    Attr(Seen),
    /// An entry of a directory.
    Entry(SeenEntry),
    /// Result of `create`: the entry, whether it existed, and whether it was opened.
    Made(SeenEntry, bool, bool),
    /// Number of an inode.
    Ino(u64),
    /// A whole directory: its attributes, its parent, and its entries in the order of names.
    Listing(Seen, u64, Vec<Listed>),
    /// Contents of a file, or the target of a symbolic link.
    Data(Bytes),
    /// Number of bytes copied.
    Copied(u64),
    /// Extended attributes, in the order of names.
    Xattrs(Vec<(Bytes, Bytes)>),
}

/// Attributes; the fields are those of `base::Attr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub ino: u64,
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
}

/// An entry: its attributes, and where it points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenEntry(pub Seen, pub Option<Bytes>);

/// An entry of a listing, as in `wire::ReaddirEntry`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: EntryName,
    pub ino: u64,
    pub kind: Option<FileKind>,
    pub entry: Option<SeenEntry>,
}

/// Numbers for inodes, in the order in which they were seen. Two sides with equal numbers have the
/// same inodes behind the same names, and never use an inode number again.
#[derive(Debug)]
pub(super) struct Numbering {
    numbers: BTreeMap<Ino, u64>,
    read: BTreeSet<Ino>,
    /// Whether writes are sent at once.
    flush: bool,
    by_hand: BTreeSet<Ino>,
    /// The part of attributes that is compared.
    compared: fn(Seen) -> Seen,
}

impl Numbering {
    pub(super) fn new(flush: bool, compared: fn(Seen) -> Seen) -> Numbering {
        let (numbers, read, by_hand) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Numbering { numbers, read, flush, by_hand, compared }
    }

    pub(super) fn ino(&mut self, ino: Ino) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry(ino).or_insert(next)
    }

    /// Notes that an open file was read: from now on its access time is not compared. Whether a
    /// read changes it depends on the other times, and a client need not know how another client
    /// has changed those.
    pub(super) fn was_read(&mut self, ino: Ino) {
        self.read.insert(ino);
    }

    /// Notes that the access time was set; it is compared again.
    pub(super) fn atime_was_set(&mut self, ino: Ino) {
        self.read.remove(&ino);
    }

    /// Notes that the modification time was set. Where writes are sent later, it is not compared
    /// from now on: a server cannot tell a time in the future from the time of a later write.
    pub(super) fn mtime_was_set(&mut self, ino: Ino) {
        if !self.flush {
            self.by_hand.insert(ino);
        }
    }

    pub(super) fn attr(&mut self, attr: &Attr) -> Seen {
        let seen = Seen {
            ino: self.ino(attr.ino),
            kind: attr.kind,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            atime: if self.read.contains(&attr.ino) { Time::default() } else { attr.atime },
            mtime: if self.by_hand.contains(&attr.ino) { Time::default() } else { attr.mtime },
            ctime: if self.flush { attr.ctime } else { Time { nsec: 0, ..attr.ctime } },
            btime: attr.btime,
        };
        (self.compared)(seen)
    }

    pub(super) fn entry(&mut self, entry: &Entry) -> SeenEntry {
        SeenEntry(self.attr(&entry.attr), entry.target.clone())
    }
}
