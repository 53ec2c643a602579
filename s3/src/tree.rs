//! Walking keys by handle: buckets, directories on the way, and removing those that are empty.
//!
//! Each step looks up one plain name in a directory that is known by handle. A symbolic link is not
//! followed: as a directory it is missing, and as an object it is no object.

use base::{Attr, EntryName, FileKind, FsError};
use client::Error;
use s3s::{S3Error, S3ErrorCode, S3Result};
use wire::{DirRef, Entry, FileRef, NodeRef};

use crate::{
    error::{conflict, of, of_object},
    fs::Fs,
    key::{self, Key},
    metadata::OBJECT,
};

/// Permission bits of directories that the gateway makes.
pub(crate) const DIR_MODE: u32 = 0o755;
/// How often a directory is made anew that others remove meanwhile.
const TRIES_MAX: u32 = 16;
/// A directory with more entries than this before a removal is not looked at after it.
const ENTRIES_TO_PRUNE_MAX: u64 = 4096;

/// The directory of a bucket.
pub(crate) async fn bucket(fs: &Fs, root: &str, name: &str) -> S3Result<DirRef> {
    let entry = key::bucket(name)?;
    let missing = |error: &Error| of(error, S3ErrorCode::NoSuchBucket);
    let root = fs.dir(root).await.map_err(|error| missing(&error))?;
    let found = fs.lookup(&root, &entry).await.map_err(|error| missing(&error))?;
    found.dir.ok_or_else(|| S3ErrorCode::NoSuchBucket.into())
}

/// A directory on the way to a key.
pub(crate) struct OnTheWay {
    parent: DirRef,
    name: EntryName,
    pub(crate) dir: DirRef,
    /// Number of entries when it was walked through.
    entries: u64,
}

/// Walks to the directory of a key; `None` if it is not there.
pub(crate) async fn descend(
    fs: &Fs,
    bucket: &DirRef,
    names: &[EntryName],
) -> client::Result<Option<(DirRef, Vec<OnTheWay>)>> {
    let (mut dir, mut way) = (*bucket, Vec::new());
    for name in names {
        let found = match fs.find(&dir, name).await {
            Ok(Some(Entry { dir: Some(found), attr, .. })) => {
                way.push(OnTheWay {
                    parent: dir,
                    name: name.clone(),
                    dir: found,
                    entries: attr.size,
                });
                found
            }
            Ok(_) | Err(Error::Fs(FsError::NotDirectory | FsError::Stale)) => return Ok(None),
            Err(error) => return Err(error),
        };
        dir = found;
    }
    Ok(Some((dir, way)))
}

/// An object that is there.
pub(crate) struct Found {
    pub(crate) node: NodeRef,
    pub(crate) attr: Attr,
    /// The directory that has its name.
    pub(crate) parent: DirRef,
    /// The directories on the way to it.
    pub(crate) way: Vec<OnTheWay>,
}

/// Finds what a key names; `None` if nothing has it, or what has it is no object. Whether a
/// directory is one, its attributes say (see `metadata`).
pub(crate) async fn find(fs: &Fs, bucket: &DirRef, key: &Key) -> S3Result<Option<Found>> {
    let told = |error: Error| of_object(&error);
    let Some((parent, way)) = descend(fs, bucket, &key.parents).await.map_err(told)? else {
        return Ok(None);
    };
    let entry = match fs.find(&parent, &key.name).await {
        Ok(Some(entry)) => entry,
        Ok(None) | Err(Error::Fs(FsError::Stale)) => return Ok(None),
        Err(error) => return Err(told(error)),
    };
    let node = match (key.directory, entry.attr.kind, entry.dir) {
        (true, FileKind::Directory, Some(dir)) => NodeRef::Dir(dir),
        (false, FileKind::File, None) => {
            NodeRef::File(FileRef { dir: parent, name: key.name.clone(), ino: entry.attr.ino })
        }
        _ => return Ok(None),
    };
    Ok(Some(Found { node, attr: entry.attr, parent, way }))
}

/// Walks to a directory, and makes what is missing on the way.
pub(crate) async fn ensure(fs: &Fs, bucket: &DirRef, names: &[EntryName]) -> S3Result<DirRef> {
    let mut dir = *bucket;
    for name in names {
        dir = ensure_one(fs, &dir, name, DIR_MODE).await?;
    }
    Ok(dir)
}

/// A directory in another one; it is made if it is missing.
pub(crate) async fn ensure_one(
    fs: &Fs,
    dir: &DirRef,
    name: &EntryName,
    mode: u32,
) -> S3Result<DirRef> {
    for _ in 0..TRIES_MAX {
        match fs.find(dir, name).await {
            Ok(Some(entry)) => return entry.dir.ok_or_else(conflict),
            Ok(None) => {}
            Err(error) => return Err(gone(&error)),
        }
        match fs.mkdir(dir, name, mode).await {
            Ok(made) => return Ok(made),
            Err(Error::Fs(FsError::Exists)) => {}
            Err(error) => return Err(gone(&error)),
        }
    }
    Err(S3ErrorCode::OperationAborted.into())
}

/// The directory in which something was to be made was removed meanwhile, or something else failed.
fn gone(error: &Error) -> S3Error {
    of(error, S3ErrorCode::OperationAborted)
}

/// Whether a directory is an object itself.
pub(crate) async fn is_object(fs: &Fs, dir: &DirRef) -> client::Result<bool> {
    let xattrs = fs.xattrs(&NodeRef::Dir(*dir)).await?;
    Ok(xattrs.iter().any(|(name, _)| name == OBJECT.as_bytes()))
}

/// Removes the directories on the way that are empty now, from the last one upwards, except those
/// that are objects themselves.
pub(crate) async fn prune(fs: &Fs, way: &[OnTheWay]) {
    for on_the_way in way.iter().rev() {
        if on_the_way.entries > ENTRIES_TO_PRUNE_MAX {
            return;
        }
        match is_object(fs, &on_the_way.dir).await {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
        match fs.rmdir(&on_the_way.parent, &on_the_way.name).await {
            Ok(()) => {}
            // Others have put something there, or have removed it.
            Err(error) => {
                tracing::trace!(%error, "a directory on the way to a removed key stays");
                return;
            }
        }
    }
}
