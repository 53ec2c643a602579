//! The network of a world: connections in memory with the semantics of TCP.
//!
//! Within a connection bytes arrive in order and once, in pieces of any size, each after a delay.
//! Between connections there is no order: bytes sent on a broken connection may still reach the
//! server after the client has come back on another, so the server gets late duplicates. A lost
//! machine is noticed only by its silence.
//!
//! Every machine has a [`Place`] in the network: servers listen at their addresses, clients and
//! servers dial. A wall can stand between any two places for a while, one way or both. Bytes that
//! meet a wall go on when it falls, as TCP retransmits unacknowledged data.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use client::{Dial, Dialled};
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
    /// Whether messages of servers are decoded, because faults are aimed at them.
    pub(super) watched: bool,
    pub(super) random: SimRandom,
    pub(super) trace: Trace,
}

/// Time after which a dial that a wall blocks is given up.
const DIAL_MAX: Duration = Duration::from_secs(2);

/// A machine, as the network knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The machine of a server, by its number.
    Server(u16),
    /// The machine of a client, by its number.
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
    /// Listeners by their addresses.
    listeners: BTreeMap<String, Listener>,
    links: Vec<Link>,
    walls: Vec<Wall>,
    /// Clients whose machines are gone for good.
    gone: Vec<u64>,
    connections: u64,
}

#[derive(Clone)]
struct Listener {
    place: Place,
    process: Arc<Process>,
    sender: mpsc::UnboundedSender<End>,
}

/// A connection from the machine that dialled (the client, though it may be a server) to the one
/// that listened.
struct Link {
    from: Place,
    to: Place,
    to_server: Arc<Mutex<Pipe>>,
    to_client: Arc<Mutex<Pipe>>,
}

/// A partition of the network: nothing gets from one machine to the other before `until`.
struct Wall {
    from: Place,
    to: Place,
    until: Instant,
}

impl Inner {
    /// The time at which the last wall between two machines falls, if there is one.
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
    /// Both sides know at once, and the bytes in flight are lost.
    Both,
    /// The client knows at once. Bytes that it sent reach the server this much later.
    LateAtServer(Duration),
    /// The server knows at once. Bytes that it sent reach the client this much later.
    LateAtClient(Duration),
}

impl Network {
    /// A network without machines.
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

    /// Lets a server listen at an address. The receiver gets its ends of new connections.
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

    /// Ends the listeners of a dead server. With `reset`, the bytes that it sent and that have not
    /// arrived are lost.
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

    /// Builds a wall from one machine to another for some time. Bytes sent meanwhile arrive after
    /// that.
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

    /// Removes the machine of a client: nothing goes to it or comes from it any more. With `closed`
    /// only the process died, and its connections end.
    pub fn client_died(&self, client: u64, closed: bool) {
        let mut inner = self.inner.lock();
        inner.gone.push(client);
        let place = Place::Client(client);
        for link in inner.links.iter().filter(|link| link.from == place) {
            link.to_server.lock().fall_silent(closed);
            link.to_client.lock().fall_silent(false);
        }
    }

    /// The port that a client dials from.
    #[must_use]
    pub fn port(&self, client: u64) -> Arc<Port> {
        Arc::new(Port { network: self.clone(), place: Place::Client(client), process: None })
    }

    /// The port that a server's process dials other servers from.
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

    /// The time at which the last wall between a machine and the listener at an address falls, if
    /// there is one.
    fn walled_until(&self, from: Place, address: &str) -> Option<Instant> {
        let inner = self.inner.lock();
        let to = inner.listeners.get(address)?.place;
        inner.walled_until(from, to)
    }
}

/// The point from which a machine dials.
pub struct Port {
    network: Network,
    place: Place,
    /// The process that dials, if it can die without its machine.
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
    fn dial<'a>(&'a self, address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
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
            Ok(Dialled::plain(network.connect(self, address)?))
        })
    }
}
