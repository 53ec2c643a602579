//! Requests of administrators to a cluster's coordinator.

use wire::{ClusterStatus, Join, Joined, Reply, Request};

use crate::{Client, Result, error::unexpected};

impl Client {
    /// The servers of the file system, as their coordinator sees them. For administrators.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer.
    pub async fn cluster(&self) -> Result<ClusterStatus> {
        match self.ask_root(Request::Cluster).await?.reply {
            Reply::Cluster(status) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    /// Asks for a server to be enrolled. For administrators.
    ///
    /// # Errors
    /// Fails as [`Client::cluster`] does; [`Error::Refused`](crate::Error::Refused) when there is
    /// no place for it.
    pub async fn join(&self, join: Join) -> Result<Joined> {
        match self.ask_root(Request::Join(join)).await?.reply {
            Reply::Joined(joined) => Ok(joined),
            _ => Err(unexpected()),
        }
    }
}
