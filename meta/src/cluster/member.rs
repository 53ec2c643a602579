//! The membership of a server, as it is stored.

use base::{ClusterMap, Decode, DecodeError, Encode, Epoch, Reader, codec};
use wire::Term;

use crate::record::{Record, tail};

codec! {
    /// The membership of a server in its cluster, as stored when it last changed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Member {
        /// Number of the server in the map.
        pub server: u16,
        /// Number of servers of the complete cluster.
        pub servers: u16,
        /// The random number that the server drew for itself.
        pub member: u64,
        /// The newest map; it has no servers until the cluster is complete.
        pub map: ClusterMap,
        /// The server's process stands last: before its first generation nothing is stored.
        pub last: LastServed,
    }
}

codec! {
    /// The last process that served a data directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) struct Served {
        /// Generation that the process was given.
        pub generation: u64,
        /// The coordinator that it kept to.
        pub follows: Term,
        /// Position up to which that one's directory had everything on stable storage. It may be
        /// older than what the process knew last.
        pub follows_at: u64,
        /// Whether the directory is an old copy that no check has looked at yet.
        pub unchecked: bool,
        /// Where the store ended when a process was refused that had no generation yet; 0: none
        /// was since the last that had one. Each start writes, so an old copy would grow newer.
        pub refused_at: u64,
    }
}

/// The last process of a server. Persisted: nothing before the first generation; otherwise a tag
/// and the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LastServed(pub(crate) Served);

impl Encode for LastServed {
    fn encode(&self, out: &mut Vec<u8>) {
        tail::encode(Some(&self.0).filter(|served| **served != Served::default()), out);
    }
}

impl Decode for LastServed {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(LastServed(tail::decode(input)?.unwrap_or_default()))
    }
}

impl Record for Member {}

impl Member {
    /// Number of servers of the complete cluster, as far as this record says.
    pub(crate) fn count(&self) -> u16 {
        self.servers.max(u16::try_from(self.map.servers.len()).unwrap_or(u16::MAX))
    }

    /// A server of a cluster that has not served yet.
    pub(crate) fn new(server: u16, servers: u16, member: u64) -> Member {
        Member { server, servers, member, map: no_map(), last: LastServed::default() }
    }
}

/// The map of a cluster that is not complete: no server has any shard.
pub(crate) fn no_map() -> ClusterMap {
    ClusterMap { epoch: Epoch(0), servers: Vec::new(), shards: Vec::new() }
}
