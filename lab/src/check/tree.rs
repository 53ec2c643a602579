//! "The namespace is a tree: every directory reachable from the root, no loops, exactly one entry
//! per directory."
//!
//! Walks the whole tree through a client, as `find` does, and compares it with the attributes: a
//! link count is the number of names, a directory's size is the number of its entries, and `..` is
//! the directory it was entered from.

use std::collections::BTreeMap;

use anyhow::ensure;
use base::{Attr, Cred, EntryName, FileKind, FsError, Ino};
use client::{Client, Error, FileSystem as _};
use wire::{DirRef, ReaddirEntry};

/// The tree as the walk found it.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every inode, with its attributes and the number of its names.
    pub inodes: BTreeMap<Ino, (Attr, u32)>,
    /// Number of names.
    pub names: u64,
    /// Number of directories, the root included.
    pub dirs: u64,
}

/// Walks the tree and checks it.
///
/// # Errors
/// Returns the first violation.
pub async fn check(client: &Client) -> anyhow::Result<Tree> {
    let (root, attr) = client.root();
    let mut tree = Tree::default();
    tree.inodes.insert(root.ino, (attr, 1));
    let mut walk = vec![(root, root.ino)];
    while let Some((dir, parent)) = walk.pop() {
        tree.dirs += 1;
        walk.extend(directory(client, &mut tree, &dir, parent).await?);
    }
    for (ino, (attr, names)) in &tree.inodes {
        let directory = attr.kind == FileKind::Directory;
        ensure!(!directory || *names == 1, "directory {ino} has {names} names");
        ensure!(
            directory || attr.nlink == *names,
            "{ino} has nlink {} and {names} names",
            attr.nlink
        );
    }
    Ok(tree)
}

async fn directory(
    client: &Client,
    tree: &mut Tree,
    dir: &DirRef,
    parent: Ino,
) -> anyhow::Result<Vec<(DirRef, Ino)>> {
    let (mut entries, attr, parent_ino) = list(client, dir).await?;
    if *dir == client.root().0 {
        entries.extend(unlisted(client, dir).await?);
    }
    ensure!(
        parent_ino == parent,
        "{} has `..` {parent_ino}, but was entered from {parent}",
        dir.ino
    );
    ensure!(
        attr.size == entries.len() as u64,
        "{} counts {} of {} entries",
        dir.ino,
        attr.size,
        entries.len()
    );
    let mut below = Vec::new();
    for entry in &entries {
        let shown = match &entry.entry {
            Some(shown) => shown.clone(),
            // The attributes are on another server.
            None => client.lookup(&Cred::ROOT, dir, &entry.name).await?,
        };
        let same_kind = entry.kind.is_none_or(|kind| shown.attr.kind == kind);
        ensure!(shown.attr.ino == entry.ino && same_kind, "{entry:?}");
        tree.names += 1;
        let attr = match (shown.whole, tree.inodes.get(&entry.ino)) {
            (true, _) => shown.attr,
            (false, Some((known, _))) => *known,
            // The attributes are on another server.
            (false, None) => client.getattr(&Cred::ROOT, &shown.node(dir, &entry.name)).await?,
        };
        let (_, names) = tree.inodes.entry(entry.ino).or_insert((attr, 0));
        *names += 1;
        ensure!(*names == 1 || !entry.is_dir(), "{entry:?} was met before");
        below.extend(shown.dir.map(|found| (found, dir.ino)));
    }
    let subdirs = u32::try_from(below.len())?;
    ensure!(
        attr.nlink == subdirs + 2,
        "{} has nlink {} and {subdirs} directories",
        dir.ino,
        attr.nlink
    );
    Ok(below)
}

/// The entry of the trash, which a listing of the root leaves out.
async fn unlisted(client: &Client, root: &DirRef) -> anyhow::Result<Option<ReaddirEntry>> {
    let name = EntryName::new(b".trash")?;
    match client.lookup(&Cred::ROOT, root, &name).await {
        Ok(entry) => {
            let (ino, kind) = (entry.attr.ino, Some(entry.attr.kind));
            Ok(Some(ReaddirEntry { pos: 0, name, ino, kind, entry: Some(entry) }))
        }
        Err(Error::Fs(FsError::NotFound)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn list(client: &Client, dir: &DirRef) -> anyhow::Result<(Vec<ReaddirEntry>, Attr, Ino)> {
    let (mut found, mut after, mut whole) = (Vec::new(), 0, None);
    loop {
        let page = client.readdir(&Cred::ROOT, dir, after, 100, true).await?;
        found.extend(page.entries);
        // Only the first page has the attributes of a whole directory in several partitions.
        let attr = *whole.get_or_insert(page.attr);
        if page.end {
            return Ok((found, attr, page.parent_ino));
        }
        after = found.last().map_or(after, |entry| entry.pos);
    }
}
