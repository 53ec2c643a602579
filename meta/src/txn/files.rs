//! Files within a transaction: where an inode is, and what becomes of it.

use base::{Access, DirId, EntryName, FsError, Ino};
use wire::{FileRef, NodeRef, Retry};

use super::{Txn, dirs::Dir};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    lock,
    record::{
        Contents, EntryRecord, Inode, Location, Reclaim, ReclaimKind, Slot, Usage, XattrSet, key,
        key::Part,
    },
};

/// Where an inode rests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the entry of its only name.
    Entry(Location),
    /// In its slot on the shard of birth.
    Slot,
}

/// An inode and where it rests.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: Place,
    pub(crate) inode: Inode,
}

/// A directory or anything else, ready to be changed.
pub(crate) enum Node {
    Dir(Dir),
    File(Located),
}

impl Txn<'_> {
    /// Finds a file by (dir, name, ino).
    ///
    /// Where the name has it no more, the shard of birth knows. A session that must prove its walks may
    /// follow it there only if it has the file open: an open file stays open wherever it is moved.
    pub(crate) fn file(&self, file: &FileRef) -> Result<Located> {
        self.settled(|txn| txn.look_for(file))
    }

    fn look_for(&self, file: &FileRef) -> Result<Located> {
        let open = self.has_open(file.ino);
        if !self.follows && !self.has_shard(self.shard(file.dir.home)) {
            return self.at_birth(file, open);
        }
        if !open && self.checks() {
            let dir = self.dir(&file.dir)?;
            if let Err(denied) = self.dir_permits(&dir, Access::EXECUTE) {
                // Who has it open may do it all the same, and that is known where it was born.
                self.send_to_birth(file.dir.id, file.ino)?;
                return Err(denied);
            }
        } else {
            let dir = &file.dir;
            self.check_ticket_of(dir)?;
        }
        let at = Location { dir: file.dir.id, home: file.dir.home, name: file.name.clone() };
        match self.at(&at, file.ino)? {
            Some(found) => Ok(found),
            None if open || self.trusts() => {
                self.send_to_birth(file.dir.id, file.ino)?;
                self.by_ino(file.ino)
            }
            None => Err(FsError::Stale.into()),
        }
    }

    /// Finds a file that was looked for under its name, and is on its shard of birth, which is here.
    fn at_birth(&self, file: &FileRef, open: bool) -> Result<Located> {
        let shown = || file.dir.ticket == self.birth_ticket(file.dir.id, file.ino);
        if !self.has_shard(file.ino.shard()) {
            return Err(Fault::Retry(Retry::StaleDir));
        }
        if !open && !self.trusts() && !shown() {
            return Err(FsError::Stale.into());
        }
        if !open && self.checks() {
            self.is_reached_by_name(file)?;
        }
        self.by_ino(file.ino)
    }

    /// Checks what the server of a file's directory would: that it may be searched and, for who must prove his walks, that
    /// the file has its name there still.
    fn is_reached_by_name(&self, file: &FileRef) -> Result<()> {
        let FileRef { dir, name, ino } = file;
        let content_key = self.content_key(dir.home, dir.id);
        let name_key = self.name_key(dir.home, dir.id, name, Part::Main);
        if !self.trusts() {
            self.want(&[content_key.clone(), name_key.clone()])?;
        }
        let content = self.get_content(&content_key)?.filter(|content| content.ino == dir.ino);
        let content = content.ok_or(Fault::Retry(Retry::StaleDir))?;
        content.permits(self.caller.cred, Access::EXECUTE)?;
        if self.trusts() || self.get::<EntryRecord>(&name_key)? == Some(EntryRecord::Link(*ino)) {
            Ok(())
        } else {
            Err(FsError::Stale.into())
        }
    }

    /// Proof that this session was shown an inode in a directory.
    fn birth_ticket(&self, dir: DirId, ino: Ino) -> u64 {
        let [high, low] = super::halves(dir.0);
        self.ticket(&[u64::from_le_bytes(*b"at-birth"), ino.0, high, low])
    }

    /// Sends who asks for an inode to its shard of birth, unless that is here.
    fn send_to_birth(&self, dir: DirId, ino: Ino) -> Result<()> {
        if self.follows || self.has_shard(ino.shard()) {
            return Ok(());
        }
        Err(Fault::Retry(Retry::AtBirth(self.birth_ticket(dir, ino))))
    }

    /// As [`Txn::file`], to be changed.
    pub(crate) fn file_locked(&mut self, file: &FileRef) -> Result<Located> {
        self.lock(lock::ino_lock(file.ino))?;
        self.file(file)
    }

    /// As [`Txn::file_locked`] or `dir_locked`.
    pub(crate) fn node_locked(&mut self, node: &NodeRef) -> Result<Node> {
        match node {
            NodeRef::Dir(dir) => Ok(Node::Dir(self.dir_locked(dir)?)),
            NodeRef::File(file) => Ok(Node::File(self.file_locked(file)?)),
        }
    }

    /// As [`Txn::node_locked`], only to read.
    pub(crate) fn node(&self, node: &NodeRef) -> Result<Node> {
        match node {
            NodeRef::Dir(dir) => Ok(Node::Dir(self.dir(dir)?)),
            NodeRef::File(file) => Ok(Node::File(self.file(file)?)),
        }
    }

    fn trusts(&self) -> bool {
        self.caller.standing.trusted
    }

    fn has_open(&self, ino: Ino) -> bool {
        self.opened_for(ino, Access::NONE)
    }

    /// Whether the caller has the file open, for at least `want`.
    pub(crate) fn opened_for(&self, ino: Ino, want: Access) -> bool {
        let opens = &self.shared.opens;
        self.caller.session.is_some_and(|session| {
            let granted = opens.access_of(ino, session.id, self.caller.opener());
            granted.is_some_and(|granted| granted.includes(want))
        })
    }

    fn check_ticket_of(&self, dir: &wire::DirRef) -> Result<()> {
        let again = self.dir_ref(dir.id, dir.ino, dir.home);
        if again.ticket == dir.ticket || self.trusts() {
            Ok(())
        } else {
            Err(FsError::Denied.into())
        }
    }

    fn at(&self, at: &Location, ino: Ino) -> Result<Option<Located>> {
        let key = self.name_key(at.home, at.dir, &at.name, Part::Main);
        match self.get(&key)? {
            Some(EntryRecord::Node(inode)) if inode.ino == ino => {
                Ok(Some(Located { place: Place::Entry(at.clone()), inode }))
            }
            Some(EntryRecord::Link(found)) if found == ino => {
                self.send_to_birth(at.dir, ino)?;
                match self.get(&key::inode(ino, Part::Main))? {
                    Some(Slot::Inode(inode)) => Ok(Some(Located { place: Place::Slot, inode })),
                    Some(Slot::Moved(_)) | None => Err(Fault::Retry(Retry::Busy)),
                }
            }
            Some(EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_)) | None => {
                Ok(None)
            }
        }
    }

    fn by_ino(&self, ino: Ino) -> Result<Located> {
        match self.get(&key::inode(ino, Part::Main))? {
            Some(Slot::Inode(inode)) => Ok(Located { place: Place::Slot, inode }),
            Some(Slot::Moved(at)) => self.at(&at, ino)?.ok_or(Fault::Retry(Retry::Busy)),
            None => Err(FsError::Stale.into()),
        }
    }

    /// Finds a file by its number and where it was; `None` when it is gone. The caller has locked the inode.
    pub(crate) fn find(&self, ino: Ino, was: &Place) -> Result<Option<Located>> {
        self.settled(|txn| match (txn.get(&key::inode(ino, Part::Main))?, was) {
            (Some(Slot::Inode(inode)), _) => Ok(Some(Located { place: Place::Slot, inode })),
            (Some(Slot::Moved(at)), _) => txn.at(&at, ino),
            (None, Place::Entry(at)) => txn.at(at, ino),
            (None, Place::Slot) => Ok(None),
        })
    }

    /// Finds the inode of an entry that was read under its directory's lock, and locks it.
    pub(crate) fn entry_inode_locked(
        &mut self,
        dir: &Dir,
        name: &EntryName,
        entry: &EntryRecord,
    ) -> Result<Located> {
        let ino = entry.ino();
        let free = self.lock(lock::ino_lock(ino))?;
        let at = Location::of(dir, name);
        match entry {
            // The directory is locked, so the name cannot have changed.
            EntryRecord::Link(_) => {
                self.want(&[key::inode(ino, Part::Main), key::open(ino)])?;
                let inode = self.settled(|txn| txn.slot_inode(ino))?;
                Ok(Located { place: Place::Slot, inode })
            }
            // Race: until it was locked another core may have changed the inode.
            EntryRecord::Node(_) if free => {
                self.settled(|txn| txn.at(&at, ino)?.ok_or(Fault::Retry(Retry::Busy)))
            }
            EntryRecord::Node(inode) => {
                Ok(Located { place: Place::Entry(at), inode: inode.clone() })
            }
            EntryRecord::Dir(_) => Err(FsError::IsDirectory.into()),
        }
    }

    /// Stores an inode where it rests.
    pub(crate) fn put_inode(&mut self, located: &Located) {
        match &located.place {
            Place::Slot => {
                let slot = Slot::Inode(located.inode.clone());
                self.put(key::inode(located.inode.ino, Part::Main), &slot);
            }
            Place::Entry(at) => {
                let key = self.name_key(at.home, at.dir, &at.name, Part::Main);
                self.put(key, &EntryRecord::Node(located.inode.clone()));
            }
        }
    }

    /// The key of an inode's spilled xattrs.
    pub(crate) fn xattrs_key(&self, located: &Located) -> crate::record::Key {
        match &located.place {
            Place::Slot => key::inode(located.inode.ino, Part::Xattrs),
            Place::Entry(at) => self.name_key(at.home, at.dir, &at.name, Part::Xattrs),
        }
    }

    /// Moves an inode, and its spilled xattrs, to another place. The old entry is the caller's to remove.
    pub(crate) fn move_inode(&mut self, located: &mut Located, place: Place) -> Result<()> {
        if located.place == place {
            self.put_inode(located);
            return Ok(());
        }
        let xattrs = self.lift_xattrs(located)?;
        self.settle_inode(located, place, xattrs);
        Ok(())
    }

    /// Takes an inode's spilled xattrs from where it rests.
    pub(crate) fn lift_xattrs(&mut self, located: &Located) -> Result<Option<XattrSet>> {
        if !located.inode.xattrs.is_spilled() {
            return Ok(None);
        }
        let key = self.xattrs_key(located);
        let xattrs = self.get(&key)?;
        self.delete(key);
        Ok(xattrs)
    }

    /// Puts an inode, with the xattrs that were lifted, at its new place.
    pub(crate) fn settle_inode(
        &mut self,
        located: &mut Located,
        place: Place,
        xattrs: Option<XattrSet>,
    ) {
        located.place = place;
        if let Some(xattrs) = xattrs {
            let key = self.xattrs_key(located);
            self.put(key, &xattrs);
        }
        if let Place::Entry(at) = &located.place {
            located.inode.moved = true;
            let slot = Slot::Moved(at.clone());
            self.put(key::inode(located.inode.ino, Part::Main), &slot);
        }
        self.put_inode(located);
    }

    /// Takes one name from an inode whose entry the caller removes. The last one takes the inode along,
    /// unless it is open somewhere: then it lives on in its slot.
    pub(crate) fn drop_name(&mut self, mut located: Located) -> Result<Inode> {
        let ino = located.inode.ino;
        located.inode.nlink = located.inode.nlink.saturating_sub(1);
        located.inode.times.ctime = self.now;
        if located.inode.nlink > 0 {
            self.put_inode(&located);
        } else if self.maybe_open(ino)? && !self.shared.bugs.has(Bug::OpensIgnored) {
            self.move_inode(&mut located, Place::Slot)?;
            self.put(key::reclaim(ino), &Reclaim { kind: ReclaimKind::Orphan });
            self.reclaim.push(ino);
        } else {
            self.delete_inode(&located);
        }
        Ok(located.inode)
    }

    /// Removes an inode for good; its contents go in the background.
    pub(crate) fn delete_inode(&mut self, located: &Located) {
        let ino = located.inode.ino;
        let used = Usage::of(1, located.inode.attr().allocated);
        self.charge_freely(located.inode.quota, used.minus());
        if located.inode.xattrs.is_spilled() {
            let key = self.xattrs_key(located);
            self.delete(key);
        }
        if located.place == Place::Slot || located.inode.moved {
            self.delete(key::inode(ino, Part::Main));
        }
        if located.inode.contents == Contents::Blocks {
            self.put(key::reclaim(ino), &Reclaim { kind: ReclaimKind::Contents });
            self.reclaim.push(ino);
        } else if located.inode.nlink == 0 && located.place == Place::Slot {
            self.delete(key::reclaim(ino));
        }
    }

    /// Checks permission on an inode, if that is the server's to check.
    pub(crate) fn inode_permits(&self, inode: &Inode, want: Access) -> Result<()> {
        if self.checks() {
            inode.permits(self.caller.cred, want)?;
        }
        Ok(())
    }
}

impl Location {
    /// The name `name` in `dir`.
    pub(crate) fn of(dir: &Dir, name: &EntryName) -> Location {
        Location { dir: dir.id, home: dir.content.home, name: name.clone() }
    }
}
