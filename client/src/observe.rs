//! Statistics that administrators ask of servers: where time goes, which files are open, which
//! sessions there are.
//!
//! Each server reports only its own. For all of them, ask each one, from 0 to [`Client::servers`].

use base::{Ino, SessionId};
use wire::{
    AccountUse, Accounts, Evict, Load, LockPage, LocksQuery, OpenPage, OpensQuery, Reply, Request,
    SessionDetail, SlowLog, SlowQuery,
};

use crate::{Client, Result, error::unexpected};

impl Client {
    /// Everything that the server counts. For administrators, as all of these.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer.
    pub async fn server_load(&self) -> Result<Load> {
        match self.ask_root(Request::Load).await?.reply {
            Reply::Load(load) => Ok(load),
            _ => Err(unexpected()),
        }
    }

    /// Everything that `server` counts, by its position in the cluster map. It waits for a server
    /// that is not there, as all that name one.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn load_of(&self, server: u16) -> Result<Load> {
        match self.ask_server(server, Request::Load).await? {
            Reply::Load(load) => Ok(load),
            _ => Err(unexpected()),
        }
    }

    /// Operations that took long at `server`, of those after number `after`; from now on those of
    /// `threshold_us` microseconds are kept, if it is given.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn slow(
        &self,
        server: u16,
        threshold_us: Option<u64>,
        after: u64,
    ) -> Result<SlowLog> {
        let query = SlowQuery { threshold_us, after };
        match self.ask_server(server, Request::Slow(query)).await? {
            Reply::Slow(log) => Ok(log),
            _ => Err(unexpected()),
        }
    }

    /// Returns the sessions of `server`, by its position in the cluster map. Waits for a server
    /// that is not up, as all of these do.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn sessions(&self, server: u16) -> Result<Vec<SessionDetail>> {
        match self.ask_server(server, Request::Sessions).await? {
            Reply::Sessions(sessions) => Ok(sessions),
            _ => Err(unexpected()),
        }
    }

    /// The use that `server` has charged to accounts, see [`base::Account`]: to all of them where the
    /// token is an administrator's, otherwise to this client's user and groups. The use of an
    /// account is the sum over all servers.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn accounts(&self, server: u16) -> Result<Vec<AccountUse>> {
        let mut all: Vec<AccountUse> = Vec::new();
        loop {
            let after = all.last().map_or(Ino(0), |last| last.account);
            let request = Request::Accounts(Accounts { after });
            let Reply::Accounts(page) = self.ask_server(server, request).await? else {
                return Err(unexpected());
            };
            // This comes to an end with any server.
            if page.first().is_none_or(|first| first.account <= after) {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// About `max` files that are open at `server` after inode `after`, of all sessions or one.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn opens(
        &self,
        server: u16,
        after: Ino,
        session: Option<SessionId>,
        max: u32,
    ) -> Result<OpenPage> {
        let query = OpensQuery { after, session, max };
        match self.ask_server(server, Request::Opens(query)).await? {
            Reply::Opens(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    /// Locks that are held or waited for at `server`.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn locks(&self, server: u16, query: LocksQuery) -> Result<LockPage> {
        match self.ask_server(server, Request::Locks(query)).await? {
            Reply::Locks(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    /// Ends a session at `server`: what it had open there is closed.
    ///
    /// # Errors
    /// `NotFound` when there is no such session; else as [`Client::server_load`].
    pub async fn evict(&self, server: u16, session: SessionId) -> Result<()> {
        self.ask_server(server, Request::Evict(Evict { session })).await.map(|_| ())
    }
}
