//! The whole state of a file system, as its superuser sees it, in a form that can be compared.

use std::collections::BTreeMap;

use base::{
    Access, Attr, Cred, FileKind, Ino, Time,
    limits::{CHUNK_BYTES, FILE_BYTES_MAX},
};
use bytes::Bytes;
use client::FileSystem;
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry};

/// A tree: the item at each path. The root has the empty path.
#[derive(Debug, PartialEq)]
pub(crate) struct Tree(BTreeMap<Vec<u8>, Item>);

/// A file or directory with a name.
#[derive(Debug, PartialEq)]
struct Item {
    /// Inodes are numbered in the order of paths. Access times are left out, and so are what is
    /// allocated, and nanoseconds of `ctime`: each write that reaches a server has a `ctime` of its
    /// own.
    attr: Attr,
    target: Option<Bytes>,
    xattrs: Vec<(Bytes, Bytes)>,
    /// Pieces of the contents, from where operations write.
    contents: Vec<Bytes>,
}

impl Tree {
    /// Clears modification times.
    pub(crate) fn without_mtimes(mut self) -> Tree {
        self.0.values_mut().for_each(|item| item.attr.mtime = Time::default());
        self
    }

    /// Clears what two file systems with the same files need not have alike: when something was
    /// born, when its attributes were changed, and the size of directories.
    pub(crate) fn copied(mut self) -> Tree {
        for item in self.0.values_mut() {
            let attr = &mut item.attr;
            (attr.ctime, attr.btime) = (Time::default(), Time::default());
            attr.size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
        }
        self
    }

    /// Items of this tree that the other one lacks or has with other contents, as text.
    pub(crate) fn unlike(&self, other: &Tree) -> Vec<String> {
        let unlike = self.0.iter().filter(|(path, item)| other.0.get(*path) != Some(*item));
        unlike.map(|(path, item)| format!("/{} {item:?}", path.escape_ascii())).collect()
    }

    /// Number of inodes that are not directories.
    pub(crate) fn files(&self) -> u64 {
        let files = self.0.values().filter(|item| item.attr.kind != FileKind::Directory);
        let mut inodes: Vec<Ino> = files.map(|item| item.attr.ino).collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes.len() as u64
    }

    /// Number of directories.
    pub(crate) fn directories(&self) -> u64 {
        let kinds = self.0.values().map(|item| item.attr.kind);
        kinds.filter(|kind| *kind == FileKind::Directory).count() as u64
    }
}

/// Reads the whole file system.
pub(crate) async fn tree(fs: &impl FileSystem) -> Tree {
    let (mut items, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    let root = fs.root().0;
    let node = NodeRef::Dir(root);
    let attr = fs.getattr(&Cred::ROOT, &node).await.expect("the root is there");
    let mut left =
        vec![(Vec::new(), node, Entry { attr, dir: Some(root), target: None, whole: true })];
    while let Some((path, node, mut entry)) = left.pop() {
        if let Some(dir) = &entry.dir {
            let found = list(fs, dir).await.into_iter().rev();
            left.extend(found.map(|(listed, entry)| {
                let path = [&path[..], b"/", listed.name.as_bytes()].concat();
                (path, entry.node(dir, &listed.name), entry)
            }));
        }
        let next = Ino(numbers.len() as u64);
        let ino = *numbers.entry(entry.attr.ino).or_insert(next);
        let ctime = Time { nsec: 0, ..entry.attr.ctime };
        entry.attr = Attr { ino, atime: Time::default(), ctime, allocated: 0, ..entry.attr };
        items.insert(path, item(fs, &node, entry).await);
    }
    Tree(items)
}

/// The entries of a directory, in the order of names.
async fn list(fs: &impl FileSystem, dir: &DirRef) -> Vec<(ReaddirEntry, Entry)> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let page = fs.readdir(&Cred::ROOT, dir, after, 100, true).await.expect("it is there");
        after = page.entries.last().map_or(after, |entry| entry.pos);
        found.extend(page.entries.into_iter().map(|mut listed| {
            let entry = listed.entry.take().expect("it was asked for");
            (listed, entry)
        }));
        if page.end {
            break;
        }
    }
    found.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    found
}

async fn item(fs: &impl FileSystem, node: &NodeRef, entry: Entry) -> Item {
    let mut xattrs = fs.xattrs(&Cred::ROOT, node).await.expect("it is there");
    xattrs.sort();
    let contents = match node {
        NodeRef::File(file) if entry.attr.kind == FileKind::File => pieces(fs, file).await,
        NodeRef::File(_) | NodeRef::Dir(_) => Vec::new(),
    };
    Item { attr: entry.attr, target: entry.target, xattrs, contents }
}

async fn pieces(fs: &impl FileSystem, file: &FileRef) -> Vec<Bytes> {
    let chunk = u64::from(CHUNK_BYTES);
    let handle = fs.open(&Cred::ROOT, file, Some(Access::READ)).await.expect("it is there");
    let mut pieces = Vec::new();
    for from in [0, chunk - 100, 3 * chunk - 100, FILE_BYTES_MAX - 100] {
        pieces.push(fs.read(handle, from, 30_000).await.expect("it is open"));
    }
    fs.release(handle).await.expect("it is open");
    pieces
}
