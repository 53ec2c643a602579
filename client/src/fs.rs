//! The operations by path.
//!
//! Each resolves its path, does one thing there, and starts anew when the server says that the path
//! is not what it was. Paths are absolute or relative to the root of the session, which is the
//! same.

mod attributes;
mod list;
mod names;
mod open;
mod tmpfile;

use std::{os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use base::{Backoff, EntryName, FsError};
use tokio::time::sleep;
use wire::{DirRef, Entry, NodeRef, Reply, Request, Statfs};

use crate::{
    Client, Error, FileSystem, Result,
    core::Core,
    done::{Done, Failure},
    error::unexpected,
    resolve::{End, Found, Last, Links, Parent},
};

pub use list::ReadDir;

/// Number of tries for a path that changes while the client resolves it.
const TRIES_MAX: u32 = 1000;
/// Number of tries before the first pause.
const TRIES_AT_ONCE: u32 = 5;
/// First and longest pause between later tries.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// How often a path was resolved for one operation.
struct Tries {
    made: u32,
    pauses: Backoff,
}

impl Tries {
    fn new() -> Tries {
        Tries { made: 0, pauses: Backoff::new(PAUSE_FIRST, PAUSE_MAX) }
    }

    /// Whether to try again after this; returns when.
    async fn again(&mut self, core: &Core, failure: Failure) -> Result<()> {
        self.made += 1;
        if self.made > TRIES_AT_ONCE {
            // A server may be behind the others, or much may move just now.
            sleep(self.pauses.draw(core.config.random.as_ref())).await;
        }
        match failure {
            // The file that was found has lost its name since; another may have it.
            Failure::Error(Error::Fs(FsError::Stale)) if self.made < TRIES_MAX => Ok(()),
            Failure::Error(error) => Err(error),
            Failure::StaleCache
            | Failure::StaleDir
            | Failure::StaleLayout(_)
            | Failure::NotHeld
                if self.made < TRIES_MAX =>
            {
                Ok(())
            }
            Failure::StaleCache
            | Failure::StaleDir
            | Failure::StaleLayout(_)
            | Failure::NotHeld => Err(FsError::Stale.into()),
        }
    }
}

/// Errors of an operation for a path whose end is no name, or has a slash.
#[derive(Clone, Copy)]
struct Ends {
    root: FsError,
    dot: FsError,
    dot_dot: FsError,
    /// For an entry that is no directory, or is to become none.
    slash: Slash,
}

/// Meaning of a slash at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slash {
    /// The slash means nothing: the operation works on directories.
    Allowed,
    /// The operation cannot make what a slash names.
    Makes,
    /// The operation cannot remove what a slash names.
    Removes,
}

const MAKES: Ends = Ends {
    root: FsError::Exists,
    dot: FsError::Exists,
    dot_dot: FsError::Exists,
    slash: Slash::Makes,
};

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Client {
    /// How operations by handle name what a path names; symbolic links are followed.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn resolve(&self, path: impl AsRef<Path>) -> Result<NodeRef> {
        Ok(self.find(path.as_ref(), Links::Follow).await?.node().clone())
    }

    /// Space and inodes.
    ///
    /// # Errors
    /// When the session was lost.
    pub async fn statfs(&self) -> Result<Statfs> {
        FileSystem::statfs(self).await
    }

    /// Returns what `pando info` prints: names and values.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub async fn info(&self, path: impl AsRef<Path>) -> Result<Vec<(String, String)>> {
        let found = self.find(path.as_ref(), Links::Keep).await?;
        FileSystem::info(self, found.node()).await
    }

    /// Sends everything that was written to any file; everything answered before is on stable
    /// storage when this returns.
    ///
    /// # Errors
    /// When something that was written could not be stored.
    pub async fn sync(&self) -> Result<()> {
        let flushed = self.flush_all().await;
        if flushed == Err(Error::SessionLost) {
            return flushed;
        }
        // A loss is reported once, also where it is why something could not be sent.
        FileSystem::sync(self).await?;
        flushed
    }

    async fn find(&self, path: &Path, links: Links) -> Result<Found> {
        self.find_bytes(bytes_of(path), links, End::Name).await
    }

    async fn find_bytes(&self, path: &[u8], links: Links, end: End) -> Result<Found> {
        let mut tries = Tries::new();
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
        let mut tries = Tries::new();
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
        let done = self.core.call(&self.cred, at.dir.home, request, at.stand.clone()).await;
        let done = done.inspect_err(|failure| self.core.forget_if_stale(failure, &at.dir))?;
        Ok((done, at.dir, name))
    }

    async fn look_up(&self, at: &Parent, name: &EntryName) -> Result<Entry, Failure> {
        let request = Request::Lookup(wire::Lookup { dir: at.dir, name: name.clone() });
        let done = self.core.call(&self.cred, at.dir.home, request, at.stand.clone()).await;
        let done = done.inspect_err(|failure| self.core.forget_if_stale(failure, &at.dir))?;
        match done.reply {
            Reply::Entry(entry) => Ok(entry),
            _ => Err(unexpected().into()),
        }
    }
}
