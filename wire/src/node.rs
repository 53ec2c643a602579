//! How a message names a directory or a file, and what a look-up answers.

use base::{Attr, DirId, EntryName, Ino, Layout, codec};
use bytes::Bytes;

codec! {
    /// A directory, as every request names it: the server of its group refuses a pair (id, ino)
    /// that does not match.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DirRef {
        /// Id of the directory, 128 bits.
        pub id: DirId,
        /// Inode number of the directory; the id alone could be that of a later directory in the
        /// same place.
        pub ino: Ino,
        /// The id by which the directory's group is placed.
        pub home: DirId,
        /// Proof for this session that the walk to the directory was allowed; zero where the
        /// session needs none. It is no part of the directory's identity.
        pub ticket: u64,
    }
}

codec! {
    /// A look-up in a directory whose id was predicted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Guess {
        /// Predicted id of the directory.
        pub dir: DirId,
        /// Predicted home of the directory.
        pub home: DirId,
        /// Number of the asked partition.
        pub partition: u16,
        /// The name to look up; `None` asks for the directory itself.
        pub name: Option<EntryName>,
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
    /// How a directory is divided, as known to a server that was asked at the wrong partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LayoutNews {
        /// Id of the directory.
        pub dir: DirId,
        /// Inode number of the directory.
        pub ino: Ino,
        /// The known layout; `None`: this server has no such partition, ask the master.
        pub layout: Option<Layout>,
    }
}

codec! {
    /// The attributes of one partition of a directory: the times of its own changes, and the counts
    /// of its own entries.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShareStat {
        /// Attributes of the directory, as far as this partition knows.
        pub attr: Attr,
        /// How the directory is divided, as far as this partition knows.
        pub layout: Layout,
    }
}

codec! {
    /// Anything but a directory: the name it was found under, and its inode number. Where the name
    /// no longer has that inode, the shard of birth says where it went.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct FileRef {
        /// The directory in which the file was found.
        pub dir: DirRef,
        /// Name of the file in that directory.
        pub name: EntryName,
        /// Inode number of the file.
        pub ino: Ino,
    }
}

impl FileRef {
    /// A file that was made without a name. Another file may have the stand-in name: the inode
    /// number decides.
    ///
    /// # Panics
    /// Never: the digits of a number fit in a name.
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
        /// A file, symbolic link or special file.
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
    /// Finds the node with an inode number, for a session that need not present tickets. Answer:
    /// [`Searched`]; `Stale` for other sessions.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Search {
        /// The session's root.
        pub dir: DirRef,
        /// The inode number; the request goes to its shard of birth.
        pub ino: Ino,
        /// Where to continue, as the last answer had it; empty to begin.
        pub from: Bytes,
    }
}

codec! {
    /// Result of one part of a search.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Searched {
        /// The node with this number, if found.
        pub node: Option<NodeRef>,
        /// Where to continue; `None` at the end.
        pub next: Option<Bytes>,
    }
}

codec! {
    /// The node under a name.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Entry {
        /// Attributes of the node.
        pub attr: Attr,
        /// How later requests name the node, if it is a directory.
        pub dir: Option<DirRef>,
        /// Target of the link, if the node is a symbolic link.
        pub target: Option<Bytes>,
        /// Whether the attributes are complete. Of a directory whose group is on another server the
        /// answer has only what the parent knows: number, kind, mode and owner.
        pub whole: bool,
    }
}

impl Entry {
    /// Returns how to name this entry, found as `name` in `dir`.
    #[must_use]
    pub fn node(&self, dir: &DirRef, name: &EntryName) -> NodeRef {
        match self.dir {
            Some(found) => NodeRef::Dir(found),
            None => NodeRef::File(FileRef { dir: *dir, name: name.clone(), ino: self.attr.ino }),
        }
    }
}

codec! {
    /// Whether an extended attribute may already exist.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum XattrMode {
        /// The attribute may exist or not.
        Set = 1,
        /// The attribute must be new (`XATTR_CREATE`); `Exists` otherwise.
        Create = 2,
        /// The attribute must exist (`XATTR_REPLACE`); `NoData` otherwise.
        Replace = 3,
        /// The attribute may exist or not; an ACL also clears the set-group-id bit, because the
        /// caller may not keep it.
        SetClearSetgid = 4,
    }
}

codec! {
    /// `setxattr(2)`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SetXattr {
        /// The node that gets the attribute.
        pub node: NodeRef,
        /// Name of the attribute, with its namespace.
        pub name: Bytes,
        /// Value of the attribute.
        pub value: Bytes,
        /// Whether the attribute must be new, must exist, or either.
        pub mode: XattrMode,
    }
}

codec! {
    /// `removexattr(2)`; `NoData` when there is none.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Removexattr {
        /// The node that loses the attribute.
        pub node: NodeRef,
        /// Name of the attribute.
        pub name: Bytes,
    }
}
