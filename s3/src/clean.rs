//! Removing what uploads have left behind that were never completed.
//!
//! Cost: a bounded number of removals in each run; the next run goes on.

use base::{Attr, EntryName, FsError, Time};
use client::Error;
use s3s::{S3ErrorCode, S3Result};
use wire::DirRef;

use crate::{commit, error::of, fs::Fs, gateway::Gateway, multipart::UPLOADS};

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
    let now = gateway.clock.now();
    let age = i64::try_from(gateway.settings.abandoned_after.as_secs()).unwrap_or(i64::MAX);
    let before = now.sec.saturating_sub(age);
    for (_, dir, _) in gateway.buckets(fs).await? {
        // A bucket may refuse this user where the next one does not.
        if let Err(error) = bucket(fs, &dir, before, left).await {
            tracing::debug!(%error, "abandoned uploads of a bucket stay");
        }
    }
    Ok(())
}

async fn bucket(fs: &Fs, bucket: &DirRef, before: i64, left: &mut u32) -> S3Result<()> {
    let Some(staging) = commit::find_staging(fs, bucket).await? else { return Ok(()) };
    for (name, entry_dir, attr) in entries(fs, &staging).await? {
        match entry_dir {
            None if old(&attr, before) => remove(fs, &staging, &name, left).await?,
            Some(uploads) if name.as_bytes() == UPLOADS.as_bytes() => {
                for (name, upload, attr) in entries(fs, &uploads).await? {
                    let Some(upload) = upload.filter(|_| old(&attr, before)) else { continue };
                    for (part, nested, _) in entries(fs, &upload).await? {
                        if nested.is_none() {
                            remove(fs, &upload, &part, left).await?;
                        }
                    }
                    if *left > 0 {
                        told(fs.rmdir(&uploads, &name).await)?;
                        *left -= 1;
                    }
                }
            }
            None | Some(_) => {}
        }
    }
    Ok(())
}

/// Whether nothing has happened to a file or upload since then.
fn old(attr: &Attr, before: i64) -> bool {
    let latest = |one: Time, other: Time| one.sec.max(other.sec);
    latest(attr.mtime, attr.ctime) < before
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

async fn remove(fs: &Fs, dir: &DirRef, name: &EntryName, left: &mut u32) -> S3Result<()> {
    if *left > 0 {
        told(fs.unlink(dir, name).await)?;
        *left -= 1;
    }
    Ok(())
}

/// Others clean, too, and not all is this user's.
fn told(removed: client::Result<()>) -> S3Result<()> {
    match removed {
        Ok(())
        | Err(Error::Fs(
            FsError::NotFound
            | FsError::Stale
            | FsError::NotEmpty
            | FsError::Denied
            | FsError::NotPermitted,
        )) => Ok(()),
        Err(error) => Err(of(&error, S3ErrorCode::NoSuchBucket)),
    }
}
