//! The membership of a server, as it is stored.

use base::{ClusterMap, codec};

use crate::record::Record;

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
    }
}

impl Record for Member {}
