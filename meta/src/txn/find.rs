//! Finding a file within a transaction: under its name, or by its number where it was born.
//!
//! A request names a file by directory, name and number. The number decides which file is meant.
//! The name says where it is found with one read. For untrusted sessions, which must prove their
//! walks, the name also proves that they may have the file. So a trusted session is served wherever
//! its request meets the name or the inode. The share that has the name is looked at only where
//! neither is met.
//!
//! Always true: an embedded inode is on its shard of birth. (Not on a single server: there it may
//! be in the trash, or a repair may have put it elsewhere.)

use base::{Access, DirId, FsError, Ino, ShardId};
use wire::{FileRef, Retry};

use super::{Dir, Txn};
use crate::{
    error::{Fault, Result},
    record::{
        EntryRecord, Location, Slot, key,
        key::Part,
        located::{Located, Place},
    },
    session::halves,
};

impl Txn<'_> {
    /// Finds a file by (dir, name, ino).
    ///
    /// Where the name does not lead to it any more, the shard of birth knows the file. A session
    /// that must prove its walks may follow it there only if it has the file open: an open file
    /// stays open wherever it is moved.
    pub(crate) fn file(&self, file: &FileRef) -> Result<Located> {
        self.settled(|txn| txn.look_for(file))
    }

    fn look_for(&self, file: &FileRef) -> Result<Located> {
        let open = self.has_open(file.ino);
        if self.follows {
            return self.followed(file, open);
        }
        let Some(shard) = self.shard_of_name(file) else { return self.at_birth(file, open) };
        if !self.trusts() && self.is_shown_at_birth(file) {
            return self.at_birth(file, open);
        }
        if !open && self.checks() {
            return self.by_name(file);
        }
        self.check_ticket_of(&file.dir, open)?;
        if let Some(found) = self.at(&named(file), shard, file.ino)? {
            return Ok(found);
        }
        let by_number = open || self.trusts();
        if by_number && self.has_shard(file.ino.shard()) {
            // If the file is not here it is nowhere: the server of its name would only send the
            // request back.
            return self.by_ino_or_name(file, Some(shard));
        }
        if let Some(found) = self.in_another_partition(file, shard, by_number)? {
            return Ok(found);
        }
        // The session may have the file open; the shard of birth knows of opens.
        self.send_to_birth(file.dir.id, file.ino)?;
        Err(FsError::Stale.into())
    }

    /// The shard on which a file's name is looked for first; `None`: the request was sent to the
    /// file's shard of birth.
    fn shard_of_name(&self, file: &FileRef) -> Option<ShardId> {
        let master = self.shard(file.dir.home);
        match self.asked {
            Some(asked) if self.shared.cluster.is_some() && asked != master => {
                (asked != file.ino.shard()).then_some(asked)
            }
            Some(_) | None => Some(master),
        }
    }

    /// Looks in the partition that has a name for a name that was not on `shard`.
    fn in_another_partition(
        &self,
        file: &FileRef,
        shard: ShardId,
        by_number: bool,
    ) -> Result<Option<Located>> {
        let dir = match self.owner_for(&file.dir, &file.name) {
            Ok(dir) => dir,
            // The directory may be gone; the file need not be.
            Err(Fault::Retry(Retry::StaleDir)) if by_number => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let right = self.shard_of_share(&dir);
        if right == shard && !self.may_have_given(&dir) {
            return Ok(None);
        }
        self.in_share(&dir, file)
    }

    /// The file under its name, in the share that has the name, if the name leads to that file.
    fn in_share(&self, dir: &Dir, file: &FileRef) -> Result<Option<Located>> {
        let found = self.at(&named(file), self.shard_of_share(dir), file.ino)?;
        if found.is_none() {
            self.still_has(dir)?;
        }
        Ok(found)
    }

    /// Finds a file under its name, in a directory that the caller may search.
    fn by_name(&self, file: &FileRef) -> Result<Located> {
        let dir = match self.dir_for(&file.dir, &file.name) {
            // The request was sent here for the inode, and that is here.
            Err(Fault::Retry(Retry::StaleLayout(_)))
                if self.trusts() && self.has_shard(file.ino.shard()) =>
            {
                return self.at_birth(file, false);
            }
            dir => dir?,
        };
        if let Err(denied) = self.dir_permits(&dir, Access::EXECUTE) {
            // A caller that has the file open may use it all the same; the shard of birth knows of
            // opens.
            self.send_to_birth(file.dir.id, file.ino)?;
            return Err(denied);
        }
        match self.in_share(&dir, file)? {
            Some(found) => Ok(found),
            None => {
                // An open file stays open without its name; the shard of birth knows of opens.
                self.send_to_birth(file.dir.id, file.ino)?;
                if self.trusts() { self.by_ino(file.ino) } else { Err(FsError::Stale.into()) }
            }
        }
    }

    /// Finds a file wherever it is, for a request that is not sent to the server of the file.
    ///
    /// That server alone knows whether the caller has the file open. It is asked only where a
    /// caller without the file would be refused.
    fn followed(&self, file: &FileRef, open: bool) -> Result<Located> {
        match self.followed_as(file, open) {
            Err(
                Fault::Answer(FsError::Denied | FsError::Stale) | Fault::Retry(Retry::StaleDir),
            ) if !open
                && (self.checks() || !self.trusts())
                && self.has_open_at_birth(file.ino)? =>
            {
                self.followed_as(file, true)
            }
            found => found,
        }
    }

    fn followed_as(&self, file: &FileRef, open: bool) -> Result<Located> {
        let (at, born) = (named(file), file.ino.shard());
        let by_number = open || self.trusts();
        if !open && self.checks() {
            let dir = self.dir_anywhere(&file.dir, &file.name)?;
            self.dir_permits(&dir, Access::EXECUTE)?;
            if let Some(found) = self.in_share(&dir, file)? {
                return Ok(found);
            }
        } else {
            self.check_ticket_of(&file.dir, open)?;
            let master = self.shard(file.dir.home);
            let found = if self.shared.cluster.is_none() || master == born {
                self.at(&at, master, file.ino)?
            } else if by_number {
                // The inode is not under the name, whatever else is.
                None
            } else {
                self.in_share(&self.owner(&file.dir, &file.name)?, file)?
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        if !by_number {
            return Err(FsError::Stale.into());
        }
        self.by_ino_or_name(file, None)
    }

    /// Finds a file on its shard of birth, which is here, after a look under its name elsewhere.
    fn at_birth(&self, file: &FileRef, open: bool) -> Result<Located> {
        if !self.has_shard(file.ino.shard()) {
            return Err(Fault::Retry(Retry::StaleDir));
        }
        if !open && !self.trusts() && !self.is_shown_at_birth(file) {
            // The request was not sent here for the inode, but the name may be here.
            return self.by_name(file);
        }
        let found = self.by_ino_or_name(file, None);
        // The session was shown the file by its number. By now the file may have another name,
        // where the session may not go.
        if !open && (self.checks() || !self.trusts()) {
            match &found {
                Ok(found) => self.is_reached_by_name(file, &found.place)?,
                // A caller that may not search the directory is not told that the file is gone.
                Err(Fault::Answer(FsError::Stale)) if self.checks() => {
                    self.dir_permits(&self.any_share(&file.dir, true)?, Access::EXECUTE)?;
                }
                Err(_) => {}
            }
        }
        found
    }

    /// Checks what the server of the file's directory would check: that the caller may search the
    /// directory and, for a session that must prove its walks, that the file still has its name
    /// there.
    fn is_reached_by_name(&self, file: &FileRef, place: &Place) -> Result<()> {
        // The directory of an embedded inode has a share here.
        let beside = matches!(place, Place::Entry(..));
        if self.trusts() {
            let dir = self.any_share(&file.dir, beside)?;
            return self.dir_permits(&dir, Access::EXECUTE);
        }
        self.stays_within(&file.dir)?;
        let dir = self.owner(&file.dir, &file.name)?;
        self.dir_permits(&dir, Access::EXECUTE)?;
        self.is_in_share(&dir, file)
    }

    /// Refuses a file that a session with a subtree has open, unless its name in the subtree still
    /// leads to it. No record of a file with several names tells where these are, so the request's
    /// name must be one of them. The refusal is final where the name's directory has left the
    /// subtree, too: another search for the directory of the new name would not help.
    pub(crate) fn has_name_within(&self, file: &FileRef) -> Result<()> {
        if self.caller.standing.within.is_none() {
            return Ok(());
        }
        let is_within = self.settled(|txn| {
            txn.stays_within(&file.dir)?;
            txn.is_in_share(&txn.owner(&file.dir, &file.name)?, file)
        });
        is_within.map_err(|fault| match fault {
            Fault::Retry(Retry::StaleDir) => FsError::Stale.into(),
            fault => fault,
        })
    }

    /// Checks that a name leads to this file, in the share that has the name.
    fn is_in_share(&self, dir: &Dir, file: &FileRef) -> Result<()> {
        match self.entry(dir, &file.name)? {
            Some(EntryRecord::Link(ino)) if ino == file.ino => Ok(()),
            Some(EntryRecord::Node(inode)) if inode.ino == file.ino => Ok(()),
            Some(_) | None => {
                self.still_has(dir)?;
                Err(FsError::Stale.into())
            }
        }
    }

    /// Proof that this session was shown an inode in a directory.
    fn birth_ticket(&self, dir: DirId, ino: Ino) -> u64 {
        let [high, low] = halves(dir.0);
        self.ticket(&[u64::from_le_bytes(*b"at-birth"), ino.0, high, low])
    }

    /// Whether a session was shown a file by its number, and sent to the file's shard of birth.
    fn is_shown_at_birth(&self, file: &FileRef) -> bool {
        self.shared.cluster.is_some()
            && self.has_shard(file.ino.shard())
            && file.dir.ticket == self.birth_ticket(file.dir.id, file.ino)
    }

    /// Sends the request for an inode to the inode's shard of birth, unless that is here.
    fn send_to_birth(&self, dir: DirId, ino: Ino) -> Result<()> {
        if self.follows || self.has_shard(ino.shard()) {
            return Ok(());
        }
        Err(Fault::Retry(Retry::AtBirth(self.birth_ticket(dir, ino))))
    }

    /// Checks the ticket for a file's directory. An open file stays open wherever its directory is
    /// moved.
    fn check_ticket_of(&self, dir: &wire::DirRef, open: bool) -> Result<()> {
        match open {
            _ if self.trusts() => Ok(()),
            true => self.was_shown(dir),
            false => self.check_dir_ticket(dir),
        }
    }

    /// The file under a name on a shard, if the name leads to that file.
    pub(super) fn at(&self, at: &Location, shard: ShardId, ino: Ino) -> Result<Option<Located>> {
        match self.get(&self.key_on(shard, at.dir, &at.name, Part::Main))? {
            Some(EntryRecord::Node(inode)) if inode.ino == ino => {
                Ok(Some(Located { place: Place::Entry(at.clone(), shard), inode }))
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

    /// The file under the name that its inode was embedded under, if it is still there.
    pub(super) fn embedded(&self, at: &Location, ino: Ino) -> Result<Option<Located>> {
        let (master, born) = (self.shard(at.home), ino.shard());
        if self.shared.cluster.is_none()
            && master != born
            && let Some(found) = self.at(at, master, ino)?
        {
            return Ok(Some(found));
        }
        self.at(at, born, ino)
    }

    fn by_ino(&self, ino: Ino) -> Result<Located> {
        match self.get(&key::inode(ino, Part::Main))? {
            Some(Slot::Inode(inode)) => Ok(Located { place: Place::Slot, inode }),
            Some(Slot::Moved(at)) => self.embedded(&at, ino)?.ok_or(Fault::Retry(Retry::Busy)),
            None => Err(FsError::Stale.into()),
        }
    }

    /// Like [`Txn::by_ino`]. An inode without a slot may be embedded under its name, on its shard
    /// of birth, unless it was `looked` for there.
    fn by_ino_or_name(&self, file: &FileRef, looked: Option<ShardId>) -> Result<Located> {
        let born = file.ino.shard();
        match self.by_ino(file.ino) {
            Err(Fault::Answer(FsError::Stale)) if looked != Some(born) => {
                self.at(&named(file), born, file.ino)?.ok_or(FsError::Stale.into())
            }
            found => found,
        }
    }

    /// Finds a file by its number, and by the name under which it was embedded, if any. `None` when
    /// it is gone. The caller has locked the inode.
    pub(crate) fn find(&self, ino: Ino, was: Option<&Location>) -> Result<Option<Located>> {
        self.settled(|txn| match (txn.get(&key::inode(ino, Part::Main))?, was) {
            (Some(Slot::Inode(inode)), _) => Ok(Some(Located { place: Place::Slot, inode })),
            (Some(Slot::Moved(at)), _) => txn.embedded(&at, ino),
            (None, Some(at)) => txn.embedded(at, ino),
            (None, None) => Ok(None),
        })
    }
}

/// The name that a request has for a file.
fn named(file: &FileRef) -> Location {
    Location { dir: file.dir.id, home: file.dir.home, name: file.name.clone() }
}
