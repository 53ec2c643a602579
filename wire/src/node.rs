//! How a message names a directory or a file, and what a look-up answers.

use base::{Attr, DirId, EntryName, Ino, Layout, codec};
use bytes::Bytes;

codec! {
    /// A directory, as every request names it: the server of its group refuses a pair (id, ino) that does
    /// not match.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DirRef {
        /// Its id.
        pub id: DirId,
        /// Its inode number; the id alone could be that of a later directory in the same place.
        pub ino: Ino,
        /// By what its group is placed.
        pub home: DirId,
        /// Proof for this session that the walk to the directory was allowed; zero where the session
        /// needs none. It is no part of the directory's identity.
        pub ticket: u64,
    }
}

impl DirRef {
    /// The root of the file system, with no ticket.
    pub const ROOT: DirRef =
        DirRef { id: DirId::ROOT, ino: Ino::ROOT, home: DirId::ROOT, ticket: 0 };

    /// Whether both name the same directory, whatever their tickets.
    #[must_use]
    pub fn same(&self, other: &DirRef) -> bool {
        self.id == other.id && self.ino == other.ino
    }
}

codec! {
    /// How a directory is divided, as far as a server knows that was asked at the wrong partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LayoutNews {
        /// The directory's id,
        pub dir: DirId,
        /// and inode number.
        pub ino: Ino,
        /// What is known; `None`: there is no such partition here, ask the master.
        pub layout: Option<Layout>,
    }
}

codec! {
    /// The attributes of one partition of a directory: the times of its own changes, and the counts of its own entries.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShareStat {
        /// Of the directory, as far as this partition knows.
        pub attr: Attr,
        /// How the directory is divided, as far as this partition knows.
        pub layout: Layout,
    }
}

codec! {
    /// Anything but a directory: the name it was found under, and its inode number. Where the name no
    /// longer has that inode, the shard of birth says where it went.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct FileRef {
        /// The directory it was found in.
        pub dir: DirRef,
        /// Its name there.
        pub name: EntryName,
        /// Its inode number.
        pub ino: Ino,
    }
}

impl FileRef {
    /// A file that was made without a name. What stands in for one may be another file's: the number decides.
    ///
    /// # Panics
    /// Never: a number is short.
    #[must_use]
    pub fn unnamed(dir: DirRef, ino: Ino) -> FileRef {
        let name = format!("#{}", ino.0);
        FileRef { dir, name: EntryName::new(name.as_bytes()).expect("digits are a name"), ino }
    }
}

codec! {
    /// A directory or a file.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub enum NodeRef {
        /// A directory.
        Dir(DirRef) = 1,
        /// Anything else.
        File(FileRef) = 2,
    }
}

impl NodeRef {
    /// The inode number of what is named.
    #[must_use]
    pub fn ino(&self) -> Ino {
        match self {
            NodeRef::Dir(dir) => dir.ino,
            NodeRef::File(file) => file.ino,
        }
    }

    /// The home by which a request about the node is routed.
    #[must_use]
    pub fn home(&self) -> DirId {
        match self {
            NodeRef::Dir(dir) => dir.home,
            NodeRef::File(file) => file.dir.home,
        }
    }
}

codec! {
    /// What has an inode number, for a session that need not prove its walks. Answer: [`Searched`]; `Stale` for others.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Search {
        /// The session's root.
        pub dir: DirRef,
        /// The number; its shard of birth is asked.
        pub ino: Ino,
        /// Where to go on, as the last answer had it; empty to begin.
        pub from: Bytes,
    }
}

codec! {
    /// What a part of a search has found.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Searched {
        /// What has the number.
        pub node: Option<NodeRef>,
        /// Where to go on; nothing at the end.
        pub next: Option<Bytes>,
    }
}

codec! {
    /// What stands under a name.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Entry {
        /// Its attributes.
        pub attr: Attr,
        /// How to name it from now on, if it is a directory.
        pub dir: Option<DirRef>,
        /// Where it points, if it is a symbolic link.
        pub target: Option<Bytes>,
        /// Whether the attributes are all there. Of a directory whose group is on another server the answer has only
        /// what its parent knows: number, kind, mode and owner.
        pub whole: bool,
    }
}

impl Entry {
    /// How to name what was found as `name` in `dir`.
    #[must_use]
    pub fn node(&self, dir: &DirRef, name: &EntryName) -> NodeRef {
        match self.dir {
            Some(found) => NodeRef::Dir(found),
            None => NodeRef::File(FileRef { dir: *dir, name: name.clone(), ino: self.attr.ino }),
        }
    }
}

codec! {
    /// Whether an extended attribute may be there already.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum XattrMode {
        /// Either way.
        Set = 1,
        /// It must be new (`XATTR_CREATE`); `Exists` otherwise.
        Create = 2,
        /// It must be there (`XATTR_REPLACE`); `NoData` otherwise.
        Replace = 3,
        /// Either way; with an ACL the set-group-id bit goes, because the caller may not keep it.
        SetClearSetgid = 4,
    }
}

codec! {
    /// `setxattr(2)`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SetXattr {
        /// What gets it.
        pub node: NodeRef,
        /// Its name, with the namespace.
        pub name: Bytes,
        /// Its value.
        pub value: Bytes,
        /// New, old or either.
        pub mode: XattrMode,
    }
}

codec! {
    /// `removexattr(2)`; `NoData` when there is none.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Removexattr {
        /// What loses it.
        pub node: NodeRef,
        /// Its name.
        pub name: Bytes,
    }
}
