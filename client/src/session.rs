//! The session with each server: opening it, keeping it, and coming back to it for as long as it
//! takes.
//!
//! One task for each server that has been asked for something owns the connection and replaces it
//! when it breaks: dial, say Hello, claim the open files if the server has restarted meanwhile,
//! then attach the channel. Nothing else is sent before the claims are answered. It ends when the
//! client is closed or the server refuses it. [`crate::Client::connect`] opens the session at
//! whichever server answers first; the others are joined with what proves it.

use std::{
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{Backoff, ClusterMap, HashSet, Ino, Seq, limits::LOCKS_A_CLAIM_MAX};
use bytes::{Buf as _, BytesMut};
use futures::future::{Either, select};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use wire::{
    Answer, AskStanding, Claim, ClaimedFile, ClaimedLock, FrameError, Getattr, Hello, LockClaim,
    NodeRef, Reply, ReplyHeader, Request, RequestHeader, Resume, Retry, Standing, Stream, TLS_ONLY,
    Welcome,
    frame::{opening, take_frame},
};

use crate::{
    Config, Error,
    channel::{Attach, Channel},
    connection::{Connection, Ended},
    core::Core,
    route::{COORDINATOR, Route},
    tcp,
};

/// A server that is not reached, or does not answer, is given up after this, or earlier: see
/// [`patience`].
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The same in the first round through several addresses.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// Number of attempts to resume a session within a lease.
const ATTEMPTS_A_LEASE: u32 = 3;
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Time in which a server that is asked for the map answers; then the next one is asked.
const MAP_WITHIN: Duration = Duration::from_secs(1);
const CLAIMED_FILES_MAX: usize = 1000;
/// After as many attempts to come back, and at first more often, the addresses that the program
/// gave are asked, too.
const LOOK_AGAIN_ATTEMPTS: u64 = 64;

/// An open session on a fresh connection.
pub(crate) struct Opened {
    pub(crate) welcome: Welcome,
    /// The version of the server's invalidation list that came with it.
    pub(crate) version: u64,
    /// When it was asked for.
    asked: Instant,
    stream: Box<dyn Stream>,
    inbox: BytesMut,
}

/// Files and locks that a client had when the server restarted.
#[derive(Default)]
pub(crate) struct Claims {
    /// Open files, each with the user that has it open.
    files: Vec<(u32, ClaimedFile)>,
    locks: Vec<ClaimedLock>,
    /// See [`wire::LockClaim`].
    settled: u64,
}

/// State of a client that resumes its session.
pub(crate) struct Past {
    pub(crate) welcome: Arc<Welcome>,
    /// The run of this server that it was with; 0: it comes for the first time.
    pub(crate) incarnation: u64,
    /// See [`Resume`].
    pub(crate) answered: Seq,
    /// Whether the server was alone, as far as the client knows.
    pub(crate) alone: bool,
}

/// Why one attempt to open a session failed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("cannot connect: {0}")]
    Stream(#[from] io::Error),
    #[error("server answers nonsense")]
    Frame(#[from] FrameError),
    #[error("no answer in time")]
    Time,
    #[error("the server is not ready, or is full (connections, sessions or disk at their limit)")]
    NotReady,
    #[error("another server begins sessions")]
    Elsewhere(ClusterMap),
    #[error("server has no such session, or is another one")]
    Stranger,
    #[error("refused: {0}")]
    Refused(String),
}

/// Opens a session, or goes on with that of `past`, at the first of the addresses that answers:
/// `address` says the next one to try. Only an administrator who helps a cluster to become complete
/// has no use for waiting until it is.
///
/// # Errors
/// `Refused` when the server will not have us, `Closed` when `closing` says that nobody wants it
/// any more.
pub(crate) async fn open(
    config: &Config,
    mut address: impl FnMut() -> Option<String>,
    past: Option<&Past>,
    complete: bool,
    mut claims: impl FnMut(&Welcome) -> Claims,
    closing: impl Fn() -> bool,
) -> Result<Opened, Error> {
    let mut pauses = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    let (mut told, mut distrusted) = (false, 0);
    // Each server of several has one address.
    let is_one_of_several = past.is_some_and(|past| !past.alone);
    let mut round = Round::new(if is_one_of_several { 1 } else { config.addresses.len() });
    let mut elsewhere = None;
    while let Some(address) = elsewhere.take().or_else(&mut address) {
        if closing() {
            return Err(Error::Closed);
        }
        let patience = patience(past).min(round.patience());
        round.next();
        let of = (&*address, patience);
        let failed = match attempt(config, of, past, complete, &mut claims).await {
            Ok(opened) => return Ok(opened),
            Err(Failed::Refused(reason)) if past.is_none() || reason != TLS_ONLY => {
                return Err(Error::refused(reason));
            }
            // A session that was open outlasts a wrong certificate, and a server that takes it only
            // encrypted for a while. Nothing new begins so, if all addresses are alike.
            Err(Failed::Stream(error)) if past.is_none() && tcp::is_distrust(&error) => {
                distrusted += 1;
                if distrusted >= config.addresses.len() {
                    return Err(Error::refused(format!("{address}: {error}")));
                }
                continue;
            }
            Err(Failed::Elsewhere(map)) => {
                elsewhere = root_address(&map);
                sleep(pauses.draw(config.random.as_ref())).await;
                continue;
            }
            Err(failed) => failed,
        };
        if !told {
            tracing::warn!(address, error = %failed, "waiting for the server");
            told = true;
        }
        sleep(pauses.draw(config.random.as_ref())).await;
    }
    Err(Error::Refused("no address to connect to".to_owned()))
}

/// Asks a server how it stands, once and without a session; `None`: there was no answer.
pub(crate) async fn standing(config: &Config, address: &str) -> Result<Option<Standing>, Error> {
    let asked = async {
        let mut talk = Talk::begin(config, address, patience(None)).await?;
        talk.ask(&Request::Standing(AskStanding { token: config.token.clone() })).await
    };
    match asked.await {
        Ok((Reply::Standing(standing), _)) => Ok(Some(standing)),
        Err(Failed::Refused(reason)) => Err(Error::refused(reason)),
        Err(Failed::Stream(error)) if tcp::is_distrust(&error) => {
            Err(Error::refused(format!("{address}: {error}")))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// How long a server may say nothing. A session ends when its server hears nothing of it for a
/// lease, also after a restart: one way that leads nowhere, or one connection that was lost unseen,
/// must not take that long.
fn patience(past: Option<&Past>) -> Duration {
    let lease = past.map(|past| Duration::from_millis(past.welcome.lease_ms));
    lease.map_or(SILENCE_MAX, |lease| SILENCE_MAX.min(lease / ATTEMPTS_A_LEASE))
}

/// Returns the address of the server at which a new session begins.
fn root_address(map: &ClusterMap) -> Option<String> {
    map.servers.first().cloned()
}

/// The addresses that the program gave, in turn.
pub(crate) fn in_turn(config: &Config) -> impl FnMut() -> Option<String> {
    let mut addresses = config.addresses.iter().cycle();
    move || addresses.next().cloned()
}

/// How long an attempt may take where there are others to make: a machine that is gone answers
/// nothing, and must not be waited for while another one serves in its place.
struct Round {
    addresses: usize,
    attempts: usize,
}

impl Round {
    fn new(addresses: usize) -> Round {
        Round { addresses, attempts: 0 }
    }

    fn next(&mut self) {
        self.attempts += 1;
    }

    /// Twice as long in each round through the addresses.
    fn patience(&self) -> Duration {
        if self.addresses < 2 {
            return SILENCE_MAX;
        }
        let rounds = u32::try_from(self.attempts / self.addresses).unwrap_or(u32::MAX);
        PATIENCE_FIRST.saturating_mul(1 << rounds.min(8)).min(SILENCE_MAX)
    }
}

async fn attempt(
    config: &Config,
    (address, patience): (&str, Duration),
    past: Option<&Past>,
    complete: bool,
    claims: &mut impl FnMut(&Welcome) -> Claims,
) -> Result<Opened, Failed> {
    let mut talk = Talk::begin(config, address, patience).await?;
    let asked = Instant::now();
    let (welcome, version) = talk.hello(config, past).await?;
    if complete && welcome.map.servers.is_empty() {
        return Err(Failed::NotReady);
    }
    // Others have joined it, and one of them may be where the program said that it is.
    let is_first =
        welcome.map.servers.len() < 2 || root_address(&welcome.map).is_some_and(|it| it == address);
    if past.is_some_and(|past| past.alone) && !is_first {
        return Err(Failed::Elsewhere(welcome.map));
    }
    let other = past.is_some_and(|past| past.welcome.session != welcome.session);
    if other && welcome.map.servers.len() > 1 {
        return Err(Failed::Stranger);
    }
    // The first Hello to a server may have opened the session there and its answer been lost; a
    // server that has restarted since waits for claims of that session, too.
    let waits_for_claims =
        past.is_some_and(|past| !welcome.opened && past.incarnation != welcome.incarnation);
    if waits_for_claims {
        talk.claim(claims(&welcome)).await?;
    }
    let (stream, inbox) = (talk.stream, talk.inbox);
    Ok(Opened { welcome, version, asked, stream, inbox })
}

/// A connection before it is attached: one request at a time.
struct Talk {
    stream: Box<dyn Stream>,
    inbox: BytesMut,
    calls: u64,
    /// See [`patience`].
    patience: Duration,
}

impl Talk {
    async fn begin(config: &Config, address: &str, patience: Duration) -> Result<Talk, Failed> {
        let begun = async {
            let mut stream = config.dial.dial(address, None).await?.stream;
            stream.write_all(&opening()).await?;
            Ok(Talk { stream, inbox: BytesMut::new(), calls: 0, patience })
        };
        timeout(patience, begun).await.map_err(|_| Failed::Time)?
    }

    /// Opens a session, or goes on with one.
    async fn hello(
        &mut self,
        config: &Config,
        past: Option<&Past>,
    ) -> Result<(Welcome, u64), Failed> {
        let hello = Request::Hello(Hello {
            token: config.token.clone(),
            client: config.client_name.clone(),
            resume: past.map(|past| Resume {
                session: past.welcome.session,
                secret: past.welcome.secret,
                answered: past.answered,
                root: past.welcome.root,
                proof: past.welcome.proof,
            }),
            kernel_checks: config.kernel_checks,
        });
        match self.ask(&hello).await? {
            (Reply::Welcome(welcome), version) => Ok((welcome, version)),
            _ => Err(Failed::NotReady),
        }
    }

    /// The answer, and the version of the server's invalidation list.
    async fn ask(&mut self, request: &Request) -> Result<(Reply, u64), Failed> {
        self.ask_as(0, request).await
    }

    async fn ask_as(&mut self, uid: u32, request: &Request) -> Result<(Reply, u64), Failed> {
        timeout(self.patience, self.answer_to(uid, request)).await.map_err(|_| Failed::Time)?
    }

    async fn answer_to(&mut self, uid: u32, request: &Request) -> Result<(Reply, u64), Failed> {
        self.calls += 1;
        let cred = base::Cred { uid, ..base::Cred::default() };
        let mut out = Vec::new();
        let put = RequestHeader { cred, ..RequestHeader::bare(self.calls) }.put(request, &mut out);
        assert!(put, "hellos and claims are bounded");
        self.stream.write_all(&out).await?;
        self.stream.flush().await?;
        loop {
            if let Some(frame) = take_frame(&mut self.inbox)? {
                let (header, answer) = ReplyHeader::take(&frame)?;
                match answer {
                    Answer::Done(reply) => return Ok((reply, header.cache_version)),
                    Answer::Failed(error) => return Err(Failed::Refused(error.to_string())),
                    Answer::Refused(reason) => return Err(Failed::Refused(reason)),
                    // A new session begins at the server of the root.
                    Answer::Retry(Retry::Moved(map)) => return Err(Failed::Elsewhere(map)),
                    Answer::Retry(
                        Retry::Busy
                        | Retry::Away
                        | Retry::NoSession
                        | Retry::StaleCache(_)
                        | Retry::StaleDir
                        | Retry::Coordinate
                        | Retry::AtBirth(_)
                        | Retry::StaleLayout(_)
                        | Retry::NotHeld,
                    )
                    | Answer::Halted
                    | Answer::Noted(_)
                    | Answer::Granted(_) => return Err(Failed::NotReady),
                }
            }
            self.inbox.reserve(4096);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Claims files, for each user in his name, then locks of them. The last claim of files ends
    /// it, and says so.
    async fn claim(&mut self, claims: Claims) -> Result<(), Failed> {
        let Claims { files, locks, settled } = claims;
        let mut batches = batches(files);
        let last = if locks.is_empty() { batches.pop() } else { None };
        for (uid, files) in batches {
            self.ask_as(uid, &Request::Claim(Claim { files, last: false })).await?;
        }
        for batch in locks.chunks(LOCKS_A_CLAIM_MAX) {
            self.ask(&Request::LockClaim(LockClaim { locks: batch.to_vec(), settled })).await?;
        }
        let (uid, files) = last.unwrap_or_default();
        self.ask_as(uid, &Request::Claim(Claim { files, last: true })).await?;
        Ok(())
    }
}

/// Splits claims into requests: files of one user, at most `CLAIMED_FILES_MAX`.
fn batches(mut files: Vec<(u32, ClaimedFile)>) -> Vec<(u32, Vec<ClaimedFile>)> {
    files.sort_by_key(|(uid, file)| (*uid, file.file.ino));
    let mut batches: Vec<(u32, Vec<ClaimedFile>)> = Vec::new();
    for (uid, file) in files {
        match batches.last_mut() {
            Some((of, batch)) if *of == uid && batch.len() < CLAIMED_FILES_MAX => batch.push(file),
            Some(_) | None => batches.push((uid, vec![file])),
        }
    }
    batches
}

impl Core {
    /// Takes in a map; `false` when it was known. The session joins servers that have new shards:
    /// they ask what it has open there.
    pub(crate) fn learn(self: &Arc<Self>, map: &ClusterMap) -> bool {
        let gain = self.channels.gain(map);
        let is_news = self.channels.learn(map);
        for server in gain.into_iter().filter(|_| is_news) {
            if self.channels.must_join(server) {
                self.spawn(join(Arc::clone(self), server));
            }
        }
        is_news
    }
}

/// Keeps the session at a server, where it was opened already or is to be joined, until the client
/// is closed or refused.
async fn keep(core: Arc<Core>, server: u16, mut opened: Option<Opened>) {
    let channel = core.channels.at(server);
    let error = loop {
        if let Some(opened) = opened.take() {
            let ended = serve(&core, server, opened).await;
            if matches!(ended, Ended::Closed) {
                break Error::Closed;
            }
            channel.detach();
            tracing::info!(server, reason = %ended, "reconnecting");
        }
        let back = pin!(come_back(&core, channel));
        // Dialling where the server is no longer can take long.
        match select(back, pin!(channel.moved.notified())).await {
            Either::Left((Ok(again), _)) => opened = Some(again),
            Either::Left((Err(error), _)) => break error,
            Either::Right(_) => {}
        }
    };
    if let Error::Refused(_) | Error::TokenExpired = &error {
        tracing::error!(server, %error, "this client ends");
    }
    if core.channels.has_left(server) {
        core.adopt_orphans(server);
    }
    channel.end(&error);
}

/// Keeps the session at a server where it is to be joined.
pub(crate) async fn join(core: Arc<Core>, server: u16) {
    keep(core, server, None).await;
}

/// Keeps the session that was opened, at the server that opened it: sessions begin at the
/// coordinator, whatever address led there. The other servers believe in the session
/// while that one has it.
pub(crate) fn begin(core: &Arc<Core>, opened: Opened) {
    if core.channels.must_join(COORDINATOR) {
        core.spawn(keep(Arc::clone(core), COORDINATOR, Some(opened)));
    }
}

/// Opens the session at a server again, or for the first time.
async fn come_back(core: &Arc<Core>, channel: &Channel) -> Result<Opened, Error> {
    let server = channel.server;
    let past = Past {
        welcome: core.welcome(),
        incarnation: channel.incarnation(),
        answered: channel.answered(),
        alone: !core.channels.are_several(),
    };
    let claims = |welcome: &Welcome| {
        core.learn(&welcome.map);
        let has = |ino| core.has(server, ino);
        // The locks first: a file may be closed meanwhile, but none is locked that is not open.
        let (locks, settled) = core.locks.claims(server, welcome.incarnation, has);
        let files = core.files.claims(server, welcome.incarnation, has);
        let open: HashSet<Ino> = files.iter().map(|(_, file)| file.file.ino).collect();
        let locks = locks.into_iter().filter(|lock| open.contains(&lock.ino)).collect();
        Claims { files, locks, settled }
    };
    let mut known = in_turn(&core.config);
    let mut attempts = 0;
    let address = || {
        attempts += 1;
        if attempts > 1 {
            ask_for_map(core, server, attempts);
        }
        core.channels.address(server).or_else(&mut known)
    };
    open(&core.config, address, Some(&past), true, claims, || channel.closing()).await
}

/// A server does not answer where it should be: another one may know where it is now, and each of
/// them is asked in turn. Where none is left that answers, all may be elsewhere, and the addresses
/// that the program gave may lead to one; that is tried now and then only, as the first server opens
/// a session to answer.
fn ask_for_map(core: &Arc<Core>, server: u16, attempts: u64) {
    let other = core.channels.another(server, attempts);
    let alone = other.is_none() && core.channels.are_several();
    let due = attempts.is_power_of_two() || attempts.is_multiple_of(LOOK_AGAIN_ATTEMPTS);
    if other.is_none() && !(alone && due) || core.asks_for_map.swap(true, Ordering::AcqRel) {
        return;
    }
    let core = Arc::clone(core);
    core.clone().spawn(async move {
        match other {
            Some(other) => {
                let node = NodeRef::Dir(core.welcome().root);
                let cred = core.config.cred.clone();
                let request = Request::Getattr(Getattr { node });
                // The answer does not matter: the map came with it, if there is a newer one. Who is
                // asked may be elsewhere by now as well, and then only a newer map leads there.
                let asked = core.ask(&cred, Route::Server(other), request);
                let _ = timeout(MAP_WITHIN, asked).await;
            }
            None => look_again(&core).await,
        }
        core.asks_for_map.store(false, Ordering::Release);
    });
}

/// Asks for a newer map wherever the program said that a server is.
async fn look_again(core: &Arc<Core>) {
    for address in &core.config.addresses {
        match map_at(&core.config, address).await {
            Ok(map) if core.learn(&map) => return,
            Ok(_) => {}
            Err(error) => tracing::debug!(address, %error, "no map"),
        }
    }
}

/// The map that a server has. To be told it one begins a session, which is ended at once.
async fn map_at(config: &Config, address: &str) -> Result<ClusterMap, Failed> {
    let mut talk = Talk::begin(config, address, SILENCE_MAX).await?;
    match talk.hello(config, None).await {
        Ok((welcome, _)) => {
            // When it is not heard its lease ends it.
            let _ = talk.ask(&Request::Bye).await;
            Ok(welcome.map)
        }
        Err(Failed::Elsewhere(map)) => Ok(map),
        Err(failed) => Err(failed),
    }
}

async fn serve(core: &Arc<Core>, server: u16, opened: Opened) -> Ended {
    let Opened { welcome, version, asked, stream, inbox, .. } = opened;
    debug_assert!(inbox.remaining() == 0, "nothing comes unasked");
    let channel = core.channels.at(server);
    let lease = Duration::from_millis(welcome.lease_ms);
    channel.extend_lease(asked, lease);
    let again = channel.incarnation() != 0;
    core.learn(&welcome.map);
    let (lost, forgot) = core.adopt(server, &welcome, version, again);
    let commit_interval =
        core.channels.are_several().then(|| Duration::from_millis(welcome.commit_ms));
    let incarnation = welcome.incarnation;
    channel.attach(Attach { incarnation, lost, forgot, commit_interval });
    let hurries = !core.channels.are_several() && core.config.addresses.len() > 1;
    let mut connection = Connection::new(channel, stream, inbox, lease, hurries);
    let spawner = Arc::clone(core);
    connection.run(move || spawner.adopt_orphans(server)).await
}
