//! Rights of directories, and extended attributes.

use base::{
    Attr, FileKind, FsError, SetAttr,
    attr::{MODE_ACL, MODE_SETGID, MODE_STICKY, MODE_XATTRS},
};
use bytes::Bytes;
use client::Result;
use wire::NodeRef;

use crate::{
    Path, Region,
    below::{self, Below},
    contents,
    table::{Body, Need},
};

/// Whether a change of a directory's attributes gives other rights to its owner, takes some from
/// others, or is for below to understand. Others get more rights late, as they see all changes.
fn changes_rights(before: &Attr, set: &SetAttr) -> bool {
    let owner = set.uid.is_some_and(|uid| uid != before.uid)
        || set.gid.is_some_and(|gid| gid != before.gid);
    let mode = set.mode.is_some_and(|mode| {
        let (changed, taken) = (mode ^ before.mode, before.mode & !mode);
        changed & (MODE_SETGID | MODE_STICKY | 0o700) != 0
            || taken & 0o077 != 0
            || before.mode & (MODE_ACL | MODE_XATTRS) != 0
    });
    owner || mode
}

impl Region {
    /// Changes attributes that below must have at once: rights of a directory, in which what is
    /// dirty is committed before, as it may not be allowed afterwards; and attributes of what has
    /// several names. `None`: the table may change them, and commit that later.
    pub(crate) async fn set_below(&self, node: &NodeRef, set: &SetAttr) -> Result<Option<Attr>> {
        let (ino, path) = self
            .run(|table| {
                let ino = table.node_ino(node)?;
                let found = table.node(ino);
                // A size is for regular files, and these are passed.
                let late = set.size.is_some()
                    || if found.is_dir() {
                        !changes_rights(&found.attr, set)
                    } else {
                        found.attr.nlink <= 1
                    };
                let Some(path) = found.path.clone().filter(|_| !late && !found.is_passed()) else {
                    return Ok((ino, None));
                };
                if set.mode.is_some() && found.attr.kind == FileKind::Symlink {
                    return Err(FsError::NotSupported.into());
                }
                match (found.fresh, table.entries[&path].committing) {
                    (true, false) => Ok((ino, None)),
                    // The commit has taken along what it was before.
                    (true, true) => Err(Need::Wait),
                    (false, _) => Ok((ino, Some(path))),
                }
            })
            .await?;
        let Some(path) = path else { return Ok(None) };
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.drain(std::slice::from_ref(&path), true).await?;
        let (before, is_dir, now) = {
            let table = self.lock();
            let found = table.nodes.get(&ino).filter(|node| node.path.as_ref() == Some(&path));
            let found = found.ok_or(FsError::Stale)?;
            (found.attr, found.is_dir(), table.now)
        };
        let mut change = contents::change(&before, set, now);
        if is_dir {
            // The directory's times are set last.
            change.times = None;
        }
        let asked = path.clone();
        let found = self.call(move |below| below.set(&asked, &change)).await?;
        let mut table = self.lock();
        let attr = &mut table.node_mut(ino).attr;
        attr.mode = found.attr.mode;
        (attr.uid, attr.gid) = (found.attr.uid, found.attr.gid);
        attr.ctime = now;
        if !is_dir {
            (attr.atime, attr.mtime) = (found.attr.atime, found.attr.mtime);
        }
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        if is_dir && let Err(Need::Answer(error)) = table.setattr(ino, &times) {
            return Err(error.into());
        }
        Ok(Some(table.show_attr(ino)))
    }

    /// The path of a node that is to be below, and held meanwhile.
    async fn path_of(&self, node: &NodeRef) -> Result<(base::Ino, Option<Path>)> {
        self.run(|table| {
            let ino = table.node_ino(node)?;
            Ok((ino, table.node(ino).path.clone()))
        })
        .await
    }

    /// Whether a node still has the path that it had before that was held.
    fn still_at(&self, node: &NodeRef, path: &Path) -> Result<()> {
        let table = self.lock();
        let found = table.nodes.get(&node.ino()).and_then(|node| node.path.as_ref());
        if found == Some(path) { Ok(()) } else { Err(FsError::Stale.into()) }
    }

    pub(crate) async fn xattrs_below(&self, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        let (_, Some(path)) = self.path_of(node).await? else { return Ok(Vec::new()) };
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.still_at(node, &path)?;
        self.drain_itself(&path).await?;
        Ok(self.call(move |below| below.xattrs(&path)).await?)
    }

    /// Changes an extended attribute below, and takes in what that makes of the mode.
    pub(crate) async fn set_xattr_below(
        &self,
        node: &NodeRef,
        set: impl FnOnce(&dyn Below, &Path) -> below::Result<()> + Send + 'static,
    ) -> Result<()> {
        let (ino, Some(path)) = self.path_of(node).await? else {
            return Err(FsError::NotSupported.into());
        };
        let _held = self.hold(std::slice::from_ref(&path)).await;
        self.still_at(node, &path)?;
        // With a directory's mode, too: afterwards it is taken from below.
        self.drain(std::slice::from_ref(&path), true).await?;
        let asked = path.clone();
        let found = self
            .call(move |below| {
                set(below, &asked)?;
                below.look(&asked)?.ok_or(FsError::NotFound)
            })
            .await?;
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return Ok(()) };
        node.attr.mode = found.attr.mode;
        node.attr.ctime = found.attr.ctime;
        if let Body::Directory(directory) = &mut node.body {
            directory.default_acl = found.default_acl;
        }
        Ok(())
    }
}
