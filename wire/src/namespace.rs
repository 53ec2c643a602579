//! Requests about names: look-ups, listings, and everything that makes, moves or removes an entry.
//!
//! Replies carry the attributes as the operation's own transaction left them.

use base::{Attr, EntryName, FileKind, FsError, Ino, Layout, SetAttr, codec};
use bytes::Bytes;

use crate::{
    file::Opened,
    node::{DirRef, Entry, Guess, NodeRef},
};

codec! {
    /// Looks up `name` in `dir`; needs execute permission on `dir`. Answer: [`Entry`], or
    /// `NotFound`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lookup {
        /// The directory to look in.
        pub dir: DirRef,
        /// The name to look up.
        pub name: EntryName,
    }
}

codec! {
    /// Walks down from `from`, as far as this server can.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Walk {
        /// The directory in which the walk starts.
        pub from: DirRef,
        /// Names to look up, each in the directory found before.
        pub names: Vec<EntryName>,
    }
}

codec! {
    /// Walks down from `from` in one step, at the server of the directory where the walk ends: it
    /// keeps what other servers have of the directories on the way, who may search them included.
    /// Answer: [`Walked`], which is empty where that server does not find the path so; [`Walk`]
    /// tells then.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct WalkTo {
        /// The directory in which the walk starts.
        pub from: DirRef,
        /// Names of the directories, each in the one before, at least one. They lead to `end`; the
        /// name that is looked up there is not among them.
        pub names: Vec<EntryName>,
        /// The last of these directories, as the client predicts it, and the name to look up there.
        pub end: Guess,
    }
}

codec! {
    /// The result of a walk: one entry for each name that was reached. The walk ends early at
    /// anything that is not a directory, and at `error`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Walked {
        /// The entries found, in order.
        pub entries: Vec<Entry>,
        /// The error at the next name, if there was one.
        pub error: Option<FsError>,
    }
}

codec! {
    /// `stat` by handle. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Getattr {
        /// The node to stat.
        pub node: NodeRef,
    }
}

codec! {
    /// chmod, chown, utimensat and truncate. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Setattr {
        /// The node to change.
        pub node: NodeRef,
        /// The attributes to change.
        pub set: SetAttr,
    }
}

codec! {
    /// Make a file or a special file. Answer: [`Created`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Create {
        /// The parent directory.
        pub dir: DirRef,
        /// Name of the new file.
        pub name: EntryName,
        /// Kind of the file: anything but a directory or a symbolic link.
        pub kind: FileKind,
        /// Permission bits, and the umask where it is not taken off yet (see
        /// [`base::acl::with_umask`]).
        pub mode: u32,
        /// Device number of a special file.
        pub rdev: u32,
        /// Whether a taken name fails with `Exists`; otherwise the existing file is answered as
        /// `existed`.
        pub exclusive: bool,
        /// The client's number for an open that goes with the create (see [`crate::Open`]); `None`:
        /// do not open.
        pub open: Option<u64>,
    }
}

codec! {
    /// Make a regular file without a name, and open it. Needs the permissions that making a name in
    /// `dir` needs. Answer: [`Created`], always opened.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Tmpfile {
        /// The directory whose quota, group and default ACL the file gets, and that names the file:
        /// see [`FileRef::unnamed`].
        ///
        /// [`FileRef::unnamed`]: crate::FileRef::unnamed
        pub dir: DirRef,
        /// Permission bits and umask, as in [`Create`].
        pub mode: u32,
        /// Whether a [`Link`] may give the file its first name.
        pub linkable: bool,
        /// The client's number for this open (see [`crate::Open`]).
        pub number: u64,
    }
}

codec! {
    /// A new file, or the one that had the name.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Created {
        /// The entry of the file.
        pub entry: Entry,
        /// Whether the file existed before: nothing was made, and the file was not opened.
        pub existed: bool,
        /// The opened file, if the request asked for an open.
        pub opened: Option<Opened>,
    }
}

codec! {
    /// Make a directory. Answer: [`Entry`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mkdir {
        /// The parent directory.
        pub dir: DirRef,
        /// Name of the new directory.
        pub name: EntryName,
        /// Permission bits, and the umask where it is not taken off yet (see
        /// [`base::acl::with_umask`]).
        pub mode: u32,
    }
}

codec! {
    /// Make a symbolic link. Answer: [`Entry`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Symlink {
        /// The parent directory.
        pub dir: DirRef,
        /// Name of the new link.
        pub name: EntryName,
        /// Target of the link: 1 to 4095 bytes, none of them NUL.
        pub target: Bytes,
    }
}

codec! {
    /// Give a file one more name. Answer: [`Entry`] of the file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Link {
        /// The file.
        pub target: NodeRef,
        /// The directory of the new name.
        pub dir: DirRef,
        /// The new name.
        pub name: EntryName,
    }
}

codec! {
    /// Removes a name of anything but a directory. Answer: [`Attr`] of the file afterwards.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Unlink {
        /// The parent directory.
        pub dir: DirRef,
        /// The name to remove.
        pub name: EntryName,
    }
}

codec! {
    /// Removes an empty directory. Answer: [`Ino`] of the removed directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Rmdir {
        /// The parent directory.
        pub dir: DirRef,
        /// The name to remove.
        pub name: EntryName,
    }
}

codec! {
    /// Permitted effect of a rename on the new name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RenameMode {
        /// Replace what has the new name, as POSIX says.
        Replace = 1,
        /// Fail with `Exists` when the new name is taken.
        NoReplace = 2,
        /// Both names must exist, and change places.
        Exchange = 3,
    }
}

codec! {
    /// Move an entry. Answer: [`Renamed`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Rename {
        /// The directory of the old name.
        pub from_dir: DirRef,
        /// The old name.
        pub from_name: EntryName,
        /// The directory of the new name.
        pub to_dir: DirRef,
        /// The new name.
        pub to_name: EntryName,
        /// Permitted effect on the new name.
        pub mode: RenameMode,
    }
}

codec! {
    /// The inode that a rename moved, and the directory that it replaced.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Renamed {
        /// Inode number of what has the new name.
        pub moved: Ino,
        /// Inode number of the empty directory that had the new name before and is removed.
        pub replaced_dir: Option<Ino>,
    }
}

codec! {
    /// List a directory in the order of `pos`. Answer: [`ReaddirPage`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Readdir {
        /// The directory to list.
        pub dir: DirRef,
        /// Return only entries whose position is greater; 0 to start.
        pub after: u64,
        /// About how many entries to return, at least 1. A page never ends inside a run of equal
        /// positions, so it may hold more.
        pub entries_max: u32,
        /// Whether to return attributes too.
        pub plus: bool,
    }
}

codec! {
    /// One entry of a listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReaddirEntry {
        /// Position of the entry: the cookie after which a listing continues.
        pub pos: u64,
        /// Name of the entry.
        pub name: EntryName,
        /// Inode number of the entry.
        pub ino: Ino,
        /// Kind of the entry; `None`: not a directory, and the server that knows more does not
        /// answer.
        pub kind: Option<FileKind>,
        /// The answer of a look-up, if the request asked for attributes and the server has them.
        pub entry: Option<Entry>,
    }
}

impl ReaddirEntry {
    /// Whether the entry is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }
}

codec! {
    /// One page of a listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReaddirPage {
        /// The entries, in the order of `pos`.
        pub entries: Vec<ReaddirEntry>,
        /// Whether this partition has no entries after these.
        pub end: bool,
        /// Attributes of the directory.
        pub attr: Attr,
        /// Inode number of the directory's parent (`..`).
        pub parent_ino: Ino,
        /// Position up to which the page has every requested entry of the partition.
        pub reach: u64,
        /// How the directory is divided, as far as this partition knows; `None`: it has one
        /// partition.
        pub layout: Option<Layout>,
    }
}
