//! Messages between a front end and its lead.
//!
//! A frame from the front end is a number and a [`Call`], one from the lead the number of what it
//! answers and an [`Answer`]. Both sides are of one version: a region lives as long as its job does,
//! so nothing is kept for other versions.

use base::{
    Attr, ByteRange, Cred, EntryName, FileKind, FsError, Ino, LockKind, LockMode, SetAttr, codec,
};
use bytes::Bytes;
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, PROTOCOL_VERSION, ReaddirPage,
    RenameMode, Renamed, SeekTo, Statfs, XattrMode,
};

use crate::{Counts, Progress};

/// The messages of this program, which are made of those of the wire. Both sides must have the same.
pub(super) const VERSION: u32 = 1 << 16 | PROTOCOL_VERSION as u32;

/// Number of an [`Answer`] that answers no call.
pub(super) const EVENT: u64 = 0;

codec! {
    /// The first frame of a front end.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Hello {
        /// [`VERSION`].
        pub version: u32,
        /// Proof that the front end has the region's secret.
        pub proof: Bytes,
        /// Name of the machine, for people.
        pub machine: String,
    }
}

codec! {
    /// The answer to [`Hello`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Welcome {
        /// The attributes of the region's directory.
        Come(Attr) = 1,
        /// A reason to stay away.
        Refused(String) = 2,
    }
}

codec! {
    /// An operation of [`client::FileSystem`]; handles are the region's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Call {
        /// A [`Answer::Entry`].
        Lookup(Named) = 1,
        /// A [`Answer::Attr`].
        Getattr(NodeRef) = 2,
        /// A [`Answer::Attr`].
        Setattr(Setattr) = 3,
        /// A [`Answer::Bytes`].
        Readlink(FileRef) = 4,
        /// A [`Answer::Made`].
        Create(Create) = 5,
        /// A [`Answer::Unnamed`].
        Tmpfile(Tmpfile) = 6,
        /// A [`Answer::Entry`].
        Mkdir(Mkdir) = 7,
        /// A [`Answer::Entry`].
        Symlink(Symlink) = 8,
        /// A [`Answer::Entry`].
        Link(Link) = 9,
        /// A [`Answer::Attr`].
        Unlink(Named) = 10,
        /// A [`Answer::Ino`].
        Rmdir(Named) = 11,
        /// A [`Answer::Renamed`].
        Rename(Rename) = 12,
        /// A [`Answer::Page`].
        Readdir(Readdir) = 13,
        /// A [`Answer::Opened`].
        Open(FileRef) = 14,
        /// A [`Answer::Bytes`].
        Read(Read) = 15,
        /// A [`Answer::Done`].
        Write(Write) = 16,
        /// A [`Answer::Done`].
        Flush(u64) = 17,
        /// A [`Answer::Done`].
        Fsync(u64) = 18,
        /// A [`Answer::Done`].
        Release(u64) = 19,
        /// A [`Answer::Done`].
        Lock(Lock) = 20,
        /// A [`Answer::Done`], perhaps late.
        LockWait(Lock) = 21,
        /// No answer: the call of this number, a [`Call::LockWait`], is to end.
        Interrupt(u64) = 22,
        /// A [`Answer::Done`].
        Unlock(Unlock) = 23,
        /// A [`Answer::Done`].
        UnlockClosed(Owned) = 24,
        /// A [`Answer::LockFound`].
        FindLock(Lock) = 25,
        /// A [`Answer::Done`].
        Sync = 26,
        /// A [`Answer::Done`].
        SyncDir(DirRef) = 27,
        /// A [`Answer::Xattrs`].
        Xattrs(NodeRef) = 28,
        /// A [`Answer::Done`].
        Setxattr(Setxattr) = 29,
        /// A [`Answer::Done`].
        Removexattr(Removexattr) = 30,
        /// A [`Answer::Done`].
        Allocate(Allocate) = 31,
        /// A [`Answer::Offset`].
        Seek(Seek) = 32,
        /// A [`Answer::Node`].
        Search(Ino) = 33,
        /// A [`Answer::Statfs`].
        Statfs = 34,
        /// A [`Answer::Info`].
        Info(NodeRef) = 35,
        /// How far the region is: a [`Answer::Progress`].
        Progress = 36,
        /// No answer: what the front end says to [`Answer::Leave`].
        Leaving(Leaving) = 37,
    }
}

codec! {
    /// The answer to a [`Call`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Answer {
        /// The errno of an operation that was not done.
        Failed(FsError) = 1,
        /// An operation was done.
        Done = 2,
        /// An entry.
        Entry(Entry) = 3,
        /// Attributes.
        Attr(Attr) = 4,
        /// Contents, or a target.
        Bytes(Bytes) = 5,
        /// A file that was made, or was there.
        Made(Made) = 6,
        /// A file without a name.
        Unnamed(Unnamed) = 7,
        /// A file that was opened.
        Opened(Opened) = 8,
        /// An inode number.
        Ino(Ino) = 9,
        /// A rename.
        Renamed(Renamed) = 10,
        /// A part of a listing.
        Page(ReaddirPage) = 11,
        /// A lock that is in the way.
        LockFound(Option<LockFound>) = 12,
        /// Extended attributes.
        Xattrs(Vec<(Bytes, Bytes)>) = 13,
        /// A place in a file.
        Offset(u64) = 14,
        /// A node.
        Node(NodeRef) = 15,
        /// Space.
        Statfs(Statfs) = 16,
        /// Names and values.
        Info(Vec<(String, String)>) = 17,
        /// How far the region is.
        Progress(Far) = 18,
        /// No answer: the region is to end. A [`Call::Leaving`], or the end of the connection.
        Leave(Leave) = 19,
    }
}

codec! {
    /// A question to a front end about its leaving.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Leave {
        /// Number of the question: later ones make it void.
        pub number: u64,
        /// The wish.
        pub wish: Wish,
    }
}

codec! {
    /// The wish of a lead that ends its region.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Wish {
        /// To hear whether programs use the region there.
        Ask = 1,
        /// An end there, unless programs use the region.
        Leave = 2,
        /// An end there, which takes the region from programs.
        Must = 3,
    }
}

codec! {
    /// The answer of a front end to a wish.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Leaving {
        /// Number of the question.
        pub number: u64,
        /// Why it stays; `None`: nothing keeps it.
        pub stays: Option<String>,
    }
}

codec! {
    /// A name in a directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Named {
        /// The directory.
        pub dir: DirRef,
        /// The name.
        pub name: EntryName,
    }
}

codec! {
    /// [`client::FileSystem::setattr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Setattr {
        /// The node.
        pub node: NodeRef,
        /// The changes.
        pub set: SetAttr,
    }
}

codec! {
    /// [`client::FileSystem::create`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Create {
        /// The user who asks.
        pub cred: Cred,
        /// The new name.
        pub at: Named,
        /// Kind of the file.
        pub kind: FileKind,
        /// Permission bits.
        pub mode: u32,
        /// Device number.
        pub rdev: u32,
        /// Whether a taken name is an error.
        pub exclusive: bool,
        /// Whether to open it.
        pub open: bool,
    }
}

codec! {
    /// [`client::FileSystem::tmpfile`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Tmpfile {
        /// The user who asks.
        pub cred: Cred,
        /// The directory.
        pub dir: DirRef,
        /// Permission bits.
        pub mode: u32,
        /// Whether it may get a name.
        pub linkable: bool,
    }
}

codec! {
    /// [`client::FileSystem::mkdir`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Mkdir {
        /// The user who asks.
        pub cred: Cred,
        /// The new name.
        pub at: Named,
        /// Permission bits.
        pub mode: u32,
    }
}

codec! {
    /// [`client::FileSystem::symlink`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Symlink {
        /// The user who asks.
        pub cred: Cred,
        /// The new name.
        pub at: Named,
        /// The target.
        pub target: Bytes,
    }
}

codec! {
    /// [`client::FileSystem::link`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Link {
        /// The file.
        pub target: NodeRef,
        /// The new name.
        pub at: Named,
    }
}

codec! {
    /// [`client::FileSystem::rename`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Rename {
        /// The old name.
        pub from: Named,
        /// The new name.
        pub to: Named,
        /// The fate of what has the new name.
        pub mode: RenameMode,
    }
}

codec! {
    /// [`client::FileSystem::readdir`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Readdir {
        /// The directory.
        pub dir: DirRef,
        /// Position after which entries are wanted.
        pub after: u64,
        /// About how many.
        pub entries_max: u32,
        /// Whether with attributes.
        pub plus: bool,
    }
}

codec! {
    /// [`client::FileSystem::read`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Read {
        /// The open file.
        pub handle: u64,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub len: u32,
    }
}

codec! {
    /// [`client::FileSystem::write`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Write {
        /// The open file.
        pub handle: u64,
        /// First byte.
        pub offset: u64,
        /// The bytes.
        pub data: Bytes,
        /// Whether set-id bits go.
        pub clear_set_id: bool,
    }
}

codec! {
    /// [`client::FileSystem::lock`] and its like.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Lock {
        /// The open file.
        pub handle: u64,
        /// The owner, among those of this front end.
        pub owner: u64,
        /// The family.
        pub kind: LockKind,
        /// The mode.
        pub mode: LockMode,
        /// The bytes.
        pub range: ByteRange,
        /// The process that asks.
        pub pid: u32,
    }
}

codec! {
    /// [`client::FileSystem::unlock`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Unlock {
        /// The open file.
        pub handle: u64,
        /// The owner.
        pub owner: u64,
        /// The family.
        pub kind: LockKind,
        /// The bytes.
        pub range: ByteRange,
    }
}

codec! {
    /// [`client::FileSystem::unlock_closed`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Owned {
        /// The open file.
        pub handle: u64,
        /// The owner that has closed it.
        pub owner: u64,
    }
}

codec! {
    /// [`client::FileSystem::setxattr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Setxattr {
        /// The node.
        pub node: NodeRef,
        /// Name of the attribute.
        pub name: Bytes,
        /// The value.
        pub value: Bytes,
        /// Whether it may, or must, be there.
        pub mode: XattrMode,
    }
}

codec! {
    /// [`client::FileSystem::removexattr`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Removexattr {
        /// The node.
        pub node: NodeRef,
        /// Name of the attribute.
        pub name: Bytes,
    }
}

codec! {
    /// [`client::FileSystem::allocate`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Allocate {
        /// The open file.
        pub handle: u64,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub len: u64,
        /// The effect.
        pub mode: AllocateMode,
        /// Whether set-id bits go.
        pub clear_set_id: bool,
    }
}

codec! {
    /// [`client::FileSystem::seek`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Seek {
        /// The open file.
        pub handle: u64,
        /// Where to begin.
        pub offset: u64,
        /// The target.
        pub to: SeekTo,
    }
}

codec! {
    /// [`client::Made`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Made {
        /// The entry.
        pub entry: Entry,
        /// Whether it was there before.
        pub existed: bool,
        /// The open file.
        pub handle: Option<u64>,
    }
}

codec! {
    /// [`client::Unnamed`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Unnamed {
        /// How to name the file.
        pub file: FileRef,
        /// The attributes.
        pub attr: Attr,
        /// The open file.
        pub handle: u64,
    }
}

codec! {
    /// An open file, with its attributes at that moment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Opened {
        /// The open file.
        pub handle: u64,
        /// The attributes.
        pub attr: Attr,
    }
}

codec! {
    /// [`Progress`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Far {
        /// Paths to commit.
        pub dirty: u64,
        /// Directories that get their mode and times last.
        pub late: u64,
        /// Paths that are refused below.
        pub failed: u64,
        /// Why nothing can be committed now.
        pub trouble: Option<FsError>,
        /// Bytes in memory.
        pub memory: u64,
        /// See [`Counts`], as all that follow.
        pub acknowledged: u64,
        /// Changes that are below.
        pub committed: u64,
        /// Changes that a later one made void.
        pub superseded: u64,
        /// Changes that below refuses.
        pub refused: u64,
        /// Calls below.
        pub commits: u64,
        /// Calls that were made again.
        pub retried: u64,
        /// Names that somebody outside had taken.
        pub outside: u64,
        /// Look-ups below.
        pub loads: u64,
    }
}

impl From<Progress> for Far {
    fn from(progress: Progress) -> Far {
        let Progress { dirty, late, failed, trouble, memory, counts } = progress;
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Far {
            dirty: number(dirty),
            late: number(late),
            failed: number(failed),
            trouble,
            memory: number(memory),
            acknowledged: counts.acknowledged,
            committed: counts.committed,
            superseded: counts.superseded,
            refused: counts.failed,
            commits: counts.commits,
            retried: counts.retried,
            outside: counts.outside,
            loads: counts.loads,
        }
    }
}

impl From<Far> for Progress {
    fn from(far: Far) -> Progress {
        let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let counts = Counts {
            acknowledged: far.acknowledged,
            committed: far.committed,
            superseded: far.superseded,
            failed: far.refused,
            commits: far.commits,
            retried: far.retried,
            outside: far.outside,
            loads: far.loads,
        };
        Progress {
            dirty: number(far.dirty),
            late: number(far.late),
            failed: number(far.failed),
            trouble: far.trouble,
            memory: number(far.memory),
            counts,
        }
    }
}
