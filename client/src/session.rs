//! The session with a server: opening it, keeping it, and coming back to it for as long as it takes.
//!
//! One task, started by [`crate::Client::connect`], owns the connection and replaces it when it breaks:
//! dial, say Hello, claim the open files if the server has restarted meanwhile, then attach the channel.
//! Nothing else is sent before the claims are answered. It ends when the client is closed or the server
//! refuses it.

use std::{io, sync::Arc, time::Duration};

use base::{Encode as _, HashSet, Ino, Random, Seq, limits::LOCKS_A_CLAIM_MAX};
use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};
use wire::{
    Answer, Claim, ClaimedFile, ClaimedLock, FrameError, Hello, LockClaim, Reply, Request,
    RequestHeader, Resume, Retry, Stream, Welcome,
    frame::{opening, put_frame, take_frame},
};

use crate::{
    Config, Error,
    channel::Attach,
    connection::{Connection, Ended, decode},
    core::Core,
};

const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
const CLAIMED_FILES_MAX: usize = 1000;

/// An open session on a fresh connection.
pub(crate) struct Opened {
    pub(crate) welcome: Welcome,
    /// The version of the server's invalidation list that came with it.
    pub(crate) version: u64,
    stream: Box<dyn Stream>,
    inbox: BytesMut,
}

/// What a client had when the server restarted.
#[derive(Default)]
pub(crate) struct Claims {
    /// With the user who has it open.
    files: Vec<(u32, ClaimedFile)>,
    locks: Vec<ClaimedLock>,
    /// See [`wire::LockClaim`].
    settled: u64,
}

/// Pauses that grow, each drawn from the upper half of its length so that clients do not come in step.
pub(crate) struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    pub(crate) fn new(first: Duration, max: Duration) -> Pauses {
        Pauses { next: first, max }
    }

    /// Between two attempts to wait no longer.
    pub(crate) fn for_cancels() -> Pauses {
        Pauses::new(Duration::from_millis(20), Duration::from_secs(1))
    }

    pub(crate) async fn pause(&mut self, random: &dyn Random) {
        let full = u64::try_from(self.next.as_micros()).unwrap_or(u64::MAX).max(2);
        let drawn = full / 2 + random.next() % (full / 2);
        self.next = (self.next * 2).min(self.max);
        sleep(Duration::from_micros(drawn)).await;
    }
}

/// What a client that comes back has.
pub(crate) struct Past {
    pub(crate) welcome: Arc<Welcome>,
    /// See [`Resume`].
    pub(crate) answered: Seq,
    pub(crate) blocks: u64,
}

/// Why one attempt to open a session failed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("cannot connect")]
    Stream(#[from] io::Error),
    #[error("server answers nonsense")]
    Frame(#[from] FrameError),
    #[error("no answer in time")]
    Time,
    #[error("server is not ready, or has all the connections or sessions that it takes")]
    NotReady,
    #[error("refused: {0}")]
    Refused(String),
}

/// Opens a session, or goes on with that of `past`, on whichever server answers first.
///
/// # Errors
/// `Refused` when the server will not have us, `Closed` when `closing` says that nobody wants it any more.
pub(crate) async fn open(
    config: &Config,
    past: Option<&Past>,
    mut claims: impl FnMut(&Welcome) -> Claims,
    closing: impl Fn() -> bool,
) -> Result<Opened, Error> {
    let mut pauses = Pauses::new(BACKOFF_FIRST, BACKOFF_MAX);
    let mut told = false;
    for address in config.addresses.iter().cycle() {
        if closing() {
            return Err(Error::Closed);
        }
        let attempt = attempt(config, address, past, &mut claims);
        let failed = match timeout(ATTEMPT_TIME_MAX, attempt).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(Failed::Refused(reason))) => return Err(Error::Refused(reason)),
            Ok(Err(failed)) => failed,
            Err(_) => Failed::Time,
        };
        if !told {
            tracing::warn!(address, error = %failed, "waiting for the server");
            told = true;
        }
        pauses.pause(config.random.as_ref()).await;
    }
    Err(Error::Refused("no address to connect to".to_owned()))
}

async fn attempt(
    config: &Config,
    address: &str,
    past: Option<&Past>,
    claims: &mut impl FnMut(&Welcome) -> Claims,
) -> Result<Opened, Failed> {
    let stream = config.dial.dial(address).await?;
    let mut talk = Talk { stream, inbox: BytesMut::new(), calls: 0 };
    talk.stream.write_all(&opening()).await?;
    let hello = Request::Hello(Hello {
        token: config.token.clone(),
        client: config.client_name.clone(),
        resume: past.map(|past| Resume {
            session: past.welcome.session,
            secret: past.welcome.secret,
            answered: past.answered,
            blocks: past.blocks,
            proof: past.welcome.proof,
        }),
        kernel_checks: config.kernel_checks,
    });
    let (Reply::Welcome(welcome), version) = talk.ask(&hello).await? else {
        return Err(Failed::NotReady);
    };
    let restarted =
        past.is_some_and(|past| !welcome.opened && past.welcome.incarnation != welcome.incarnation);
    if restarted {
        talk.claim(claims(&welcome)).await?;
    }
    Ok(Opened { welcome, version, stream: talk.stream, inbox: talk.inbox })
}

/// A connection before it is attached: one request at a time.
struct Talk {
    stream: Box<dyn Stream>,
    inbox: BytesMut,
    calls: u64,
}

impl Talk {
    /// The answer, and the version of the server's invalidation list.
    async fn ask(&mut self, request: &Request) -> Result<(Reply, u64), Failed> {
        self.ask_as(0, request).await
    }

    async fn ask_as(&mut self, uid: u32, request: &Request) -> Result<(Reply, u64), Failed> {
        self.calls += 1;
        let header = RequestHeader {
            call: self.calls,
            shard: base::ShardId(0),
            epoch: base::Epoch(0),
            seq: Seq(0),
            unanswered: Seq(1),
            cache_version: 0,
            cred: base::Cred { uid, ..base::Cred::default() },
        };
        let mut out = Vec::new();
        put_frame(&mut out, |out| {
            header.encode(out);
            request.encode(out);
        });
        self.stream.write_all(&out).await?;
        self.stream.flush().await?;
        loop {
            if let Some(frame) = take_frame(&mut self.inbox)? {
                let (header, answer) = decode(&frame)?;
                match answer {
                    Answer::Done(reply) => return Ok((reply, header.cache_version)),
                    Answer::Failed(error) => return Err(Failed::Refused(error.to_string())),
                    Answer::Refused(reason) => return Err(Failed::Refused(reason)),
                    Answer::Retry(
                        Retry::Busy
                        | Retry::NoSession
                        | Retry::Moved(_)
                        | Retry::StaleCache(_)
                        | Retry::StaleDir
                        | Retry::Coordinate
                        | Retry::AtBirth(_),
                    )
                    | Answer::Halted => return Err(Failed::NotReady),
                }
            }
            self.inbox.reserve(4096);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Claims files, for each user in his name, then locks of them. The last claim of files ends it, and says so.
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

/// What is claimed at once: files of one user, not too many.
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

/// Keeps the session that was opened, until the client is closed or refused.
pub(crate) async fn keep(core: Arc<Core>, mut opened: Opened) {
    let mut again = false;
    let error = loop {
        let ended = serve(&core, opened, again).await;
        again = true;
        if matches!(ended, Ended::Closed) {
            break Error::Closed;
        }
        core.channel.detach();
        tracing::info!(reason = %ended, "reconnecting");
        let past = Past {
            welcome: core.welcome(),
            answered: core.channel.answered(),
            // Blocks that are numbered from now on are sent on the new connection.
            blocks: core.files.blocks_numbered(),
        };
        let claims = |welcome: &Welcome| {
            // The locks first: a file may be closed meanwhile, but none is locked that is not open.
            let (locks, settled) = core.locks.claims(welcome.incarnation);
            let files = core.files.claims(welcome.incarnation);
            let open: HashSet<Ino> = files.iter().map(|(_, file)| file.file.ino).collect();
            let locks = locks.into_iter().filter(|lock| open.contains(&lock.ino)).collect();
            Claims { files, locks, settled }
        };
        match open(&core.config, Some(&past), claims, || core.channel.closing()).await {
            Ok(again) => opened = again,
            Err(error) => break error,
        }
    };
    if let Error::Refused(reason) = &error {
        tracing::error!(reason, "the server refuses this client");
    }
    core.channel.end(&error);
}

async fn serve(core: &Arc<Core>, opened: Opened, again: bool) -> Ended {
    let Opened { welcome, version, stream, inbox } = opened;
    debug_assert!(inbox.remaining() == 0, "nothing comes unasked");
    let lease = Duration::from_millis(welcome.lease_ms);
    let (lost, forgot) = core.adopt(&welcome, version, again);
    core.channel.attach(Attach {
        map: welcome.map,
        incarnation: welcome.incarnation,
        lost,
        forgot,
    });
    let mut connection = Connection::new(&core.channel, stream, inbox, lease);
    let spawner = Arc::clone(core);
    connection.run(move || spawner.adopt_orphans()).await
}
