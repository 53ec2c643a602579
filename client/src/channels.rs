//! The channels to all servers of a cluster, and the map by which a request finds its own.
//!
//! `call` asks for the channel of each request; the first request to a server makes the session
//! join there (`session`). Any server's answer may bring a newer map. How many servers there are
//! does not change while a client lives.
//!
//! A file system of one server has one channel, and no map is looked at.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{ClusterMap, Ino, ShardId};
use parking_lot::RwLock;

use crate::{
    Stats,
    channel::Channel,
    route::{Route, Router},
};

/// Channels to all servers, and the map that routes to them; see the top of this file.
pub(crate) struct Channels {
    /// In the order of the map.
    lanes: Box<[Lane]>,
    router: RwLock<Router>,
}

struct Lane {
    channel: Channel,
    /// A task keeps a session there.
    kept: AtomicBool,
}

impl Channels {
    /// Channels to the servers of `map`, of which the session has joined none.
    pub(crate) fn new(map: &ClusterMap) -> Channels {
        let servers = u16::try_from(map.servers.len().max(1)).expect("no more servers than shards");
        let lane = |server| Lane { channel: Channel::new(server), kept: AtomicBool::new(false) };
        let channels = Channels {
            lanes: (0..servers).map(lane).collect(),
            router: RwLock::new(Router::new()),
        };
        channels.learn(map);
        channels
    }

    /// How many servers there are.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is more than one.
    pub(crate) fn are_several(&self) -> bool {
        self.lanes.len() > 1
    }

    /// The channel to a server.
    pub(crate) fn at(&self, server: u16) -> &Channel {
        &self.lanes[usize::from(server)].channel
    }

    /// The channel for what goes by `route`.
    pub(crate) fn of(&self, route: Route) -> &Channel {
        if let [only] = &self.lanes[..] {
            return &only.channel;
        }
        let server = self.router.read().server(route).map_or(0, usize::from);
        // A map with more servers than there were is of a time to come.
        &self.lanes.get(server).unwrap_or(&self.lanes[0]).channel
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
        let kept = &self.lanes[usize::from(server)].kept;
        !kept.load(Ordering::Relaxed) && !kept.swap(true, Ordering::AcqRel)
    }

    /// Whether a session is kept at a server, and there is no connection to it just now.
    pub(crate) fn is_away(&self, server: u16) -> bool {
        let lane = &self.lanes[usize::from(server)];
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
    /// there.
    pub(crate) fn learn(&self, map: &ClusterMap) -> bool {
        let mut router = self.router.write();
        let moved: Vec<&Lane> = (0..)
            .zip(&self.lanes)
            .filter(|(server, lane)| {
                let now = map.servers.get(usize::from(*server)).map(String::as_str);
                let moved = router.address(*server).is_some_and(|before| Some(before) != now);
                // A lane that dials for the first time after this uses the new map.
                moved && lane.kept.load(Ordering::Acquire)
            })
            .map(|(_, lane)| lane)
            .collect();
        if !router.learn(map) {
            return false;
        }
        drop(router);
        self.lanes.iter().for_each(|lane| lane.channel.learn(map));
        if self.are_several() {
            moved.iter().for_each(|lane| lane.channel.redial());
        }
        true
    }

    /// All channels at which the session was joined.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &Channel> {
        let joined = self.lanes.iter().filter(|lane| lane.kept.load(Ordering::Acquire));
        joined.map(|lane| &lane.channel)
    }

    /// The first shard that a server has; [`ShardId::SERVER`] if it has none.
    pub(crate) fn first_shard(&self, server: u16) -> ShardId {
        self.router.read().first_shard(server)
    }

    /// A server to ask instead of one that does not answer.
    pub(crate) fn another(&self, server: u16) -> Option<u16> {
        self.joined().find(|other| other.server != server && other.is_up()).map(|lane| lane.server)
    }

    /// Asks all connections to end.
    pub(crate) fn close(&self) {
        self.lanes.iter().for_each(|lane| lane.channel.close());
    }

    /// Waits until every call has ended for good.
    pub(crate) async fn ended(&self) {
        for channel in self.joined() {
            channel.ended().await;
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let lanes = self.lanes.iter().map(|lane| lane.channel.stats());
        lanes.fold(Stats::default(), Stats::and)
    }

    /// Requests that were sent for the first time, by server.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.channel.stats().requests).collect()
    }
}
