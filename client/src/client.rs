//! The client: what programs hold. Its operations by path are in `fs`, those by handle in
//! `handles`.

use std::sync::Arc;

use base::Cred;
use wire::{
    FsInfo, FsckPoll, FsckProgress, FsckStart, IdMapping, Repair, Reply, Request, Standing, Status,
    Token, Welcome,
};

use crate::{
    Config, Result, Stats,
    contents::Files,
    core::Core,
    done::Done,
    error::unexpected,
    session::{self, Claims},
};

/// A file system, as one program sees it. Cloning is cheap; clones share the session and all
/// caches.
///
/// A dropped future does not take back what it has asked for: what was sent is seen through.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
    _alive: Arc<Alive>,
    pub(crate) cred: Arc<Cred>,
    /// The squashing of the token, if it has one and maps no ids.
    squash: Option<Arc<IdMapping>>,
}

/// Ends the session when the last clone goes.
struct Alive(Arc<Core>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.channels.close();
    }
}

/// The squashing of a token. Where it maps ids as well, only servers know who is who.
fn squash_of(token: &str) -> Option<IdMapping> {
    Token::unverified(token).ok()?.ids.filter(|ids| !ids.maps())
}

/// The user that a server takes the caller for. What the client looks up in its cache it then
/// permits as the server would.
fn acting(squash: Option<&IdMapping>, cred: Cred) -> Cred {
    match squash {
        Some(squash) => squash.acting(&cred),
        None => cred,
    }
}

impl Client {
    /// Opens a session. Waits for a server for as long as none answers. Must be called within a
    /// tokio runtime (of either kind), which also runs the client's background work.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) when the server will not serve this token,
    /// protocol or client.
    pub async fn connect(config: Config) -> Result<Client> {
        Client::begin(config, true).await
    }

    /// Connects as [`Client::connect`] does, to the coordinator of a cluster that may not be
    /// complete yet. Until it is, only [`Client::cluster`] and [`Client::join`] are answered; for
    /// anything else, connect anew.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_incomplete(config: Config) -> Result<Client> {
        Client::begin(config, false).await
    }

    /// Asks the server at `address` how it stands, once and without a session: also one that may
    /// not serve now answers. `None`: there was no answer.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) when the token does not administer, or the server
    /// does not know it.
    pub async fn standing(config: &Config, address: &str) -> Result<Option<Standing>> {
        session::standing(config, address).await
    }

    async fn begin(config: Config, complete: bool) -> Result<Client> {
        let (addresses, claims) = (session::in_turn(&config), |_: &Welcome| Claims::default());
        let opened = session::open(&config, addresses, None, complete, claims, || false).await?;
        let squash = squash_of(&config.token).map(Arc::new);
        let cred = Arc::new(acting(squash.as_deref(), config.cred.clone()));
        let files = Files::new(&config, &opened.welcome)?;
        let core = Core::new(config, opened.welcome.clone(), opened.version, files);
        session::begin(&core, opened);
        Ok(Client { _alive: Arc::new(Alive(Arc::clone(&core))), core, cred, squash })
    }

    /// The same client, acting as `cred` in its operations by path.
    #[must_use]
    pub fn as_user(&self, cred: Cred) -> Client {
        let cred = Arc::new(acting(self.squash.as_deref(), cred));
        Client { cred, ..self.clone() }
    }

    /// Sends everything that was written, ends the session, and waits until the server was told.
    ///
    /// # Errors
    /// When something that was written could not be stored.
    pub async fn close(&self) -> Result<()> {
        let flushed = self.flush_all().await;
        self.release_all().await;
        self.core.channels.close();
        self.core.channels.ended().await;
        flushed
    }

    /// Returns counts of what this client has sent and resolved.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Requests that were sent for the first time, by server, in the order of the cluster map.
    #[must_use]
    pub fn requests_by_server(&self) -> Vec<u64> {
        self.core.channels.requests()
    }

    /// Returns what the server said of the file system.
    #[must_use]
    pub fn fs_info(&self) -> FsInfo {
        self.core.welcome().fs.clone()
    }

    /// Whether the session's token refuses every change.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.welcome().read_only
    }

    /// Returns the state of the server. For administrators.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer.
    pub async fn status(&self) -> Result<Status> {
        match self.ask_root(Request::Status).await?.reply {
            Reply::Status(status) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    /// Starts a check of the whole file system; its number. For administrators.
    ///
    /// # Errors
    /// `Busy` when one is running; `NotPermitted` when the token does not administer.
    pub async fn fsck_start(&self, gc: bool) -> Result<u64> {
        match self.ask_root(Request::FsckStart(FsckStart { gc })).await?.reply {
            Reply::Job(job) => Ok(job),
            _ => Err(unexpected()),
        }
    }

    /// Starts a check as [`Client::fsck_start`] does, and repairs what it finds; with
    /// `discard_lost` it gives up contents that cannot be read any more.
    ///
    /// # Errors
    /// As [`Client::fsck_start`].
    pub async fn repair_start(&self, gc: bool, discard_lost: bool) -> Result<u64> {
        match self.ask_root(Request::Repair(Repair { gc, discard_lost })).await?.reply {
            Reply::Job(job) => Ok(job),
            _ => Err(unexpected()),
        }
    }

    /// How far a check is; `cancel` ends it.
    ///
    /// # Errors
    /// `NotFound` when there is no such check; `NotPermitted` when the token does not administer.
    pub async fn fsck_poll(&self, job: u64, cancel: bool) -> Result<FsckProgress> {
        match self.ask_root(Request::FsckPoll(FsckPoll { job, cancel })).await?.reply {
            Reply::Fsck(progress) => Ok(progress),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn welcome(&self) -> Arc<Welcome> {
        self.core.welcome()
    }

    /// A request about nothing in particular.
    pub(crate) async fn ask_root(&self, request: Request) -> Result<Done> {
        self.core.ask(&self.cred, base::DirId::ROOT, request).await
    }
}
