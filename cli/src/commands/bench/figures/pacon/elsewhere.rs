//! Clients on other machines than the lead: each machine is a thread with a front end, over TCP on
//! the loopback and encrypted, as `pando region join` has it.

use std::{net::TcpListener, thread, time::SystemTime};

use anyhow::Context as _;
use base::{Cred, FileKind};
use client::{FileSystem as _, New};
use futures::future::try_join_all;
use region::{Front, Lead, Region, Secret, accept, reach};
use tls::Acceptor;
use tokio::{
    net::TcpStream,
    sync::oneshot,
    task::{LocalSet, spawn_local},
};
use wire::DirRef;

use super::{clients::Took, jobs::name_of};

/// The lead of a region, which answers on a thread of its own.
pub(super) struct Serving {
    address: std::net::SocketAddr,
    secret: Secret,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<anyhow::Result<()>>>,
}

impl Serving {
    pub(super) fn begin(region: &Region) -> anyhow::Result<Serving> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (address, secret) = (listener.local_addr()?, Secret::new([7; 32]));
        let (stop, stopped) = oneshot::channel();
        let (region, known) = (region.clone(), secret.clone());
        let builder = thread::Builder::new().name("machines".to_owned());
        let thread = builder.spawn(move || {
            let runtime = crate::connect::runtime()?;
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    served = serve(listener, &region, &known) => served,
                    _ = stopped => Ok(()),
                }
            })
        })?;
        Ok(Serving { address, secret, stop: Some(stop), thread: Some(thread) })
    }

    /// Has so many machines make so many files or directories in all, `clients` at once on each, in
    /// the directory of `dirs` that is the client's.
    pub(super) fn make(
        &self,
        (machines, clients): (usize, usize),
        operations: usize,
        kind: FileKind,
        dirs: &[DirRef],
        prefix: &str,
    ) -> anyhow::Result<Took> {
        let each = operations.div_ceil(machines * clients);
        Took::of(each * machines * clients, || {
            thread::scope(|scope| {
                let work = |machine| {
                    move || {
                        let dirs = &dirs[machine * clients..(machine + 1) * clients];
                        self.machine(dirs, each, kind, prefix)
                    }
                };
                let all: Vec<_> = (0..machines).map(|machine| scope.spawn(work(machine))).collect();
                all.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
            })
        })
    }

    fn machine(
        &self,
        dirs: &[DirRef],
        each: usize,
        kind: FileKind,
        prefix: &str,
    ) -> anyhow::Result<()> {
        let runtime = crate::connect::runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            let (stream, root) = reach(stream, &self.secret, "bench").await?;
            let (front, carry) = Front::over(stream, root);
            let carried = spawn_local(carry);
            let clients = dirs.iter().map(|dir| make(&front, dir, each, kind, prefix));
            try_join_all(clients).await?;
            front.close();
            carried.await.context("the connection of a machine")
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Ok(Err(error))) = self.thread.take().map(thread::JoinHandle::join) {
            tracing::warn!(error = format!("{error:#}"), "the lead has ended early");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are of the time of day")]
async fn serve(listener: TcpListener, region: &Region, secret: &Secret) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let acceptor = Acceptor::new(secret.identity(SystemTime::now())?)?;
    let lead = Lead::new(region.clone());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let root = region.root().1;
        let (stream, machine) = accept(stream, &acceptor, secret, || Ok(root)).await?;
        let joined = lead.join(machine).context("the region does not end")?;
        spawn_local(joined.serve(stream));
    }
}

/// One client, with one operation under way.
async fn make(
    front: &Front,
    dir: &DirRef,
    count: usize,
    kind: FileKind,
    prefix: &str,
) -> anyhow::Result<()> {
    for number in 0..count {
        let name = name_of(&format!("{prefix}{number}"))?;
        if kind == FileKind::Directory {
            front.mkdir(&Cred::ROOT, dir, &name, 0o755).await?;
        } else {
            let new = New { kind, mode: 0o644, rdev: 0 };
            front.create(&Cred::ROOT, dir, &name, new, true, false).await?;
        }
    }
    Ok(())
}
