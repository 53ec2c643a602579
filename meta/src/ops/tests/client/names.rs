//! A client's requests about names: look-ups, creations and removals, listings.

use base::{Attr, FileKind};
use bytes::Bytes;
use wire::{
    Create, DirRef, Entry, FileRef, Link, Lookup, Mkdir, NodeRef, Readdir, ReaddirPage, Rename,
    RenameMode, Reply, Request, Rmdir, Symlink, Tmpfile, Unlink,
};

use super::{Client, Result, name};

impl Client {
    /// The entry under a name, if there is one and its directory still exists.
    pub(crate) async fn try_lookup(&mut self, dir: &DirRef, text: &str) -> Option<Entry> {
        let lookup = Request::Lookup(Lookup { dir: *dir, name: name(text) });
        match self.attempt(lookup).await {
            Ok(Reply::Entry(entry)) => Some(entry),
            _ => None,
        }
    }

    async fn entry(&mut self, request: Request) -> Result<Entry> {
        match self.get(request).await? {
            Reply::Entry(entry) => Ok(entry),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn lookup(&mut self, dir: &DirRef, text: &str) -> Result<Entry> {
        self.entry(Request::Lookup(Lookup { dir: *dir, name: name(text) })).await
    }

    pub(crate) async fn mkdir(&mut self, dir: &DirRef, text: &str) -> Result<DirRef> {
        self.mkdir_mode(dir, text, 0o755).await
    }

    pub(crate) async fn mkdir_mode(
        &mut self,
        dir: &DirRef,
        text: &str,
        mode: u32,
    ) -> Result<DirRef> {
        let entry = self.entry(Request::Mkdir(Mkdir { dir: *dir, name: name(text), mode })).await?;
        Ok(entry.dir.unwrap())
    }

    pub(crate) async fn create(&mut self, dir: &DirRef, text: &str) -> Result<FileRef> {
        self.create_mode(dir, text, 0o644).await
    }

    pub(crate) async fn create_mode(
        &mut self,
        dir: &DirRef,
        text: &str,
        mode: u32,
    ) -> Result<FileRef> {
        self.make(dir, text, FileKind::File, mode).await
    }

    pub(crate) async fn make(
        &mut self,
        dir: &DirRef,
        text: &str,
        kind: FileKind,
        mode: u32,
    ) -> Result<FileRef> {
        let create = Create {
            dir: *dir,
            name: name(text),
            kind,
            mode,
            rdev: 0,
            exclusive: true,
            open: None,
        };
        match self.get(Request::Create(create)).await? {
            Reply::Created(created) => {
                Ok(FileRef { dir: *dir, name: name(text), ino: created.entry.attr.ino })
            }
            other => panic!("{other:?}"),
        }
    }

    /// A file without a name, open.
    pub(crate) async fn tmpfile(&mut self, dir: &DirRef, linkable: bool) -> Result<FileRef> {
        self.opens += 1;
        let number = self.opens;
        let made = Tmpfile { dir: *dir, mode: 0o644, linkable, number };
        match self.get(Request::Tmpfile(made)).await? {
            Reply::Created(created) => Ok(FileRef::unnamed(*dir, created.entry.attr.ino)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn symlink(
        &mut self,
        dir: &DirRef,
        text: &str,
        target: &str,
    ) -> Result<FileRef> {
        let target = Bytes::copy_from_slice(target.as_bytes());
        let entry =
            self.entry(Request::Symlink(Symlink { dir: *dir, name: name(text), target })).await?;
        Ok(FileRef { dir: *dir, name: name(text), ino: entry.attr.ino })
    }

    pub(crate) async fn link(
        &mut self,
        file: &FileRef,
        dir: &DirRef,
        text: &str,
    ) -> Result<FileRef> {
        let target = NodeRef::File(file.clone());
        self.entry(Request::Link(Link { target, dir: *dir, name: name(text) })).await?;
        Ok(FileRef { dir: *dir, name: name(text), ino: file.ino })
    }

    pub(crate) async fn unlink(&mut self, dir: &DirRef, text: &str) -> Result<Attr> {
        self.attr(Request::Unlink(Unlink { dir: *dir, name: name(text) })).await
    }

    pub(crate) async fn rmdir(&mut self, dir: &DirRef, text: &str) -> Result<()> {
        self.get(Request::Rmdir(Rmdir { dir: *dir, name: name(text) })).await.map(drop)
    }

    pub(crate) async fn rename(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
    ) -> Result<()> {
        self.rename_mode(from, to, RenameMode::Replace).await
    }

    pub(crate) async fn exchange(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
    ) -> Result<()> {
        self.rename_mode(from, to, RenameMode::Exchange).await
    }

    pub(crate) async fn rename_mode(
        &mut self,
        from: (&DirRef, &str),
        to: (&DirRef, &str),
        mode: RenameMode,
    ) -> Result<()> {
        let rename = Rename {
            from_dir: *from.0,
            from_name: name(from.1),
            to_dir: *to.0,
            to_name: name(to.1),
            mode,
        };
        self.get(Request::Rename(rename)).await.map(drop)
    }

    pub(crate) async fn page(
        &mut self,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
    ) -> Result<ReaddirPage> {
        let readdir = Readdir { dir: *dir, after, entries_max, plus: true };
        match self.get(Request::Readdir(readdir)).await? {
            Reply::Page(page) => Ok(page),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory, sorted.
    pub(crate) async fn names(&mut self, dir: &DirRef) -> Vec<String> {
        let (mut after, mut names) = (0, Vec::new());
        loop {
            let page = self.page(dir, after, 100).await.unwrap();
            names.extend(page.entries.iter().map(|entry| entry.name.to_string()));
            if page.end {
                names.sort_unstable();
                return names;
            }
            after = page.entries.last().unwrap().pos;
        }
    }
}
