//! Looking for the names of an inode number.
//!
//! No record leads from an inode to its names, so all directories are listed until the names are
//! found: at worst as long as a `find` of everything takes. The search asks as any client does, so
//! it finds what the token lets it see.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use base::{FsError, Ino};
use client::Client;
use futures::stream::{FuturesUnordered, StreamExt as _};

/// Number of directories that are listed at the same time.
const LISTED_AT_ONCE: usize = 16;
/// Directory that a listing of the root leaves out.
const TRASH: &str = "/.trash";

/// Result of the search.
#[derive(Default)]
pub(super) struct Names {
    pub(super) paths: Vec<PathBuf>,
    /// Directories that may not be read.
    pub(super) unread: u64,
}

/// Listing of a directory: those below, and names of the inode with how many it has.
#[derive(Default)]
struct Listed {
    below: Vec<PathBuf>,
    found: Vec<(PathBuf, u32)>,
    unread: bool,
}

/// The paths that lead to an inode.
pub(super) async fn names(client: &Client, ino: Ino) -> anyhow::Result<Names> {
    let mut names = Names::default();
    if client.lstat("/").await?.ino == ino {
        names.paths.push("/".into());
        return Ok(names);
    }
    let mut waiting: Vec<PathBuf> = vec![TRASH.into(), "/".into()];
    let mut listing = FuturesUnordered::new();
    loop {
        while listing.len() < LISTED_AT_ONCE
            && let Some(dir) = waiting.pop()
        {
            listing.push(list(client, dir, ino));
        }
        let Some(listed) = listing.next().await else { break };
        let listed: Listed = listed?;
        waiting.extend(listed.below);
        names.unread += u64::from(listed.unread);
        let mut links = 0;
        for (path, nlink) in listed.found {
            names.paths.push(path);
            links = nlink;
        }
        if links > 0 && names.paths.len() >= usize::try_from(links).unwrap_or(usize::MAX) {
            break;
        }
    }
    names.paths.sort();
    Ok(names)
}

async fn list(client: &Client, dir: PathBuf, ino: Ino) -> anyhow::Result<Listed> {
    let mut listed = Listed::default();
    match read(client, &dir, ino, &mut listed).await {
        // The directory was removed meanwhile, or there is no trash.
        Ok(()) | Err(client::Error::Fs(FsError::NotFound | FsError::Stale)) => {}
        Err(client::Error::Fs(FsError::Denied | FsError::NotPermitted)) => listed.unread = true,
        Err(error) => return Err(error.into()),
    }
    Ok(listed)
}

async fn read(client: &Client, dir: &Path, ino: Ino, listed: &mut Listed) -> client::Result<()> {
    let mut entries = client.read_dir(dir).await?;
    while let Some(entry) = entries.next().await? {
        let path = dir.join(OsStr::from_bytes(entry.name.as_bytes()));
        if entry.ino == ino {
            // A directory has one name.
            let nlink = if entry.is_dir() { 1 } else { client.lstat(&path).await?.nlink };
            listed.found.push((path.clone(), nlink));
        }
        if entry.is_dir() {
            listed.below.push(path);
        }
    }
    Ok(())
}
