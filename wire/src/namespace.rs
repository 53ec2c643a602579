//! Requests about names: look-ups, listings, and everything that makes, moves or removes an entry.
//!
//! Replies carry the attributes as the operation's own transaction left them.

use base::{Attr, EntryName, FileKind, FsError, Ino, Layout, SetAttr, codec};
use bytes::Bytes;

use crate::{
    file::Opened,
    node::{DirRef, Entry, NodeRef},
};

codec! {
    /// What is `name` in `dir`? Needs execute permission on `dir`. Answer: [`Entry`], or `NotFound`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lookup {
        /// Where to look.
        pub dir: DirRef,
        /// For what.
        pub name: EntryName,
    }
}

codec! {
    /// Walk down from `from`, as far as this server can.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Walk {
        /// Where to start.
        pub from: DirRef,
        /// What to look up, one in the other.
        pub names: Vec<EntryName>,
    }
}

codec! {
    /// What a walk found: one entry for each name that was reached. It ends early at anything that is not
    /// a directory, and at `error`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Walked {
        /// What was found, in order.
        pub entries: Vec<Entry>,
        /// Why the next name was not reached, if that is an error.
        pub error: Option<FsError>,
    }
}

codec! {
    /// `stat` by handle. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Getattr {
        /// Of what.
        pub node: NodeRef,
    }
}

codec! {
    /// chmod, chown, utimensat and truncate. Answer: [`Attr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Setattr {
        /// Of what.
        pub node: NodeRef,
        /// What to change.
        pub set: SetAttr,
    }
}

codec! {
    /// Make a file or a special file. Answer: [`Created`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Create {
        /// In which directory.
        pub dir: DirRef,
        /// Its name.
        pub name: EntryName,
        /// Anything but a directory or a symbolic link.
        pub kind: FileKind,
        /// Permission bits, and the umask where it is not taken off yet (see [`base::acl::with_umask`]).
        pub mode: u32,
        /// Device number of a special file.
        pub rdev: u32,
        /// `Exists` when the name is taken; otherwise what is there is answered as `existed`.
        pub exclusive: bool,
        /// Open it as well: the client's number for this open (see [`crate::Open`]).
        pub open: Option<u64>,
    }
}

codec! {
    /// Make a regular file without a name, and open it. Needs the permissions that making a name in `dir` needs.
    /// Answer: [`Created`], always opened.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Tmpfile {
        /// The directory whose quota, group and default ACL it gets, and that names it: see [`FileRef::unnamed`].
        ///
        /// [`FileRef::unnamed`]: crate::FileRef::unnamed
        pub dir: DirRef,
        /// As in [`Create`].
        pub mode: u32,
        /// A [`Link`] may give it its first name.
        pub linkable: bool,
        /// The client's number for this open (see [`crate::Open`]).
        pub number: u64,
    }
}

codec! {
    /// A new file, or the one that was there.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Created {
        /// The entry.
        pub entry: Entry,
        /// It was there before: nothing was made, and it was not opened.
        pub existed: bool,
        /// The opened file, if that was asked.
        pub opened: Option<Opened>,
    }
}

codec! {
    /// Make a directory. Answer: [`Entry`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mkdir {
        /// In which directory.
        pub dir: DirRef,
        /// Its name.
        pub name: EntryName,
        /// Permission bits, and the umask where it is not taken off yet (see [`base::acl::with_umask`]).
        pub mode: u32,
    }
}

codec! {
    /// Make a symbolic link. Answer: [`Entry`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Symlink {
        /// In which directory.
        pub dir: DirRef,
        /// Its name.
        pub name: EntryName,
        /// Where it points: 1 to 4095 bytes, none of them NUL.
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
    /// Remove a name that is no directory's. Answer: [`Attr`] of the file after it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Unlink {
        /// In which directory.
        pub dir: DirRef,
        /// The name.
        pub name: EntryName,
    }
}

codec! {
    /// Remove an empty directory. Answer: [`Ino`] of what was removed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Rmdir {
        /// In which directory.
        pub dir: DirRef,
        /// The name.
        pub name: EntryName,
    }
}

codec! {
    /// What a rename may do to the new name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RenameMode {
        /// Replace what is there, as POSIX says.
        Replace = 1,
        /// `Exists` when it is taken.
        NoReplace = 2,
        /// Both must be there, and change places.
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
        /// What may happen to the new name.
        pub mode: RenameMode,
    }
}

codec! {
    /// What a rename moved, and what had to go.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Renamed {
        /// What has the new name.
        pub moved: Ino,
        /// The empty directory that had it before, and is gone.
        pub replaced_dir: Option<Ino>,
    }
}

codec! {
    /// List a directory in the order of `pos`. Answer: [`ReaddirPage`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Readdir {
        /// Which.
        pub dir: DirRef,
        /// Only entries whose position is greater; 0 to start.
        pub after: u64,
        /// About how many entries to return, at least 1. A page never ends inside a run of equal
        /// positions, so it may hold more.
        pub entries_max: u32,
        /// Return attributes too.
        pub plus: bool,
    }
}

codec! {
    /// One entry of a listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReaddirEntry {
        /// Its position: the cookie to go on after it.
        pub pos: u64,
        /// Its name.
        pub name: EntryName,
        /// Its inode number.
        pub ino: Ino,
        /// What it is; `None`: no directory, and the server that knows more does not answer.
        pub kind: Option<FileKind>,
        /// What a look-up would say, if that was asked and can be told.
        pub entry: Option<Entry>,
    }
}

impl ReaddirEntry {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }
}

codec! {
    /// One page of a listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReaddirPage {
        /// In the order of `pos`.
        pub entries: Vec<ReaddirEntry>,
        /// Nothing comes after them in this partition.
        pub end: bool,
        /// The directory's own attributes.
        pub attr: Attr,
        /// Its parent's inode number (`..`).
        pub parent_ino: Ino,
        /// Up to which position the page has everything of what it was asked for that the partition has.
        pub reach: u64,
        /// How the directory is divided, as far as this partition knows; `None`: it has one partition.
        pub layout: Option<Layout>,
    }
}
