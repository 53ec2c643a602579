//! The usual path: it goes straight down, and all of it but the last name is in the cache.
//!
//! Does what `resolve` does, for such a path, without what only symbolic links, `..` and a cold
//! cache need: no step is taken apart before it is looked up, and no directory is copied. Any other
//! path is left to `resolve`, and so is a symbolic link at the end, or a denied one, together with
//! what the server has said of it.

use base::{Cred, EntryName, FsError, limits::PATH_BYTES_MAX};
use bytes::Bytes;
use wire::{DirRef, Lookup, Reply, Request, Stand, Way};

use super::{Found, Links};
use crate::{Error, cache::CachedDir, core::Core, done::Failure};

/// Result of looking a straight path up.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are found; a box would be an allocation each"
)]
pub(super) enum Straight {
    /// The node.
    Found(Found),
    /// Something that the steps of the path must be taken for, one by one.
    Begun(Begun),
}

/// Knowledge of a path whose steps are still to be taken.
pub(super) enum Begun {
    /// The path is not straight, or the cache does not reach to its last name.
    No,
    /// The server denied the path: the cache is not to be believed.
    Denied,
    /// The last name, in `dir`, is a symbolic link, as a reply of `version` said.
    Link { dir: DirRef, target: Bytes, version: u64 },
}

impl Core {
    /// The directory of a straight path's last name, that name, and what the path stands on.
    pub(super) fn cached_parent(
        &self,
        cred: &Cred,
        path: &[u8],
    ) -> Option<(DirRef, EntryName, Stand)> {
        if path.len() > PATH_BYTES_MAX {
            return None;
        }
        let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(cut);
        let name = EntryName::new(name).ok()?;
        // No directory has the name `..`.
        let parts = above.split(|byte| *byte == b'/');
        let names = parts.filter(|part| !part.is_empty() && *part != b".");
        let mut way = Way::new();
        let mut cache = self.cache();
        let dir = cache.descend(cred, names, &mut way)?;
        // The root is no cached directory: requests always name it.
        let version = if way.len() > 1 { cache.version() } else { 0 };
        Some((dir, name, Stand { version, way, held: None }))
    }

    /// Looks the last name of a straight path up.
    pub(super) async fn straight_node(
        &self,
        cred: &Cred,
        path: &[u8],
        links: Links,
    ) -> Result<Straight, Failure> {
        let Some((dir, name, stand)) = self.cached_parent(cred, path) else {
            return Ok(Straight::Begun(Begun::No));
        };
        let request = Request::Lookup(Lookup { dir, name: name.clone() });
        let done = match self.call(cred, dir.home, request, stand).await {
            Ok(done) => done,
            Err(Failure::Error(Error::Fs(FsError::Denied))) if self.cache.lock().enabled() => {
                return Ok(Straight::Begun(Begun::Denied));
            }
            Err(failure) => {
                self.forget_if_stale(&failure, &dir);
                return Err(failure);
            }
        };
        let Reply::Entry(entry) = done.reply else { return Err(FsError::Io.into()) };
        let version = self.valid_from(done.version);
        if let Some(found) = entry.dir {
            let cached = CachedDir { dir: found, attr: entry.attr };
            let current = self.cache().insert(&dir, &name, cached, version);
            if !current {
                return Err(Box::pin(self.overtaken()).await);
            }
        } else if let Some(target) = &entry.target
            && links == Links::Follow
        {
            let target = target.clone();
            return Ok(Straight::Begun(Begun::Link { dir, target, version }));
        }
        let node = entry.node(&dir, &name);
        Ok(Straight::Found(Found { entry, node }))
    }
}
