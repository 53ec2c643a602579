//! Records under a name: entries and rename lists.

use base::{DirId, Ino, NameVersion, codec};

use super::{Content, Inode, Record};

codec! {
    /// A directory as seen from its parent: its access record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Access {
        pub id: DirId,
        pub ino: Ino,
        pub home: DirId,
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
    }
}

codec! {
    /// An entry.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum EntryRecord {
        /// A file, symbolic link or special file with one name: the whole inode.
        Node(Inode) = 1,
        /// A directory.
        Dir(Access) = 2,
        /// One of several names of a file: the inode is in its slot.
        Link(Ino) = 3,
    }
}

impl Access {
    /// The access record that repeats fields of a content record. The mode says whether the
    /// directory has an ACL, too: its parent's server shows it to clients, which keep it.
    pub(crate) fn of(id: DirId, content: &Content) -> Access {
        Access {
            id,
            ino: content.ino,
            home: content.home,
            mode: content.xattrs.shown_mode(content.mode),
            uid: content.uid,
            gid: content.gid,
        }
    }
}

impl Record for EntryRecord {
    fn is_sound(&self) -> bool {
        match self {
            EntryRecord::Node(inode) => inode.is_sound(),
            EntryRecord::Dir(_) | EntryRecord::Link(_) => true,
        }
    }
}

impl EntryRecord {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            EntryRecord::Node(inode) => inode.ino,
            EntryRecord::Dir(access) => access.ino,
            EntryRecord::Link(ino) => *ino,
        }
    }

    /// Whether a record, if it is sound, is a [`EntryRecord::Link`]: by its tag.
    pub(crate) fn is_link(record: &[u8]) -> bool {
        matches!(record, [_, 3, ..])
    }
}

codec! {
    /// Versions of directories that were born under a name and now live elsewhere.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct RenameList {
        pub versions: Vec<NameVersion>,
    }
}

impl Record for RenameList {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_by_its_tag() {
        let access =
            Access { id: DirId::ROOT, ino: Ino(3), home: DirId::ROOT, mode: 0o755, uid: 3, gid: 3 };
        assert!(EntryRecord::is_link(&EntryRecord::Link(Ino(2)).to_record()));
        assert!(!EntryRecord::is_link(&EntryRecord::Dir(access).to_record()));
        assert!(!EntryRecord::is_link(&[]));
    }
}
