//! Removing a volume: entry by entry, so that each goes to the trash with its place, and the quota
//! has its room back.

use base::EntryName;
use client::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tonic::Status;
use wire::{DirRef, ReaddirPage};

use crate::{
    error::{Answer, status},
    fs::Fs,
    tree::VolumeDir,
};

/// Number of entries that are removed at once.
const AT_ONCE: usize = 64;
/// Number of walks through a directory that is filled while it is emptied.
const WALKS_MAX: u32 = 8;

/// The calls by which a tree is removed.
trait TreeCalls: Sync {
    fn page(&self, dir: &DirRef, after: u64) -> impl Future<Output = Result<ReaddirPage>> + Send;
    /// The directory of this name.
    fn dir(
        &self,
        dir: &DirRef,
        name: &EntryName,
    ) -> impl Future<Output = Result<Option<DirRef>>> + Send;
    fn unlink(&self, dir: &DirRef, name: &EntryName) -> impl Future<Output = Result<()>> + Send;
    fn rmdir(&self, dir: &DirRef, name: &EntryName) -> impl Future<Output = Result<()>> + Send;
}

impl TreeCalls for Fs {
    async fn page(&self, dir: &DirRef, after: u64) -> Result<ReaddirPage> {
        Fs::page(self, dir, after).await
    }

    async fn dir(&self, dir: &DirRef, name: &EntryName) -> Result<Option<DirRef>> {
        Ok(self.find(dir, name).await?.and_then(|found| found.dir))
    }

    async fn unlink(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        Fs::unlink(self, dir, name).await
    }

    async fn rmdir(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        Fs::rmdir(self, dir, name).await
    }
}

/// A directory that is being emptied.
struct DirLevel {
    parent: DirRef,
    name: EntryName,
    dir: DirRef,
    /// Directories of the latest page, still to be removed.
    below: Vec<(EntryName, DirRef)>,
    /// Position after the latest page.
    after: u64,
    /// Whether the latest page was the last one.
    end: bool,
    /// Number of walks that did not leave the directory empty.
    walks: u32,
}

impl DirLevel {
    fn new(parent: DirRef, name: EntryName, dir: DirRef) -> DirLevel {
        DirLevel { parent, name, dir, below: Vec::new(), after: 0, end: false, walks: 0 }
    }
}

/// Removes the directory of a volume with all that is in it.
pub(crate) async fn volume(fs: &Fs, volume: &VolumeDir) -> Answer<()> {
    tree(fs, DirLevel::new(volume.parent, volume.name.clone(), volume.dir)).await?;
    fs.sync().await.map_err(|error| status("make the removal stable", &error))
}

/// Removes a directory with all that is in it. The levels are on the heap: a user decides how deep
/// a tree is.
async fn tree<T: TreeCalls>(fs: &T, top: DirLevel) -> Answer<()> {
    let failed = |error| status("remove the volume", &error);
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        if let Some((name, dir)) = level.below.pop() {
            let parent = level.dir;
            levels.push(DirLevel::new(parent, name, dir));
            continue;
        }
        if !level.end {
            read_on(fs, level).await?;
            continue;
        }
        match fs.rmdir(&level.parent, &level.name).await {
            Err(client::Error::Fs(base::FsError::NotEmpty)) => {
                level.walks += 1;
                if level.walks == WALKS_MAX {
                    return Err(Status::aborted(
                        "the volume is filled while it is removed: a node has it mounted",
                    ));
                }
                (level.after, level.end) = (0, false);
            }
            removed => {
                removed.map_err(failed)?;
                levels.pop();
            }
        }
    }
    Ok(())
}

/// Removes the files of the next page, and collects its directories.
async fn read_on<T: TreeCalls>(fs: &T, level: &mut DirLevel) -> Answer<()> {
    let failed = |error| status("remove what is in the volume", &error);
    let dir = level.dir;
    let page = fs.page(&dir, level.after).await.map_err(failed)?;
    (level.after, level.end) = (page.reach, page.end);
    let mut names = Vec::new();
    for listed in page.entries {
        match (listed.is_dir(), listed.entry.and_then(|entry| entry.dir)) {
            (true, Some(found)) => level.below.push((listed.name, found)),
            (true, None) => {
                let found = fs.dir(&dir, &listed.name).await.map_err(failed)?;
                level.below.extend(found.map(|found| (listed.name, found)));
            }
            (false, _) => names.push(listed.name),
        }
    }
    let dir = &dir;
    let removed = stream::iter(names).map(|name| async move { fs.unlink(dir, &name).await });
    let removed: Result<()> = removed.buffer_unordered(AT_ONCE).try_collect().await;
    removed.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{Cred, FileKind, HashKey};
    use client::{FileSystem as _, New, SystemClock, model::Model};

    use super::*;

    /// Levels of a tree whose recursive removal would overflow the stack of a thread.
    const LEVELS: usize = 10_000;

    impl TreeCalls for Model {
        async fn page(&self, dir: &DirRef, after: u64) -> Result<ReaddirPage> {
            self.readdir(&Cred::ROOT, dir, after, 3, true).await
        }

        async fn dir(&self, dir: &DirRef, name: &EntryName) -> Result<Option<DirRef>> {
            Ok(self.lookup(&Cred::ROOT, dir, name).await?.dir)
        }

        async fn unlink(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
            client::FileSystem::unlink(self, &Cred::ROOT, dir, name).await.map(drop)
        }

        async fn rmdir(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
            client::FileSystem::rmdir(self, &Cred::ROOT, dir, name).await.map(drop)
        }
    }

    fn name(text: &str) -> EntryName {
        EntryName::new(text.as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_tree_is_removed_however_deep_and_wide_it_is() {
        let model = Model::new(Arc::new(SystemClock), HashKey::new(1, 2), true);
        let (root, cred) = (model.root().0, Cred::ROOT);
        let file = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let top = model.mkdir(&cred, &root, &name("volume"), 0o755).await.unwrap().dir.unwrap();
        model.create(&cred, &root, &name("beside"), file, true, false).await.unwrap();
        for wide in ["b", "c", "d", "e", "f"] {
            model.mkdir(&cred, &top, &name(wide), 0o755).await.unwrap();
            model.create(&cred, &top, &name(&wide.repeat(2)), file, true, false).await.unwrap();
        }
        let mut dir = top;
        for _ in 0..LEVELS {
            dir = model.mkdir(&cred, &dir, &name("a"), 0o755).await.unwrap().dir.unwrap();
        }
        model.create(&cred, &dir, &name("file"), file, true, false).await.unwrap();
        tree(&model, DirLevel::new(root, name("volume"), top)).await.unwrap();
        let left = model.readdir(&cred, &root, 0, 9, false).await.unwrap().entries;
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].name, name("beside"));
    }
}
