//! The machines of a region: how others find and reach the one that has it.
//!
//! A region that others may join has a note in its directory with its address and secret. Whoever
//! reads it as the region's user may join. A note whose lead is gone is removed by the next one.

use std::{
    fs::File,
    io,
    net::TcpListener,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, bail};
use base::Attr;
use client::FileSystem as _;
use region::{Front, JoinError, Lead, Note, Region, Secret, accept, reach};
use rustix::net::sockopt;
use tls::{Acceptor, ServerStream};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, oneshot},
    task::LocalSet,
    time::timeout,
};

use crate::connect;

/// Time within which a lead is connected to.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Time after which a machine is gone that does not even acknowledge what it is sent.
const SILENCE: Duration = Duration::from_secs(5);
/// Pause between questions whether an idle machine is there, and how many remain without an answer.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(1), 5);
/// Connections at once that have not said who they are.
const STRANGERS_MAX: usize = 64;
/// Pause after a connection that could not be taken.
const AGAIN: Duration = Duration::from_millis(100);
/// Time for other machines to leave a region.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);

/// A lead that listens, and is not found yet.
pub(super) struct Listen {
    listener: TcpListener,
    acceptor: Acceptor,
    written: Written,
}

/// A note in the directory of a region, which is removed when this is dropped.
struct Written {
    note: Note,
    below: File,
}

/// The path of an open directory, whatever is mounted over it.
fn path_of(below: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()))
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Err(error) = self.note.remove(&path_of(&self.below)) {
            tracing::warn!(%error, "the note of the region stays");
        }
    }
}

/// The other machines of a region.
pub(super) struct Machines {
    pub(super) lead: Lead,
    _written: Written,
    ends: Arc<AtomicBool>,
    /// Dropped when the thread is to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Name of this machine, for people and for other machines.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Listen {
    /// Listens at an address for a region on the directory that is `locked`, before the region has
    /// looked at it, and writes its note. Whoever comes waits for [`Listen::begin`].
    pub(super) fn bind(address: &str, locked: &File) -> anyhow::Result<Listen> {
        let context = || format!("cannot listen at {address}");
        let listener = TcpListener::bind(address).with_context(context)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        let (host, _) = address.rsplit_once(':').with_context(context)?;
        let host = if bound.ip().is_unspecified() { host_name() } else { host.to_owned() };
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
        let note = Note { lead: format!("{host}:{}", bound.port()), secret: Secret::new(random) };
        let acceptor = note.secret.acceptor(vec![bound.ip()])?;
        let below = locked.try_clone()?;
        note.write(&path_of(&below))?;
        Ok(Listen { listener, acceptor, written: Written { note, below } })
    }

    /// Answers other machines from now on.
    pub(super) fn begin(self, region: &Region) -> anyhow::Result<Machines> {
        let Listen { listener, acceptor, written } = self;
        let (lead, ends) = (Lead::new(region.clone()), Arc::new(AtomicBool::new(false)));
        let (stop, stopped) = oneshot::channel();
        // A thread of its own: this one serves the mount.
        let serving = Serving {
            acceptor,
            secret: written.note.secret.clone(),
            lead: lead.clone(),
            region: region.clone(),
            ends: Arc::clone(&ends),
        };
        let runtime = connect::runtime()?;
        let thread = std::thread::Builder::new().name("machines".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    served = serve(listener, serving) => if let Err(error) = served {
                        tracing::error!(%error, "other machines cannot join any more");
                    },
                    _ = stopped => {}
                }
            });
        })?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Machines { lead, _written: written, ends, stop, thread })
    }
}

impl Machines {
    /// Has all other machines leave; `force`: also where programs use the region.
    pub(super) async fn leave(&self, force: bool) -> Result<(), String> {
        self.ends.store(true, Ordering::Release);
        let left = self.lead.all_leave(force, LEAVE_WITHIN).await;
        left.map_err(|reasons| {
            self.goes_on();
            format!("other machines use the region: {}", reasons.join("; "))
        })
    }

    /// Lets no more machines join.
    pub(super) fn ends_now(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Lets machines join again: the region does not end.
    pub(super) fn goes_on(&self) {
        self.ends.store(false, Ordering::Release);
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(?panic, "the thread that answers other machines has failed");
        }
    }
}

/// What the thread that answers other machines has.
struct Serving {
    acceptor: Acceptor,
    secret: Secret,
    lead: Lead,
    region: Region,
    ends: Arc<AtomicBool>,
}

async fn serve(listener: TcpListener, serving: Serving) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (serving, strangers) = (Arc::new(serving), Arc::new(Semaphore::new(STRANGERS_MAX)));
    loop {
        let stranger = Arc::clone(&strangers).acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, from)) => {
                let serving = Arc::clone(&serving);
                tokio::task::spawn_local(async move {
                    let met = serving.meet(stream).await;
                    drop(stranger);
                    match met {
                        Ok((stream, machine)) => {
                            tracing::info!(machine, %from, "a machine has joined");
                            serving.lead.join(machine.clone()).serve(stream).await;
                            tracing::info!(machine, %from, "a machine has left");
                        }
                        Err(error) => tracing::warn!(%from, %error, "nobody to be let in"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a machine cannot connect");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

impl Serving {
    async fn meet(
        &self,
        stream: TcpStream,
    ) -> Result<(ServerStream<TcpStream>, String), JoinError> {
        watch(&stream).map_err(|_| JoinError::Silent)?;
        let root = || -> Result<Attr, String> {
            if self.ends.load(Ordering::Acquire) {
                return Err("the region ends".to_owned());
            }
            Ok(self.region.root().1)
        };
        accept(stream, &self.acceptor, &self.secret, root).await
    }
}

/// Has the kernel end the connection when the other machine is gone.
fn watch(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE.1)?;
    let silence = u32::try_from(SILENCE.as_millis()).expect("a few seconds");
    sockopt::set_tcp_user_timeout(stream, silence)?;
    Ok(())
}

/// Joins the region of a note: its front end, and what carries its messages.
pub(super) async fn join(
    note: &Note,
) -> anyhow::Result<(Front, impl Future<Output = ()> + Send + use<>)> {
    let context = || format!("cannot join the region of {}", note.lead);
    let connected = timeout(CONNECT_WITHIN, TcpStream::connect(&note.lead)).await;
    let stream = connected.context("no connection within 10 s").with_context(context)?;
    let stream = stream.with_context(context)?;
    watch(&stream)?;
    let host = note.lead.rsplit_once(':').map_or(&note.lead[..], |(host, _)| host);
    let (stream, root) =
        reach(stream, host, &note.secret, &host_name()).await.with_context(context)?;
    Ok(Front::over(stream, root))
}

/// Checks that no other machine has a region on this directory. A note that a lead has left which
/// was killed is removed.
pub(super) fn nobody_leads(dir: &Path) -> anyhow::Result<()> {
    let Some(note) = Note::read(dir)? else { return Ok(()) };
    let path = Note::path(dir);
    let error = match connect::runtime()?.block_on(join(&note)) {
        Ok(_) => bail!(
            "a region is on {dir} already, at {}: `pando region join {dir}` joins it",
            note.lead,
            dir = dir.display()
        ),
        Err(error) => error,
    };
    if !is_gone(&error) {
        return Err(error.context(format!(
            "there may be a region on {}: remove {} if its machine is gone for good",
            dir.display(),
            path.display()
        )));
    }
    tracing::warn!(lead = note.lead, "the region's process was killed, and left its note");
    note.remove(dir)?;
    Ok(())
}

/// Whether an error says that the process of a lead is there no more: its machine answers that
/// nobody listens, or somebody else does.
fn is_gone(error: &anyhow::Error) -> bool {
    let refused = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    let stranger = error.downcast_ref::<JoinError>().is_some_and(|error| {
        matches!(error, JoinError::Tls(tls::Error::Stranger | tls::Error::NoTls))
    });
    refused || stranger
}

/// Whether an address is one of this machine's, as far as names say.
pub(super) fn is_this_machine(host: &str) -> bool {
    let ours = host_name();
    host == ours || ours.split_once('.').is_some_and(|(short, _)| host == short)
}
