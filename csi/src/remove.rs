//! Removing a volume: entry by entry, so that each goes to the trash with its place, and the quota
//! has its room back.

use base::EntryName;
use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use tonic::Status;
use wire::DirRef;

use crate::{
    error::{Answer, status},
    fs::Fs,
    tree::VolumeDir,
};

/// Number of entries that are removed at once.
const AT_ONCE: usize = 64;
/// Number of walks through a directory that is filled while it is emptied.
const WALKS_MAX: u32 = 8;

/// Removes the directory of a volume with all that is in it.
pub(crate) async fn volume(fs: &Fs, volume: &VolumeDir) -> Answer<()> {
    tree(fs, &volume.parent, &volume.name, &volume.dir).await?;
    fs.sync().await.map_err(|error| status("make the removal stable", &error))
}

fn tree<'a>(
    fs: &'a Fs,
    parent: &'a DirRef,
    name: &'a EntryName,
    dir: &'a DirRef,
) -> BoxFuture<'a, Answer<()>> {
    Box::pin(async move {
        let failed = |error| status("remove the volume", &error);
        for _ in 0..WALKS_MAX {
            empty(fs, dir).await?;
            match fs.rmdir(parent, name).await {
                Err(client::Error::Fs(base::FsError::NotEmpty)) => {}
                removed => return removed.map_err(failed),
            }
        }
        Err(Status::aborted("the volume is filled while it is removed: a node has it mounted"))
    })
}

async fn empty(fs: &Fs, dir: &DirRef) -> Answer<()> {
    let failed = |error| status("remove what is in the volume", &error);
    let mut after = 0;
    loop {
        let page = fs.page(dir, after).await.map_err(failed)?;
        after = page.reach;
        let mut below = Vec::new();
        let mut names = Vec::new();
        for listed in page.entries {
            match (listed.is_dir(), listed.entry.and_then(|entry| entry.dir)) {
                (true, Some(found)) => below.push((listed.name, found)),
                (true, None) => {
                    let found = fs.find(dir, &listed.name).await.map_err(failed)?;
                    if let Some(found) = found.and_then(|found| found.dir) {
                        below.push((listed.name, found));
                    }
                }
                (false, _) => names.push(listed.name),
            }
        }
        let removed = stream::iter(names).map(|name| async move { fs.unlink(dir, &name).await });
        let removed: Result<(), _> = removed.buffer_unordered(AT_ONCE).try_collect().await;
        removed.map_err(failed)?;
        for (name, found) in below {
            tree(fs, dir, &name, &found).await?;
        }
        if page.end {
            return Ok(());
        }
    }
}
