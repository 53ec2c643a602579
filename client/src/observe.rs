//! What administrators ask of a server: where time goes, what is open, who is there.

use base::{Ino, SessionId};
use wire::{
    Evict, Load, LockPage, LocksQuery, OpenPage, OpensQuery, Reply, Request, SessionDetail,
    SlowLog, SlowQuery,
};

use crate::{Client, Result, client::unexpected};

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

    /// Operations that took long, of those after number `after`; from now on those of `threshold_us`
    /// microseconds are kept, if it is given.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn slow(&self, threshold_us: Option<u64>, after: u64) -> Result<SlowLog> {
        match self.ask_root(Request::Slow(SlowQuery { threshold_us, after })).await?.reply {
            Reply::Slow(log) => Ok(log),
            _ => Err(unexpected()),
        }
    }

    /// Who is there.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn sessions(&self) -> Result<Vec<SessionDetail>> {
        match self.ask_root(Request::Sessions).await?.reply {
            Reply::Sessions(sessions) => Ok(sessions),
            _ => Err(unexpected()),
        }
    }

    /// About `max` open files after inode `after`, of all sessions or one.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn opens(
        &self,
        after: Ino,
        session: Option<SessionId>,
        max: u32,
    ) -> Result<OpenPage> {
        match self.ask_root(Request::Opens(OpensQuery { after, session, max })).await?.reply {
            Reply::Opens(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    /// Locks that are held or waited for.
    ///
    /// # Errors
    /// As [`Client::server_load`].
    pub async fn locks(&self, query: LocksQuery) -> Result<LockPage> {
        match self.ask_root(Request::Locks(query)).await?.reply {
            Reply::Locks(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    /// Ends a session: what it had open is closed.
    ///
    /// # Errors
    /// `NotFound` when there is no such session; else as [`Client::server_load`].
    pub async fn evict(&self, session: SessionId) -> Result<()> {
        self.ask_root(Request::Evict(Evict { session })).await.map(|_| ())
    }
}
