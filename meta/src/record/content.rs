//! A directory as seen from its children: its content record.

use base::{Attr, DirId, EntryName, FileKind, Ino, Layout, NameVersion, codec};

use super::{Policy, QuotaId, Record, Times, Xattrs};

codec! {
    /// Where a directory is in its life.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ContentState {
        /// A mkdir over several shards has not committed yet.
        Pending = 1,
        /// It is there.
        Live = 2,
        /// An rmdir over several shards has not committed yet.
        Removing = 3,
        /// A partition that has given all its names away; its layout says to whom.
        Merged = 4,
    }
}

codec! {
    /// A content record. Mode, owner and group are those of the access record, so that the one server that has
    /// the group answers `stat` and checks create and unlink.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Content {
        pub state: ContentState,
        /// Its entry, and all above it, are on stable storage. Only a mkdir over several stores needs to
        /// wait for it; within one store nothing below can be older than the entry.
        pub confirmed: bool,
        pub ino: Ino,
        /// The birth triple: parent, name, version. The root has no name, nor has a directory of which a repair could
        /// not find out where it was born.
        pub birth_parent: DirId,
        pub birth_name: Option<EntryName>,
        pub birth_version: NameVersion,
        pub home: DirId,
        pub layout: Layout,
        /// The back pointer: the directory that holds the entry now, how that is placed, and the name there.
        pub parent: DirId,
        pub parent_ino: Ino,
        pub parent_home: DirId,
        pub name: Option<EntryName>,
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub times: Times,
        pub entries: u64,
        pub subdirs: u32,
        pub xattrs: Xattrs,
        /// What it, and what is made in it, is charged to. Where it is none, nothing is stored,
        pub quota: QuotaId,
        /// and so it is with what was set of how it is divided.
        pub policy: Policy,
    }
}

impl Record for Content {}

impl Content {
    /// What every partition of a directory repeats: all but layout, times, counts, and what only the master has.
    pub(crate) fn repeated(&self) -> Content {
        Content {
            layout: Layout::Whole,
            times: Times::default(),
            entries: 0,
            subdirs: 0,
            xattrs: self.xattrs.acls(),
            ..self.clone()
        }
    }

    /// The record of another partition of the directory that this is the master of, with nothing in it.
    pub(crate) fn share(&self) -> Content {
        Content { layout: self.layout.clone(), times: self.times, ..self.repeated() }
    }

    /// What the value takes in memory beside itself, in bytes, about.
    pub(crate) fn bytes_beside(&self) -> usize {
        let of_name =
            |name: &Option<EntryName>| name.as_ref().map_or(0, |name| name.as_bytes().len());
        let xattrs = match &self.xattrs {
            Xattrs::Embedded(set) | Xattrs::Split(set) => set.bytes(),
            Xattrs::Spilled => 0,
        };
        of_name(&self.birth_name) + of_name(&self.name) + xattrs
    }

    /// Whether it has nothing that only the master of a directory has.
    pub(crate) fn is_bare(&self) -> bool {
        self.xattrs == self.xattrs.acls()
    }

    /// What `stat` shows.
    pub(crate) fn attr(&self) -> Attr {
        Attr {
            ino: self.ino,
            kind: FileKind::Directory,
            mode: self.xattrs.shown_mode(self.mode),
            nlink: self.subdirs.saturating_add(2),
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            size: self.entries,
            allocated: 0,
            atime: self.times.atime,
            mtime: self.times.mtime,
            ctime: self.times.ctime,
            btime: self.times.btime,
        }
    }
}
