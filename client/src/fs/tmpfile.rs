//! Files without a name, by path: made in a directory, and given a name when they are complete.

use std::path::Path;

use base::FsError;
use wire::{Link, Request};

use super::{Links, MAKES, TRIES_AT_ONCE, Tries, bytes_of};
use crate::{Client, Error, File, FileSystem, OpenOptions, Result, done::Failure};

impl Client {
    /// Makes a file without a name in a directory, with permission bits `mode`, and opens it for
    /// reading and writing. It is gone when it is closed, when this client ends or loses its
    /// session; unless [`File::link`] has given it a name, which is allowed if it is `linkable`.
    ///
    /// # Errors
    /// As `open(2)` with `O_TMPFILE`.
    pub async fn tmpfile(&self, dir: impl AsRef<Path>, mode: u32, linkable: bool) -> Result<File> {
        let mut tries = Tries::new();
        loop {
            let found = self.find(dir.as_ref(), Links::Follow).await?.dir()?;
            match FileSystem::tmpfile(self, &self.cred, &found, mode, linkable).await {
                // The directory was replaced since this client found it.
                Err(Error::Fs(FsError::Stale)) => {
                    self.core.cache.lock().forget(found.id);
                    tries.again(&self.core, Failure::StaleDir).await?;
                }
                made => {
                    let made = made?;
                    return Ok(File::new(self, made.handle, made.file, OpenOptions::both()));
                }
            }
        }
    }

    /// Gives an open file one more name, or its first one.
    pub(crate) async fn link_open(&self, file: &File, path: &Path) -> Result<()> {
        self.flush_node(&file.node()).await;
        let (mut tries, mut stale) = (Tries::new(), 0);
        loop {
            // Race: the name by which the file was known may have been removed meanwhile.
            let target = file.node();
            let make = |dir, name| Request::Link(Link { target: target.clone(), dir, name });
            let failure = match self.try_change(bytes_of(path), MAKES, &make).await {
                Ok((_, dir, name)) => {
                    self.note_link(&target, &dir, &name);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            // The file is not where this session knows it, and no path is walked to it again: it
            // may be on its way, and else it has left what the session may reach.
            stale += u32::from(matches!(failure, Failure::Error(Error::Fs(FsError::Stale))));
            if stale > TRIES_AT_ONCE {
                return Err(FsError::Stale.into());
            }
            tries.again(&self.core, failure).await?;
        }
    }
}
