//! Where a directory's group lives: home and partition to shard, shard to server.
//!
//! Clients and servers compute the same place from the same values. A policy is a small enum here
//! and a pure function; a client that computed with old values is corrected by the server it
//! reaches.
//!
//! Paper: InfiniFS §3.2 (groups by directory id), Duplex §III-C (double consistent hashing), HSM²
//! §3.1 (hashing above a boundary, subtrees below it).

mod level;
mod predicted;

pub use self::{level::Level, predicted::Predicted};
use crate::{
    codec,
    id::{DirId, Epoch, NameVersion, ShardId},
    limits::LANES_MAX,
};

codec! {
    /// Policy that chooses the home of a new directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Locality {
        /// The home is the directory's own id (InfiniFS).
        Directory = 1,
        /// The home is that of the parent: the whole file system stays on one shard.
        Subtree = 2,
        /// Near the root the home is the directory's own, below a boundary that of the parent; the
        /// directory's [`Level`] says which (HSM²).
        Hybrid = 3,
    }
}

impl Locality {
    /// The home of a directory `id`, of this version of its name, made in a directory whose home is
    /// `parent_home`.
    #[must_use]
    pub fn home(self, id: DirId, version: NameVersion, parent_home: DirId) -> DirId {
        match (self, version.level()) {
            (Locality::Directory, _) | (Locality::Hybrid, Level::Above) => id,
            (Locality::Hybrid, Level::Boundary) => id.as_boundary(),
            (Locality::Subtree, _) | (Locality::Hybrid, Level::Below) => parent_home,
        }
    }
}

/// Rule of places that `format` has fixed: everything is placed, and looked for, by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Number of shards.
    pub shards: u16,
    /// Number of lanes of each shard, a power of two.
    pub lanes: u8,
    /// Policy that gives new directories their homes.
    pub locality: Locality,
}

impl Placement {
    /// The shard of a partition of a directory with this home.
    ///
    /// # Panics
    /// When there are no shards.
    #[must_use]
    pub fn shard_of(self, home: DirId, partition: u16) -> ShardId {
        shard_of(home, partition, self.shards)
    }

    /// The lane on which the inodes of a directory's group are born.
    #[must_use]
    pub fn lane_of(self, dir: DirId) -> u8 {
        lane_of(dir, self.lanes)
    }

    /// The home of a directory `id`, of this version of its name, made in a directory whose home is
    /// `parent_home`.
    #[must_use]
    pub fn home_of(self, id: DirId, version: NameVersion, parent_home: DirId) -> DirId {
        self.locality.home(id, version, parent_home)
    }
}

/// The shard of a partition: `(jump_hash(hash(home), shards) + partition) mod shards`.
///
/// # Panics
/// When there are no shards.
#[must_use]
pub fn shard_of(home: DirId, partition: u16, shards: u16) -> ShardId {
    assert!(shards > 0, "a file system has at least one shard");
    if home == DirId::ROOT {
        return ShardId(partition % shards);
    }
    let key = u64::try_from((home.0 ^ (home.0 >> 64)) & u128::from(u64::MAX)).expect("masked");
    let first = jump_hash(key, u32::from(shards));
    let shard = (first + u32::from(partition)) % u32::from(shards);
    ShardId(u16::try_from(shard).expect("less than the number of shards"))
}

/// The lane of its shard on which the inodes of a directory's group are born: the first bits of the
/// directory's id, so that records under ids and under inode numbers lie lane by lane. `lanes` is a
/// power of two, at most [`LANES_MAX`].
#[must_use]
pub fn lane_of(dir: DirId, lanes: u8) -> u8 {
    debug_assert!(lanes.is_power_of_two() && lanes <= LANES_MAX, "lanes={lanes}");
    let first = u8::try_from(dir.0 >> 124).expect("4 bits are left");
    first / (LANES_MAX / lanes)
}

/// Jump consistent hash (Lamping and Veach 2014): growing from n to n+1 buckets moves 1/(n+1) of
/// the keys.
#[must_use]
pub fn jump_hash(mut key: u64, buckets: u32) -> u32 {
    let mut bucket = 0u64;
    let mut next = 0u64;
    while next < u64::from(buckets) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // (bucket + 1) * 2^31 / ((key >> 33) + 1), in integers, so that every machine agrees.
        next = ((u128::from(bucket + 1) << 31) / u128::from((key >> 33) + 1))
            .try_into()
            .unwrap_or(u64::MAX);
    }
    u32::try_from(bucket).expect("less than the number of buckets")
}

codec! {
    /// Map from shards to servers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClusterMap {
        /// The version of this map.
        pub epoch: Epoch,
        /// Addresses of the servers (`HOST:PORT`), by their numbers; empty: that one has left.
        pub servers: Vec<String>,
        /// For each shard the index of its server in `servers`.
        pub shards: Vec<u16>,
    }
}

impl ClusterMap {
    /// The map of a file system on one server.
    #[must_use]
    pub fn single(address: &str, shards: u16) -> ClusterMap {
        ClusterMap {
            epoch: Epoch(1),
            servers: vec![address.to_owned()],
            shards: vec![0; usize::from(shards)],
        }
    }

    /// Number of shards of the file system.
    ///
    /// # Panics
    /// Never: a map is made for at most `SHARDS_MAX` shards.
    #[must_use]
    pub fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.len()).expect("at most SHARDS_MAX")
    }

    /// Whether a server was in the cluster and has left it. Its number is never given again.
    #[must_use]
    pub fn has_left(&self, server: u16) -> bool {
        self.servers.get(usize::from(server)).is_some_and(String::is_empty)
    }

    /// The address of a server that is in the cluster.
    #[must_use]
    pub fn address(&self, server: u16) -> Option<&str> {
        let address = self.servers.get(usize::from(server)).map(String::as_str);
        address.filter(|address| !address.is_empty())
    }

    /// Numbers of the servers that are in the cluster, ascending.
    pub fn members(&self) -> impl Iterator<Item = u16> + Clone + '_ {
        let all = (0..).zip(&self.servers);
        all.filter(|(_, address)| !address.is_empty()).map(|(server, _)| server)
    }

    /// The index of the server that has `shard`, if the map knows it.
    #[must_use]
    pub fn server_of(&self, shard: ShardId) -> Option<u16> {
        let server = *self.shards.get(usize::from(shard.0))?;
        (usize::from(server) < self.servers.len()).then_some(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_bucket_moves_its_share_of_keys_and_only_to_itself() {
        let keys = 10_000u64;
        let mut moved = 0;
        for key in (0..keys).map(|k| k.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let (before, after) = (jump_hash(key, 10), jump_hash(key, 11));
            if before != after {
                assert_eq!(after, 10);
                moved += 1;
            }
        }
        assert!((keys / 11 - 150..keys / 11 + 150).contains(&moved), "moved={moved}");
    }

    #[test]
    fn places_have_known_values() {
        let places: Vec<u16> =
            (0..8).map(|i| shard_of(DirId(i * 1_000_003 + 256), 0, 64).0).collect();
        assert_eq!(places, [16, 23, 55, 52, 2, 16, 54, 48]);
        assert_eq!(shard_of(DirId::ROOT, 0, 64), ShardId(0));
    }

    #[test]
    fn lanes_are_the_first_bits_of_an_id() {
        let dir = DirId(0xd << 124 | 77);
        assert_eq!([1, 2, 8, 16].map(|lanes| lane_of(dir, lanes)), [0, 1, 6, 13]);
        assert_eq!(lane_of(DirId::ROOT, 16), 0);
    }

    #[test]
    fn a_server_that_has_left_keeps_its_number_and_has_no_address() {
        let servers = ["a:1", "", "c:1"].map(str::to_owned).to_vec();
        let map = ClusterMap { epoch: Epoch(1), servers, shards: vec![0, 2] };
        assert_eq!(map.members().collect::<Vec<_>>(), [0, 2]);
        assert_eq!([0, 1, 3].map(|server| map.has_left(server)), [false, true, false]);
        assert_eq!((map.address(1), map.address(2), map.address(3)), (None, Some("c:1"), None));
    }

    #[test]
    fn neighbouring_partitions_are_on_neighbouring_shards() {
        let home = DirId(123_456_789);
        let first = shard_of(home, 0, 64).0;
        assert_eq!(shard_of(home, 5, 64).0, (first + 5) % 64);
    }
}
