//! Making, removing and moving names by their paths.

use std::path::Path;

use base::{Attr, FsError};
use bytes::Bytes;
use wire::{Link, Mkdir, Rename, RenameMode, Reply, Request, Rmdir, Symlink, Unlink};

use super::{Ends, MAKES, Slash, Tries, bytes_of};
use crate::{
    Client, Error, New, Result,
    done::Failure,
    error::unexpected,
    resolve::{Last, Links},
};

impl Client {
    /// Makes a special file, or a regular one without opening it. The umask is the caller's
    /// business.
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
        let (done, dir, name) = self.change(path.as_ref(), ends, remove).await?;
        let Reply::Attr(attr) = done.reply else { return Err(unexpected()) };
        self.core.files.unlinked(attr.ino, (&dir, &name));
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
        let mut tries = Tries::new();
        loop {
            let target = self.find(existing.as_ref(), Links::Keep).await?.node().clone();
            self.flush_node(&target).await;
            let make = |dir, name| Request::Link(Link { target: target.clone(), dir, name });
            match self.try_change(bytes_of(path.as_ref()), MAKES, &make).await {
                Ok((_, dir, name)) => {
                    self.note_link(&target, &dir, &name);
                    return Ok(());
                }
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
        let mut tries = Tries::new();
        loop {
            let (from, to) = (bytes_of(from.as_ref()), bytes_of(to.as_ref()));
            match self.try_rename(from, to, mode).await {
                Ok(()) => return Ok(()),
                Err(failure) => tries.again(&self.core, failure).await?,
            }
        }
    }

    async fn try_rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Failure> {
        let resets = self.core.cache.lock().resets();
        let from_at = self.core.resolve_parent(&self.cred, from).await?;
        let to_at = self.core.resolve_parent(&self.cred, to).await?;
        // Race: the server was started anew in between, and its new versions may be lower than that
        // of the first path.
        if self.core.cache.lock().resets() != resets {
            return Err(Failure::StaleCache);
        }
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
        });
        let mut stand = from_at.stand.clone();
        stand.add(&to_at.stand);
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

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As `readlink(2)`.
    pub async fn readlink(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        let found = self.find(path.as_ref(), Links::Keep).await?;
        let target = found.entry.target.clone().ok_or(FsError::Invalid)?;
        self.touch_later(&self.cred, found.node().clone(), &found.entry.attr);
        Ok(target)
    }
}
