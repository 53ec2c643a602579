//! A folder for the length of a benchmark.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::system;

/// Temporary folder, which is removed with its contents when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes one in `parent`, or where temporary files go.
    pub(crate) fn make(parent: Option<&Path>) -> anyhow::Result<Folder> {
        let unique = u64::from_le_bytes(system::secret());
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = std::path::absolute(parent.join(format!("pando-bench.{unique:016x}")))?;
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "a folder is left");
        }
    }
}
