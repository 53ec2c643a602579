//! The mark of a volume: an extended attribute of its directory that only root can set or see.
//!
//! Persisted: JSON. Fields are only added.

use bytes::Bytes;
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
        let bytes = Mark::bytes(fs, dir).await?;
        bytes.map(|bytes| Mark::parse(&bytes)).transpose()
    }

    /// Whether a directory has a mark, also one that cannot be read.
    pub(crate) async fn is_at(fs: &Fs, dir: &DirRef) -> Answer<bool> {
        Ok(Mark::bytes(fs, dir).await?.is_some())
    }

    /// The mark of a directory as it is stored.
    pub(crate) async fn bytes(fs: &Fs, dir: &DirRef) -> Answer<Option<Bytes>> {
        let bytes = fs.xattr(dir, XATTR).await;
        bytes.map_err(|error| status("read the mark of a volume", &error))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Answer<Mark> {
        let mark = serde_json::from_slice(bytes);
        mark.map_err(|_| Status::internal("the mark of the volume cannot be read"))
    }

    pub(crate) async fn write(&self, fs: &Fs, dir: &DirRef) -> Answer<()> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let set = fs.setxattr(dir, XATTR, bytes).await;
        set.map_err(|error| status("mark the volume", &error))
    }
}
