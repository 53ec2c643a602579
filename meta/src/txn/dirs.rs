//! Directories and entries within a transaction.

use base::{
    Access, Attr, DirId, EntryName, FileKind, FsError, Ino, ShardId, access::permits_removal,
};
use wire::{DirRef, Entry, Retry};

use super::{Remote, Txn, shares::is_divided};
use crate::{
    bugs::Bug,
    coordinator::ancestry_hints::HomedDir,
    error::{Fault, Result},
    lock,
    paths::Steps,
    record::{
        self, Content, ContentState, Contents, EntryRecord, Inode, Record as _, Slot, key,
        key::Part,
    },
    server::Counters,
    session::halves,
    transact::locks::Want,
};

/// A content record: a directory's, or the share of one of its partitions.
#[derive(Clone)]
pub(crate) struct Dir {
    pub(crate) id: DirId,
    /// The number of the partition; 0 is the master.
    pub(crate) partition: u16,
    pub(crate) content: Content,
}

impl Dir {
    /// The attributes that `stat` shows of this partition.
    pub(crate) fn attr(&self) -> Attr {
        self.content.attr()
    }
}

/// Most looks at records that do not fit together: nobody changes what another one reads so often
/// in a row.
const LOOKS_MAX: u32 = 16;

impl Txn<'_> {
    /// The shard of a directory's master.
    pub(crate) fn shard(&self, home: DirId) -> ShardId {
        self.shard_of(home, 0)
    }

    pub(super) fn position(&self, name: &EntryName) -> u64 {
        self.shared.config.hash_key.pos(name)
    }

    /// The key of one part of a name on the shard of a share, which has the name.
    pub(crate) fn entry_key(&self, dir: &Dir, name: &EntryName, part: Part) -> record::Key {
        self.key_on(self.shard_of_share(dir), dir.id, name, part)
    }

    /// The key of one part of a name on a shard.
    pub(crate) fn key_on(
        &self,
        shard: ShardId,
        dir: DirId,
        name: &EntryName,
        part: Part,
    ) -> record::Key {
        key::name(shard, dir, self.position(name), name, part)
    }

    /// The key of one part of a name beside the master of a directory placed by `home`: for parts
    /// that stand there whichever partition has the name.
    pub(crate) fn name_key(
        &self,
        home: DirId,
        dir: DirId,
        name: &EntryName,
        part: Part,
    ) -> record::Key {
        key::name(self.shard(home), dir, self.position(name), name, part)
    }

    /// The key of the content record of a directory's master.
    pub(crate) fn content_key(&self, home: DirId, dir: DirId) -> record::Key {
        key::content(self.shard(home), dir, 0, Part::Main)
    }

    /// The reference by which the caller names this directory from now on.
    pub(crate) fn dir_ref(&self, id: DirId, ino: Ino, home: DirId) -> DirRef {
        let ticket = self.ticket(&dir_parts(id, ino, home));
        DirRef { id, ino, home, ticket }
    }

    /// The directory, if it is the one that `dir` means and still exists.
    pub(super) fn meant(&self, dir: &DirRef, partition: u16, content: Content) -> Result<Dir> {
        let same = content.ino == dir.ino || self.shared.bugs.has(Bug::StaleInoAccepted);
        let there = matches!(content.state, ContentState::Live | ContentState::Merged);
        if same && there {
            Ok(Dir { id: dir.id, partition, content })
        } else {
            Err(Fault::Retry(Retry::StaleDir))
        }
    }

    /// Refuses a directory that this session was not shown, or that has left the subtree of its
    /// token.
    pub(crate) fn check_dir_ticket(&self, dir: &DirRef) -> Result<()> {
        self.was_shown(dir)?;
        self.stays_within(dir)
    }

    /// Refuses a directory that this session was not shown.
    pub(super) fn was_shown(&self, dir: &DirRef) -> Result<()> {
        self.check_ticket(&dir_parts(dir.id, dir.ino, dir.home), dir.ticket)
    }

    /// Like [`Txn::master_locked`], for a directory that an access record names.
    pub(crate) fn child_locked(&mut self, access: &record::Access) -> Result<Dir> {
        self.lock(lock::dir_lock(access.id))?;
        self.settle_counts(access.home, access.id)?;
        let (key, shard) = (self.content_key(access.home, access.id), self.shard(access.home));
        self.means(&key, access.ino);
        match self.get_content(&key)? {
            Some(content) if content.ino == access.ino => Ok(Dir::master(access.id, content)),
            None if self.may_be_born(shard, access.ino) => Err(self.no_dir(shard, access.ino)),
            Some(_) | None => Err(self.unfit(|| {
                tracing::error!(
                    id = %access.id, ino = %access.ino,
                    "a directory has no content record; run `pando fsck`"
                );
            })),
        }
    }

    /// Checks that nothing is about to change the times and counts of a directory whose master this
    /// server has; otherwise the request waits.
    pub(crate) fn settle_counts(&self, home: DirId, dir: DirId) -> Result<()> {
        self.settle_read(&self.content_key(home, dir), Want::ReadCounts)
    }

    /// Like [`Txn::settle_counts`], for any share, to be shown: a transaction that has been in
    /// doubt for long is not waited for.
    pub(crate) fn settle_shown_counts(&self, dir: &Dir) -> Result<()> {
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        self.settle_read(&key, Want::ShowCounts(self.waited_since))
    }

    /// Like [`Txn::settle_counts`], by the key.
    pub(crate) fn settle_counts_at(&self, key: &[u8]) -> Result<()> {
        self.settle_read(key, Want::ReadCounts)
    }

    /// Stores a content record.
    pub(crate) fn put_dir(&mut self, dir: &Dir) {
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        if !self.is_here(&key) {
            return self.with_remote(|remote| remote.put_dir(key, dir.content.clone()));
        }
        let held = self.shared.prepared.any()
            && self.shared.prepared.in_the_way(&key, Want::Change, self.own).is_some();
        if held && !self.only_counts_change(&key, &dir.content) {
            self.settle_write(&key);
        }
        self.group.put_dir(key, dir.content.clone());
    }

    /// Like [`Txn::put_dir`], with times that may go back.
    pub(crate) fn put_dir_as_it_is(&mut self, dir: &Dir) {
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        self.put_dir(dir);
        if !self.is_here(&key) {
            self.with_remote(|remote| remote.set_times(key));
        }
    }

    fn only_counts_change(&self, key: &[u8], content: &Content) -> bool {
        let was = self.get_content(key);
        was.is_ok_and(|was| was.is_some_and(|was| content.is_stable_as(was)))
    }

    /// Checks permission on a directory, where the server checks permissions.
    pub(crate) fn dir_permits(&self, dir: &Dir, want: Access) -> Result<()> {
        if self.checks() {
            dir.content.permits(self.caller.cred, want)?;
        }
        Ok(())
    }

    /// Checks that the caller may remove or rename a node of `owner` in `dir`.
    pub(crate) fn removal_permits(&self, dir: &Dir, owner: u32) -> Result<()> {
        self.dir_permits(dir, Access::CHANGE)?;
        if self.checks() {
            permits_removal(&dir.attr(), owner, self.caller.cred)?;
        }
        Ok(())
    }

    /// The entry under `name`.
    pub(crate) fn entry(&self, dir: &Dir, name: &EntryName) -> Result<Option<EntryRecord>> {
        self.get(&self.entry_key(dir, name, Part::Main))
    }

    /// Puts an entry under `name`.
    pub(crate) fn put_entry(&mut self, dir: &Dir, name: &EntryName, entry: &EntryRecord) {
        let key = self.entry_key(dir, name, Part::Main);
        self.put(key, entry);
    }

    /// Puts a new file under `name`. If the name is about to move away, the inode goes to its slot,
    /// as it would be left behind.
    pub(crate) fn put_new(&mut self, dir: &Dir, name: &EntryName, inode: &Inode) {
        let key = self.entry_key(dir, name, Part::Main);
        if self.shared.handoffs.moves(&key) {
            Counters::add(&self.shared.counters.handoff_inodes_left);
            self.put(key, &EntryRecord::Link(inode.ino));
            self.put(key::inode(inode.ino, Part::Main), &Slot::Inode(inode.clone()));
        } else {
            self.put(key, &EntryRecord::Node(inode.clone()));
        }
    }

    /// Puts a directory under `name`, and counts it in `above`. The caller stores the directory's
    /// own record.
    pub(crate) fn put_subdir(&mut self, above: &mut Dir, name: &EntryName, dir: &Dir) {
        self.put_entry(above, name, &EntryRecord::Dir(Txn::access_of(dir)));
        above.content.entries += 1;
        above.content.subdirs = above.content.subdirs.saturating_add(1);
        self.touch(above);
        self.put_dir(above);
    }

    /// Removes the entry under `name`.
    pub(crate) fn delete_entry(&mut self, dir: &Dir, name: &EntryName) {
        let key = self.entry_key(dir, name, Part::Main);
        self.delete(key);
    }

    /// The access record that repeats fields of a content record.
    pub(crate) fn access_of(dir: &Dir) -> record::Access {
        record::Access::of(dir.id, &dir.content)
    }

    /// Looks once more while records that were read without a lock do not fit together: another
    /// core may have changed them in between. Records that still do not fit are damaged.
    pub(crate) fn settled<T>(&self, look: impl Fn(&Self) -> Result<T>) -> Result<T> {
        for _ in 0..LOOKS_MAX {
            match look(self) {
                Err(Fault::Retry(Retry::Busy)) => {}
                settled => return settled,
            }
        }
        Err(self.unfit(|| {
            tracing::error!("a record leads to one that is not there; run `pando fsck`");
        }))
    }

    /// The fault for records that do not fit together. Those of several servers may not be of one
    /// moment, and some may be missing for a while: then all are read anew. Otherwise they are
    /// damaged, which `report` says.
    pub(crate) fn unfit(&self, report: impl FnOnce()) -> Fault {
        if self.is_remote() && self.with_remote(Remote::mark_torn) {
            return Fault::Retry(Retry::Busy);
        }
        // After a power failure a directory may be missing that another server still has to report.
        if self.shared.early_mkdirs.are_unheard() {
            self.shared.early_mkdirs.log_wait();
            return Fault::Retry(Retry::Busy);
        }
        report();
        FsError::Io.into()
    }

    /// Whether the operation is a change that a session has made in a directory that it holds.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some_and(|held| held.dir.is_some())
    }

    /// Notes a change of a directory's entries.
    pub(crate) fn touch(&self, dir: &mut Dir) {
        let times = &mut dir.content.times;
        // Changes that a session has made in a directory that it holds come in any order.
        (times.mtime, times.ctime) = if self.is_held() {
            base::attr::touched(times.mtime, times.ctime, self.now)
        } else {
            (self.now, self.now)
        };
    }

    /// Notes a directory whose names the operation has changed, as it leaves the directory.
    ///
    /// Race: a transaction that is prepared, and committed perhaps, changes counts and times when
    /// this server hears of it. The attributes would lack a change that others have been told of,
    /// so the client asks for them, and waits.
    pub(crate) fn note_dir(&mut self, dir: &Dir) {
        if !self.takes_notes() || dir.partition > 0 || dir.is_divided() {
            return;
        }
        let key = self.share_key(dir.content.home, dir.id, dir.partition);
        if self.is_here(&key) && self.settle_read(&key, Want::ReadCounts).is_ok() {
            self.dirs.push(dir.attr());
        }
    }

    /// The answer of a look-up for an entry.
    pub(crate) fn show(&self, record: &EntryRecord) -> Result<Entry> {
        match record {
            EntryRecord::Node(inode) => Ok(show_inode(inode)),
            EntryRecord::Link(ino) => Ok(show_inode(&self.slot_inode(*ino)?)),
            EntryRecord::Dir(access) => {
                let key = self.content_key(access.home, access.id);
                let untold = if self.is_here(&key) {
                    self.settle_read(&key, Want::Read)?;
                    // A walk through the directory does not wait for counts and times; a client
                    // that wants these asks for them.
                    self.settle_read(&key, Want::ReadCounts).is_err()
                } else {
                    !self.has_read(&key)
                };
                if untold {
                    return Ok(self.show_access(access));
                }
                let dir = self.dir_ref(access.id, access.ino, access.home);
                let content = self.get_content(&key)?;
                let Some(content) = content.filter(|content| content.ino == access.ino) else {
                    // The entry was read without a lock: the directory may have been removed since.
                    return Err(Fault::Retry(Retry::Busy));
                };
                let whole = !is_divided(&content.layout);
                Ok(Entry { attr: content.attr(), dir: Some(dir), target: None, whole })
            }
        }
    }

    /// A directory, as its parent knows it.
    pub(crate) fn show_access(&self, access: &record::Access) -> Entry {
        let dir = self.dir_ref(access.id, access.ino, access.home);
        Entry { attr: access_attr(access), dir: Some(dir), target: None, whole: false }
    }

    /// An inode that must be in its slot.
    pub(crate) fn slot_inode(&self, ino: Ino) -> Result<Inode> {
        match self.get(&key::inode(ino, Part::Main))? {
            Some(Slot::Inode(inode)) => Ok(inode),
            // The link was read without a lock: the name may have gone since.
            Some(Slot::Moved(_)) | None => Err(Fault::Retry(Retry::Busy)),
        }
    }

    /// Whether `ancestor` is `dir` or above it.
    ///
    /// Race: the caller has locked all directory renames, so the chain of parents stays as it is
    /// during the walk.
    pub(crate) fn is_within(&self, dir: &Dir, ancestor: DirId) -> Result<bool> {
        if self.shared.bugs.has(Bug::GraphIgnored) {
            return self.was_within(dir, ancestor);
        }
        self.walks_to(dir, ancestor)
    }

    /// Like [`Txn::is_within`] at one moment: the answer may be wrong when it matters
    /// ([`Bug::GraphIgnored`]).
    fn was_within(&self, dir: &Dir, ancestor: DirId) -> Result<bool> {
        if self.own.is_some() {
            return Ok(false);
        }
        self.with_remote(|remote| remote.careless = true);
        let within = self.walks_to(dir, ancestor);
        self.with_remote(|remote| {
            remote.careless = false;
            remote.chain.clear();
        });
        within
    }

    fn walks_to(&self, dir: &Dir, ancestor: DirId) -> Result<bool> {
        let mut at = dir.clone();
        let mut steps = Steps::from(dir.id);
        self.stays(at.id);
        while at.id != ancestor && at.content.parent != ancestor {
            if at.id == DirId::ROOT || at.content.parent == DirId::ROOT {
                return Ok(false);
            }
            let above = HomedDir { id: at.content.parent, home: at.content.parent_home };
            if let Some(mut hints) = self.ancestry_hints() {
                hints.is_below(at.id, above);
            }
            at = self.parent(&at)?;
            self.stays(at.id);
            steps.step(at.id)?;
        }
        Ok(true)
    }

    /// A content record as it is, or, if another server has it, as it was a moment ago; and the
    /// version of the list of moved directories from before the read. The operation does not stand
    /// on the record: it may change before the commit.
    pub(crate) fn glance(&self, key: &[u8]) -> Result<(Option<Content>, u64)> {
        if self.is_here(key) {
            let now = self.shared.invalidations.version();
            return Ok((self.get_content(key)?, now));
        }
        let (bytes, version) = self.with_remote(|remote| remote.glance(key))?;
        let content = bytes.map(|bytes| Content::from_record(&bytes)).transpose()?;
        Ok((content, version))
    }

    /// Handles glanced records that do not fit together. Returns whether to look once more;
    /// otherwise they are damaged.
    pub(crate) fn mark_torn(&self) -> bool {
        self.with_remote(Remote::mark_torn)
    }

    /// The directory above `dir`, which is not the root.
    pub(crate) fn parent(&self, dir: &Dir) -> Result<Dir> {
        let id = dir.content.parent;
        let key = self.content_key(dir.content.parent_home, id);
        self.means(&key, dir.content.parent_ino);
        let content = self.get_content(&key)?;
        match content.filter(|content| content.ino == dir.content.parent_ino) {
            Some(content) => Ok(Dir::master(id, content)),
            None => Err(self.unfit(|| {
                tracing::error!(%id, "a directory's back pointer leads nowhere; run `pando fsck`");
            })),
        }
    }
}

/// The attributes of a directory that its parent knows.
fn access_attr(access: &record::Access) -> Attr {
    Attr {
        mode: access.mode,
        uid: access.uid,
        gid: access.gid,
        ..Attr::blank(access.ino, FileKind::Directory)
    }
}

/// The answer of a look-up for an inode.
pub(crate) fn show_inode(inode: &Inode) -> Entry {
    let target = match &inode.contents {
        Contents::Target(target) => Some(target.clone()),
        Contents::Inline(_) | Contents::Blocks | Contents::Device(_) => None,
    };
    Entry { attr: inode.attr(), dir: None, target, whole: true }
}

fn dir_parts(id: DirId, ino: Ino, home: DirId) -> [u64; 5] {
    let ([id_high, id_low], [home_high, home_low]) = (halves(id.0), halves(home.0));
    [id_high, id_low, ino.0, home_high, home_low]
}
