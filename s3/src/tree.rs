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
    fs::{Fs, Walked},
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
    found(bucket, key, fs.walk(bucket, &key.names()).await)
}

/// Finds what a key names, as [`find`] does, and the bucket on the way.
pub(crate) async fn find_in(
    fs: &Fs,
    root: &str,
    bucket: &str,
    key: &Key,
) -> S3Result<Option<Found>> {
    let (bucket, walked) = enter(fs, root, bucket, key).await?;
    found(&bucket, key, walked)
}

/// Where an object is to be put, as it was found at the beginning of a request.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) bucket: DirRef,
    /// The directory that is to have the name, if it is there.
    pub(crate) parent: Option<DirRef>,
    /// The thing that has the name.
    pub(crate) old: Option<Entry>,
}

/// Looks where an object is to be put.
pub(crate) async fn place(fs: &Fs, root: &str, bucket: &str, key: &Key) -> S3Result<Place> {
    let (bucket, walked) = enter(fs, root, bucket, key).await?;
    let mut entries = walked.found;
    match walked.failed {
        None | Some(Error::Fs(FsError::NotFound | FsError::NotDirectory | FsError::Stale)) => {}
        Some(error) => return Err(of_object(&error)),
    }
    let old = entries.split_off(key.parents.len().min(entries.len())).pop();
    let parent = match entries.last() {
        _ if entries.len() < key.parents.len() => None,
        Some(last) => last.dir,
        None => Some(bucket),
    };
    Ok(Place { bucket, parent, old })
}

/// Walks to a bucket, and on to a key: how far it came below the bucket.
async fn enter(fs: &Fs, root: &str, bucket: &str, key: &Key) -> S3Result<(DirRef, Walked)> {
    let entry = key::bucket(bucket)?;
    let missing = |error: Error| of(&error, S3ErrorCode::NoSuchBucket);
    let root = fs.dir(root).await.map_err(missing)?;
    let mut names = vec![&entry];
    names.extend(key.names());
    let mut walked = fs.walk(&root, &names).await;
    if walked.found.is_empty() {
        return Err(walked.failed.map_or_else(|| S3ErrorCode::NoSuchBucket.into(), missing));
    }
    let dir = walked.found.remove(0).dir.ok_or(S3ErrorCode::NoSuchBucket)?;
    Ok((dir, walked))
}

/// The object at the end of a walk from a bucket.
fn found(bucket: &DirRef, key: &Key, walked: Walked) -> S3Result<Option<Found>> {
    match walked.failed {
        None => {}
        Some(Error::Fs(FsError::NotFound | FsError::NotDirectory | FsError::Stale)) => {
            return Ok(None);
        }
        Some(error) => return Err(of_object(&error)),
    }
    let (mut parent, mut way, mut entries) = (*bucket, Vec::new(), walked.found.into_iter());
    for (name, entry) in key.parents.iter().zip(entries.by_ref()) {
        let Some(dir) = entry.dir else { return Ok(None) };
        way.push(OnTheWay { parent, name: name.clone(), dir, entries: entry.attr.size });
        parent = dir;
    }
    let Some(entry) = entries.next() else { return Ok(None) };
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
