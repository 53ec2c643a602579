//! Connections of readers: admitted one by one beside each other, so that one that is slow holds
//! nobody up.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::serve::Listener;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};

use crate::admission::{Admission, Link};

/// Connections of this machine that are being admitted, at a time, and those of all others; more
/// are closed. Those of this machine are counted apart, so that nobody elsewhere keeps out whoever
/// asks for the server's health.
const ADMITTED_AT_ONCE_MAX: usize = 256;
/// Connections that were admitted and not taken yet.
const TAKEN_LATER_MAX: usize = 64;
/// Pause before another try when connections cannot be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that are admitted.
pub(super) struct Links {
    address: io::Result<SocketAddr>,
    admitted: mpsc::Receiver<(Link, SocketAddr)>,
}

impl Links {
    /// Accepts and admits connections until this is dropped.
    pub(super) fn start(listener: TcpListener, admission: Admission) -> Links {
        let address = listener.local_addr();
        let (sender, admitted) = mpsc::channel(TAKEN_LATER_MAX);
        tokio::spawn(accept(listener, admission, sender));
        Links { address, admitted }
    }
}

async fn accept(
    listener: TcpListener,
    admission: Admission,
    sender: mpsc::Sender<(Link, SocketAddr)>,
) {
    let places = || Arc::new(Semaphore::new(ADMITTED_AT_ONCE_MAX));
    let (near, far) = (places(), places());
    while !sender.is_closed() {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let places = if address.ip().to_canonical().is_loopback() { &near } else { &far };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else { continue };
        let (admission, sender) = (admission.clone(), sender.clone());
        tokio::spawn(async move {
            admit(&admission, stream, address, &sender).await;
            drop(place);
        });
    }
}

async fn admit(
    admission: &Admission,
    stream: TcpStream,
    address: SocketAddr,
    sender: &mpsc::Sender<(Link, SocketAddr)>,
) {
    match admission.admit(stream).await {
        // The page may be gone.
        Ok((link, _)) => drop(sender.send((link, address)).await),
        Err(closed) => tracing::debug!(%address, "{closed}"),
    }
}

impl Listener for Links {
    type Io = Link;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Link, SocketAddr) {
        match self.admitted.recv().await {
            Some(admitted) => admitted,
            // The task that accepts ends after this.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.address {
            Ok(address) => Ok(*address),
            Err(error) => Err(error.kind().into()),
        }
    }
}
