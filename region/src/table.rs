//! The table: what the region knows, by path, and what of it the file system below does not have.
//!
//! Everything here is pure: no call waits, and none goes below. An operation that cannot go on says
//! what it needs ([`Need`]); `region` gets it and runs the operation anew.
//!
//! An *entry* is what a path stands for: nothing, or a *node*. A node is a file or directory with
//! its attributes; one that is open lives on without a path. An entry is *dirty* where the path
//! below is not what it is here.
//!
//! Invariant: what [`Table::check`] checks, after every operation.

mod absences;
mod check;
mod forget;

use std::{collections::BTreeSet, sync::Arc};

use base::{Attr, DirId, EntryName, FileKind, FsError, HashMap, HashSet, Ino, Time};
use bytes::Bytes;
use client::{Handle, LocalLocks};
use wire::{DirRef, Entry as Answer, FileRef, NodeRef};

use self::absences::Absences;
pub(crate) use self::absences::Due;
use crate::{
    Path,
    below::{Contents, Found},
    commit::{Queue, Trouble},
    counts::Counts,
    holds::Holds,
    listing::Listings,
};

/// Numbers of nodes that were made here; numbers from below are less.
const MADE: u64 = 1 << 62;

/// Memory that an entry takes besides its path and contents, in bytes, and about that.
const ENTRY_BYTES: usize = 400;

/// How long the table believes that there is nothing below, in milliseconds: a file that somebody
/// puts there to stop a program is then seen.
pub(crate) const ABSENT_MS: u64 = 5_000;

/// Something that an operation must have before it can go on.
#[derive(Debug)]
pub(crate) enum Need {
    /// No more: this is the answer.
    Answer(FsError),
    /// The end of a hold, a load or a commit.
    Wait,
    /// A look at a path below.
    Load(Path),
    /// Contents of a small file.
    Read(Ino, Path),
    /// An open file below.
    File(Ino, Path),
    /// A small file becomes a large one.
    Grow(Ino),
    /// Fewer changes that are not below yet.
    Room,
}

impl From<FsError> for Need {
    fn from(error: FsError) -> Need {
        Need::Answer(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Need>;

/// The state of a path.
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    /// Whether the path below has what the region has put or seen there.
    pub(crate) below: bool,
    /// Whether a worker has a copy of the entry, to commit it.
    pub(crate) committing: bool,
    /// Changes that were answered, and that no commit has taken along yet.
    pub(crate) pending: u64,
    /// Bytes of its contents that are not below.
    pub(crate) dirty_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No node; where that was looked up below, until this time, and while the directory above is
    /// this one.
    Absent(Option<(Time, Ino)>),
    Node(Ino),
}

/// A file or a directory.
pub(crate) struct Node {
    pub(crate) attr: Attr,
    pub(crate) body: Body,
    /// The node's path, or one of them; `None`: it is only open.
    pub(crate) path: Option<Path>,
    /// Whether it was made without a name, and may get one.
    pub(crate) linkable: bool,
    /// How many handles are on it.
    pub(crate) opens: u32,
    /// How many of them programs have beside the mount.
    pub(crate) apart: u32,
    /// Whether a mount was told of it: a kernel may have cached it, and changes it alone.
    pub(crate) shown: bool,
    /// Whether a mount was told its attributes since they were last changed beside it.
    pub(crate) attr_shown: bool,
    /// Whether a program has asked for its attributes beside the mount.
    pub(crate) is_asked: bool,
    /// Whether it was made here and is not below yet.
    pub(crate) fresh: bool,
    pub(crate) changed: Changed,
    /// Why it cannot be committed, until a change of it is tried again.
    pub(crate) failed: Option<FsError>,
    /// Whether an open, a flush or an fsync has said so.
    pub(crate) told: bool,
    /// The newest measurement of its attributes as a passed file.
    pub(crate) measured: u64,
    /// Whether it was told with a newer time than it has below, which takes no such time.
    pub(crate) ahead: bool,
}

/// The parts of a node that are newer than below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changed {
    pub(crate) contents: bool,
    pub(crate) mode: bool,
    pub(crate) owner: bool,
    pub(crate) times: bool,
}

impl Changed {
    pub(crate) fn any(self) -> bool {
        self.contents || self.mode || self.owner || self.times
    }

    pub(crate) fn and(self, other: Changed) -> Changed {
        Changed {
            contents: self.contents || other.contents,
            mode: self.mode || other.mode,
            owner: self.owner || other.owner,
            times: self.times || other.times,
        }
    }
}

pub(crate) enum Body {
    Directory(Directory),
    Symlink(Bytes),
    /// A small file of which only the attributes are here.
    Unread,
    /// All contents of a small file.
    Inline(Arc<Vec<u8>>),
    /// A file whose contents and attributes are below: a large one, or one with several names. It
    /// is never dirty.
    Passed(Option<Arc<dyn Contents>>),
    Special,
}

#[derive(Default)]
pub(crate) struct Directory {
    /// Whether it was made here, so that everything in it is known.
    pub(crate) born_here: bool,
    /// Whether something that is in it was forgotten.
    pub(crate) forgot: bool,
    /// Whether its files get an ACL from it.
    pub(crate) default_acl: bool,
    /// Names in it that stand for a node.
    pub(crate) children: BTreeSet<EntryName>,
    /// Whether mode and times below are to be set when all else in it is committed.
    pub(crate) late: bool,
    /// Whether its mode below is wider than it is to be.
    pub(crate) mode_late: bool,
}

/// Bounds of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) inline_max: usize,
    pub(crate) dirty_max: usize,
    pub(crate) dirty_bytes_max: usize,
    pub(crate) memory_max: usize,
}

pub(crate) struct Table {
    pub(crate) bounds: Bounds,
    pub(crate) entries: HashMap<Path, Entry>,
    pub(crate) nodes: HashMap<Ino, Node>,
    pub(crate) handles: HashMap<Handle, Ino>,
    /// Paths of dirty entries that can be committed, those included that are being committed.
    pub(crate) dirty: BTreeSet<Path>,
    /// The same in the order in which they became dirty; some are not dirty any more.
    pub(crate) queue: Queue,
    /// Paths that wait for the directory above.
    pub(crate) parked: HashMap<Path, Vec<Path>>,
    /// Directories whose mode and times are to be set last.
    pub(crate) late: BTreeSet<Path>,
    /// Entries that cannot be committed.
    pub(crate) failed: BTreeSet<Path>,
    pub(crate) trouble: Option<Trouble>,
    /// Paths about which the file system below is being asked.
    pub(crate) loading: HashSet<Path>,
    pub(crate) holds: Holds,
    pub(crate) locks: LocalLocks,
    pub(crate) listings: Listings,
    pub(crate) absences: Absences,
    pub(crate) counts: Counts,
    /// Directories whose mode and times could not be set.
    pub(crate) given_up: usize,
    /// Whether operations are refused.
    pub(crate) closed: bool,
    /// Whether other machines may use the region.
    pub(crate) shared: bool,
    /// Operations on passed files that are under way.
    pub(crate) passing: usize,
    /// Whether a closed region is held as a whole, for good.
    pub(crate) ended: bool,
    /// Bytes of contents that are not below.
    pub(crate) dirty_bytes: usize,
    /// About how much memory the table takes, in bytes.
    pub(crate) memory: usize,
    last_made: u64,
    last_handle: u64,
    /// The present time, as the operation that runs has it.
    pub(crate) now: Time,
}

impl Table {
    /// A table that knows the region's directory only.
    pub(crate) fn new(root: &Found, bounds: Bounds) -> Table {
        let mut table = Table {
            bounds,
            entries: HashMap::default(),
            nodes: HashMap::default(),
            handles: HashMap::default(),
            dirty: BTreeSet::new(),
            queue: Queue::default(),
            parked: HashMap::default(),
            late: BTreeSet::new(),
            failed: BTreeSet::new(),
            trouble: None,
            loading: HashSet::default(),
            holds: Holds::default(),
            locks: LocalLocks::default(),
            listings: Listings::default(),
            absences: Absences::default(),
            counts: Counts::default(),
            given_up: 0,
            closed: false,
            shared: false,
            passing: 0,
            ended: false,
            dirty_bytes: 0,
            memory: 0,
            last_made: MADE,
            last_handle: 0,
            now: Time::default(),
        };
        let attr = Attr { ino: Ino::ROOT, ..root.attr };
        let body =
            Body::Directory(Directory { default_acl: root.default_acl, ..Directory::default() });
        table.nodes.insert(Ino::ROOT, Node::loaded(attr, body, Path::root()));
        table.put(Path::root(), Slot::Node(Ino::ROOT), true);
        table
    }

    /// The directory's path, if it is still there and nobody holds it.
    pub(crate) fn dir_path(&self, dir: &DirRef) -> Result<Path> {
        let node = self.nodes.get(&dir.ino).ok_or(FsError::Stale)?;
        let path = node.path.as_ref().filter(|_| node.attr.kind == FileKind::Directory);
        let path = path.ok_or(FsError::Stale)?;
        if self.holds.cover(path) { Err(Need::Wait) } else { Ok(path.clone()) }
    }

    /// Finds what is at a path.
    pub(crate) fn find(&self, path: &Path) -> Result<Option<Ino>> {
        if self.holds.cover(path) {
            return Err(Need::Wait);
        }
        self.find_held(path)
    }

    /// Finds as [`Table::find`] does, for whoever holds the path.
    pub(crate) fn find_held(&self, path: &Path) -> Result<Option<Ino>> {
        let Some(entry) = self.entries.get(path) else {
            let (above, _) = path.split().expect("the region's directory has an entry");
            // A name that is not here never was, unless it was below before or was forgotten.
            let above = self.entries.get(&above).and_then(|above| self.node_of(above));
            let known = above.and_then(|above| above.directory()).is_some_and(Directory::knows_all);
            return if known { Ok(None) } else { self.not_listed(path) };
        };
        match entry.slot {
            Slot::Node(ino) => Ok(Some(ino)),
            Slot::Absent(_) if self.is_old(path, entry) => self.not_listed(path),
            Slot::Absent(_) => Ok(None),
        }
    }

    /// Whether an entry is of a look below that tells nothing any more.
    pub(crate) fn is_old(&self, path: &Path, entry: &Entry) -> bool {
        let Slot::Absent(Some((until, dir))) = entry.slot else { return false };
        let is_elsewhere = self.above(path).is_none_or(|(above, _)| above != dir);
        (until <= self.now || is_elsewhere) && !entry.below && !entry.committing
    }

    /// Tells that a name is absent if the directory above was listed and has none; else below must say.
    fn not_listed(&self, path: &Path) -> Result<Option<Ino>> {
        match self.above(path) {
            Some((dir, name)) if self.absences.have_none(dir, &name, self.now) => Ok(None),
            Some(_) | None => Err(Need::Load(path.clone())),
        }
    }

    /// The directory that should be listed before anything more is looked for in it.
    pub(crate) fn due_above(&self, path: &Path) -> Option<(Path, Due)> {
        let (dir, _) = self.above(path)?;
        let (above, _) = path.split()?;
        let due = self.absences.due(dir).filter(|_| !self.holds.cover(&above))?;
        Some((above, due))
    }

    /// The node for an operation on it.
    pub(crate) fn node_ino(&self, node: &NodeRef) -> Result<Ino> {
        match node {
            NodeRef::Dir(dir) => self.dir_path(dir).map(|_| dir.ino),
            NodeRef::File(file) => self.file_ino(file),
        }
    }

    /// The file for an operation on it, which may have another name by now.
    pub(crate) fn file_ino(&self, file: &FileRef) -> Result<Ino> {
        if let Some(node) = self.nodes.get(&file.ino) {
            if node.attr.kind == FileKind::Directory {
                return Err(FsError::Stale.into());
            }
            self.not_held(node)?;
            return Ok(file.ino);
        }
        let path = self.dir_path(&file.dir)?.child(&file.name);
        let found = self.find(&path)?.filter(|found| *found == file.ino);
        Ok(found.ok_or(FsError::Stale)?)
    }

    /// The node of a handle.
    pub(crate) fn opened(&self, handle: Handle) -> Result<Ino> {
        let ino = *self.handles.get(&handle).ok_or(FsError::BadHandle)?;
        self.not_held(self.node(ino))?;
        Ok(ino)
    }

    fn not_held(&self, node: &Node) -> Result<()> {
        let held = node.path.as_ref().is_some_and(|path| self.holds.cover(path));
        if held { Err(Need::Wait) } else { Ok(()) }
    }

    /// A node that is known to be there.
    pub(crate) fn node(&self, ino: Ino) -> &Node {
        self.nodes.get(&ino).expect("entries and handles keep a node")
    }

    pub(crate) fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("entries and handles keep a node")
    }

    pub(crate) fn node_of(&self, entry: &Entry) -> Option<&Node> {
        match entry.slot {
            Slot::Node(ino) => self.nodes.get(&ino),
            Slot::Absent(_) => None,
        }
    }

    /// The directory with this number, which is known to be one.
    pub(crate) fn directory_mut(&mut self, ino: Ino) -> &mut Directory {
        self.node_mut(ino).directory_mut().expect("checked before")
    }

    /// The number of the directory above a path that is in the table.
    pub(crate) fn above(&self, path: &Path) -> Option<(Ino, EntryName)> {
        let (above, name) = path.split()?;
        match self.entries.get(&above)?.slot {
            Slot::Node(ino) => Some((ino, name)),
            Slot::Absent(_) => None,
        }
    }

    /// The answer to whoever looked a node up.
    pub(crate) fn answer(&self, ino: Ino) -> Answer {
        let node = self.node(ino);
        let (dir, target) = match &node.body {
            Body::Directory(_) => (Some(dir_ref(ino)), None),
            Body::Symlink(target) => (None, Some(target.clone())),
            Body::Unread | Body::Inline(_) | Body::Passed(_) | Body::Special => (None, None),
        };
        Answer { attr: node.attr, dir, target, whole: true }
    }

    /// The same for a mount, whose kernel may keep it.
    pub(crate) fn show(&mut self, ino: Ino) -> Answer {
        self.show_attr(ino);
        self.answer(ino)
    }

    /// Attributes for a mount, whose kernel may keep them.
    pub(crate) fn show_attr(&mut self, ino: Ino) -> Attr {
        let node = self.node_mut(ino);
        (node.shown, node.attr_shown) = (true, true);
        node.attr
    }

    /// A number for a new node.
    pub(crate) fn number(&mut self) -> Ino {
        self.last_made += 1;
        Ino(self.last_made)
    }

    /// Notes that below is asked about paths, unless that is so already or they are held.
    pub(crate) fn begin_load(&mut self, paths: &[Path]) -> bool {
        if paths.iter().any(|path| self.loading.contains(path) || self.holds.cover(path)) {
            return false;
        }
        self.loading.extend(paths.iter().cloned());
        true
    }

    /// Takes in what is below at a path, if nothing was put there meanwhile.
    pub(crate) fn loaded(&mut self, path: &Path, found: Option<(Found, Body)>) {
        let stands = self.entries.get(path).is_some_and(|entry| {
            !matches!(entry.slot, Slot::Absent(Some(_))) || entry.below || entry.committing
        });
        let Some((above, name)) = self.above(path).filter(|_| !stands) else { return };
        let Some((found, body)) = found else {
            let until = self.now.plus_ms(ABSENT_MS);
            self.put(path.clone(), Slot::Absent(Some((until, above))), false);
            self.absences.missed(above);
            return;
        };
        let ino = self.number_of(&found.attr);
        if let Some(known) = self.nodes.get_mut(&ino) {
            // One more name of a file with several.
            known.attr = Attr { ino, ..found.attr };
        } else {
            let attr = Attr { ino, ..found.attr };
            let mut node = Node::loaded(attr, body, path.clone());
            // A mount may have been told of it before it was forgotten.
            node.shown = self.node(above).directory().is_some_and(|above| above.forgot);
            self.memory += node.contents_bytes();
            self.nodes.insert(ino, node);
        }
        self.put(path.clone(), Slot::Node(ino), true);
        self.directory_mut(above).children.insert(name);
    }

    /// The number of something that was found below: the one that it has there, unless another node
    /// has it here.
    fn number_of(&mut self, found: &Attr) -> Ino {
        let is_usable = found.ino.0 > Ino::ROOT.0 && found.ino.0 < MADE;
        let shared = |node: &Node| {
            let several = found.nlink > 1 && node.attr.nlink > 1;
            several && node.attr.kind == found.kind && node.path.is_some()
        };
        let is_free = self.nodes.get(&found.ino).is_none_or(shared);
        if is_usable && is_free { found.ino } else { self.number() }
    }

    /// Writes an entry. Children of the directory above, and what is dirty, are the caller's.
    pub(crate) fn put(&mut self, path: Path, slot: Slot, below: bool) {
        if let Some(entry) = self.entries.get_mut(&path) {
            (entry.slot, entry.below) = (slot, below);
            return;
        }
        self.memory += entry_bytes(&path);
        self.entries
            .insert(path, Entry { slot, below, committing: false, pending: 0, dirty_bytes: 0 });
    }

    /// Drops an entry, of which nothing may be left to commit.
    pub(crate) fn drop_entry(&mut self, path: &Path) {
        if let Some(entry) = self.entries.remove(path) {
            self.memory -= entry_bytes(path);
            self.counts.superseded += entry.pending;
            if let (Slot::Node(_), Some((above, _))) = (entry.slot, self.above(path)) {
                self.absences.forget_names(above);
            }
        }
    }

    /// Drops a node that has neither a path nor a handle.
    pub(crate) fn forget_unused(&mut self, ino: Ino) {
        let node = self.node(ino);
        if node.path.is_none() && node.opens == 0 {
            let is_dir = node.is_dir();
            self.memory -= node.contents_bytes();
            self.nodes.remove(&ino);
            if is_dir {
                self.absences.forget(ino);
            }
        }
    }

    /// A handle on a node.
    pub(crate) fn add_handle(&mut self, ino: Ino) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.node_mut(ino).opens += 1;
        self.handles.insert(handle, ino);
        handle
    }

    /// Replaces the contents of a small file.
    pub(crate) fn set_inline(&mut self, ino: Ino, contents: Arc<Vec<u8>>) {
        let node = self.nodes.get_mut(&ino).expect("entries and handles keep a node");
        let before = node.contents_bytes();
        node.attr.size = contents.len() as u64;
        node.attr.allocated = contents.len().next_multiple_of(512) as u64;
        node.body = Body::Inline(contents);
        self.memory = self.memory + node.contents_bytes() - before;
    }
}

impl Node {
    pub(crate) fn loaded(attr: Attr, body: Body, path: Path) -> Node {
        Node {
            attr,
            body,
            path: Some(path),
            linkable: false,
            opens: 0,
            apart: 0,
            shown: false,
            attr_shown: false,
            is_asked: false,
            fresh: false,
            changed: Changed::default(),
            failed: None,
            told: false,
            measured: 0,
            ahead: false,
        }
    }

    pub(crate) fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            Body::Symlink(_) | Body::Unread | Body::Inline(_) | Body::Passed(_) | Body::Special => {
                None
            }
        }
    }

    pub(crate) fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Some(directory),
            Body::Symlink(_) | Body::Unread | Body::Inline(_) | Body::Passed(_) | Body::Special => {
                None
            }
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.directory().is_some()
    }

    pub(crate) fn is_passed(&self) -> bool {
        matches!(self.body, Body::Passed(_))
    }

    /// Bytes of memory that the contents take.
    pub(crate) fn contents_bytes(&self) -> usize {
        match &self.body {
            Body::Inline(contents) => contents.len(),
            Body::Symlink(target) => target.len(),
            Body::Directory(_) | Body::Unread | Body::Passed(_) | Body::Special => 0,
        }
    }
}

impl Directory {
    /// Whether what is not in the table is not there.
    pub(crate) fn knows_all(&self) -> bool {
        self.born_here && !self.forgot
    }
}

/// How the callers of a region name a directory: its number is its identity.
pub(crate) fn dir_ref(ino: Ino) -> DirRef {
    if ino == Ino::ROOT {
        return DirRef::ROOT;
    }
    let id = DirId(ino.0.into());
    DirRef { id, ino, home: id, ticket: 0 }
}

/// Memory that an entry takes, contents apart.
pub(crate) fn entry_bytes(path: &Path) -> usize {
    // The path is a key, and in its node; the name is with its directory.
    ENTRY_BYTES + 2 * path.as_bytes().len()
}
