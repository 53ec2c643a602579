//! Where backups are, and the names of objects there.
//!
//! ```text
//! PREFIX/UUID/HISTORY/objects/ID      a file, sealed; ID is random
//! PREFIX/UUID/HISTORY/bases/NUMBER    a manifest, sealed; NUMBER has 16 hex digits
//! PREFIX/UUID/HISTORY/journal/NUMBER  a segment of the journal, sealed: see the crate `journal`
//! ```
//!
//! A history belongs to one data directory. A restored copy has another one, so neither touches
//! what the other has stored.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _, path::Path};
use store::{BlocksConfig, BlocksError};

use crate::{Error, Key, Manifest, Result, seal::Opener};

/// A place in an object store that has backups, of one file system or several.
#[derive(Clone)]
pub struct Place {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Empty, or ends in `/`.
    prefix: Arc<str>,
    /// The local directory, if the place is one.
    directory: Option<PathBuf>,
}

/// An object as it is listed.
pub struct Listed {
    /// Length of the object.
    pub bytes: u64,
    /// Seconds since the Unix epoch, by the store's clock.
    pub modified: i64,
}

impl Place {
    /// Opens `file:///DIR` or `s3://BUCKET/PREFIX?option=value`, with the variables of the process
    /// that have credentials. No request is sent, and no directory is made.
    ///
    /// # Errors
    /// When the URL names no such place; [`Error::NoDirectory`] for a directory that is not there,
    /// as one that is not mounted.
    pub fn open(url: &str, environment: Vec<(String, String)>) -> Result<Place> {
        let directory = directory_of(url);
        if let Some(directory) = &directory {
            must_be_there(directory)?;
        }
        let config = BlocksConfig { environment, ..BlocksConfig::new(url) };
        let (objects, prefix) = config.objects().map_err(refused)?;
        Ok(Place { directory, ..Place::over(objects, &prefix) })
    }

    /// The same as [`Place::open`], for a caller that must know of each request whether it failed: no request
    /// is repeated, and each ends after so long.
    ///
    /// # Errors
    /// The same as [`Place::open`].
    pub fn open_once(
        url: &str,
        environment: Vec<(String, String)>,
        timeout: Duration,
    ) -> Result<Place> {
        let directory = directory_of(url);
        if let Some(directory) = &directory {
            must_be_there(directory)?;
        }
        let config = BlocksConfig { environment, ..BlocksConfig::new(url) };
        let (objects, prefix) = config.objects_once(timeout).map_err(refused)?;
        Ok(Place { directory, ..Place::over(objects, &prefix) })
    }

    /// Opens a place that is used for the first time: a directory is made when it is missing.
    ///
    /// # Errors
    /// The same as [`Place::open`], and when the directory cannot be made.
    pub fn begin(url: &str, environment: Vec<(String, String)>) -> Result<Place> {
        if let Some(directory) = directory_of(url).filter(|directory| !directory.is_dir()) {
            fs::create_dir_all(&directory)
                .and_then(|()| store::stable::sync_above(&directory))
                .map_err(Error::local(&directory))?;
        }
        Place::open(url, environment)
    }

    /// A place in any store, below a prefix that is empty or ends in `/`.
    #[must_use]
    pub fn over(objects: Arc<dyn ObjectStore>, prefix: &str) -> Place {
        Place { objects, prefix: prefix.into(), directory: None }
    }

    /// The store.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// The path of an object, whose name is relative to the prefix.
    #[must_use]
    pub fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    /// Whether the place is a local directory, which may be one of another machine that is mounted.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// Looks whether a directory is still there. A put would make it beneath its mount point.
    ///
    /// # Errors
    /// [`Error::NoDirectory`].
    pub fn is_there(&self) -> Result<()> {
        self.directory.as_deref().map_or(Ok(()), must_be_there)
    }

    /// The objects directly below a folder, by the last part of their names.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self, folder: &str) -> Result<BTreeMap<String, Listed>> {
        let path = self.path(folder);
        let found: Vec<_> =
            self.objects.list(Some(&path)).try_collect().await.map_err(Error::Store)?;
        let listed = found.into_iter().filter_map(|object| {
            let mut below = object.location.prefix_match(&path)?;
            let name = below.next().filter(|_| below.next().is_none())?.as_ref().to_owned();
            let modified = object.last_modified.timestamp();
            Some((name, Listed { bytes: object.size, modified }))
        });
        Ok(listed.collect())
    }

    /// Names of the folders directly below one.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.path(folder);
        let below = Some(&path).filter(|path| !path.as_ref().is_empty());
        let found = self.objects.list_with_delimiter(below).await?;
        let names = found.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(names.map(str::to_owned).collect())
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`Error::Missing`], or what the store says.
    pub async fn get(&self, name: &str) -> Result<Bytes> {
        match self.objects.get(&self.path(name)).await {
            Ok(found) => Ok(found.bytes().await?),
            Err(object_store::Error::NotFound { .. }) => Err(Error::Missing(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes an object. An object that is not there is no error.
    ///
    /// # Errors
    /// When the store fails: the object may be deleted or not.
    pub async fn delete(&self, name: &str) -> Result<()> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the manifest of a base.
    ///
    /// # Errors
    /// When the store fails, or the manifest is missing, damaged, or that of another history.
    pub async fn manifest(&self, of: &Names, number: u64, key: &Key) -> Result<Manifest> {
        let name = of.base(number);
        let bytes = Opener::open_all(key, &name, &self.get(&name).await?)?;
        let manifest = Manifest::read(&name, number, &bytes)?;
        if manifest.uuid != of.uuid || manifest.history != of.history {
            let reason = "it is that of another history".to_owned();
            return Err(Error::Manifest { name, reason });
        }
        Ok(manifest)
    }

    /// Numbers of the bases of a history, ascending.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn numbers(&self, of: &Names) -> Result<Vec<u64>> {
        let listed = self.list(&of.bases()).await?;
        let number = |name: &String| {
            let number = u64::from_str_radix(name, 16).ok();
            number.filter(|number| format!("{number:016x}") == *name)
        };
        Ok(listed.keys().filter_map(number).collect())
    }
}

/// The directory that a URL names, if any.
fn directory_of(url: &str) -> Option<PathBuf> {
    url.strip_prefix("file://").map(PathBuf::from)
}

fn must_be_there(directory: &std::path::Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    Err(Error::NoDirectory(directory.display().to_string()))
}

/// Names of the objects of one history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub(crate) uuid: String,
    pub(crate) history: String,
}

impl Names {
    /// Names below the file system `uuid` and one of its histories.
    #[must_use]
    pub fn new(uuid: u128, history: u64) -> Names {
        Names { uuid: format!("{uuid:032x}"), history: format!("{history:016x}") }
    }

    fn folder(&self) -> String {
        format!("{}/{}", self.uuid, self.history)
    }

    /// The folder of manifests.
    #[must_use]
    pub fn bases(&self) -> String {
        format!("{}/bases", self.folder())
    }

    /// The manifest of the base with this number.
    #[must_use]
    pub fn base(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.bases())
    }

    /// The folder of objects that manifests name.
    #[must_use]
    pub fn objects(&self) -> String {
        format!("{}/objects", self.folder())
    }

    /// The object with this id.
    #[must_use]
    pub fn object(&self, id: &str) -> String {
        format!("{}/{id}", self.objects())
    }

    /// The folder of the journal's segments.
    #[must_use]
    pub fn journal(&self) -> String {
        format!("{}/journal", self.folder())
    }

    /// The segment with this number, from 1.
    #[must_use]
    pub fn segment(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.journal())
    }
}

fn refused(error: BlocksError) -> Error {
    match error {
        BlocksError::Config { reason, .. } => Error::Url(reason),
        error => Error::Url(base::error::describe(&error)),
    }
}
