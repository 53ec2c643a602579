//! A job: a region over a file system that takes its time, with a directory for each client.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use base::{Cred, EntryName, FileKind, HashKey};
use client::{FileSystem as _, New, SystemClock};
use region::{Calls, Memory, Region, Settings, Verify};
use tokio::runtime::Runtime;
use wire::{DirRef, NodeRef};

use super::slowed::{Queue, Slowed};

/// Tasks that commit at the same time, as in `pando region run`.
const WORKERS: usize = 4;

/// Paths that are compared at the end.
const COMPARED: usize = 100;

/// Threads of the runtime that commits.
const THREADS: usize = 2;

pub(super) struct Job {
    runtime: Runtime,
    region: Region,
    dirs: Vec<DirRef>,
}

impl Job {
    /// Begins a region over a file system of its own, whose calls wait for `queue`.
    pub(super) fn begin(queue: &Arc<Queue>, clients: usize) -> anyhow::Result<Job> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(THREADS).enable_all().build()?;
        let clock = Arc::new(SystemClock);
        let below = Slowed::new(Memory::new(clock.clone()), queue.clone());
        let (settings, key) = (Settings::default(), HashKey::new(1, 2));
        let region = Region::new(Arc::new(below), Calls::OnThreads, settings, clock, key)?;
        for _ in 0..WORKERS {
            runtime.spawn(region.clone().work());
        }
        let mut job = Job { runtime, region, dirs: vec![DirRef::ROOT] };
        let dirs = (0..clients).map(|client| job.mkdir(0, &format!("client{client}")));
        job.dirs = dirs.collect::<anyhow::Result<_>>()?;
        Ok(job)
    }

    /// The region, and the directories of the clients.
    pub(super) fn parts(&self) -> (&Region, &[DirRef]) {
        (&self.region, &self.dirs)
    }

    fn dir(&self, client: usize) -> &DirRef {
        &self.dirs[client]
    }

    pub(super) fn mkdir(&self, client: usize, name: &str) -> anyhow::Result<DirRef> {
        let (name, dir) = (name_of(name)?, self.dir(client));
        let made = self.runtime.block_on(self.region.mkdir(&Cred::ROOT, dir, &name, 0o755))?;
        made.dir.context("a directory was made")
    }

    pub(super) fn create(&self, client: usize, name: &str) -> anyhow::Result<()> {
        let (name, dir) = (name_of(name)?, self.dir(client));
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        self.runtime.block_on(async {
            self.region.create(&Cred::ROOT, dir, &name, new, true, false).await?;
            anyhow::Ok(())
        })
    }

    pub(super) fn stat(&self, client: usize, name: &str) -> anyhow::Result<()> {
        let (name, dir) = (name_of(name)?, self.dir(client));
        self.runtime.block_on(async {
            let found = self.region.lookup(&Cred::ROOT, dir, &name).await?;
            let file = NodeRef::File(wire::FileRef { dir: *dir, name, ino: found.attr.ino });
            self.region.getattr(&Cred::ROOT, &file).await?;
            anyhow::Ok(())
        })
    }

    /// Has everything below, and compares a part of it: each look takes its time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let report = self.runtime.block_on(self.region.finish(Duration::from_secs(60), |_| ()))?;
        ensure!(report.failed.is_empty() && report.counts.add_up(), "{report:?}");
        let differences = self.runtime.block_on(self.region.verify(Verify::Some(COMPARED)))?;
        ensure!(differences.is_empty(), "{differences:?}");
        Ok(())
    }
}

pub(super) fn name_of(text: &str) -> anyhow::Result<EntryName> {
    Ok(EntryName::new(text.as_bytes())?)
}
