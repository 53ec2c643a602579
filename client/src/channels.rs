//! The channels to all servers of a cluster, and the map by which a request finds its own.
//!
//! `call` asks for the channel of each request; the first request to a server makes the session
//! join there (`session`). Any server's answer may bring a newer map, by which shards are at other
//! servers than before, or there are more servers.
//!
//! A file system of one server has one channel, and no map is looked at.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use base::{ClusterMap, Ino, ShardId};
use parking_lot::RwLock;

use crate::{
    Stats,
    channel::Channel,
    route::{Route, Router},
};

/// Channels to all servers, and the map that routes to them; see the top of this file.
pub(crate) struct Channels {
    /// In the order of the map. There may be as many servers as shards.
    lanes: Box<[OnceLock<Box<Lane>>]>,
    /// Number of servers. Those before have their lanes.
    count: AtomicUsize,
    router: RwLock<Router>,
}

struct Lane {
    channel: Channel,
    /// A task keeps a session there.
    kept: AtomicBool,
}

impl Lane {
    /// The server has left the cluster: nobody waits for it, and no session is kept there.
    fn leaves(&self) {
        self.kept.store(true, Ordering::Release);
        self.channel.leave();
    }
}

impl Channels {
    /// Channels to the servers of `map`, of which the session has joined none.
    pub(crate) fn new(map: &ClusterMap) -> Channels {
        let count = map.servers.len().max(1);
        let room = map.shards.len().max(count);
        let channels = Channels {
            lanes: (0..room).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            router: RwLock::new(Router::new()),
        };
        channels.grow(count);
        channels.learn(map);
        channels
    }

    /// Makes room for so many servers.
    fn grow(&self, count: usize) {
        for (server, lane) in (0..).zip(&self.lanes).take(count) {
            let new =
                || Box::new(Lane { channel: Channel::new(server), kept: AtomicBool::new(false) });
            lane.get_or_init(new);
        }
        self.count.fetch_max(count.min(self.lanes.len()), Ordering::AcqRel);
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().map_while(|lane| lane.get().map(Box::as_ref))
    }

    fn lane(&self, server: u16) -> Option<&Lane> {
        self.lanes.get(usize::from(server))?.get().map(Box::as_ref)
    }

    fn known(&self, server: u16) -> &Lane {
        self.lane(server).expect("a server of a map that was learnt")
    }

    /// Numbers of the servers that there are, ascending: those that have left are not among them.
    pub(crate) fn members(&self) -> Vec<u16> {
        let router = self.router.read();
        let all = (0..).zip(self.lanes()).map(|(server, _)| server);
        all.filter(|server| !router.has_left(*server)).collect()
    }

    /// Whether a server was there and has left.
    pub(crate) fn has_left(&self, server: u16) -> bool {
        self.router.read().has_left(server)
    }

    /// How many servers there have been.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether there is more than one. Servers may join one that was alone.
    pub(crate) fn are_several(&self) -> bool {
        self.count() > 1
    }

    /// The channel to a server.
    pub(crate) fn at(&self, server: u16) -> &Channel {
        &self.known(server).channel
    }

    /// The channel for what goes by `route`.
    pub(crate) fn of(&self, route: Route) -> &Channel {
        if !self.are_several() {
            return &self.known(0).channel;
        }
        let server = self.router.read().server(route).unwrap_or(0);
        &self.lane(server).unwrap_or_else(|| self.known(0)).channel
    }

    /// The shard that a request by this route is addressed to.
    pub(crate) fn shard(&self, route: Route) -> ShardId {
        self.router.read().shard(route)
    }

    /// The server that has what is open of a file.
    pub(crate) fn server_of(&self, ino: Ino) -> u16 {
        self.of(Route::Shard(ino.shard())).server
    }

    /// Whether a task must be started that keeps the session at a server; asked before anything is
    /// sent there.
    pub(crate) fn must_join(&self, server: u16) -> bool {
        let kept = &self.known(server).kept;
        !kept.load(Ordering::Relaxed) && !kept.swap(true, Ordering::AcqRel)
    }

    /// Whether a session is kept at a server, and there is no connection to it just now.
    pub(crate) fn is_away(&self, server: u16) -> bool {
        let lane = self.known(server);
        lane.kept.load(Ordering::Relaxed) && !lane.channel.is_up()
    }

    /// Where a server is; `None` when there is one only, which is wherever it was found.
    pub(crate) fn address(&self, server: u16) -> Option<String> {
        if !self.are_several() {
            return None;
        }
        self.router.read().address(server).map(str::to_owned)
    }

    /// Takes in a map; `false` when it was known. Servers that are somewhere else now are dialled
    /// there; to those that have left nothing is sent any more.
    pub(crate) fn learn(&self, map: &ClusterMap) -> bool {
        let mut router = self.router.write();
        let moved: Vec<&Lane> = (0..)
            .zip(self.lanes())
            .filter(|(server, lane)| {
                let now = map.servers.get(usize::from(*server)).map(String::as_str);
                let moved = router.address(*server).is_some_and(|before| Some(before) != now);
                // A lane that dials for the first time after this uses the new map.
                moved && lane.kept.load(Ordering::Acquire)
            })
            .map(|(_, lane)| lane)
            .collect();
        self.grow(map.servers.len());
        if !router.learn(map) {
            return false;
        }
        drop(router);
        self.lanes().for_each(|lane| lane.channel.learn(map));
        if self.are_several() {
            let stays = moved.iter().filter(|lane| !map.has_left(lane.channel.server));
            stays.for_each(|lane| lane.channel.redial());
        }
        self.lanes().filter(|lane| map.has_left(lane.channel.server)).for_each(Lane::leaves);
        true
    }

    /// Servers that have shards by `map` which another one has by the map that is known.
    pub(crate) fn gain(&self, map: &ClusterMap) -> Vec<u16> {
        let mut gain = self.router.read().gain(map);
        gain.retain(|server| usize::from(*server) < self.lanes.len());
        gain
    }

    /// All channels at which the session was joined.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &Channel> {
        let joined = self.lanes().filter(|lane| lane.kept.load(Ordering::Acquire));
        joined.map(|lane| &lane.channel)
    }

    /// The first shard that a server has; [`ShardId::SERVER`] if it has none.
    pub(crate) fn first_shard(&self, server: u16) -> ShardId {
        self.router.read().first_shard(server)
    }

    /// A server to ask instead of one that does not answer: another one each time.
    pub(crate) fn another(&self, server: u16, time: u64) -> Option<u16> {
        let others = self.joined().filter(|other| other.server != server && other.is_up());
        let others: Vec<u16> = others.map(|lane| lane.server).collect();
        let count = others.len() as u64;
        let index = usize::try_from(time.checked_rem(count)?).unwrap_or_default();
        others.get(index).copied()
    }

    /// Asks all connections to end.
    pub(crate) fn close(&self) {
        self.lanes().for_each(|lane| lane.channel.close());
    }

    /// Waits until every call has ended for good.
    pub(crate) async fn ended(&self) {
        for channel in self.joined() {
            channel.ended().await;
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let lanes = self.lanes().map(|lane| lane.channel.stats());
        lanes.fold(Stats::default(), Stats::and)
    }

    /// Requests that were sent for the first time, by server.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.lanes().map(|lane| lane.channel.stats().requests).collect()
    }
}
