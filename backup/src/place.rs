//! Where backups are, and the names of objects there.
//!
//! ```text
//! PREFIX/UUID/HISTORY/objects/ID      a file, sealed; ID is random
//! PREFIX/UUID/HISTORY/bases/NUMBER    a manifest, sealed; NUMBER has 16 hex digits
//! ```
//!
//! A history belongs to one data directory. A restored copy has another one, so neither touches
//! what the other has stored.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

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
pub(crate) struct Listed {
    /// Length of the object.
    pub(crate) bytes: u64,
    /// Seconds since the Unix epoch, by the store's clock.
    pub(crate) modified: i64,
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
        let (objects, prefix) = config.objects().map_err(|error| match error {
            BlocksError::Config { reason, .. } => Error::Url(reason),
            error => Error::Url(base::error::describe(&error)),
        })?;
        Ok(Place { directory, ..Place::over(objects, &prefix) })
    }

    /// Opens a place that is used for the first time: a directory is made when it is missing.
    ///
    /// # Errors
    /// As [`Place::open`], and when the directory cannot be made.
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

    /// The path of an object, whose name is relative to the prefix.
    pub(crate) fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    /// Looks whether a directory is still there. A put would make it beneath its mount point.
    pub(crate) fn is_there(&self) -> Result<()> {
        self.directory.as_deref().map_or(Ok(()), must_be_there)
    }

    /// The objects directly below a folder, by the last part of their names.
    pub(crate) async fn list(&self, folder: &str) -> Result<BTreeMap<String, Listed>> {
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

    pub(crate) async fn get(&self, name: &str) -> Result<Bytes> {
        match self.objects.get(&self.path(name)).await {
            Ok(found) => Ok(found.bytes().await?),
            Err(object_store::Error::NotFound { .. }) => Err(Error::Missing(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes an object. An object that is not there is no error.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn manifest(&self, of: &Names, number: u64, key: &Key) -> Result<Manifest> {
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
    pub(crate) async fn numbers(&self, of: &Names) -> Result<Vec<u64>> {
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
pub(crate) struct Names {
    pub(crate) uuid: String,
    pub(crate) history: String,
}

impl Names {
    pub(crate) fn new(uuid: u128, history: u64) -> Names {
        Names { uuid: format!("{uuid:032x}"), history: format!("{history:016x}") }
    }

    fn folder(&self) -> String {
        format!("{}/{}", self.uuid, self.history)
    }

    pub(crate) fn bases(&self) -> String {
        format!("{}/bases", self.folder())
    }

    pub(crate) fn base(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.bases())
    }

    pub(crate) fn objects(&self) -> String {
        format!("{}/objects", self.folder())
    }

    pub(crate) fn object(&self, id: &str) -> String {
        format!("{}/{id}", self.objects())
    }
}
