//! Giving objects their names, and taking them: put, copy and delete.
//!
//! Race: conditions on the object that is there are checked under a lock of the key, which all
//! changes of objects through this gateway take. `If-None-Match: *` does not need the lock: the
//! rename itself refuses a name that is taken, whoever took it.

use base::{EntryName, FsError};
use client::Error;
use futures::future::join;
use s3s::{
    S3ErrorCode, S3Result,
    dto::{ETagCondition, TagSet, Timestamp},
};
use wire::{DirRef, NodeRef, RenameMode};

use crate::{
    clean,
    conditions::meets,
    error::{conflict, not_implemented, of, of_object},
    fs::Fs,
    gateway::Gateway,
    key::{self, Key, STAGING},
    metadata::{self, EMPTY_ETAG, HEADERS, Headers, OBJECT, TAGS, hex},
    multipart::UPLOADS,
    read,
    staging::Staged,
    tree::{self, Found, Place},
};

/// Permission bits of the staging directory: users of other tokens stage there, too.
pub(crate) const STAGING_MODE: u32 = 0o1777;
/// How often directories on the way are made anew that deletes remove meanwhile.
const TRIES_MAX: u32 = 16;

/// The object that a delete expects; `None` of a fact: any.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    pub(crate) etag: Option<ETagCondition>,
    pub(crate) size: Option<i64>,
    pub(crate) modified: Option<Timestamp>,
}

impl Expected {
    fn is_any(&self) -> bool {
        self.etag.is_none() && self.size.is_none() && self.modified.is_none()
    }

    fn is(&self, object: &read::Object) -> bool {
        let modified = metadata::last_modified(&object.attr);
        self.etag.as_ref().is_none_or(|etag| meets(etag, &object.known.etag))
            && self.size.is_none_or(|size| size == metadata::size(object.attr.size))
            && self.modified.as_ref().is_none_or(|time| *time == modified)
    }
}

/// Conditions under which an object may be replaced.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    if_match: Option<ETagCondition>,
    only_new: bool,
}

impl Wanted {
    /// Whether an object may be put whatever is there.
    pub(crate) fn is_free(&self) -> bool {
        self.if_match.is_none() && !self.only_new
    }

    pub(crate) fn new(
        if_match: Option<ETagCondition>,
        if_none_match: Option<ETagCondition>,
    ) -> S3Result<Wanted> {
        match if_none_match {
            None => Ok(Wanted { if_match, only_new: false }),
            Some(ETagCondition::Any) => Ok(Wanted { if_match, only_new: true }),
            Some(ETagCondition::ETag(_)) => {
                Err(not_implemented("If-None-Match of a write can only be *"))
            }
        }
    }
}

/// The entry of the staging directory.
fn staging_name() -> EntryName {
    EntryName::new(STAGING.as_bytes()).expect("the constant is a name")
}

/// The staging directory of a bucket; it is made if it is missing.
pub(crate) async fn staging(fs: &Fs, bucket: &DirRef) -> S3Result<DirRef> {
    let name = staging_name();
    let dir = tree::ensure_one(fs, bucket, &name, STAGING_MODE).await?;
    fs.remember(bucket, &name, dir);
    Ok(dir)
}

/// The staging directory of a bucket, if it is there.
pub(crate) async fn find_staging(fs: &Fs, bucket: &DirRef) -> S3Result<Option<DirRef>> {
    let found = fs.find(bucket, &staging_name()).await.map_err(|error| of_object(&error))?;
    Ok(found.and_then(|entry| entry.dir))
}

/// A file in the staging directory of a bucket.
pub(crate) async fn stage(gateway: &Gateway, fs: &Fs, bucket: &DirRef) -> S3Result<Staged> {
    for _ in 0..TRIES_MAX {
        let dir = staging(fs, bucket).await?;
        let name = gateway.unique("put");
        match Staged::create(fs, &dir, name).await {
            // The directory was removed meanwhile, as with the bucket.
            Err(error) if *error.code() == S3ErrorCode::OperationAborted => {}
            made => return made,
        }
    }
    Err(S3ErrorCode::OperationAborted.into())
}

/// Looks where an object is to be put, and stages a file for it: at the same time, where the staging
/// directory is remembered.
pub(crate) async fn begin(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key): (&str, &Key),
) -> S3Result<(Place, Staged)> {
    let root = &gateway.settings.root;
    let guess = match root.as_str() {
        "/" => fs.guess_staging(&key::bucket(bucket)?, &staging_name()),
        _ => None,
    };
    let place = tree::place(fs, root, bucket, key);
    let Some((dir, staging)) = guess else {
        let place = place.await?;
        let staged = stage(gateway, fs, &place.bucket).await?;
        return Ok((place, staged));
    };
    let (place, staged) = join(place, Staged::create(fs, &staging, gateway.unique("put"))).await;
    let place = place?;
    let staged = match staged {
        Ok(staged) if place.bucket == dir => staged,
        // The bucket or its staging directory is another one by now.
        Ok(_) | Err(_) => stage(gateway, fs, &place.bucket).await?,
    };
    Ok((place, staged))
}

/// Gives a sealed file the name of an object. `place` is where that was a short time ago.
pub(crate) async fn put(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key): (&DirRef, &Key),
    staged: &mut Staged,
    wanted: &Wanted,
    place: Option<Place>,
) -> S3Result<()> {
    let _locked = gateway.lock(bucket, key).await;
    if let Some(condition) = &wanted.if_match {
        let object = read::find(fs, bucket, key).await?.ok_or(S3ErrorCode::NoSuchKey)?;
        if !meets(condition, &object.known.etag) {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
    }
    let mode = if wanted.only_new { RenameMode::NoReplace } else { RenameMode::Replace };
    // A file that was sealed for a place is ready for it alone.
    let mut ready = place.and_then(|place| place.parent).filter(|_| staged.is_plain);
    for _ in 0..TRIES_MAX {
        let is_ready = ready.is_some();
        let parent = match ready.take() {
            Some(parent) => parent,
            None => match tree::ensure(fs, bucket, &key.parents).await {
                Err(error) if *error.code() == S3ErrorCode::OperationAborted => continue,
                ensured => ensured?,
            },
        };
        let named = async {
            if !is_ready {
                let old = if wanted.only_new { None } else { fs.find(&parent, &key.name).await? };
                staged.permit(old.as_ref(), (&parent, &key.name)).await?;
            }
            staged.rename(&parent, &key.name, mode).await
        };
        match named.await {
            Ok(()) => return fs.sync_dir(&parent).await.map_err(|error| of_object(&error)),
            // A delete has removed a directory on the way since it was found empty.
            Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {}
            Err(Error::Fs(FsError::Exists)) if wanted.only_new => {
                let found = fs.find(&parent, &key.name).await.map_err(|error| of_object(&error))?;
                if found.is_some_and(|entry| entry.dir.is_some()) {
                    return Err(conflict());
                }
                return Err(S3ErrorCode::PreconditionFailed.into());
            }
            Err(error) => return Err(of(&error, S3ErrorCode::OperationAborted)),
        }
    }
    Err(S3ErrorCode::OperationAborted.into())
}

/// Makes a directory an object; its ETag.
pub(crate) async fn put_directory(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key): (&DirRef, &Key),
    (headers, tags): (&Headers, &TagSet),
    wanted: &Wanted,
) -> S3Result<String> {
    let _locked = gateway.dirs.lock().await;
    let there = match tree::find(fs, bucket, key).await? {
        Some(found) => {
            let xattrs = fs.xattrs(&found.node).await.map_err(|error| of_object(&error))?;
            xattrs.iter().any(|(name, _)| name == OBJECT.as_bytes())
        }
        None => false,
    };
    if wanted.only_new && there {
        return Err(S3ErrorCode::PreconditionFailed.into());
    }
    if let Some(condition) = &wanted.if_match {
        if !there {
            return Err(S3ErrorCode::NoSuchKey.into());
        }
        if !meets(condition, EMPTY_ETAG) {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
    }
    let parent = tree::ensure(fs, bucket, &key.parents).await?;
    let dir = tree::ensure_one(fs, &parent, &key.name, tree::DIR_MODE).await?;
    let node = NodeRef::Dir(dir);
    let told = |error: Error| of(&error, S3ErrorCode::OperationAborted);
    for (name, value) in [(HEADERS, headers.to_bytes()?), (TAGS, metadata::tags_to_bytes(tags)?)] {
        match value {
            Some(value) => fs.setxattr(&node, name.as_bytes(), value).await.map_err(told)?,
            None => fs.removexattr(&node, name.as_bytes()).await.map_err(told)?,
        }
    }
    fs.setxattr(&node, OBJECT.as_bytes(), b"1".to_vec()).await.map_err(told)?;
    fs.sync_dir(&parent).await.map_err(told)?;
    Ok(EMPTY_ETAG.to_owned())
}

/// Removes an object; fine if it is not there. Directories above that are empty then, and are no
/// objects themselves, go with it.
pub(crate) async fn delete(
    gateway: &Gateway,
    fs: &Fs,
    (bucket, key): (&DirRef, &Key),
    expected: &Expected,
) -> S3Result<()> {
    let _locked = gateway.lock(bucket, key).await;
    let Some(found) = tree::find(fs, bucket, key).await? else {
        return if expected.is_any() { Ok(()) } else { Err(S3ErrorCode::NoSuchKey.into()) };
    };
    if !expected.is_any() {
        let object = read::find(fs, bucket, key).await?.ok_or(S3ErrorCode::NoSuchKey)?;
        if !expected.is(&object) {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
    }
    if key.directory {
        let _dirs = gateway.dirs.lock().await;
        delete_directory(fs, key, &found).await?;
    } else {
        match fs.unlink(&found.parent, &key.name).await {
            Ok(()) | Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {}
            Err(Error::Fs(FsError::IsDirectory)) => return Ok(()),
            Err(error) => return Err(of_object(&error)),
        }
    }
    fs.sync_dir(&found.parent).await.map_err(|error| of_object(&error))?;
    if found.way.is_empty() {
        return Ok(());
    }
    let _dirs = gateway.dirs.lock().await;
    tree::prune(fs, &found.way).await;
    Ok(())
}

/// Takes the object from a directory, and the directory if it is empty.
async fn delete_directory(fs: &Fs, key: &Key, found: &Found) -> S3Result<()> {
    for name in [OBJECT, HEADERS, TAGS] {
        match fs.removexattr(&found.node, name.as_bytes()).await {
            Ok(()) | Err(Error::Fs(FsError::NotFound | FsError::Stale)) => {}
            Err(error) => return Err(of_object(&error)),
        }
    }
    match fs.rmdir(&found.parent, &key.name).await {
        Ok(()) | Err(Error::Fs(FsError::NotEmpty | FsError::NotFound | FsError::Stale)) => Ok(()),
        Err(error) => Err(of_object(&error)),
    }
}

/// Removes a bucket that has nothing but the gateway's own files.
///
/// Uploads that are not abandoned, and files that are being received, keep it.
pub(crate) async fn delete_bucket(gateway: &Gateway, fs: &Fs, name: &str) -> S3Result<()> {
    let root = &gateway.settings.root;
    let bucket = tree::bucket(fs, root, name).await?;
    let told = |error: Error| of(&error, S3ErrorCode::NoSuchBucket);
    let (entries, _) = fs.entries(&bucket).await.map_err(told)?;
    if entries.iter().any(|entry| entry.name.as_bytes() != STAGING.as_bytes()) {
        return Err(S3ErrorCode::BucketNotEmpty.into());
    }
    if let Some(staging) = find_staging(fs, &bucket).await? {
        if clean::staging(gateway, fs, &staging, &mut u32::MAX.clone()).await? > 0 {
            return Err(S3ErrorCode::BucketNotEmpty.into());
        }
        let uploads = EntryName::new(UPLOADS.as_bytes()).expect("the constant is a name");
        for (dir, name) in [(&staging, uploads), (&bucket, staging_name())] {
            match fs.rmdir(dir, &name).await {
                Ok(()) | Err(Error::Fs(FsError::NotFound)) => {}
                Err(Error::Fs(FsError::NotEmpty)) => {
                    return Err(S3ErrorCode::BucketNotEmpty.into());
                }
                Err(error) => return Err(told(error)),
            }
        }
    }
    let root = fs.dir(root).await.map_err(told)?;
    match fs.rmdir(&root, &key::bucket(name)?).await {
        Err(Error::Fs(FsError::NotEmpty)) => Err(S3ErrorCode::BucketNotEmpty.into()),
        Err(error) => Err(told(error)),
        Ok(()) => fs.sync_dir(&root).await.map_err(told),
    }
}

/// Removes a directory and the files in it.
pub(crate) async fn remove_flat(fs: &Fs, parent: &DirRef, name: &EntryName) -> S3Result<()> {
    let told = |error: Error| of_object(&error);
    let Some(entry) = fs.find(parent, name).await.map_err(told)? else { return Ok(()) };
    let dir = entry.dir.ok_or_else(conflict)?;
    let (entries, _) = fs.entries(&dir).await.map_err(told)?;
    for entry in entries {
        match fs.unlink(&dir, &entry.name).await {
            Ok(()) | Err(Error::Fs(FsError::NotFound)) => {}
            Err(error) => return Err(told(error)),
        }
    }
    match fs.rmdir(parent, name).await {
        Ok(()) | Err(Error::Fs(FsError::NotFound)) => Ok(()),
        Err(error) => Err(told(error)),
    }
}

/// The ETag of an object of several parts: the MD5 of their MD5s, and their number.
pub(crate) fn etag_of_parts(md5s: &[Vec<u8>]) -> String {
    format!("{}-{}", hex(&crate::staging::md5(&md5s.concat())), md5s.len())
}

/// A key cannot be put where it would be a directory's name without a slash.
pub(crate) fn expect_file(key: &Key) -> S3Result<()> {
    if key.directory { Err(conflict()) } else { Ok(()) }
}
