//! Opening files by their paths, and making them on the way; reading and writing all of one.

use std::path::Path;

use base::{Access, EntryName, FileKind, FsError, SetAttr, limits::SYMLINKS_FOLLOWED_MAX};
use bytes::Bytes;
use wire::{Entry, FileRef, NodeRef};

use super::{Tries, bytes_of};
use crate::{
    Client, File, New, OpenOptions, Result,
    done::Failure,
    resolve::{End, Last, Links, Parent},
};

/// Result of opening or making a file.
enum Opened {
    File(Box<File>),
    /// A symbolic link has the name; the file is where it points.
    Link(Bytes),
}

impl Client {
    /// Makes a file for writing, or cuts the one that is there to nothing.
    ///
    /// # Errors
    /// As `open(2)`.
    pub async fn create(&self, path: impl AsRef<Path>, mode: u32) -> Result<File> {
        self.open_with(path, OpenOptions::both().create(mode).truncate()).await
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As `open(2)`.
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::reading()).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As `open(2)`; directories and special files cannot be opened.
    pub async fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let mut path = bytes_of(path.as_ref()).to_vec();
        if !options.create {
            return self.open_found(&path, options).await;
        }
        for _ in 0..=SYMLINKS_FOLLOWED_MAX {
            match self.open_or_create(&path, options).await? {
                Opened::File(file) => return Ok(*file),
                Opened::Link(_) if options.no_follow => return Err(FsError::Loop.into()),
                // A file is made where a symbolic link points, even if nothing is there yet.
                Opened::Link(target) if target.first() == Some(&b'/') => path = target.into(),
                Opened::Link(target) => {
                    let parent = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
                    path.truncate(parent);
                    path.extend_from_slice(&target);
                }
            }
        }
        Err(FsError::Loop.into())
    }

    async fn open_found(&self, path: &[u8], options: OpenOptions) -> Result<File> {
        let mut tries = Tries::new();
        let links = if options.no_follow { Links::Keep } else { Links::Follow };
        loop {
            let found = self.find_bytes(path, links, End::Name).await?;
            if found.entry.target.is_some() {
                return Err(FsError::Loop.into());
            }
            match self.open_entry(&found.entry, found.node(), options).await {
                Ok(file) => return Ok(file),
                Err(failure) => {
                    self.forget_node(&failure, found.node());
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    async fn open_entry(
        &self,
        entry: &Entry,
        node: &NodeRef,
        options: OpenOptions,
    ) -> Result<File, Failure> {
        let NodeRef::File(file) = node else { return Err(FsError::IsDirectory.into()) };
        if entry.attr.kind != FileKind::File {
            return Err(FsError::NotSupported.into());
        }
        let read = options.read.then_some(4);
        let write = (options.write || options.truncate).then_some(2);
        let access = Access::from_bits(read.unwrap_or(0) | write.unwrap_or(0));
        let handle = self.open_file(&self.cred, file, Some(access)).await?;
        let opened = File::new(self, handle, file.clone(), options);
        if options.truncate {
            let clear_set_id = !self.cred.is_root();
            let set = SetAttr { size: Some(0), clear_set_id, ..SetAttr::default() };
            self.set_attributes(&self.cred, &opened.node(), set).await?;
        }
        Ok(opened)
    }

    async fn open_or_create(&self, path: &[u8], options: OpenOptions) -> Result<Opened> {
        let mut tries = Tries::new();
        loop {
            let at = match self.core.resolve_parent(&self.cred, path).await {
                Ok(at) => at,
                Err(failure) => {
                    tries.again(&self.core, failure).await?;
                    continue;
                }
            };
            let Last::Name(name) = &at.last else { return Err(FsError::IsDirectory.into()) };
            if at.slash {
                return Err(FsError::IsDirectory.into());
            }
            match self.open_or_create_in(&at, name, options).await {
                Ok(opened) => return Ok(opened),
                Err(failure) => {
                    self.core.forget_if_stale(&failure, &at.dir);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    async fn open_or_create_in(
        &self,
        at: &Parent,
        name: &EntryName,
        options: OpenOptions,
    ) -> Result<Opened, Failure> {
        let new = New { kind: FileKind::File, mode: options.mode, rdev: 0 };
        let place = (&at.dir, name);
        let exclusive = options.exclusive;
        let made =
            self.create_in(&self.cred, place, new, exclusive, true, at.stand.clone()).await?;
        if let Some(handle) = made.handle {
            let file = FileRef { dir: at.dir, name: name.clone(), ino: made.entry.attr.ino };
            return Ok(Opened::File(Box::new(File::new(self, handle, file, options))));
        }
        if let Some(target) = made.entry.target {
            return Ok(Opened::Link(target));
        }
        let node = made.entry.node(&at.dir, name);
        let file = self.open_entry(&made.entry, &node, options).await?;
        Ok(Opened::File(Box::new(file)))
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// As `open(2)` and `read(2)`.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        let file = self.open(path).await?;
        let contents = file.read_all().await?;
        file.close().await?;
        Ok(contents)
    }

    /// Makes or replaces the contents of a file; a new one has permission bits `0o644`.
    ///
    /// # Errors
    /// As `open(2)`, `write(2)` and `close(2)`.
    pub async fn write(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
        let file = self.open_with(path, OpenOptions::writing().create(0o644).truncate()).await?;
        file.write_at(0, contents).await?;
        file.close().await
    }
}
