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
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use base::Attr;
use client::FileSystem as _;
use region::{Front, JoinError, Lead, Machine, Note, Region, Secret, Wish, accept, reach};
use rustix::net::sockopt;
use tls::{Acceptor, ServerStream};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, oneshot},
    task::LocalSet,
    time::timeout,
};

use crate::{connect, system::host_name};

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
/// Time for other machines to leave a region, or to say why they do not.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// The same where they must, and nobody waits for their reasons.
const LOSE_WITHIN: Duration = Duration::from_secs(10);
/// Time after which the lead shows another certificate: each is valid for a week.
const RENEW_EVERY: Duration = Duration::from_secs(24 * 3600);

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
    /// Dropped when the thread is to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The present, as certificates have it.
#[expect(clippy::disallowed_methods, reason = "certificates are of the time of day")]
fn now() -> SystemTime {
    SystemTime::now()
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
        let (lead, machine) = (format!("{host}:{}", bound.port()), Machine::here()?);
        let note = Note { lead, machine, secret: Secret::new(random) };
        let acceptor = Acceptor::new(note.secret.identity(now())?)?;
        let below = locked.try_clone()?;
        note.write(&path_of(&below))?;
        Ok(Listen { listener, acceptor, written: Written { note, below } })
    }

    /// Answers other machines from now on.
    pub(super) fn begin(self, region: &Region) -> anyhow::Result<Machines> {
        let Listen { listener, acceptor, written } = self;
        let lead = Lead::new(region.clone());
        let (stop, stopped) = oneshot::channel();
        // A thread of its own: this one serves the mount.
        let serving = Serving {
            acceptor,
            secret: written.note.secret.clone(),
            lead: lead.clone(),
            region: region.clone(),
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
        Ok(Machines { lead, _written: written, stop, thread })
    }
}

impl Machines {
    /// Has all other machines leave, unless programs use the region on one of them: then none does,
    /// if that can be told before.
    pub(super) async fn leave(&self) -> Result<(), String> {
        self.lead.ends(true);
        let mut left = self.lead.ask(Wish::Ask, LEAVE_WITHIN).await;
        if left.is_ok() {
            left = self.lead.ask(Wish::Leave, LEAVE_WITHIN).await;
        }
        left.map_err(|reasons| {
            self.lead.ends(false);
            format!("other machines use the region: {}", reasons.join("; "))
        })
    }

    /// Has all other machines leave, whatever uses the region there. No more join.
    pub(super) async fn lose(&self) {
        self.lead.ends(true);
        if let Err(reasons) = self.lead.ask(Wish::Must, LOSE_WITHIN).await {
            let reasons = reasons.join("; ");
            tracing::warn!(reasons, "machines lose the region without having left it");
        }
    }

    /// Lets machines join again: the region does not end.
    pub(super) fn goes_on(&self) {
        self.lead.ends(false);
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

/// The thread that answers other machines has this.
struct Serving {
    acceptor: Acceptor,
    secret: Secret,
    lead: Lead,
    region: Region,
}

async fn serve(listener: TcpListener, serving: Serving) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (serving, strangers) = (Arc::new(serving), Arc::new(Semaphore::new(STRANGERS_MAX)));
    tokio::task::spawn_local(Arc::clone(&serving).renew());
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
                            let Some(joined) = serving.lead.join(machine.clone()) else { return };
                            tracing::info!(machine, %from, "a machine has joined");
                            joined.serve(stream).await;
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
    /// Shows a new certificate each day.
    async fn renew(self: Arc<Serving>) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match self.secret.identity(now()) {
                Ok(identity) => self.acceptor.renew(identity),
                Err(error) => tracing::error!(%error, "the certificate ends within a week"),
            }
        }
    }

    async fn meet(
        &self,
        stream: TcpStream,
    ) -> Result<(ServerStream<TcpStream>, String), JoinError> {
        watch(&stream).map_err(|_| JoinError::Silent)?;
        let root = || -> Result<Attr, String> {
            if self.lead.is_ending() {
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
    let reached = reach(stream, &note.secret, &host_name()).await;
    let (stream, root) = reached.with_context(context)?;
    Ok(Front::over(stream, root))
}

/// Checks that no other machine has a region on this directory, which is locked on this one. A note
/// that a lead has left which was killed is removed.
pub(super) fn nobody_leads(dir: &Path) -> anyhow::Result<()> {
    let Some(note) = Note::read(dir)? else { return Ok(()) };
    let here = Machine::here()?;
    // A process that has a region on this machine holds the lock.
    if !note.machine.is_gone(&here) {
        let there = match connect::runtime()?.block_on(join(&note)) {
            Ok(_) => "is".to_owned(),
            // A refused connection proves nothing: it may be a firewall's, or of another machine
            // that has the name here.
            Err(error) => format!("may be, which does not answer ({error:#}),"),
        };
        bail!(
            "a region of {} {there} on {dir}: `pando region join {dir}` joins it; remove {} if that \
             machine is gone for good",
            note.lead,
            Note::path(dir).display(),
            dir = dir.display()
        );
    }
    tracing::warn!(lead = note.lead, "the region's process was killed, and left its note");
    note.remove(dir)?;
    Ok(())
}

/// Whether a name is one of this machine: its own, where domains count if both have one, or one of
/// an address that it has.
pub(super) fn is_this_machine(host: &str) -> bool {
    use std::net::{ToSocketAddrs as _, UdpSocket};

    let is_own = |address| UdpSocket::bind(address).is_ok();
    is_same_host(host, &host_name())
        || (host, 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.any(is_own))
}

fn is_same_host(one: &str, other: &str) -> bool {
    let split = |name: &str| {
        name.split_once('.')
            .map(|(host, domain)| (host.to_ascii_lowercase(), Some(domain.to_ascii_lowercase())))
    };
    let parts = |name: &str| split(name).unwrap_or_else(|| (name.to_ascii_lowercase(), None));
    let ((host, domain), (other_host, other_domain)) = (parts(one), parts(other));
    let domains_differ = domain.zip(other_domain).is_some_and(|(one, other)| one != other);
    one == "localhost" || (host == other_host && !domains_differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_name_with_and_without_domain() {
        assert!(is_same_host("n1", "n1.site.org") && is_same_host("N1.site.org", "n1"));
        assert!(is_same_host("n1.site.org", "n1.site.org") && is_same_host("localhost", "n1"));
        assert!(!is_same_host("n1.site.org", "n1.other.org") && !is_same_host("n10", "n1"));
    }
}
