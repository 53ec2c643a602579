//! The end of a region: everything is below, and that is shown.

use std::{path::Path as OsPath, pin::pin, time::Duration};

use base::{FileKind, FsError, attr::MODE_BITS};
use client::{FileSystem as _, Result};
use tokio::time::Instant;

use crate::{
    Path, Region,
    below::Below,
    counts::Counts,
    region::Progress,
    table::{Body, Slot, Table},
};

/// How often somebody who waits for the end is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// The account of a region that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The fates of all changes.
    pub counts: Counts,
    /// Paths that the file system below refuses, and why.
    pub failed: Vec<(Path, FsError)>,
    /// Directories that are below, and whose mode and times could not be set.
    pub late: usize,
}

/// How much is compared with below at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// No path.
    No,
    /// This number of paths, evenly chosen.
    Some(usize),
    /// Everything that the region knows.
    All,
}

/// A path that is not below what it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: Path,
    /// The difference, in words.
    pub what: String,
}

impl Region {
    /// Has everything below and on stable storage, and says what could not be. While commits fail
    /// it waits, for `patience` without a success at most; `told` hears how far it is.
    ///
    /// It takes as long as others change the region meanwhile.
    ///
    /// # Errors
    /// When the file system below cannot make it stable.
    pub async fn finish(
        &self,
        patience: Duration,
        mut told: impl FnMut(&Progress),
    ) -> Result<Report> {
        // Of a closed region everything was answered when the last operation has ended.
        let (is_closed, ended) = {
            let table = self.lock();
            (table.closed, table.ended)
        };
        if is_closed && !ended {
            // Operations that wait for their paths are not answered any more.
            self.hold(&[Path::root()]).await.keep();
            self.lock().ended = true;
            self.passed_over().await;
        }
        let mut last = (Instant::now(), 0);
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let progress = self.progress();
            told(&progress);
            if progress.dirty == 0 && progress.late == 0 {
                break;
            }
            if let Err(error) = self.drain_some().await {
                if last.0.elapsed() > patience {
                    tracing::warn!(%error, "giving up changes that cannot be committed");
                    self.lock().give_up();
                } else {
                    let wait = pin!(tokio::time::sleep(TOLD_EVERY));
                    futures::future::select(changed, wait).await;
                }
            }
            let settled = progress.counts.committed + progress.counts.superseded;
            if settled != last.1 {
                last = (Instant::now(), settled);
            }
        }
        self.sync().await?;
        let table = self.lock();
        let failed = table.failed.iter();
        let failed = failed.map(|path| (path.clone(), table.failure(path))).collect();
        Ok(Report { counts: table.counts, failed, late: table.given_up })
    }

    /// Returns when no operation on a passed file is under way below.
    async fn passed_over(&self) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.lock().passing == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Commits for a while, so that somebody can be told.
    async fn drain_some(&self) -> Result<()> {
        let jobs: Vec<_> = {
            let mut table = self.lock();
            if let Some(trouble) = table.trouble.filter(|trouble| trouble.until > table.now) {
                return Err(trouble.error.into());
            }
            let one_at_a_time = table.trouble.is_some();
            let jobs = std::iter::from_fn(|| table.take_within(&Path::root(), true));
            jobs.take(if one_at_a_time { 1 } else { 64 }).collect()
        };
        if jobs.is_empty() {
            // Workers have them.
            let wait = pin!(tokio::time::sleep(TOLD_EVERY));
            let changed = pin!(self.0.changed.notified());
            futures::future::select(changed, wait).await;
            return Ok(());
        }
        self.run_jobs(jobs).await;
        Ok(())
    }

    /// Compares what the region knows with what is below.
    ///
    /// # Errors
    /// When below cannot be read.
    pub async fn verify(&self, verify: Verify) -> Result<Vec<Difference>> {
        let expected: Vec<(Path, Expected)> = {
            let table = self.lock();
            let mut all: Vec<_> = table
                .entries
                .iter()
                .filter_map(|(path, entry)| {
                    let expected = table.expected(entry.slot);
                    (!table.failed.contains(path)).then_some((path.clone(), expected))
                })
                .collect();
            all.sort_by(|(one, _), (other, _)| one.cmp(other));
            let step = match verify {
                Verify::No => return Ok(Vec::new()),
                Verify::Some(count) => all.len().div_ceil(count.max(1)).max(1),
                Verify::All => 1,
            };
            all.into_iter().step_by(step).collect()
        };
        let differences = self
            .call(move |below| {
                let compare = |(path, expected): (Path, Expected)| {
                    let what = expected.differs(below, &path);
                    what.map(|what| what.map(|what| Difference { path, what })).transpose()
                };
                expected.into_iter().filter_map(compare).collect::<Result<Vec<_>, FsError>>()
            })
            .await?;
        Ok(differences)
    }

    /// Writes the contents of files that could not be committed to a directory outside the region,
    /// for their owner only; how many there were. Nothing is overwritten.
    ///
    /// # Errors
    /// When they cannot be written there either.
    pub fn spill(&self, to: &OsPath) -> std::io::Result<usize> {
        use std::{
            io::Write as _,
            os::unix::{
                ffi::OsStrExt as _,
                fs::{DirBuilderExt as _, OpenOptionsExt as _},
            },
        };

        let files: Vec<_> = {
            let table = self.lock();
            let inline = |path: &Path| match table
                .entries
                .get(path)
                .and_then(|entry| table.node_of(entry))
            {
                Some(node) => match &node.body {
                    Body::Inline(contents) => Some((path.clone(), std::sync::Arc::clone(contents))),
                    _ => None,
                },
                None => None,
            };
            table.failed.iter().filter_map(inline).collect()
        };
        for (path, contents) in &files {
            let file = to.join(std::ffi::OsStr::from_bytes(path.as_bytes()));
            // The files may have been for their owner only.
            if let Some(above) = file.parent() {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
            }
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
            file.write_all(contents)?;
        }
        Ok(files.len())
    }
}

/// The right state of a path below.
enum Expected {
    Nothing,
    Node {
        attr: base::Attr,
        contents: Option<std::sync::Arc<Vec<u8>>>,
        target: Option<bytes::Bytes>,
        /// Whether the time was told newer than below has it.
        ahead: bool,
    },
}

impl Expected {
    fn differs(
        &self,
        below: &dyn Below,
        path: &Path,
    ) -> std::result::Result<Option<String>, FsError> {
        let found = below.look(path)?;
        let (attr, contents, target, ahead) = match (self, &found) {
            (Expected::Nothing, None) => return Ok(None),
            (Expected::Nothing, Some(_)) => return Ok(Some("is there, and should not be".into())),
            (Expected::Node { .. }, None) => return Ok(Some("is not there".into())),
            (Expected::Node { attr, contents, target, ahead }, Some(_)) => {
                (attr, contents, target, *ahead)
            }
        };
        let found = found.expect("told apart above").attr;
        let is_link = attr.kind == FileKind::Symlink;
        let pairs = [
            ("kind", attr.kind == found.kind),
            ("mode", is_link || attr.mode & MODE_BITS == found.mode & MODE_BITS),
            ("owner", (attr.uid, attr.gid) == (found.uid, found.gid)),
            ("size", attr.kind == FileKind::Directory || attr.size == found.size),
            ("time of the last change", is_link || ahead || attr.mtime == found.mtime),
        ];
        if let Some((what, _)) = pairs.iter().find(|(_, same)| !same) {
            return Ok(Some(format!("has another {what}")));
        }
        if let Some(contents) = contents
            && below.read(path, contents.len() + 1)? != **contents
        {
            return Ok(Some("has other contents".into()));
        }
        if let Some(target) = target
            && below.target(path)? != *target
        {
            return Ok(Some("has another target".into()));
        }
        Ok(None)
    }
}

impl Table {
    fn expected(&self, slot: Slot) -> Expected {
        let Slot::Node(ino) = slot else { return Expected::Nothing };
        let node = self.node(ino);
        let (contents, target) = match &node.body {
            Body::Inline(contents) => (Some(std::sync::Arc::clone(contents)), None),
            Body::Symlink(target) => (None, Some(target.clone())),
            Body::Directory(_) | Body::Unread | Body::Passed(_) | Body::Special => (None, None),
        };
        Expected::Node { attr: node.attr, contents, target, ahead: node.ahead }
    }

    fn failure(&self, path: &Path) -> FsError {
        let node = self.entries.get(path).and_then(|entry| self.node_of(entry));
        node.and_then(|node| node.failed).unwrap_or(FsError::Denied)
    }
}
