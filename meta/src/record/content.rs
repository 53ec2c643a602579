//! A directory as seen from its children: its content record.

use base::{
    Attr, Cred, DirId, EntryName, FileKind, Ino, Layout, NameVersion, attr::MODE_SETGID, codec,
    search::Decision,
};

use super::{Accounts, Placing, Policy, QuotaId, Record, StoredListing, Times, Xattrs};

codec! {
    /// The state of a directory in its life.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ContentState {
        /// A mkdir over several shards has not committed yet.
        Pending = 1,
        /// The directory, or the partition, is in use.
        Live = 2,
        /// An rmdir over several shards has not committed yet.
        Removing = 3,
        /// A partition that has given all its names away; its layout says to which.
        Merged = 4,
    }
}

codec! {
    /// A content record. Mode, owner and group are those of the access record, so that the one
    /// server that has the group answers `stat` and checks create and unlink.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Content {
        pub state: ContentState,
        /// Whether the directory's entry, and all above it, are on stable storage. Only a mkdir
        /// over several stores needs to wait for that; within one store nothing below can be older
        /// than the entry.
        pub confirmed: bool,
        pub ino: Ino,
        /// The birth triple: parent, name, version. The root has no name, nor has a directory whose
        /// birth place a repair could not find out.
        pub birth_parent: DirId,
        pub birth_name: Option<EntryName>,
        pub birth_version: NameVersion,
        pub home: DirId,
        pub layout: Layout,
        /// The back pointer: the directory that holds the entry now, its inode number and home, and
        /// the name there.
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
        /// The accounting root of the directory, and of what is made in it. Without one nothing is
        /// stored.
        pub quota: QuotaId,
        /// How the directory is to be divided. Nothing is stored where nothing was set.
        pub policy: Policy,
        /// How hybrid placement treats the directory. Nothing is stored where nothing is to be said.
        pub placing: Placing,
        /// How the directory stands in permission tables. Only the master says whether it is
        /// listed.
        pub listing: StoredListing,
    }
}

impl Record for Content {}

impl Content {
    /// The owner and the group of what `cred` makes in the directory: POSIX lets the set-group-id bit
    /// of a directory give its group on.
    pub(crate) fn owner_of_new(&self, cred: &Cred) -> (u32, u32) {
        let inherits = self.mode & MODE_SETGID != 0;
        (cred.uid, if inherits { self.gid } else { cred.gid })
    }

    /// The accounts to which the directory is charged.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts { quota: self.quota, owner: Some((self.uid, self.gid)) }
    }

    /// The fields that every partition of a directory repeats: all but layout, times, counts, and
    /// what only the master has.
    pub(crate) fn repeated(&self) -> Content {
        Content {
            layout: Layout::Whole,
            times: Times::default(),
            entries: 0,
            subdirs: 0,
            xattrs: self.xattrs.acls(),
            listing: self.listing.repeated(),
            ..self.clone()
        }
    }

    /// The record of another partition, with nothing in it, of the directory whose master this is.
    pub(crate) fn share(&self) -> Content {
        Content { layout: self.layout.clone(), times: self.times, ..self.repeated() }
    }

    /// Approximate memory that the value takes beside itself, in bytes.
    pub(crate) fn bytes_beside(&self) -> usize {
        let of_name =
            |name: &Option<EntryName>| name.as_ref().map_or(0, |name| name.as_bytes().len());
        let xattrs = match &self.xattrs {
            Xattrs::Embedded(set) | Xattrs::Split(set) => set.bytes(),
            Xattrs::Spilled => 0,
        };
        let listing = self.listing.0.below.names() * size_of::<Decision>();
        of_name(&self.birth_name) + of_name(&self.name) + xattrs + listing
    }

    /// Whether the record has nothing that only a directory's master has.
    pub(crate) fn is_bare(&self) -> bool {
        self.xattrs == self.xattrs.acls() && self.listing == self.listing.repeated()
    }

    /// The attributes that `stat` shows.
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
