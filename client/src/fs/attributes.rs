//! Attributes by path, extended ones as well.

use std::path::Path;

use base::{Attr, FsError, SetAttr, SetTime};
use bytes::Bytes;
use wire::XattrMode;

use super::{Tries, bytes_of};
use crate::{
    Client, FileSystem as _, Result,
    resolve::{End, Links},
};

impl Client {
    /// The attributes of what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.attributes(path.as_ref(), Links::Follow).await
    }

    /// Returns attributes as [`Client::stat`] does, but of a symbolic link itself.
    ///
    /// # Errors
    /// As `lstat(2)`.
    pub async fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.attributes(path.as_ref(), Links::Keep).await
    }

    /// Changes attributes of what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `chmod(2)`, `chown(2)`, `utimensat(2)` and `truncate(2)`.
    pub async fn set_attr(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        self.set_found(path.as_ref(), Links::Follow, set).await
    }

    /// Changes attributes as [`Client::set_attr`] does, but of a symbolic link itself.
    ///
    /// # Errors
    /// As `lchown(2)` and `utimensat(2)`.
    pub async fn lset_attr(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        self.set_found(path.as_ref(), Links::Keep, set).await
    }

    async fn set_found(&self, path: &Path, links: Links, set: SetAttr) -> Result<Attr> {
        let mut tries = Tries::new();
        loop {
            let found = self.find(path, links).await?;
            match self.set_attributes(&self.cred, found.node(), set).await {
                Ok(attr) => return Ok(attr),
                Err(failure) => {
                    self.forget_node(&failure, found.node());
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// As `chmod(2)`.
    pub async fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<Attr> {
        self.set_attr(path, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    /// Sets owner and group; `None` stays. As Linux does, set-id bits are cleared.
    ///
    /// # Errors
    /// As `chown(2)`.
    pub async fn chown(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr> {
        self.set_attr(path, SetAttr { uid, gid, clear_set_id: true, ..SetAttr::default() }).await
    }

    /// Sets access and modification times; `None` stays.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub async fn utimes(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.set_attr(path, SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// Cuts a file, or makes it longer with zeros.
    ///
    /// # Errors
    /// As `truncate(2)`.
    pub async fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<Attr> {
        let clear_set_id = !self.cred.is_root();
        self.set_attr(path, SetAttr { size: Some(size), clear_set_id, ..SetAttr::default() }).await
    }

    /// All extended attributes of what a path names, with their values.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub async fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<(Bytes, Bytes)>> {
        let found = self.find(path.as_ref(), Links::Follow).await?;
        self.xattrs(&self.cred, found.node()).await
    }

    /// One extended attribute.
    ///
    /// # Errors
    /// `NoData` when there is none of that name.
    pub async fn get_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Bytes> {
        let xattrs = self.list_xattrs(path).await?;
        let found = xattrs.into_iter().find(|(found, _)| found == name.as_bytes());
        found.map(|(_, value)| value).ok_or(FsError::NoData.into())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let found = self.find(path.as_ref(), Links::Follow).await?;
        let (name, value) =
            (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value));
        self.setxattr(&self.cred, found.node(), name, value, mode).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoData` when there is none of that name.
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        let found = self.find(path.as_ref(), Links::Follow).await?;
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.removexattr(&self.cred, found.node(), name).await
    }

    async fn attributes(&self, path: &Path, links: Links) -> Result<Attr> {
        let mut tries = Tries::new();
        loop {
            let mut found = self.find_bytes(bytes_of(path), links, End::Whole).await?;
            if found.entry.whole {
                return Ok(found.entry.attr);
            }
            let node = found.node().clone();
            match Box::pin(self.complete(&self.cred, &mut found.entry, &node)).await {
                Ok(()) => return Ok(found.entry.attr),
                Err(failure) => {
                    self.forget_node(&failure, &node);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }
}
