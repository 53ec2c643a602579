//! The network of a world: connections in memory with the semantics of TCP.
//!
//! Within a connection bytes arrive in order and once, in pieces of any size, each after a delay. Between
//! connections there is no order: what was sent on one that broke may still reach the server after the
//! client has come back on another, so the server hears echoes. Nobody learns of a lost machine but by its
//! silence.

use std::{io, sync::Arc, time::Duration};

use client::{Dial, Stream};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::sleep};

use super::{
    disk::Process,
    pipe::{End, Pipe},
    plan::Weather,
    random::SimRandom,
    trace::Trace,
};

/// The network. Clones share it.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
    pub(super) weather: Weather,
    pub(super) random: SimRandom,
    pub(super) trace: Trace,
}

struct Inner {
    listener: Option<(mpsc::UnboundedSender<End>, Arc<Process>)>,
    links: Vec<Link>,
    /// Machines that are gone for good.
    gone: Vec<u64>,
    connections: u64,
}

/// A connection.
struct Link {
    client: u64,
    to_server: Arc<Mutex<Pipe>>,
    to_client: Arc<Mutex<Pipe>>,
}

/// How a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both sides know at once, and what was under way is lost.
    Both,
    /// The client knows at once; what it sent reaches the server so much later.
    LateAtServer(Duration),
    /// The server knows at once; what it sent reaches the client so much later.
    LateAtClient(Duration),
}

impl Network {
    /// A network without anybody.
    #[must_use]
    pub fn new(weather: Weather, random: SimRandom, trace: Trace) -> Network {
        let inner = Inner { listener: None, links: Vec::new(), gone: Vec::new(), connections: 0 };
        Network { inner: Arc::new(Mutex::new(inner)), weather, random, trace }
    }

    /// A server listens: what it receives are its ends of new connections.
    pub fn listen(&self, process: &Arc<Process>) -> mpsc::UnboundedReceiver<End> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.inner.lock().listener = Some((sender, Arc::clone(process)));
        receiver
    }

    /// The server is dead. With `reset` what it sent and had not arrived is lost.
    pub fn server_died(&self, reset: bool) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        if reset {
            inner.links.iter().for_each(|link| link.to_client.lock().lose());
        }
    }

    /// Breaks a connection, if there is one.
    pub fn cut(&self, cut: Cut) -> bool {
        let mut inner = self.inner.lock();
        inner.links.retain(|link| !link.to_server.lock().is_over());
        let living: Vec<usize> = (0..inner.links.len())
            .filter(|index| !inner.gone.contains(&inner.links[*index].client))
            .collect();
        if living.is_empty() {
            return false;
        }
        let link = inner.links.swap_remove(self.random.pick(&living));
        let (to_server, to_client) = (&mut *link.to_server.lock(), &mut *link.to_client.lock());
        match cut {
            Cut::Both => {
                to_server.lose();
                to_client.lose();
            }
            Cut::LateAtServer(late) => {
                to_client.lose();
                to_server.linger(late);
            }
            Cut::LateAtClient(late) => {
                to_server.lose();
                to_client.linger(late);
            }
        }
        true
    }

    /// The machine of a client is gone: nothing goes to it or comes from it any more. With `closed` it was
    /// only the process, and its connections end.
    pub fn client_died(&self, client: u64, closed: bool) {
        let mut inner = self.inner.lock();
        inner.gone.push(client);
        for link in inner.links.iter().filter(|link| link.client == client) {
            link.to_server.lock().fall_silent(closed);
            link.to_client.lock().fall_silent(false);
        }
    }

    /// The port of a client, to be dialled from.
    #[must_use]
    pub fn port(&self, client: u64) -> Arc<Port> {
        Arc::new(Port { network: self.clone(), client })
    }

    fn connect(&self, client: u64) -> io::Result<End> {
        let mut inner = self.inner.lock();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let (sender, process) = inner.listener.clone().ok_or_else(refused)?;
        inner.connections += 1;
        let number = inner.connections;
        self.trace.note("connect", &[client, number]);
        let to_server = Pipe::new(2 * number);
        let to_client = Pipe::new(2 * number + 1);
        let server = End::new(self, to_server.clone(), to_client.clone(), Some(process));
        let mine = End::new(self, to_client.clone(), to_server.clone(), None);
        sender.send(server).map_err(|_| refused())?;
        inner.links.push(Link { client, to_server, to_client });
        Ok(mine)
    }
}

/// Where a client's connections start.
pub struct Port {
    network: Network,
    client: u64,
}

impl Dial for Port {
    fn dial<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let network = &self.network;
            sleep(network.weather.delay(&network.random)).await;
            if network.inner.lock().gone.contains(&self.client) {
                return std::future::pending().await;
            }
            Ok(Box::new(network.connect(self.client)?) as Box<dyn Stream>)
        })
    }
}
