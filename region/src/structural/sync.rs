//! fsync and its like: what was answered is on stable storage below.

use std::mem;

use base::{FsError, Ino, attr::MODE_BITS};
use client::{Handle, Result};
use wire::DirRef;

use crate::{
    Path, Region,
    below::Change,
    contents::Either,
    table::{Need, Table},
};

impl Region {
    /// Has a file below with its name and the directories above it, and all of it stable.
    pub(crate) async fn fsync_below(&self, handle: Handle) -> Result<()> {
        let (path, file) = self
            .run(|table| {
                let ino = table.opened(handle)?;
                table.tell_failure(ino)?;
                let file = match table.contents(ino) {
                    Ok(Either::Passed(_, file)) => Some(file),
                    Ok(Either::Here(_)) | Err(Need::Read(..)) => None,
                    Err(need) => return Err(need),
                };
                Ok((table.node(ino).path.clone(), file))
            })
            .await?;
        if let Some(path) = &path {
            self.drain(std::slice::from_ref(path), false).await?;
            self.run(|table| {
                let ino = table.opened(handle)?;
                table.tell_failure(ino)
            })
            .await?;
        }
        self.call(move |below| {
            match (&path, &file) {
                (_, Some(file)) => file.sync()?,
                // Somebody may have removed or moved it since: then there is nothing to keep.
                (Some(path), None) => match below.sync_file(path) {
                    Ok(()) | Err(FsError::NotFound) => {}
                    Err(error) => return Err(error),
                },
                (None, None) => {}
            }
            sync_above(below, path.as_ref())
        })
        .await?;
        Ok(())
    }

    /// Has the names in a directory below, and stable.
    pub(crate) async fn sync_names(&self, dir: &DirRef) -> Result<()> {
        let path = self.run(|table| table.dir_path(dir)).await?;
        let children: Vec<Path> = {
            let table = self.lock();
            let within = table.dirty_within(&path);
            within.filter(|dirty| dirty.depth() <= path.depth() + 1).cloned().collect()
        };
        for child in children {
            self.drain_one(&child).await?;
        }
        let mode = self.lock().take_late_mode(dir.ino);
        let synced = self.call(move |below| {
            if let Some(mode) = mode {
                below.set(&path, &Change { mode: Some(mode), ..Change::default() })?;
            }
            below.sync_dir(&path)?;
            sync_above(below, Some(&path))
        });
        let synced = synced.await;
        if synced.is_err() && mode.is_some() {
            self.lock().mode_is_late(dir.ino);
        }
        Ok(synced?)
    }

    /// Everything that was answered before is below when this returns; changes go on meanwhile.
    pub(crate) async fn barrier(&self) -> Result<()> {
        let dirty: Vec<Path> = self.lock().dirty.iter().cloned().collect();
        for path in dirty {
            self.drain_one(&path).await?;
        }
        let late: Vec<Path> = self.lock().late.iter().cloned().collect();
        for path in late {
            let job = {
                let mut table = self.lock();
                let idle = table.dirty_within(&path).next().is_none();
                if idle { table.take_within(&path, true) } else { None }
            };
            if let Some(job) = job {
                self.run_jobs(vec![job]).await;
            }
        }
        Ok(())
    }

    /// Has one path below, whatever becomes dirty within it meanwhile.
    async fn drain_one(&self, path: &Path) -> Result<()> {
        let is_dirty = self.lock().dirty.contains(path);
        if is_dirty { self.drain_itself(path).await } else { Ok(()) }
    }
}

impl Table {
    /// The mode that a directory is to get below, if that can be now: its owner may do everything in
    /// it with this one, and commit the rest.
    fn take_late_mode(&mut self, dir: Ino) -> Option<u32> {
        let node = self.nodes.get_mut(&dir).filter(|node| !node.fresh)?;
        let mode = node.attr.mode & MODE_BITS;
        let directory = node.directory_mut().filter(|_| mode & 0o700 == 0o700)?;
        mem::take(&mut directory.mode_late).then_some(mode)
    }

    fn mode_is_late(&mut self, dir: Ino) {
        let Some(node) = self.nodes.get_mut(&dir).filter(|node| node.path.is_some()) else {
            return;
        };
        if let Some(directory) = node.directory_mut() {
            directory.mode_late = true;
            self.set_late(dir);
        }
    }
}

/// The names of the directories above a path are stable.
fn sync_above(below: &dyn crate::Below, path: Option<&Path>) -> Result<(), FsError> {
    let mut at = path.and_then(Path::split);
    while let Some((dir, _)) = at {
        match below.sync_dir(&dir) {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        at = dir.split();
    }
    Ok(())
}
