//! The way from a client to a server in the same process: pipes in memory, and a core on the
//! client's own thread.
//!
//! `up` dials with it. What the client sends is executed by the same runtime that read the kernel's
//! request, so a request goes through no socket and wakes no other thread. The server's other cores
//! are for those who come by TCP; all of them share locks, sessions and the engine's write as ever.

use std::io;

use client::{Dial, Dialled};
use futures::future::{BoxFuture, ready};
use tokio::{
    io::DuplexStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::spawn_local,
};

/// Bytes that one side can be ahead of the other.
const PIPE_BYTES: usize = 1 << 20;

/// Dials a core that runs on this thread, whatever the address.
pub(crate) struct Near {
    streams: UnboundedSender<DuplexStream>,
}

impl Near {
    /// Runs `core` in local tasks, for as long as the `LocalSet` that this is called in lives.
    pub(crate) fn start(core: meta::Core) -> Near {
        let (streams, arrived) = unbounded_channel();
        let executor = core.clone();
        spawn_local(async move { executor.run_beside_clients().await });
        spawn_local(serve(core, arrived));
        Near { streams }
    }
}

async fn serve(core: meta::Core, mut arrived: UnboundedReceiver<DuplexStream>) {
    while let Some(stream) = arrived.recv().await {
        let core = core.clone();
        spawn_local(async move { core.serve_near(stream).await });
    }
}

impl Dial for Near {
    fn dial<'a>(&'a self, _address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let taken = self.streams.send(theirs);
        let stream = taken.map(|()| Dialled::plain(ours));
        Box::pin(ready(stream.map_err(|_| io::ErrorKind::ConnectionRefused.into())))
    }
}
