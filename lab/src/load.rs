//! Load on a directory of any file system: plain system calls, none of which may fail, and a check
//! that everything is there.
//!
//! `lab load DIR` runs it, for the crash tests on a mount.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};

use crate::sim::random::SimRandom;

const FILES_MAX: usize = 40;

/// The files of a directory.
struct Load {
    dir: PathBuf,
    random: SimRandom,
    files: BTreeMap<u64, Vec<u8>>,
    made: u64,
}

/// Makes the directory `dir`, works in it until `over` says so, then checks it. Returns the number
/// of operations.
///
/// # Errors
/// When a system call fails, or contents differ from what was written.
pub fn run(dir: &Path, over: impl Fn() -> bool) -> anyhow::Result<u64> {
    fs::create_dir(dir)?;
    let random = SimRandom::new(7);
    let mut load = Load { dir: dir.to_owned(), random, files: BTreeMap::new(), made: 0 };
    let mut operations = 0;
    while !over() {
        load.step()?;
        operations += 1;
    }
    load.check()?;
    Ok(operations)
}

impl Load {
    fn step(&mut self) -> anyhow::Result<()> {
        let index = self.random.index(self.files.len().max(1));
        let Some(known) = self.files.keys().nth(index).copied() else { return self.create() };
        let path = self.path(known);
        match self.random.below(6) {
            0 | 1 if self.files.len() < FILES_MAX => self.create()?,
            2 => {
                self.made += 1;
                fs::rename(&path, self.path(self.made)).context("rename")?;
                let bytes = self.files.remove(&known).context("it is known")?;
                self.files.insert(self.made, bytes);
            }
            3 => {
                // A file that is removed while open can still be read.
                let mut file = fs::File::open(&path).context("open")?;
                fs::remove_file(&path).context("unlink")?;
                let mut found = Vec::new();
                file.read_to_end(&mut found).context("read without a name")?;
                ensure!(Some(found) == self.files.remove(&known), "{known} has other contents");
            }
            4 => {
                let bytes = self.random.bytes(700);
                let mut file = fs::OpenOptions::new().append(true).open(&path).context("open")?;
                file.write_all(&bytes).context("append")?;
                self.files.get_mut(&known).context("it is known")?.extend_from_slice(&bytes);
            }
            _ => self.compare(known)?,
        }
        Ok(())
    }

    fn create(&mut self) -> anyhow::Result<()> {
        self.made += 1;
        let len = self.random.pick(&[0, 500, 30_000]);
        let bytes = self.random.bytes(len);
        let mut file = fs::File::create_new(self.path(self.made)).context("create")?;
        file.write_all(&bytes).context("write")?;
        if self.random.one_in(5) {
            file.sync_all().context("fsync")?;
        }
        self.files.insert(self.made, bytes);
        Ok(())
    }

    fn compare(&self, name: u64) -> anyhow::Result<()> {
        let found = fs::read(self.path(name)).context("read")?;
        ensure!(Some(&found) == self.files.get(&name), "{name} has other contents");
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        let there = fs::read_dir(&self.dir)?.count();
        ensure!(there == self.files.len(), "{there} files, not {}", self.files.len());
        self.files.keys().try_for_each(|name| self.compare(*name))
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(name.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_on_the_local_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let steps = std::cell::Cell::new(0);
        let over = || steps.replace(steps.get() + 1) == 500;
        assert_eq!(run(&folder.path().join("work"), over).unwrap(), 500);
    }
}
