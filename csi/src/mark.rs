//! The mark of a volume: an extended attribute of its directory that only root can set or see.
//!
//! Persisted: JSON. Fields are only added.

use serde::{Deserialize, Serialize};
use tonic::Status;
use wire::DirRef;

use crate::{
    error::{Answer, status},
    fs::Fs,
};

const XATTR: &str = "trusted.pando.csi";

/// A note of the plugin at a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The name by which the volume was asked for.
    pub(crate) name: String,
    /// Whether the volume was made to the end.
    pub(crate) ready: bool,
}

impl Mark {
    /// The mark of a directory, if it is a volume.
    pub(crate) async fn read(fs: &Fs, dir: &DirRef) -> Answer<Option<Mark>> {
        let bytes = fs.xattr(dir, XATTR).await;
        let Some(bytes) = bytes.map_err(|error| status("read the mark of a volume", &error))?
        else {
            return Ok(None);
        };
        let mark = serde_json::from_slice(&bytes);
        mark.map(Some).map_err(|_| Status::internal("the mark of the volume cannot be read"))
    }

    pub(crate) async fn write(&self, fs: &Fs, dir: &DirRef) -> Answer<()> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let set = fs.setxattr(dir, XATTR, bytes).await;
        set.map_err(|error| status("mark the volume", &error))
    }
}
