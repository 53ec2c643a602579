//! Requests to all servers together: stable storage, space, and their state.

use std::pin::pin;

use base::Layout;
use futures::future::{Either, join, select, select_ok, try_join_all};
use wire::{DirRef, FileRef, Load, Lookup, NodeRef, Reply, Request, Stand, Statfs, Status};

use crate::{Client, Result, channel::Channel, core::Core, error::unexpected, route::Route};

/// Scope of a sync.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// All that was answered to this client before.
    Everything,
    /// A file, with its name and the writes of all clients; and all else that was answered before,
    /// unless its server is silent.
    File(&'a FileRef),
    /// The names in a directory, as a file's contents.
    Dir(&'a DirRef),
}

impl Core {
    /// Whether a server has a part of a file or directory, or has changed it together with others
    /// and may lose that.
    fn has_part(&self, channel: &Channel, scope: Scope<'_>) -> bool {
        let server = channel.server;
        let of = |route| self.channels.of(route).server == server;
        match scope {
            Scope::Everything => true,
            Scope::File(file) => {
                let mut named = Request::Lookup(Lookup { dir: file.dir, name: file.name.clone() });
                let name = self.divided(file.dir.home, &mut named);
                of(Route::Shard(file.ino.shard())) || of(name) || channel.may_lose_of(&[file.ino])
            }
            Scope::Dir(dir) => {
                let layout = self.layouts.get(dir);
                let mut partitions = layout.iter().flat_map(Layout::active);
                of(Route::Home(dir.home))
                    || partitions.any(|partition| of(Route::Partition(dir.home, partition)))
                    || channel.may_lose_of(&[dir.ino])
            }
        }
    }
}

impl Client {
    /// How many servers the file system has had: their numbers are below. See [`Client::members`].
    #[must_use]
    pub fn servers(&self) -> u16 {
        u16::try_from(self.core.channels.count()).unwrap_or(u16::MAX)
    }

    /// Numbers of the servers that the file system has, ascending.
    #[must_use]
    pub fn members(&self) -> Vec<u16> {
        self.core.channels.members()
    }

    /// Asks the server at a position in the cluster map, whatever it has.
    pub(crate) async fn ask_server(&self, server: u16, request: Request) -> Result<Reply> {
        Ok(self.core.ask(&self.cred, Route::Server(server), request).await?.reply)
    }

    /// Returns when what `scope` says is on stable storage, as far as the servers still have it.
    ///
    /// Servers at which nothing of this client has changed that may be lost are not asked. Of what
    /// is in scope only in that it was answered before, a silent server is not waited for: see
    /// [`Channel::silence`].
    ///
    /// Others may have divided a directory without this client: its partitions are asked meanwhile
    /// who they are.
    pub(crate) async fn make_stable(&self, scope: Scope<'_>) -> Result<()> {
        let stamp = self.core.files.stamp();
        let sync_at = |server| self.sync_at(server, scope, stamp);
        let synced = try_join_all(self.members().into_iter().map(sync_at));
        let Scope::Dir(dir) = scope else { return synced.await.map(drop) };
        if !self.core.channels.are_several() {
            return synced.await.map(drop);
        }
        let has_part = |server: &u16| self.core.has_part(self.core.channels.at(*server), scope);
        let known: Vec<u16> = self.members().into_iter().filter(has_part).collect();
        let dir = NodeRef::Dir(*dir);
        // A directory that is gone has none.
        let (synced, _) =
            join(synced, self.core.attributes_of(&self.cred, &dir, &Stand::NONE)).await;
        synced?;
        let new = self.members().into_iter();
        let new = new.filter(|server| !known.contains(server) && has_part(server));
        try_join_all(new.map(sync_at)).await.map(drop)
    }

    async fn sync_at(&self, server: u16, scope: Scope<'_>, stamp: u64) -> Result<()> {
        let channels = &self.core.channels;
        let channel = channels.at(server);
        let changes = channel.unsynced();
        let (has_part, asks) = match scope {
            Scope::Everything => (changes.is_some(), changes.is_some()),
            Scope::File(_) | Scope::Dir(_) => {
                let has_part = self.core.has_part(channel, scope);
                (has_part, has_part || channel.any_unstable())
            }
        };
        if !asks && channels.are_several() {
            if changes.is_none() {
                channel.is_stable_to(stamp);
            }
            return Ok(());
        }
        // A server that has left has made everything stable.
        let synced = pin!(async {
            match self.ask_server(server, Request::Sync).await {
                Err(_) if channels.has_left(server) => Ok(()),
                answer => answer.map(drop),
            }
        });
        if has_part || !channels.are_several() {
            synced.await?;
        } else {
            match select(synced, pin!(channel.silence())).await {
                Either::Left((answer, _)) => answer?,
                Either::Right(_) => {
                    tracing::debug!(server, "a sync goes on without a server that is silent");
                    return Ok(());
                }
            }
        }
        if let Some(changes) = changes {
            channel.synced(changes);
        }
        channel.is_stable_to(stamp);
        Ok(())
    }

    /// Returns the state of every server, in the order of their numbers. For administrators.
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

    /// Everything that every server counts, in the order of their numbers. For administrators.
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

    /// Space and inodes of all servers; of one that is silent, what it told of last.
    pub(crate) async fn statfs_of_all(&self) -> Result<Statfs> {
        let members = self.members();
        let told = try_join_all(members.iter().map(|server| self.statfs_at(*server))).await?;
        let mut all: Vec<Statfs> = told.into_iter().flatten().collect();
        if all.is_empty() {
            // No server answers, nor ever did: wait for the first one that does.
            let any = members.into_iter().map(|server| Box::pin(self.ask_statfs(server)));
            all.push(select_ok(any).await?.0);
        }
        let sum = |part: fn(&Statfs) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
        Ok(Statfs {
            bytes: sum(|statfs| statfs.bytes),
            bytes_free: sum(|statfs| statfs.bytes_free),
            files: sum(|statfs| statfs.files),
            files_free: sum(|statfs| statfs.files_free),
        })
    }

    /// `None`: the server is silent, and has never told.
    async fn statfs_at(&self, server: u16) -> Result<Option<Statfs>> {
        let asked = self.ask_statfs(server);
        let channel = self.core.channels.at(server);
        if !self.core.channels.are_several() {
            return asked.await.map(Some);
        }
        match select(pin!(asked), pin!(channel.silence())).await {
            Either::Left((Err(_), _)) if self.core.channels.has_left(server) => Ok(None),
            Either::Left((answer, _)) => answer.map(Some),
            Either::Right(_) => Ok(*channel.statfs.lock()),
        }
    }

    async fn ask_statfs(&self, server: u16) -> Result<Statfs> {
        match self.ask_server(server, Request::Statfs).await? {
            Reply::Statfs(statfs) => {
                *self.core.channels.at(server).statfs.lock() = Some(statfs);
                Ok(statfs)
            }
            _ => Err(unexpected()),
        }
    }

    /// Returns what every server answers, in the order of their numbers: all are asked at once.
    async fn ask_all<T>(
        &self,
        request: &Request,
        take: impl Fn(Reply) -> Result<T>,
    ) -> Result<Vec<T>> {
        let take = &take;
        let all = self.members().into_iter().map(|server| async move {
            match self.ask_server(server, request.clone()).await {
                Err(_) if self.core.channels.has_left(server) => Ok(None),
                answer => take(answer?).map(Some),
            }
        });
        Ok(try_join_all(all).await?.into_iter().flatten().collect())
    }
}
