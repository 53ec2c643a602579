//! The one driver of requests: what an answer means, and when to ask again.
//!
//! Operations call [`Core::call`] once and never retry on their own. It waits out everything that passes:
//! a server that is away or busy, a session to be resumed, a map to be learnt; always with the same
//! number. What it hands back is the server's last word, or that the path must be resolved again.

use std::{future::poll_fn, sync::Arc, time::Duration};

use base::{Cred, DirId, FsError, Tagged as _};
use tracing::Instrument as _;
use wire::{Answer, Release, Reply, Request, Retry};

use crate::{
    Error,
    channel::{Answered, Ticket},
    core::Core,
    session::Pauses,
};

const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// A success, and what came with it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) reply: Reply,
    /// The version of the server's invalidation list.
    pub(crate) version: u64,
    /// The run of the server that answered.
    pub(crate) incarnation: u64,
    /// The session in which it was answered, counted from 0.
    pub(crate) life: u64,
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The last word.
    Error(Error),
    /// The access cache was outdated, and has been corrected: resolve the path again.
    StaleCache,
    /// The directory is not what it was: drop it and resolve its path again.
    StaleDir,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Error(Error::Fs(error))
    }
}

impl Failure {
    /// The error for a caller that came by handle and has no path to resolve again.
    pub(crate) fn by_handle(self) -> Error {
        match self {
            Failure::Error(error) => error,
            Failure::StaleCache | Failure::StaleDir => Error::Fs(FsError::Stale),
        }
    }
}

/// What kind of request it is.
fn kind(request: &Request) -> &'static str {
    let tag = request.tag();
    Request::VARIANTS.iter().find(|(other, _)| *other == tag).map_or("unknown", |(_, name)| name)
}

impl Core {
    /// Sends a request that goes by `home`, and sees it through. `stand` is the version of the access cache
    /// that it stands on, 0 by handle.
    pub(crate) async fn call(
        &self,
        cred: &Cred,
        home: DirId,
        request: Request,
        stand: u64,
    ) -> Result<Done, Failure> {
        // For whoever listens: it costs a comparison otherwise.
        let span = tracing::trace_span!(target: "pando::trace", "request", op = kind(&request));
        let mut ticket = self.channel.begin(cred, home, request, stand);
        self.drive(&mut ticket).instrument(span).await
    }

    /// A request by handle.
    pub(crate) async fn ask(
        &self,
        cred: &Cred,
        home: DirId,
        request: Request,
    ) -> Result<Done, Error> {
        self.call(cred, home, request, 0).await.map_err(Failure::by_handle)
    }

    async fn drive(&self, ticket: &mut Ticket<'_>) -> Result<Done, Failure> {
        let mut pauses = Pauses::new(BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX);
        loop {
            let answered = poll_fn(|cx| ticket.poll_answer(cx)).await?;
            let Answered { answer, version, incarnation, life } = answered;
            match answer {
                Answer::Done(reply) => return Ok(Done { reply, version, incarnation, life }),
                Answer::Failed(error) => return Err(error.into()),
                Answer::Refused(reason) => return Err(Error::Refused(reason).into()),
                Answer::Halted => ticket.reopen(true, incarnation),
                Answer::Retry(Retry::NoSession) => ticket.reopen(false, incarnation),
                Answer::Retry(Retry::Busy) => {
                    pauses.pause(self.config.random.as_ref()).await;
                    ticket.again();
                }
                Answer::Retry(Retry::Moved(map)) => {
                    if !self.channel.learn(map) {
                        pauses.pause(self.config.random.as_ref()).await;
                    }
                    ticket.again();
                }
                Answer::Retry(Retry::StaleCache(events)) => {
                    self.cache.lock().apply(&events);
                    return Err(Failure::StaleCache);
                }
                Answer::Retry(Retry::StaleDir) => return Err(Failure::StaleDir),
                Answer::Retry(Retry::Coordinate | Retry::AtBirth(_)) => {
                    return Err(Error::Refused("the server is one of several".into()).into());
                }
            }
        }
    }

    /// Sees calls through whose callers went away. What they opened is closed again.
    pub(crate) fn adopt_orphans(self: &Arc<Self>) {
        for key in self.channel.take_orphans() {
            let core = Arc::clone(self);
            self.spawn(async move {
                let mut ticket = core.channel.adopt(key);
                let open = ticket.opens();
                let done = core.drive(&mut ticket).await;
                if let (Some(open), Ok(done)) = (open, done)
                    && let Some(opened) = core.files.opened_for_nobody(open, &done.reply)
                {
                    let release = Request::Release(Release { files: vec![opened] });
                    if let Err(error) = core.ask(&Cred::default(), DirId::ROOT, release).await {
                        tracing::debug!(%error, "a file was not released");
                    }
                }
            });
        }
    }
}
