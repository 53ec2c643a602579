//! Files within a transaction: where their inodes rest, and changes of that.

use base::{Access, BlockId, EntryName, FsError, HashSet, Ino};
use wire::{FileRef, NodeRef, Retry, Slice};

use super::{Txn, dirs::Dir};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    lock,
    reclaim::notes::Garbage,
    record::{
        Contents, EntryRecord, Inode, Location, Reclaim, ReclaimKind, Slot, XattrSet,
        inode::blocks_of,
        key,
        key::Part,
        located::{Located, Place},
    },
};

/// A directory or anything else.
pub(crate) enum Node {
    Dir(Dir),
    File(Located),
}

impl Txn<'_> {
    /// Like [`Txn::file`], to be changed.
    pub(crate) fn file_locked(&mut self, file: &FileRef) -> Result<Located> {
        self.lock(lock::ino_lock(file.ino))?;
        self.file(file)
    }

    /// Like [`Txn::file_locked`] or [`Txn::master_locked`].
    pub(crate) fn node_locked(&mut self, node: &NodeRef) -> Result<Node> {
        match node {
            NodeRef::Dir(dir) => Ok(Node::Dir(self.master_locked(dir)?)),
            NodeRef::File(file) => Ok(Node::File(self.file_locked(file)?)),
        }
    }

    /// Like [`Txn::node_locked`], only to read.
    pub(crate) fn node(&self, node: &NodeRef) -> Result<Node> {
        match node {
            NodeRef::Dir(dir) => Ok(Node::Dir(self.master(dir)?)),
            NodeRef::File(file) => Ok(Node::File(self.file(file)?)),
        }
    }

    /// Whether the caller need not prove its walks.
    pub(crate) fn trusts(&self) -> bool {
        self.caller.standing.trusted
    }

    pub(super) fn has_open(&self, ino: Ino) -> bool {
        self.opened_for(ino, Access::NONE)
    }

    /// Whether the caller has the file open, with at least the rights `want`.
    pub(crate) fn opened_for(&self, ino: Ino, want: Access) -> bool {
        let opens = &self.shared.opens;
        self.caller.session.is_some_and(|session| {
            let granted = opens.access_of(ino, session.id, self.caller.opener());
            granted.is_some_and(|granted| granted.includes(want))
        })
    }

    /// Whether the caller has the file open, as the file's shard of birth knows, wherever that is.
    pub(super) fn has_open_at_birth(&self, ino: Ino) -> Result<bool> {
        let Some(session) = self.caller.session else { return Ok(false) };
        if self.has_shard(ino.shard()) {
            return Ok(self.has_open(ino));
        }
        let key = key::opener(ino, (session.id, self.caller.opener()));
        let open = self.with_remote(|remote| remote.get(&key))?;
        Ok(open.is_some())
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
        let (at, shard) = (Location::of(dir, name), self.shard_of_share(dir));
        match entry {
            // The directory is locked, so the name cannot have changed.
            EntryRecord::Link(_) => {
                self.want(&[key::inode(ino, Part::Main), key::open(ino)])?;
                let inode = self.settled(|txn| txn.slot_inode(ino))?;
                Ok(Located { place: Place::Slot, inode })
            }
            // Race: another core may have changed the inode before the lock was taken.
            EntryRecord::Node(_) if free => {
                self.settled(|txn| txn.at(&at, shard, ino)?.ok_or(Fault::Retry(Retry::Busy)))
            }
            EntryRecord::Node(inode) => {
                Ok(Located { place: Place::Entry(at, shard), inode: inode.clone() })
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
            Place::Entry(at, shard) => {
                let key = self.key_on(*shard, at.dir, &at.name, Part::Main);
                self.put(key, &EntryRecord::Node(located.inode.clone()));
            }
        }
    }

    /// The key of an inode's spilled xattrs.
    pub(crate) fn xattrs_key(&self, located: &Located) -> crate::record::Key {
        match &located.place {
            Place::Slot => key::inode(located.inode.ino, Part::Xattrs),
            Place::Entry(at, shard) => self.key_on(*shard, at.dir, &at.name, Part::Xattrs),
        }
    }

    /// Moves an inode, and its spilled xattrs, to another place. The caller removes the old entry.
    pub(crate) fn move_inode(&mut self, located: &mut Located, place: Place) -> Result<()> {
        if located.place == place {
            self.put_inode(located);
            return Ok(());
        }
        let xattrs = self.lift_xattrs(located)?;
        self.settle_inode(located, place, xattrs);
        Ok(())
    }

    /// Takes an inode's spilled xattrs from its place.
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
        if let Place::Entry(at, _) = &located.place {
            located.inode.moved = true;
            let slot = Slot::Moved(at.clone());
            self.put(key::inode(located.inode.ino, Part::Main), &slot);
        }
        self.put_inode(located);
    }

    /// Takes one name from an inode; the caller removes the entry. With its last name the inode is
    /// removed, unless it is open somewhere: then it lives on in its slot.
    pub(crate) fn drop_name(&mut self, mut located: Located) -> Result<Inode> {
        let ino = located.inode.ino;
        located.inode.nlink = located.inode.nlink.saturating_sub(1);
        located.inode.times.ctime = self.now;
        if located.inode.nlink > 0 {
            self.put_inode(&located);
        } else if self.maybe_open(ino)? && !self.shared.bugs.has(Bug::OpensIgnored) {
            self.move_inode(&mut located, Place::Slot)?;
            self.put(key::reclaim(ino), &Reclaim { kind: ReclaimKind::Orphan });
            self.facts.left.push(ino);
        } else {
            self.delete_inode(&located);
        }
        Ok(located.inode)
    }

    /// Removes an inode for good; its contents are removed in the background.
    pub(crate) fn delete_inode(&mut self, located: &Located) {
        let ino = located.inode.ino;
        self.charge_freely(located.inode.accounts(), located.inode.usage().minus());
        if located.inode.xattrs.is_spilled() {
            let key = self.xattrs_key(located);
            self.delete(key);
        }
        if located.place == Place::Slot || located.inode.moved {
            self.delete(key::inode(ino, Part::Main));
        }
        if located.inode.contents == Contents::Blocks {
            self.put(key::reclaim(ino), &Reclaim { kind: ReclaimKind::Contents });
            self.facts.left.push(ino);
        } else if located.inode.nlink == 0 && located.place == Place::Slot {
            self.delete(key::reclaim(ino));
        }
    }

    /// Checks permission on an inode, where the server checks permissions.
    pub(crate) fn inode_permits(&self, inode: &Inode, want: Access) -> Result<()> {
        if self.checks() {
            inode.permits(self.caller.cred, want)?;
        }
        Ok(())
    }

    /// Blocks of `were` that are not among `are` become garbage.
    pub(crate) fn drop_blocks(&mut self, ino: Ino, were: &[Slice], are: &[Slice]) {
        let kept: HashSet<BlockId> = blocks_of(are).collect();
        for block in blocks_of(were).filter(|block| !kept.contains(block)) {
            self.put(key::garbage(ino.shard(), block), &Garbage::default());
            self.facts.left.push(ino);
        }
    }
}

impl Place {
    /// The place under a name, in a share that has the name.
    pub(crate) fn under(txn: &Txn<'_>, dir: &Dir, name: &EntryName) -> Place {
        Place::Entry(Location::of(dir, name), txn.shard_of_share(dir))
    }
}

impl Location {
    /// The location of `name` in `dir`.
    pub(crate) fn of(dir: &Dir, name: &EntryName) -> Location {
        Location { dir: dir.id, home: dir.content.home, name: name.clone() }
    }
}
