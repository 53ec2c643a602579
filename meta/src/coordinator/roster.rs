//! The members of the cluster, and the map made of them. Pure: `coordinator` stores each decision
//! before anybody hears of it.
//!
//! Always true: a member keeps its number, also one that has left; the map has at least as many
//! servers as the cluster was formatted for, or none.

use base::{ClusterMap, Epoch, ShardId, codec};
use wire::Join;

use super::generations::Generations;
use crate::record::Record;

/// The invalidation list of a server that is alone begins below this version (`assembly`).
const VERSIONS_ALONE_END: u64 = 1 << 63;

codec! {
    /// A server that belongs to the cluster.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Enrolled {
        /// The random number that the server drew for itself.
        pub member: u64,
        /// Address at which the server was last; empty for one that was heard: it has left.
        pub address: String,
        /// Whether the server has served since it joined, so that it really had the address.
        pub heard: bool,
    }
}

codec! {
    /// The record that only the coordinator stores.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Roster {
        /// The members, in the order of their numbers in the map.
        pub members: Vec<Enrolled>,
        /// End of the reserved versions of the invalidation log: none from here on was used.
        pub versions_end: u64,
        /// Length of the leases that are given under this record, in milliseconds.
        pub lease_ms: u64,
        /// The newest generation of each server stands last: before the first nothing is stored.
        pub generations: Generations,
    }
}

impl Record for Roster {}

/// The answer to a server that wants to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The server gets this number now.
    New(u16),
    /// The server had this number before.
    Known(u16),
    /// The server gets this number now, and the cluster has one server more than it had.
    Grows(u16),
    /// The server had this number, and has left.
    Left(u16),
}

impl Roster {
    /// The roster of a cluster that was just formatted: its first server made it, and has not
    /// served yet.
    pub(crate) fn new(member: u64) -> Roster {
        Roster::of(&[member])
    }

    /// The roster of a cluster that is made of a server which was alone. Clients that come back
    /// know versions that it gave then.
    pub(crate) fn founded(member: u64) -> Roster {
        Roster { versions_end: VERSIONS_ALONE_END, ..Roster::of(&[member]) }
    }

    /// The roster of a cluster whose servers were all made by one: none has served yet.
    pub(crate) fn of(members: &[u64]) -> Roster {
        let enrolled =
            |member: &u64| Enrolled { member: *member, address: String::new(), heard: false };
        let members = members.iter().map(enrolled).collect();
        let generations = Generations::default();
        Roster { members, versions_end: 1, lease_ms: 0, generations }
    }

    /// Enrols a server in the cluster of `servers` servers, which may be complete.
    pub(crate) fn join(&mut self, servers: u16, join: &Join) -> Place {
        let known = self.members.iter().position(|other| other.member == join.member);
        if let Some(at) = known {
            let number = number(at);
            return if self.has_left(number) { Place::Left(number) } else { Place::Known(number) };
        }
        let address = join.address.clone();
        self.members.push(Enrolled { member: join.member, address, heard: false });
        let number = number(self.members.len() - 1);
        if number < servers { Place::New(number) } else { Place::Grows(number) }
    }

    /// Whether a member has left the cluster.
    pub(crate) fn has_left(&self, server: u16) -> bool {
        let member = self.members.get(usize::from(server));
        member.is_some_and(|member| member.heard && member.address.is_empty())
    }

    /// Notes that a member, which has served, leaves the cluster.
    pub(crate) fn leaves(&mut self, server: u16) {
        if let Some(member) = self.members.get_mut(usize::from(server)) {
            member.address.clear();
        }
    }

    /// Notes that a member serves at this address; returns whether that is news.
    pub(crate) fn heard(&mut self, server: u16, address: &str) -> bool {
        if address.is_empty() || self.has_left(server) {
            return false;
        }
        let Some(member) = self.members.get_mut(usize::from(server)) else { return false };
        let news = !member.heard || member.address != address;
        if news {
            address.clone_into(&mut member.address);
            member.heard = true;
        }
        news
    }

    /// The map that should replace `known`; `None` when `known` is up to date, or the cluster is
    /// not complete.
    ///
    /// The first map deals the shards out in turn; this makes later maps only for other addresses,
    /// and for servers that have joined since, which have no shards.
    pub(crate) fn deal(&self, servers: u16, shards: u16, known: &ClusterMap) -> Option<ClusterMap> {
        let heard = self.members.iter().take_while(|member| member.heard);
        let addresses: Vec<_> = heard.map(|member| member.address.clone()).collect();
        let complete = addresses.len() >= usize::from(servers);
        if !complete && known.servers.is_empty() || addresses.len() < known.servers.len() {
            return None;
        }
        if addresses == known.servers {
            return None;
        }
        let shards = if known.servers.is_empty() {
            (0..shards).map(|shard| dealt(ShardId(shard), servers)).collect()
        } else {
            known.shards.clone()
        };
        Some(ClusterMap { epoch: Epoch(known.epoch.0 + 1), servers: addresses, shards })
    }

    /// Says for people what a cluster of `servers` servers still lacks; `None` when it is complete.
    pub(crate) fn missing(&self, servers: u16) -> Option<String> {
        let absent = usize::from(servers).saturating_sub(self.members.len());
        let silent: Vec<_> = self.silent().collect();
        let mut missing = Vec::new();
        if absent > 0 {
            missing.push(format!("{absent} of {servers} servers have not joined"));
        }
        if !silent.is_empty() {
            missing.push(format!("joined, but not served yet: {}", silent.join(", ")));
        }
        (!missing.is_empty()).then(|| format!("nothing is served: {}", missing.join("; ")))
    }

    fn silent(&self) -> impl Iterator<Item = String> {
        let silent = self.members.iter().enumerate().filter(|(_, member)| !member.heard);
        silent.map(|(at, member)| format!("server {at} {}", member.address).trim_end().to_owned())
    }
}

/// Number of the server that gets a shard in the first map of `servers` servers.
pub(crate) fn dealt(shard: ShardId, servers: u16) -> u16 {
    shard.0 % servers
}

fn number(at: usize) -> u16 {
    u16::try_from(at)
        .expect("there are at most as many members as servers, which are counted by u16")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::member::no_map;

    fn join(member: u64) -> Join {
        Join { address: format!("host{member}:1"), member }
    }

    #[test]
    fn a_server_that_asks_again_gets_the_same_number() {
        let mut roster = Roster::new(7);
        assert_eq!(roster.join(3, &join(8)), Place::New(1));
        assert_eq!(roster.join(3, &join(9)), Place::New(2));
        assert_eq!(roster.join(3, &join(8)), Place::Known(1));
        assert_eq!(roster.join(3, &join(7)), Place::Known(0));
        assert_eq!(roster.join(3, &join(10)), Place::Grows(3));
        assert_eq!(roster.join(4, &join(10)), Place::Known(3));
    }

    #[test]
    fn shards_are_dealt_in_turn_when_every_server_has_been_heard_of() {
        let mut roster = Roster::new(7);
        assert_eq!(roster.deal(2, 5, &no_map()), None);
        roster.join(2, &join(8));
        assert!(roster.heard(0, "a:1"));
        assert_eq!(roster.deal(2, 5, &no_map()), None);
        assert!(roster.missing(2).unwrap().contains("server 1 host8:1"));
        assert!(roster.heard(1, "b:1"));
        assert!(!roster.heard(1, "b:1"));
        let map = roster.deal(2, 5, &no_map()).unwrap();
        assert_eq!((map.epoch, &map.shards[..]), (Epoch(1), &[0, 1, 0, 1, 0][..]));
        assert_eq!(map.servers, ["a:1", "b:1"]);
        assert_eq!((roster.deal(2, 5, &map), roster.missing(2)), (None, None));
    }

    #[test]
    fn a_server_that_has_left_is_in_no_map_and_its_number_is_not_given_again() {
        let mut roster = Roster::of(&[7, 8, 9]);
        for (server, address) in [(0, "a:1"), (1, "b:1"), (2, "c:1")] {
            roster.heard(server, address);
        }
        let before = roster.deal(3, 6, &no_map()).unwrap();
        roster.leaves(1);
        assert!(roster.has_left(1) && !roster.has_left(0) && !roster.has_left(3));
        assert!(!roster.heard(1, "b:1"), "it may still say something");
        let after = roster.deal(3, 6, &before).unwrap();
        assert_eq!((after.servers, after.shards), (roster_of(["a:1", "", "c:1"]), before.shards));
        assert_eq!(roster.missing(3), None);
        assert_eq!(roster.join(3, &join(8)), Place::Left(1));
        assert_eq!(roster.join(3, &join(10)), Place::Grows(3));
    }

    fn roster_of<const N: usize>(addresses: [&str; N]) -> Vec<String> {
        addresses.map(str::to_owned).to_vec()
    }

    #[test]
    fn another_address_is_another_map_with_the_same_shards() {
        let mut roster = Roster::new(7);
        roster.heard(0, "a:1");
        let before = roster.deal(1, 3, &no_map()).unwrap();
        assert!(roster.heard(0, "b:1"));
        let after = roster.deal(1, 3, &before).unwrap();
        assert_eq!((after.epoch, after.servers), (Epoch(2), vec!["b:1".to_owned()]));
        assert_eq!(after.shards, before.shards);
    }
}
