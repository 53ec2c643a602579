//! What is asked of all servers together: stable storage, space, and what they do.

use base::Ino;
use futures::future::try_join_all;
use wire::{Load, Reply, Request, Statfs, Status};

use crate::{Client, Result, client::unexpected, route::Route};

impl Client {
    /// How many servers the file system has.
    #[must_use]
    pub fn servers(&self) -> u16 {
        u16::try_from(self.core.channels.count()).unwrap_or(u16::MAX)
    }

    /// What a server answers, by its position in the cluster map, whatever it has.
    pub(crate) async fn ask_server(&self, server: u16, request: Request) -> Result<Reply> {
        Ok(self.core.ask(&self.cred, Route::Server(server), request).await?.reply)
    }

    /// Returns when all that was answered before is on stable storage, as far as the servers still have it, and what others
    /// have written to `file`. Servers at which nothing of this client has changed since the last time are not asked.
    pub(crate) async fn make_stable(&self, file: Option<Ino>) -> Result<()> {
        let stamp = self.core.files.stamp();
        let channels = &self.core.channels;
        let file = file.map(|ino| channels.server_of(ino));
        let alone = !channels.are_several();
        let asked = (0..self.servers()).filter_map(|server| {
            let changes = channels.at(server).unsynced();
            let wanted = alone || changes.is_some() || file == Some(server);
            wanted.then(|| self.sync_at(server, changes))
        });
        try_join_all(asked).await?;
        self.core.files.synced(stamp);
        Ok(())
    }

    async fn sync_at(&self, server: u16, changes: Option<u64>) -> Result<()> {
        self.ask_server(server, Request::Sync).await?;
        if let Some(changes) = changes {
            self.core.channels.at(server).synced(changes);
        }
        Ok(())
    }

    /// What every server is doing, in the order of the cluster map. For administrators.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer.
    pub async fn statuses(&self) -> Result<Vec<Status>> {
        let status = |reply| match reply {
            Reply::Status(status) => Ok(status),
            _ => Err(unexpected()),
        };
        self.ask_all(&Request::Status, status).await
    }

    /// Everything that every server counts, in the order of the cluster map. For administrators.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer.
    pub async fn loads(&self) -> Result<Vec<Load>> {
        let load = |reply| match reply {
            Reply::Load(load) => Ok(load),
            _ => Err(unexpected()),
        };
        self.ask_all(&Request::Load, load).await
    }

    /// Space and inodes of all servers.
    pub(crate) async fn statfs_of_all(&self) -> Result<Statfs> {
        let statfs = |reply| match reply {
            Reply::Statfs(statfs) => Ok(statfs),
            _ => Err(unexpected()),
        };
        let all = self.ask_all(&Request::Statfs, statfs).await?;
        let sum = |part: fn(&Statfs) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
        Ok(Statfs {
            bytes: sum(|statfs| statfs.bytes),
            bytes_free: sum(|statfs| statfs.bytes_free),
            files: sum(|statfs| statfs.files),
            files_free: sum(|statfs| statfs.files_free),
        })
    }

    /// What every server answers, in the order of the cluster map: all are asked at once.
    async fn ask_all<T>(
        &self,
        request: &Request,
        take: impl Fn(Reply) -> Result<T>,
    ) -> Result<Vec<T>> {
        let take = &take;
        let all = (0..self.servers())
            .map(|server| async move { take(self.ask_server(server, request.clone()).await?) });
        try_join_all(all).await
    }
}
