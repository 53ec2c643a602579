//! How a file system of one server becomes the first server of a cluster, which others can join.
//!
//! The metadata say it first, then `pando.json`. A directory in which only the metadata say it, as
//! power was lost between the two, is served with `--coordinator`, which ends what was begun.

use std::path::Path;

use anyhow::{Context as _, bail};
use store::RocksConfig;

use super::{ABOUT, DataDir, Kept, replace, version_of};
use crate::system::SystemRandom;

impl DataDir {
    /// Makes the only server of the file system in `path`, which is to keep this, the coordinator of a
    /// cluster.
    pub(crate) fn found_cluster(path: &Path, kept: &Kept) -> anyhow::Result<()> {
        if kept.backup.as_ref().is_some_and(|kept| !kept.journal) {
            bail!(
                "{} is backed up without a journal, as only a file system of one server can be: end \
                 that with `--backup off`, or keep a --journal",
                path.display()
            );
        }
        let mut data = DataDir::open(path)?;
        let engine = data.engine(&data.blocks()?, &RocksConfig::default())?;
        meta::found_cluster(&engine, &SystemRandom::default())?;
        data.about.server = Some(0);
        data.about.version = version_of(data.about.server);
        replace(path, ABOUT, data.about.to_text()?.as_bytes())
            .with_context(|| format!("cannot write {}", path.join(ABOUT).display()))?;
        tracing::warn!("{} is the coordinator of a cluster now", path.display());
        Ok(())
    }
}
