//! Removing what uploads have left behind that were never completed.
//!
//! Cost: a bounded number of removals in each run; the next run goes on.

use base::{Attr, EntryName, FsError};
use client::Error;
use s3s::{S3ErrorCode, S3Result};
use wire::DirRef;

use crate::{
    commit,
    error::{of, of_object},
    fs::Fs,
    gateway::Gateway,
    multipart::UPLOADS,
    staging::Staged,
};

/// Number of files and directories that one run removes at most.
const REMOVED_MAX: u32 = 10_000;

/// Looks through all buckets of all sessions once.
pub(crate) async fn run(gateway: &Gateway) {
    let mut left = REMOVED_MAX;
    for account in gateway.sessions() {
        if account.read_only {
            continue;
        }
        let cleaned = match account.fs().await {
            Ok(fs) => buckets(gateway, &fs, &mut left).await,
            Err(error) => Err(error),
        };
        if let Err(error) = cleaned {
            tracing::warn!(%error, "abandoned uploads could not be looked for");
        }
    }
    let removed = REMOVED_MAX - left;
    if removed > 0 {
        tracing::info!(removed, "abandoned uploads are removed");
    }
}

async fn buckets(gateway: &Gateway, fs: &Fs, left: &mut u32) -> S3Result<()> {
    for (_, dir, _) in gateway.buckets(fs).await? {
        let cleaned = match commit::find_staging(fs, &dir).await {
            Ok(Some(found)) => staging(gateway, fs, &found, left).await.map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // A bucket may refuse this user where the next one does not.
        if let Err(error) = cleaned {
            tracing::debug!(%error, "abandoned uploads of a bucket stay");
        }
    }
    Ok(())
}

/// Removes what is abandoned in the staging directory of a bucket; how many files and uploads stay.
pub(crate) async fn staging(
    gateway: &Gateway,
    fs: &Fs,
    staging: &DirRef,
    left: &mut u32,
) -> S3Result<usize> {
    let (mut files, mut uploads) = (Vec::new(), Vec::new());
    for (name, entry_dir, attr) in entries(fs, staging).await? {
        match entry_dir {
            None => files.push((name, attr)),
            Some(dir) if name.as_bytes() == UPLOADS.as_bytes() => {
                let all = entries(fs, &dir).await?;
                uploads.extend(all.into_iter().map(|upload| (dir, upload)));
            }
            Some(_) => {}
        }
    }
    if files.is_empty() && uploads.is_empty() {
        return Ok(0);
    }
    // The times to compare are the file system's, and so is the present one.
    let file = Staged::create(fs, staging, gateway.unique("now")).await?;
    let now = latest(&file.attr().await.map_err(|error| of_object(&error))?);
    file.remove().await.map_err(|error| of_object(&error))?;
    let age = i64::try_from(gateway.settings.abandoned_after.as_secs()).unwrap_or(i64::MAX);
    let before = now.saturating_sub(age);
    let mut stay = 0;
    for (name, attr) in files {
        let old = latest(&attr) < before && !gateway.is_used(&name);
        if !(old && *left > 0 && gone(fs.unlink(staging, &name).await, left)?) {
            stay += 1;
        }
    }
    for (dir, (name, upload, attr)) in uploads {
        let _locked = gateway.lock_upload(&name).await;
        let parts = match &upload {
            Some(upload) => entries(fs, upload).await?,
            None => Vec::new(),
        };
        let newest = parts.iter().map(|(_, _, attr)| latest(attr)).chain([latest(&attr)]).max();
        let old = newest.is_some_and(|newest| newest < before) && !gateway.is_used(&name);
        if !(old && remove(fs, (&dir, &name, upload.as_ref()), parts, left).await?) {
            stay += 1;
        }
    }
    Ok(stay)
}

/// Removes an upload, as far as the run may go on; whether it is gone.
async fn remove(
    fs: &Fs,
    (dir, name, upload): (&DirRef, &EntryName, Option<&DirRef>),
    parts: Listed,
    left: &mut u32,
) -> S3Result<bool> {
    let Some(upload) = upload else { return gone(fs.unlink(dir, name).await, left) };
    for (part, nested, _) in parts {
        if nested.is_some() || *left == 0 || !gone(fs.unlink(upload, &part).await, left)? {
            return Ok(false);
        }
    }
    Ok(*left > 0 && gone(fs.rmdir(dir, name).await, left)?)
}

/// When something happened last to a file or upload.
fn latest(attr: &Attr) -> i64 {
    attr.mtime.sec.max(attr.ctime.sec)
}

type Listed = Vec<(EntryName, Option<DirRef>, Attr)>;

async fn entries(fs: &Fs, dir: &DirRef) -> S3Result<Listed> {
    let entries = match fs.entries(dir).await {
        Ok((entries, _)) => entries,
        Err(Error::Fs(FsError::Denied | FsError::NotFound | FsError::Stale)) => Vec::new(),
        Err(error) => return Err(of(&error, S3ErrorCode::NoSuchBucket)),
    };
    let known = entries.into_iter().filter_map(|listed| {
        let entry = listed.entry?;
        Some((listed.name, entry.dir, entry.attr))
    });
    Ok(known.collect())
}

/// Whether something is gone. Others clean, too, and not all is this user's.
fn gone(removed: client::Result<()>, left: &mut u32) -> S3Result<bool> {
    match removed {
        Ok(()) => {
            *left -= 1;
            Ok(true)
        }
        Err(Error::Fs(FsError::NotFound | FsError::Stale)) => Ok(true),
        Err(Error::Fs(FsError::NotEmpty | FsError::Denied | FsError::NotPermitted)) => Ok(false),
        Err(error) => Err(of(&error, S3ErrorCode::NoSuchBucket)),
    }
}
