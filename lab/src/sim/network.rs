//! The network of a world: connections in memory with the semantics of TCP.
//!
//! Within a connection bytes arrive in order and once, in pieces of any size, each after a delay.
//! Between connections there is no order: what was sent on one that broke may still reach the
//! server after the client has come back on another, so the server hears echoes. Nobody learns of a
//! lost machine but by its silence.
//!
//! Every machine has a [`Place`] in it: servers listen at their addresses, clients and servers
//! dial. Between any two places there can be a wall for a while, one way or both: what is sent
//! meets it and goes on when it falls, as TCP repeats what was not acknowledged.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use client::{Dial, Stream};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    disk::Process,
    pipe::{End, Pipe},
    plan::{Aim, Plan, Weather},
    random::SimRandom,
    trace::Trace,
};

/// The network. Clones share it.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
    pub(super) weather: Weather,
    /// Somebody wants to know what servers send.
    pub(super) watched: bool,
    pub(super) random: SimRandom,
    pub(super) trace: Trace,
}

/// Whoever dials behind a wall gives up after this.
const DIAL_MAX: Duration = Duration::from_secs(2);

/// A machine, as the network knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Of a server.
    Server(u16),
    /// Of a client.
    Client(u64),
}

impl Place {
    fn number(self) -> u64 {
        match self {
            Place::Server(number) => 1 << 32 | u64::from(number),
            Place::Client(number) => number,
        }
    }
}

struct Inner {
    /// By address.
    listeners: BTreeMap<String, Listener>,
    links: Vec<Link>,
    walls: Vec<Wall>,
    /// Machines of clients that are gone for good.
    gone: Vec<u64>,
    connections: u64,
}

#[derive(Clone)]
struct Listener {
    place: Place,
    process: Arc<Process>,
    sender: mpsc::UnboundedSender<End>,
}

/// A connection, from who dialled (the client, though it may be a server) to who listened.
struct Link {
    from: Place,
    to: Place,
    to_server: Arc<Mutex<Pipe>>,
    to_client: Arc<Mutex<Pipe>>,
}

/// Nothing gets from one machine to the other.
struct Wall {
    from: Place,
    to: Place,
    until: Instant,
}

impl Inner {
    /// When nothing stands between two machines any more, if something does.
    fn walled_until(&self, one: Place, other: Place) -> Option<Instant> {
        let now = Instant::now();
        let between = |wall: &&Wall| {
            (wall.from == one && wall.to == other) || (wall.from == other && wall.to == one)
        };
        let walls = self.walls.iter().filter(between).map(|wall| wall.until);
        walls.filter(|until| *until > now).max()
    }
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
    pub fn new(plan: &Plan, random: SimRandom, trace: Trace) -> Network {
        let (weather, watched) = (plan.weather, plan.aim == Aim::Promises);
        let inner = Inner {
            listeners: BTreeMap::new(),
            links: Vec::new(),
            walls: Vec::new(),
            gone: Vec::new(),
            connections: 0,
        };
        Network { inner: Arc::new(Mutex::new(inner)), weather, watched, random, trace }
    }

    /// A server listens at an address: what it receives are its ends of new connections.
    pub fn listen(
        &self,
        server: u16,
        address: String,
        process: &Arc<Process>,
    ) -> mpsc::UnboundedReceiver<End> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let listener =
            Listener { place: Place::Server(server), process: Arc::clone(process), sender };
        self.inner.lock().listeners.insert(address, listener);
        receiver
    }

    /// A server is dead. With `reset` what it sent and had not arrived is lost.
    pub fn server_died(&self, server: u16, reset: bool) {
        let mut inner = self.inner.lock();
        let place = Place::Server(server);
        inner.listeners.retain(|_, listener| listener.place != place);
        if reset {
            for link in &inner.links {
                if link.to == place {
                    link.to_client.lock().lose();
                }
                if link.from == place {
                    link.to_server.lock().lose();
                }
            }
        }
    }

    /// For some time nothing gets from a machine to another; what is sent arrives after that.
    pub fn wall(&self, from: Place, to: Place, time: Duration) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let until = now + time;
        inner.walls.retain(|wall| wall.until > now);
        inner.walls.push(Wall { from, to, until });
        for link in &inner.links {
            if (link.from, link.to) == (from, to) {
                link.to_server.lock().hold(until);
            }
            if (link.from, link.to) == (to, from) {
                link.to_client.lock().hold(until);
            }
        }
    }

    /// The machines of clients that have connections.
    #[must_use]
    pub fn clients(&self) -> Vec<Place> {
        let mut inner = self.inner.lock();
        inner.links.retain(|link| !link.to_server.lock().is_over());
        let mut found = Vec::new();
        for link in &inner.links {
            if matches!(link.from, Place::Client(_)) && !found.contains(&link.from) {
                found.push(link.from);
            }
        }
        found
    }

    /// Breaks a connection, if there is one.
    pub fn cut(&self, cut: Cut) -> bool {
        let mut inner = self.inner.lock();
        inner.links.retain(|link| !link.to_server.lock().is_over());
        let living: Vec<usize> = (0..inner.links.len())
            .filter(|index| match inner.links[*index].from {
                Place::Client(client) => !inner.gone.contains(&client),
                Place::Server(_) => true,
            })
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

    /// The machine of a client is gone: nothing goes to it or comes from it any more. With `closed`
    /// it was only the process, and its connections end.
    pub fn client_died(&self, client: u64, closed: bool) {
        let mut inner = self.inner.lock();
        inner.gone.push(client);
        let place = Place::Client(client);
        for link in inner.links.iter().filter(|link| link.from == place) {
            link.to_server.lock().fall_silent(closed);
            link.to_client.lock().fall_silent(false);
        }
    }

    /// The port of a client, to be dialled from.
    #[must_use]
    pub fn port(&self, client: u64) -> Arc<Port> {
        Arc::new(Port { network: self.clone(), place: Place::Client(client), process: None })
    }

    /// The port of a server's process, to dial other servers from.
    #[must_use]
    pub fn server_port(&self, server: u16, process: &Arc<Process>) -> Arc<Port> {
        let process = Some(Arc::clone(process));
        Arc::new(Port { network: self.clone(), place: Place::Server(server), process })
    }

    fn connect(&self, port: &Port, address: &str) -> io::Result<End> {
        let mut inner = self.inner.lock();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = inner.listeners.get(address).cloned().ok_or_else(refused)?;
        inner.connections += 1;
        let number = inner.connections;
        self.trace.note("connect", &[port.place.number(), listener.place.number(), number]);
        let to_server = Pipe::new(2 * number);
        let to_client = Pipe::new(2 * number + 1);
        let process = Some(listener.process);
        let of_servers = matches!(port.place, Place::Server(_));
        let server = End::new(self, to_server.clone(), to_client.clone(), process, of_servers);
        let process = port.process.clone();
        let mine = End::new(self, to_client.clone(), to_server.clone(), process, of_servers);
        listener.sender.send(server).map_err(|_| refused())?;
        inner.links.push(Link { from: port.place, to: listener.place, to_server, to_client });
        Ok(mine)
    }

    /// When nothing stands between a machine and who listens at an address, if something does.
    fn walled_until(&self, from: Place, address: &str) -> Option<Instant> {
        let inner = self.inner.lock();
        let to = inner.listeners.get(address)?.place;
        inner.walled_until(from, to)
    }
}

/// Where the connections of a machine start.
pub struct Port {
    network: Network,
    place: Place,
    /// The process that dials, if that can die alone.
    process: Option<Arc<Process>>,
}

impl Port {
    fn is_gone(&self) -> bool {
        match self.place {
            Place::Client(client) => self.network.inner.lock().gone.contains(&client),
            Place::Server(_) => self.process.as_ref().is_some_and(|process| !process.is_alive()),
        }
    }
}

impl Dial for Port {
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let network = &self.network;
            sleep(network.weather.delay(&network.random)).await;
            let patience = Instant::now() + DIAL_MAX;
            while let Some(until) = network.walled_until(self.place, address) {
                sleep_until(until.min(patience)).await;
                if until > patience {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            if self.is_gone() {
                return std::future::pending().await;
            }
            Ok(Box::new(network.connect(self, address)?) as Box<dyn Stream>)
        })
    }
}
