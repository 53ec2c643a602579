//! Where blocks are, in words: an address and options.

use std::{
    collections::BTreeMap,
    fs,
    path::{self, Path},
    sync::Arc,
};

use object_store::local::LocalFileSystem;

use super::{Blocks, BlocksError, Folders, folders::sync_folder};

/// The address of a block store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlocksConfig {
    /// `file:///absolute/directory` (taken as it stands, without `%` escapes).
    pub url: String,
    /// Options of an S3 store.
    pub options: BTreeMap<String, String>,
}

impl BlocksConfig {
    /// An address without options.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), options: BTreeMap::new() }
    }

    pub(super) fn open(&self) -> Result<Blocks, BlocksError> {
        match self.url.split_once("://") {
            Some(("file", path)) => open_directory(Path::new(path)),
            Some((scheme, _)) => Err(self.refused(format!("no store is called {scheme}"))),
            None => Err(self.refused("it has no scheme".to_owned())),
        }
    }

    fn refused(&self, reason: String) -> BlocksError {
        BlocksError::Config { url: self.url.clone(), reason }
    }
}

/// Opens a local directory, making it when it is missing.
pub(super) fn open_directory(path: &Path) -> Result<Blocks, BlocksError> {
    let path = path::absolute(path)?;
    if !path.try_exists()? {
        fs::create_dir(&path)?;
        sync_folder(path.parent().unwrap_or(&path))?;
    }
    let objects = LocalFileSystem::new_with_prefix(&path).map_err(BlocksError::Store)?;
    Ok(Blocks {
        // Without `with_fsync` a put is answered while the block is in the page cache only.
        objects: Arc::new(objects.with_fsync(true)),
        prefix: "".into(),
        folders: Some(Arc::new(Folders::new(&path))),
    })
}
