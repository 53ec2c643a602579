//! Where blocks are, in words: an address and options.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{self, Path},
    sync::Arc,
    time::Duration,
};

use object_store::{ObjectStore, local::LocalFileSystem};

use super::{Blocks, BlocksError, Compression, directory::Directory};
use crate::stable::sync_parent;

/// The address of a block store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BlocksConfig {
    /// `file:///absolute/directory`, or `s3://bucket/prefix?option=value&...` (feature `s3`). Both
    /// are taken as they stand, without `%` escapes.
    pub url: String,
    /// Options of an S3 store: `region`, `endpoint`, `allow_http`, `access_key_id`,
    /// `secret_access_key` and the others of `object_store::aws::AmazonS3ConfigKey`. They count
    /// before those of the address. An unknown one is refused.
    pub options: BTreeMap<String, String>,
    /// Variables of the process. Those that S3 knows (`AWS_ACCESS_KEY_ID`, ...) count where there
    /// is no option; all others are passed over.
    pub environment: Vec<(String, String)>,
    /// How new blocks are compressed.
    pub compression: Compression,
}

impl BlocksConfig {
    /// An address alone.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Opens the place that the address names, for objects that are no blocks, and returns it with
    /// the prefix of their names: empty, or with `/` at its end. Puts into a local directory, which
    /// must be there, are stable.
    ///
    /// # Errors
    /// When the address names no store that this program can open.
    pub fn objects(&self) -> Result<(Arc<dyn ObjectStore>, String), BlocksError> {
        self.connect(None)
    }

    /// The same as [`BlocksConfig::objects`], for a caller that must know of each request whether it failed:
    /// the store's client repeats none, and gives each up after so long.
    ///
    /// # Errors
    /// The same as [`BlocksConfig::objects`].
    pub fn objects_once(
        &self,
        timeout: Duration,
    ) -> Result<(Arc<dyn ObjectStore>, String), BlocksError> {
        self.connect(Some(timeout))
    }

    /// `once`: how long a request may take, where none is repeated.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "only S3 has requests"))]
    fn connect(
        &self,
        once: Option<Duration>,
    ) -> Result<(Arc<dyn ObjectStore>, String), BlocksError> {
        match self.url.split_once("://") {
            Some(("file", path)) => {
                let path = path::absolute(Path::new(path))?;
                let objects =
                    LocalFileSystem::new_with_prefix(&path).map_err(BlocksError::Store)?;
                Ok((Arc::new(objects.with_fsync(true)), String::new()))
            }
            #[cfg(feature = "s3")]
            Some(("s3", place)) => {
                let (objects, prefix) = super::s3::connect(self, place, once)?;
                Ok((objects, prefix))
            }
            #[cfg(not(feature = "s3"))]
            Some(("s3", _)) => Err(self.refused("this program is built without s3")),
            Some(_) => Err(self.refused("it is neither file:// nor s3://")),
            None => Err(self.refused("it has no scheme")),
        }
    }

    pub(super) fn open(&self) -> Result<Blocks, BlocksError> {
        Ok(self.open_plain()?.compressing(self.compression))
    }

    fn open_plain(&self) -> Result<Blocks, BlocksError> {
        match self.url.split_once("://") {
            Some(("file", path)) => open_directory(Path::new(path)),
            #[cfg(feature = "s3")]
            Some(("s3", place)) => super::s3::open(self, place),
            #[cfg(not(feature = "s3"))]
            Some(("s3", _)) => Err(self.refused("this program is built without s3")),
            Some(_) => Err(self.refused("it is neither file:// nor s3://")),
            None => Err(self.refused("it has no scheme")),
        }
    }

    pub(super) fn refused(&self, reason: impl Into<String>) -> BlocksError {
        BlocksError::Config { url: self.url.clone(), reason: reason.into() }
    }
}

/// Without values: there are keys among them.
impl fmt::Debug for BlocksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.keys().collect();
        f.debug_struct("BlocksConfig").field("url", &self.url).field("options", &options).finish()
    }
}

/// Opens a local directory, making it when it is missing.
pub(super) fn open_directory(path: &Path) -> Result<Blocks, BlocksError> {
    let path = path::absolute(path)?;
    if !path.try_exists()? {
        fs::create_dir(&path)?;
        sync_parent(&path)?;
    }
    let objects = LocalFileSystem::new_with_prefix(&path).map_err(BlocksError::Store)?;
    // Without `with_fsync`: blocks are synced together.
    let blocks = Blocks::over(Arc::new(objects), "");
    Ok(Blocks { directory: Some(Arc::new(Directory::new(&path)?)), ..blocks })
}
