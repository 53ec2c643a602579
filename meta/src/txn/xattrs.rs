//! Extended attributes within a transaction: embedded while few, spilled beside their owner when
//! many. ACLs are never spilled.

use base::{AclKind, limits::XATTRS_EMBEDDED_BYTES_MAX};
use bytes::Bytes;
use wire::Retry;

use super::{Located, Txn, dirs::Dir};
use crate::{
    error::{Fault, Result},
    record::{Key, XattrSet, Xattrs, key, key::Part},
};

impl Txn<'_> {
    /// All extended attributes of a directory; `Busy` when they are not where its record says.
    pub(crate) fn dir_xattrs(&self, dir: &Dir) -> Result<XattrSet> {
        self.xattrs_at(&dir.content.xattrs, &self.dir_xattrs_key(dir))
    }

    /// All extended attributes of an inode; `Busy` when they are not where it says.
    pub(crate) fn file_xattrs(&self, located: &Located) -> Result<XattrSet> {
        self.xattrs_at(&located.inode.xattrs, &self.xattrs_key(located))
    }

    /// Replaces a directory's extended attributes.
    pub(crate) fn put_dir_xattrs(&mut self, dir: &mut Dir, set: XattrSet) {
        let key = self.dir_xattrs_key(dir);
        dir.content.xattrs = self.store_xattrs(&dir.content.xattrs, key, set);
        self.put_dir(dir);
    }

    /// Replaces an inode's extended attributes.
    pub(crate) fn put_file_xattrs(&mut self, located: &mut Located, set: XattrSet) {
        let key = self.xattrs_key(located);
        located.inode.xattrs = self.store_xattrs(&located.inode.xattrs, key, set);
        self.put_inode(located);
    }

    /// The key of a directory's spilled xattrs.
    pub(crate) fn dir_xattrs_key(&self, dir: &Dir) -> Key {
        key::content(self.shard(dir.content.home), dir.id, 0, Part::Xattrs)
    }

    fn xattrs_at(&self, xattrs: &Xattrs, key: &Key) -> Result<XattrSet> {
        match xattrs {
            Xattrs::Embedded(set) => Ok(set.clone()),
            // The owner was read without a lock, and may have moved meanwhile.
            Xattrs::Spilled | Xattrs::Split(_) => {
                let mut set: XattrSet = self.get(key)?.ok_or(Fault::Retry(Retry::Busy))?;
                for (name, value) in xattrs.here() {
                    set.put(name.clone(), value.clone());
                }
                Ok(set)
            }
        }
    }

    fn store_xattrs(&mut self, old: &Xattrs, key: Key, set: XattrSet) -> Xattrs {
        let is_acl = |(name, _): &(Bytes, Bytes)| AclKind::of(name).is_some();
        let (acls, others): (Vec<_>, Vec<_>) = set.list.iter().cloned().partition(is_acl);
        let (acls, others) = (XattrSet { list: acls }, XattrSet { list: others });
        if others.bytes() > XATTRS_EMBEDDED_BYTES_MAX {
            self.put(key, &others);
            return if acls.list.is_empty() { Xattrs::Spilled } else { Xattrs::Split(acls) };
        }
        if old.is_spilled() {
            self.delete(key);
        }
        Xattrs::Embedded(set)
    }

    /// Removes a file's capability when its contents or its owner change: it was given to the
    /// program as it was.
    ///
    /// Linux: security.capability goes with every write, whoever writes.
    pub(crate) fn drop_capability(&mut self, located: &mut Located) -> Result<()> {
        if located.inode.xattrs == Xattrs::NONE {
            return Ok(());
        }
        let mut set = match self.file_xattrs(located) {
            // The inode is locked, so the attributes are damaged; that keeps nobody from writing.
            Err(Fault::Retry(Retry::Busy)) => return Ok(()),
            set => set?,
        };
        if set.take(b"security.capability") {
            let key = self.xattrs_key(located);
            located.inode.xattrs = self.store_xattrs(&located.inode.xattrs, key, set);
        }
        Ok(())
    }
}
