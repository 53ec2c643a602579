//! The operations by path.
//!
//! Each resolves its path, does one thing there, and starts anew when the server says that the path is not
//! what it was. Paths are absolute or relative to the root of the session, which is the same.

mod tmpfile;

use std::{os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use base::{
    Access, Attr, EntryName, FileKind, FsError, SetAttr, SetTime, limits::SYMLINKS_FOLLOWED_MAX,
};
use bytes::Bytes;
use wire::{
    DirRef, Entry, FileRef, Link, Mkdir, NodeRef, ReaddirEntry, ReaddirPage, Rename, RenameMode,
    Reply, Request, Rmdir, Statfs, Symlink, Unlink, XattrMode,
};

use crate::{
    Client, Error, File, FileSystem, New, OpenOptions, Result,
    call::{Done, Failure},
    client::unexpected,
    core::Core,
    resolve::{End, Found, Last, Links, Parent},
};

/// A path that changes so often under us that it cannot be resolved is given up.
const TRIES_MAX: u32 = 1000;
/// Before that it is tried so often without a pause,
const TRIES_AT_ONCE: u32 = 5;
/// and after that with pauses of so many microseconds at most.
const PAUSE_MAX_US: u64 = 50_000;
const LISTED_ENTRIES: u32 = 1000;

/// How often a path was resolved for one operation.
struct Tries(u32);

impl Tries {
    /// Whether to try again after this; returns when.
    async fn again(&mut self, core: &Core, failure: Failure) -> Result<()> {
        self.0 += 1;
        if self.0 > TRIES_AT_ONCE {
            // A server may be behind the others, or much may move just now.
            let full = PAUSE_MAX_US.min(100 << (self.0 - TRIES_AT_ONCE).min(10));
            let drawn = full / 2 + core.config.random.next() % (full / 2);
            tokio::time::sleep(Duration::from_micros(drawn)).await;
        }
        match failure {
            // The file that was found has lost its name since; another may have it.
            Failure::Error(Error::Fs(FsError::Stale)) if self.0 < TRIES_MAX => Ok(()),
            Failure::Error(error) => Err(error),
            Failure::StaleCache | Failure::StaleDir if self.0 < TRIES_MAX => Ok(()),
            Failure::StaleCache | Failure::StaleDir => Err(FsError::Stale.into()),
        }
    }
}

/// What an operation says of a path whose end is no name, or has a slash.
#[derive(Clone, Copy)]
struct Ends {
    root: FsError,
    dot: FsError,
    dot_dot: FsError,
    /// For an entry that is no directory, or is to become none.
    slash: Slash,
}

/// What a slash at the end means to an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slash {
    /// Nothing: it works on directories.
    Allowed,
    /// It cannot make what a slash names.
    Makes,
    /// It cannot remove what a slash names.
    Removes,
}

const MAKES: Ends = Ends {
    root: FsError::Exists,
    dot: FsError::Exists,
    dot_dot: FsError::Exists,
    slash: Slash::Makes,
};

/// The entries of a directory, page by page.
pub struct ReadDir {
    client: Client,
    dir: DirRef,
    page: std::vec::IntoIter<ReaddirEntry>,
    after: u64,
    end: bool,
}

impl ReadDir {
    /// The next entry, without `.` and `..`; `None` at the end. What is made or removed meanwhile may be
    /// there or not; everything else is there exactly once.
    ///
    /// # Errors
    /// `Stale` when the directory was removed meanwhile.
    pub async fn next(&mut self) -> Result<Option<ReaddirEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                self.after = entry.pos;
                return Ok(Some(entry));
            }
            if self.end {
                return Ok(None);
            }
            let page = self.client.list(&self.dir, self.after, 0).await;
            let page = page.map_err(Failure::by_handle)?;
            self.end = page.end;
            self.page = page.entries.into_iter();
        }
    }

    /// All entries that are left.
    ///
    /// # Errors
    /// As [`ReadDir::next`].
    pub async fn all(mut self) -> Result<Vec<ReaddirEntry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Client {
    /// The attributes of what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.attributes(path.as_ref(), Links::Follow).await
    }

    /// As [`Client::stat`], of a symbolic link itself.
    ///
    /// # Errors
    /// As `lstat(2)`.
    pub async fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.attributes(path.as_ref(), Links::Keep).await
    }

    /// How operations by handle name what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn resolve(&self, path: impl AsRef<Path>) -> Result<NodeRef> {
        Ok(self.find(path.as_ref(), Links::Follow).await?.node().clone())
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// As `opendir(3)`.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let (path, mut tries) = (bytes_of(path.as_ref()), Tries(0));
        loop {
            let (dir, stand) = match self.core.resolve_dir(&self.cred, path).await {
                Ok(found) => found,
                Err(failure) => {
                    tries.again(&self.core, failure).await?;
                    continue;
                }
            };
            match self.list(&dir, 0, stand).await {
                Ok(page) => {
                    let (end, page) = (page.end, page.entries.into_iter());
                    return Ok(ReadDir { client: self.clone(), dir, page, after: 0, end });
                }
                // It was replaced since we found it.
                Err(failure) => {
                    self.core.forget_if_stale(&failure, &dir);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    async fn list(&self, dir: &DirRef, after: u64, stand: u64) -> Result<ReaddirPage, Failure> {
        let mut page = self.page(&self.cred, dir, (after, LISTED_ENTRIES, true), stand).await?;
        // Who wants the attributes of a directory elsewhere asks for them.
        for listed in &mut page.entries {
            listed.entry.take_if(|entry| !entry.whole);
        }
        Ok(page)
    }

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
        let mut tries = Tries(0);
        loop {
            let found = self.find_bytes(path, Links::Follow, End::Name).await?;
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
        let mut tries = Tries(0);
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
        let made = self.create_in(&self.cred, place, new, exclusive, true, at.stand).await?;
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

    /// Makes a special file, or a regular one without opening it. The umask is the caller's business.
    ///
    /// # Errors
    /// As `mknod(2)`.
    pub async fn mknod(&self, path: impl AsRef<Path>, new: New) -> Result<Attr> {
        let done = self.change(path.as_ref(), MAKES, |dir, name| {
            Request::Create(wire::Create {
                dir,
                name,
                kind: new.kind,
                mode: new.mode,
                rdev: new.rdev,
                exclusive: true,
                open: None,
            })
        });
        match done.await?.0.reply {
            Reply::Created(created) => Ok(created.entry.attr),
            _ => Err(unexpected()),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub async fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<Attr> {
        let ends = Ends { slash: Slash::Allowed, ..MAKES };
        let make = |dir, name| Request::Mkdir(Mkdir { dir, name, mode });
        let (done, dir, name) = self.change(path.as_ref(), ends, make).await?;
        let Reply::Entry(entry) = done.reply else { return Err(unexpected()) };
        if let Some(made) = entry.dir {
            let found = crate::cache::CachedDir { dir: made, attr: entry.attr };
            let version = self.core.valid_from(done.version);
            self.core.cache().insert(&dir, &name, found, version);
        }
        Ok(entry.attr)
    }

    /// Makes a directory and those above it that are missing. Fine when all are there.
    ///
    /// # Errors
    /// As `mkdir(2)`; `Exists` when something else than a directory has the name.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let mut missing = vec![path];
        while let Some(path) = missing.pop() {
            match self.mkdir(path, mode).await {
                Ok(_) => {}
                Err(Error::Fs(FsError::Exists)) => {
                    self.find(path, Links::Follow).await?.dir().map_err(|_| FsError::Exists)?;
                }
                Err(Error::Fs(FsError::NotFound)) => {
                    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    missing.extend([path, parent.ok_or(FsError::NotFound)?]);
                }
                Err(error) => return Err(error),
            }
            if missing.len() > base::limits::PATH_BYTES_MAX {
                return Err(FsError::NotFound.into());
            }
        }
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As `rmdir(2)`.
    pub async fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let ends = Ends {
            root: FsError::Busy,
            dot: FsError::Invalid,
            dot_dot: FsError::NotEmpty,
            slash: Slash::Allowed,
        };
        let remove = |dir, name| Request::Rmdir(Rmdir { dir, name });
        let (_, dir, name) = self.change(path.as_ref(), ends, remove).await?;
        self.core.cache.lock().forget_name(&dir, &name);
        Ok(())
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// As `unlink(2)`.
    pub async fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        let is_dir = FsError::IsDirectory;
        let ends = Ends { root: is_dir, dot: is_dir, dot_dot: is_dir, slash: Slash::Removes };
        let remove = |dir, name| Request::Unlink(Unlink { dir, name });
        self.change(path.as_ref(), ends, remove).await?;
        Ok(())
    }

    /// Makes a symbolic link at `path` that points to `target`.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = Bytes::copy_from_slice(bytes_of(target.as_ref()));
        if target.is_empty() {
            return Err(FsError::NotFound.into());
        }
        let make = |dir, name| Request::Symlink(Symlink { dir, name, target: target.clone() });
        self.change(path.as_ref(), MAKES, make).await?;
        Ok(())
    }

    /// Gives what `existing` names (a symbolic link itself) one more name.
    ///
    /// # Errors
    /// As `link(2)`.
    pub async fn link(&self, existing: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let mut tries = Tries(0);
        loop {
            let target = self.find(existing.as_ref(), Links::Keep).await?.node().clone();
            self.flush_node(&target).await;
            let make = |dir, name| Request::Link(Link { target: target.clone(), dir, name });
            match self.try_change(bytes_of(path.as_ref()), MAKES, &make).await {
                Ok(_) => return Ok(()),
                // The name may be another file's by now.
                Err(failure) => {
                    self.forget_node(&failure, &target);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    /// Moves an entry, over what is at `to`.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace).await
    }

    /// Moves an entry; `mode` says what may happen to what is at `to`.
    ///
    /// # Errors
    /// As `renameat2(2)`.
    pub async fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        let mut tries = Tries(0);
        loop {
            let (from, to) = (bytes_of(from.as_ref()), bytes_of(to.as_ref()));
            match self.try_rename(from, to, mode).await {
                Ok(()) => return Ok(()),
                Err(failure) => tries.again(&self.core, failure).await?,
            }
        }
    }

    async fn try_rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Failure> {
        let from_at = self.core.resolve_parent(&self.cred, from).await?;
        let to_at = self.core.resolve_parent(&self.cred, to).await?;
        let (Last::Name(from_name), Last::Name(to_name)) = (&from_at.last, &to_at.last) else {
            return Err(FsError::Busy.into());
        };
        if from_at.slash || to_at.slash {
            let entry = self.look_up(&from_at, from_name).await?;
            if entry.dir.is_none() {
                return Err(FsError::NotDirectory.into());
            }
        }
        self.flush_name(&from_at.dir, from_name).await;
        self.flush_name(&to_at.dir, to_name).await;
        let request = Request::Rename(Rename {
            from_dir: from_at.dir,
            from_name: from_name.clone(),
            to_dir: to_at.dir,
            to_name: to_name.clone(),
            mode,
            way: from_at.way.iter().chain(&to_at.way).copied().collect(),
        });
        let stand = match (from_at.stand, to_at.stand) {
            (0, other) | (other, 0) => other,
            (one, other) => one.min(other),
        };
        let done = self.core.call(&self.cred, from_at.dir.home, request, stand).await;
        let done = done.inspect_err(|failure| {
            self.core.forget_if_stale(failure, &from_at.dir);
            self.core.forget_if_stale(failure, &to_at.dir);
        })?;
        let Reply::Renamed(renamed) = done.reply else { return Err(unexpected().into()) };
        let (from, to) = ((&from_at.dir, from_name), (&to_at.dir, to_name));
        self.note_rename(from, to, mode, renamed.moved);
        Ok(())
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// As `readlink(2)`.
    pub async fn readlink(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        let found = self.find(path.as_ref(), Links::Keep).await?;
        let target = found.entry.target.clone().ok_or(FsError::Invalid)?;
        self.touch_later(&self.cred, found.node().clone(), &found.entry.attr);
        Ok(target)
    }

    /// Changes attributes of what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `chmod(2)`, `chown(2)`, `utimensat(2)` and `truncate(2)`.
    pub async fn set_attr(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        self.set_found(path.as_ref(), Links::Follow, set).await
    }

    /// As [`Client::set_attr`], of a symbolic link itself.
    ///
    /// # Errors
    /// As `lchown(2)` and `utimensat(2)`.
    pub async fn lset_attr(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        self.set_found(path.as_ref(), Links::Keep, set).await
    }

    async fn set_found(&self, path: &Path, links: Links, set: SetAttr) -> Result<Attr> {
        let mut tries = Tries(0);
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

    /// Space and inodes.
    ///
    /// # Errors
    /// When the session was lost.
    pub async fn statfs(&self) -> Result<Statfs> {
        FileSystem::statfs(self).await
    }

    /// What `pando info` prints: names and values.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn info(&self, path: impl AsRef<Path>) -> Result<Vec<(String, String)>> {
        let found = self.find(path.as_ref(), Links::Keep).await?;
        FileSystem::info(self, found.node()).await
    }

    /// Sends everything that was written to any file; everything answered before is on stable storage when
    /// this returns.
    ///
    /// # Errors
    /// When something that was written could not be stored.
    pub async fn sync(&self) -> Result<()> {
        self.flush_all().await?;
        FileSystem::sync(self).await
    }

    async fn attributes(&self, path: &Path, links: Links) -> Result<Attr> {
        let mut tries = Tries(0);
        loop {
            let mut found = self.find_bytes(bytes_of(path), links, End::Whole).await?;
            let node = found.node().clone();
            match self.complete(&self.cred, &mut found.entry, &node).await {
                Ok(()) => return Ok(found.entry.attr),
                Err(failure) => {
                    self.forget_node(&failure, &node);
                    tries.again(&self.core, failure).await?;
                }
            }
        }
    }

    async fn find(&self, path: &Path, links: Links) -> Result<Found> {
        self.find_bytes(bytes_of(path), links, End::Name).await
    }

    async fn find_bytes(&self, path: &[u8], links: Links, end: End) -> Result<Found> {
        let mut tries = Tries(0);
        loop {
            let stamp = self.core.files.stamp();
            match self.core.resolve_node(&self.cred, path, links, end).await {
                Ok(mut found) => {
                    found.entry.attr = self.core.files.seen(found.entry.attr, stamp);
                    return Ok(found);
                }
                Err(failure) => tries.again(&self.core, failure).await?,
            }
        }
    }

    fn forget_node(&self, failure: &Failure, node: &NodeRef) {
        match node {
            NodeRef::Dir(dir) => self.core.forget_if_stale(failure, dir),
            NodeRef::File(file) => self.core.forget_if_stale(failure, &file.dir),
        }
    }

    /// Changes one name: resolves its directory and sends what `make` makes of them.
    async fn change(
        &self,
        path: &Path,
        ends: Ends,
        make: impl Fn(DirRef, EntryName) -> Request,
    ) -> Result<(Done, DirRef, EntryName)> {
        let mut tries = Tries(0);
        loop {
            match self.try_change(bytes_of(path), ends, &make).await {
                Ok(done) => return Ok(done),
                Err(failure) => tries.again(&self.core, failure).await?,
            }
        }
    }

    async fn try_change(
        &self,
        path: &[u8],
        ends: Ends,
        make: &impl Fn(DirRef, EntryName) -> Request,
    ) -> Result<(Done, DirRef, EntryName), Failure> {
        let at = self.core.resolve_parent(&self.cred, path).await?;
        let name = match &at.last {
            Last::Name(name) => name.clone(),
            Last::Root => return Err(ends.root.into()),
            Last::Dot => return Err(ends.dot.into()),
            Last::DotDot => return Err(ends.dot_dot.into()),
        };
        if at.slash && ends.slash != Slash::Allowed {
            let entry = self.look_up(&at, &name).await?;
            return Err(match (ends.slash, entry.dir) {
                (Slash::Removes, Some(_)) => FsError::IsDirectory.into(),
                (Slash::Removes, None) => FsError::NotDirectory.into(),
                (Slash::Makes | Slash::Allowed, _) => FsError::Exists.into(),
            });
        }
        let request = make(at.dir, name.clone());
        if matches!(request, Request::Unlink(_)) {
            self.flush_name(&at.dir, &name).await;
        }
        let done = self.core.call(&self.cred, at.dir.home, request, at.stand).await;
        let done = done.inspect_err(|failure| self.core.forget_if_stale(failure, &at.dir))?;
        Ok((done, at.dir, name))
    }

    async fn look_up(&self, at: &Parent, name: &EntryName) -> Result<Entry, Failure> {
        let request = Request::Lookup(wire::Lookup { dir: at.dir, name: name.clone() });
        let done = self.core.call(&self.cred, at.dir.home, request, at.stand).await;
        let done = done.inspect_err(|failure| self.core.forget_if_stale(failure, &at.dir))?;
        match done.reply {
            Reply::Entry(entry) => Ok(entry),
            _ => Err(unexpected().into()),
        }
    }
}

/// What came of opening or making a file.
enum Opened {
    File(Box<File>),
    /// A symbolic link has the name; the file is where it points.
    Link(Bytes),
}
