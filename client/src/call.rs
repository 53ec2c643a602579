//! The one driver of requests: what an answer means, and when to ask again.
//!
//! Operations call [`Core::call`] once and never retry on their own. It waits out everything that
//! passes: a server that is away or busy, a session to be resumed, a map to be learnt; always with
//! the same number at the same server. What has not happened at one server and belongs to another
//! is sent there. What it hands back is the server's last word, or that the path must be resolved
//! again.

use std::{future::poll_fn, sync::Arc, time::Duration};

use base::{Backoff, Cred, FsError, Ino, Tagged as _, limits::SHARDS_MAX};
use tokio::time::sleep;
use tracing::Instrument as _;
use wire::{Answer, Granted, NodeRef, Noted, Release, Reply, Request, Retry, Stand};

use crate::{
    Error,
    channel::{Answered, Ticket},
    core::Core,
    done::{Done, Failure},
    error::unexpected,
    inode_routes::{self, Remembered},
    route::Route,
    runs::Run,
    session,
};

pub(crate) const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(1);
pub(crate) const BUSY_PAUSE_MAX: Duration = Duration::from_millis(50);
/// Longest pause before a server that may not serve, or does not reach another, is asked again.
const AWAY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A call that has met more wrong partitions waits before the next: each that has split off others
/// knows them, so it takes fewer where everybody knows what is so.
const PROBES_MAX: usize = 2 * SHARDS_MAX.ilog2() as usize + 2;

/// Returns the name of a request's kind.
fn kind(request: &Request) -> &'static str {
    let tag = request.tag();
    Request::VARIANTS.iter().find(|(other, _)| *other == tag).map_or("unknown", |(_, name)| name)
}

/// The files and directories that a request changes where other servers than the one that does it
/// may have them. What these servers know of the change is stable no sooner than at the one that
/// does it.
fn shared_with_others(request: &Request) -> Option<Vec<Ino>> {
    let of_dir = |node: &NodeRef| match node {
        NodeRef::Dir(dir) => Some(vec![dir.ino]),
        NodeRef::File(_) => None,
    };
    match request {
        Request::Rename(req) => Some(vec![req.from_dir.ino, req.to_dir.ino]),
        Request::Link(req) => Some(vec![req.dir.ino, req.target.ino()]),
        Request::Setattr(req) => of_dir(&req.node),
        Request::Setxattr(req) => of_dir(&req.node),
        Request::Removexattr(req) => of_dir(&req.node),
        _ => None,
    }
}

impl Core {
    /// Sends a request that goes by `route`, and sees it through. `stand` is what it stands on of
    /// the access cache, nothing by handle.
    pub(crate) async fn call(
        &self,
        cred: &Cred,
        route: impl Into<Route>,
        mut request: Request,
        stand: Stand,
    ) -> Result<Done, Failure> {
        // The span is for subscribers of traces: without one it costs a comparison.
        let span = tracing::trace_span!(target: "pando::trace", "request", op = kind(&request));
        let mut route = route.into();
        let mut remembered = None;
        let shared = shared_with_others(&request);
        if self.channels.are_several() {
            (route, remembered) = self.direct(route, &mut request);
        }
        let ticket = self.begin(cred, route, request, stand);
        let mut done = self.drive(ticket, remembered).instrument(span).await?;
        if !done.dirs.is_empty() {
            self.changed_dirs.note(std::mem::take(&mut done.dirs));
        }
        // Servers may have joined one that was alone meanwhile.
        if let Some(mut inos) = shared.filter(|_| self.channels.are_several()) {
            if let Reply::Renamed(renamed) = &done.reply {
                inos.push(renamed.moved);
            }
            self.channels.at(done.run.server).shares(&inos);
        }
        Ok(done)
    }

    /// A request by handle.
    pub(crate) async fn ask(
        &self,
        cred: &Cred,
        route: impl Into<Route>,
        request: Request,
    ) -> Result<Done, Error> {
        self.call(cred, route, request, Stand::NONE).await.map_err(Failure::by_handle)
    }

    fn begin(&self, cred: &Cred, route: Route, request: Request, stand: Stand) -> Ticket<'_> {
        let channel = self.channels.of(route);
        if self.channels.must_join(channel.server)
            && let Some(core) = self.me.upgrade()
        {
            self.spawn(session::join(core, channel.server));
        }
        channel.begin(cred, route, request, stand)
    }

    /// Asks again what has not happened, where the newest map says.
    fn again<'a>(&'a self, mut ticket: Ticket<'a>) -> Ticket<'a> {
        let route = ticket.route();
        if std::ptr::eq(self.channels.of(route), ticket.channel()) {
            ticket.again();
            return ticket;
        }
        self.elsewhere(ticket, route, |_| ())
    }

    /// Asks somewhere else what has not happened, after `change`; it has another number there.
    fn elsewhere<'a>(
        &'a self,
        ticket: Ticket<'a>,
        route: Route,
        change: impl FnOnce(&mut Request),
    ) -> Ticket<'a> {
        let (cred, mut request, stand) = ticket.withdraw();
        change(&mut request);
        self.begin(&cred, route, request, stand)
    }

    /// `remembered`: it was sent to its file's shard of birth from memory.
    async fn drive(
        &self,
        mut ticket: Ticket<'_>,
        mut remembered: Option<Remembered>,
    ) -> Result<Done, Failure> {
        let random = self.config.random.as_ref();
        let mut pauses = Backoff::new(BUSY_PAUSE_FIRST, BUSY_PAUSE_MAX);
        let mut away = Backoff::new(BUSY_PAUSE_FIRST, AWAY_PAUSE_MAX);
        let mut probes = 0;
        loop {
            let answered = poll_fn(|cx| ticket.poll_answer(cx)).await?;
            let Answered { answer, version, incarnation, life } = answered;
            if let Some(before) = remembered
                && let Some(ino) = self.is_wrong(&answer, &ticket)
            {
                remembered = None;
                self.inode_routes.lock().forget(ino);
                let ticket_of_dir = |request: &mut Request| set_ticket(request, before.ticket);
                let route = self.by_directory(before.home, &ticket);
                ticket = self.elsewhere(ticket, route, ticket_of_dir);
                continue;
            }
            if !self.layouts.is_empty() {
                self.count_probes(&answer, &ticket, probes);
            }
            match answer {
                Answer::Done(reply) => {
                    let run = Run { server: ticket.channel().server, incarnation, life };
                    let dirs = Vec::new();
                    return Ok(Done { reply, version, run, dirs, grant: None, is_noted: false });
                }
                Answer::Noted(Noted { dirs, reply }) => {
                    let run = Run { server: ticket.channel().server, incarnation, life };
                    return Ok(Done { reply, version, run, dirs, grant: None, is_noted: true });
                }
                Answer::Granted(Granted { grant, noted: Noted { dirs, reply } }) => {
                    let run = Run { server: ticket.channel().server, incarnation, life };
                    let grant = Some(grant);
                    return Ok(Done { reply, version, run, dirs, grant, is_noted: true });
                }
                Answer::Failed(error) => return Err(error.into()),
                Answer::Refused(reason) => {
                    let error = Error::refused(reason);
                    self.note_refusal(&error);
                    return Err(error.into());
                }
                Answer::Halted => ticket.reopen(true, incarnation),
                Answer::Retry(Retry::NoSession) => ticket.reopen(false, incarnation),
                Answer::Retry(Retry::Busy) => {
                    sleep(pauses.draw(random)).await;
                    ticket = self.again(ticket);
                }
                Answer::Retry(Retry::Away) => {
                    sleep(away.draw(random)).await;
                    ticket = self.again(ticket);
                }
                Answer::Retry(Retry::Moved(map)) => {
                    let learnt = self.me.upgrade().is_some_and(|core| core.learn(&map));
                    if !learnt {
                        sleep(pauses.draw(random)).await;
                    }
                    ticket = self.again(ticket);
                }
                Answer::Retry(Retry::StaleCache(events)) => {
                    self.counters.stale();
                    let since = ticket.stands_since();
                    self.cache.lock().apply(&events, since);
                    return Err(Failure::StaleCache);
                }
                Answer::Retry(Retry::StaleDir) => return Err(Failure::StaleDir),
                Answer::Retry(Retry::NotHeld) => return Err(Failure::NotHeld),
                Answer::Retry(Retry::Coordinate) => {
                    let route = Route::COORDINATOR;
                    if ticket.route() == route {
                        sleep(pauses.draw(random)).await;
                    }
                    ticket = self.elsewhere(ticket, route, |_| ());
                }
                Answer::Retry(Retry::AtBirth(proof)) => {
                    let Some(ino) = ticket.file() else { return Err(unexpected().into()) };
                    let route = Route::Shard(ino.shard());
                    if ticket.route() == route {
                        sleep(pauses.draw(random)).await;
                    }
                    self.inode_routes.lock().learn(ino, proof);
                    ticket = self.elsewhere(ticket, route, |req| set_ticket(req, proof));
                }
                Answer::Retry(Retry::StaleLayout(news)) => {
                    self.counters.wrong_partition();
                    probes += 1;
                    let to = self.corrected(&news, &ticket);
                    let Some((route, wait)) = to else { return Err(Failure::StaleLayout(news)) };
                    if wait || probes > PROBES_MAX {
                        sleep(pauses.draw(random)).await;
                    }
                    ticket = self.elsewhere(ticket, route, |_| ());
                }
            }
        }
    }

    fn count_probes(&self, answer: &Answer, ticket: &Ticket<'_>, probes: usize) {
        let ended = matches!(
            answer,
            Answer::Done(_) | Answer::Noted(_) | Answer::Granted(_) | Answer::Failed(_)
        );
        if ended && matches!(ticket.route(), Route::Partition(..)) {
            self.counters.probed(probes);
        }
    }

    /// The file of a request that was sent to its shard of birth from memory, when the answer may
    /// be because it is not there.
    fn is_wrong(&self, answer: &Answer, ticket: &Ticket<'_>) -> Option<Ino> {
        let wrong = matches!(
            answer,
            Answer::Failed(FsError::Stale | FsError::NotFound | FsError::Denied)
                | Answer::Retry(Retry::StaleDir)
        );
        if wrong { ticket.file() } else { None }
    }

    /// Sees calls through whose callers went away. What they opened is closed again.
    pub(crate) fn adopt_orphans(self: &Arc<Self>, server: u16) {
        for key in self.channels.at(server).take_orphans() {
            let core = Arc::clone(self);
            self.spawn(async move {
                let ticket = core.channels.at(server).adopt(key);
                let open = ticket.opens();
                let done = core.drive(ticket, None).await;
                if let (Some(open), Ok(done)) = (open, done)
                    && let Some(opened) = core.files.opened_for_nobody(open, &done.reply)
                {
                    let route = Route::Shard(opened.0.shard());
                    let release = Request::Release(Release { files: vec![opened] });
                    if let Err(error) = core.ask(&Cred::default(), route, release).await {
                        tracing::debug!(%error, "a file was not released");
                    }
                }
            });
        }
    }
}

fn set_ticket(request: &mut Request, ticket: u64) {
    if let Some(file) = inode_routes::file_of(request) {
        file.dir.ticket = ticket;
    }
}
