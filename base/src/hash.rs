//! Hashing: directory ids, positions in a listing, and maps whose order is the same in every run.
//!
//! The functions are part of the disk format; golden values in the tests hold them. They are keyed
//! with a secret of the file system, so that no user can choose names that collide.

use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest as _, Sha256};
use siphasher::{sip::SipHasher24, sip128::Hasher128 as _, sip128::SipHasher24 as SipHasher128};

use crate::{
    codec,
    id::{DirId, NameVersion},
    name::EntryName,
};

codec! {
    /// The file system's hashing secret. Sessions get it, because clients predict ids and
    /// positions.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HashKey {
        /// First half.
        pub k0: u64,
        /// Second half.
        pub k1: u64,
        /// Function that makes the ids of directories.
        pub ids: IdHash,
    }
}

codec! {
    /// Function that makes the ids of directories. It never changes in a file system.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum IdHash {
        /// SipHash-2-4 with 128 bits, in file systems that were made before on-disk version 12. Who
        /// knows the key, as each session does, may find names whose ids collide with others.
        Sip = 1,
        /// The first 128 bits of SHA-256: nobody finds a name with the id of another.
        Sha256 = 2,
    }
}

/// The lowest position a name can have; smaller numbers mean "before the first entry" and `.` and
/// `..`.
pub const POS_MIN: u64 = 16;

/// The first half of a key that makes short ids, without their number of bits.
#[cfg(feature = "short-ids")]
const SHORT: u64 = 0x7368_6f72_7469_6400;

impl HashKey {
    /// The key of a new file system.
    #[must_use]
    pub const fn new(k0: u64, k1: u64) -> HashKey {
        HashKey { k0, k1, ids: IdHash::Sha256 }
    }

    /// The id of the directory born as `name` in `parent`, with `version`.
    ///
    /// Paper: InfiniFS §3.3, the birth triple.
    #[must_use]
    pub fn dir_id(&self, parent: DirId, name: &EntryName, version: NameVersion) -> DirId {
        let hash = match self.ids {
            IdHash::Sip => {
                let mut hasher = SipHasher128::new_with_keys(self.k0, self.k1);
                hasher.write(&parent.0.to_le_bytes());
                hasher.write(&version.0.to_le_bytes());
                hasher.write(name.as_bytes());
                hasher.finish128().as_u128()
            }
            IdHash::Sha256 => {
                let hasher = Sha256::new()
                    .chain_update(self.k0.to_le_bytes())
                    .chain_update(self.k1.to_le_bytes())
                    .chain_update(parent.0.to_le_bytes())
                    .chain_update(version.0.to_le_bytes())
                    .chain_update(name.as_bytes());
                let hash: [u8; 32] = hasher.finalize().into();
                u128::from_le_bytes(*hash.first_chunk().expect("32 bytes are more than 16"))
            }
        };
        let id = self.shorten(hash);
        // Small ids are reserved; the root is 1.
        DirId(if id < 256 { id + 256 } else { id })
    }

    /// Returns a similar key whose directory ids have only so many of 128 bits, and whose name
    /// positions only so many of 63. For tests of collisions.
    #[cfg(feature = "short-ids")]
    #[must_use]
    pub fn shortened(self, bits: u8) -> HashKey {
        HashKey { k0: SHORT | u64::from(bits), ..self }
    }

    #[cfg(feature = "short-ids")]
    fn shorten(self, id: u128) -> u128 {
        match self.k0 ^ SHORT {
            bits @ 1..128 => id & ((1 << bits) - 1),
            _ => id,
        }
    }

    #[cfg(not(feature = "short-ids"))]
    #[expect(clippy::unused_self, reason = "the signature is that of a build with short ids")]
    fn shorten(self, id: u128) -> u128 {
        id
    }

    /// Where `name` stands in a listing: its 63-bit hash, bits reversed, so that entries sort in
    /// recursive split order.
    ///
    /// Paper: SFS §3.4 (with 32 bits).
    #[must_use]
    pub fn pos(&self, name: &EntryName) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.k0, !self.k1);
        hasher.write(name.as_bytes());
        let hash = hasher.finish() >> 1;
        self.shorten_pos(hash.reverse_bits() >> 1).max(POS_MIN)
    }

    #[cfg(feature = "short-ids")]
    fn shorten_pos(self, pos: u64) -> u64 {
        match self.k0 ^ SHORT {
            bits @ 1..63 => pos >> (63 - bits) << (63 - bits),
            _ => pos,
        }
    }

    #[cfg(not(feature = "short-ids"))]
    #[expect(clippy::unused_self, reason = "the signature is that of a build with short ids")]
    fn shorten_pos(self, pos: u64) -> u64 {
        pos
    }

    /// A short keyed MAC over `parts`; tickets are made of it.
    #[must_use]
    pub fn mac(&self, parts: &[u64]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.k0, self.k1);
        for part in parts {
            hasher.write(&part.to_le_bytes());
        }
        hasher.finish()
    }
}

/// A fast hasher without a random seed, for maps whose keys no outsider chooses, or whose order
/// must not differ between two runs of one seed.
#[derive(Default, Clone, Copy)]
pub struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        let mut x = self.0;
        x ^= x >> 32;
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^ (x >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().expect("8 bytes")));
        }
        let mut last = [0u8; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last) ^ ((rest.len() as u64) << 56));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// `std`'s map with a fixed hasher: it replays.
#[expect(clippy::disallowed_types, reason = "this is the replacement")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// `std`'s set with a fixed hasher: it replays.
#[expect(clippy::disallowed_types, reason = "this is the replacement")]
pub type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<FixedHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey::new(1, 2);

    fn name(name: &str) -> EntryName {
        EntryName::new(name.as_bytes()).unwrap()
    }

    #[test]
    fn ids_and_positions_have_known_values() {
        let old = HashKey { ids: IdHash::Sip, ..KEY };
        let id = old.dir_id(DirId::ROOT, &name("home"), NameVersion(0));
        assert_eq!(format!("{id}"), "be313051f023a07c7e581feefdfb1dff");
        let id = KEY.dir_id(DirId::ROOT, &name("home"), NameVersion(0));
        assert_eq!(format!("{id}"), "845911f282e4658bfc36b2778dee8a1");
        let pos = KEY.pos(&name("home"));
        assert_eq!(format!("{pos:x}"), "41e8e5cbe5497f68");
    }

    #[test]
    #[cfg(feature = "short-ids")]
    fn short_ids_are_short_and_no_others() {
        let short = KEY.shortened(6);
        let id = |key: HashKey, at: u32| key.dir_id(DirId::ROOT, &name("a"), NameVersion(at)).0;
        assert!((0..100).all(|at| (256..256 + 64).contains(&id(short, at))));
        assert!((0..100).all(|at| id(KEY, at) > 1 << 64));
    }

    #[test]
    fn each_part_of_the_birth_triple_matters() {
        let id = KEY.dir_id(DirId::ROOT, &name("a"), NameVersion(0));
        assert_ne!(id, KEY.dir_id(DirId::ROOT, &name("b"), NameVersion(0)));
        assert_ne!(id, KEY.dir_id(DirId(9), &name("a"), NameVersion(0)));
        assert_ne!(id, KEY.dir_id(DirId::ROOT, &name("a"), NameVersion(1)));
    }

    #[test]
    fn positions_use_63_bits() {
        assert!((0..1000).all(|i| KEY.pos(&name(&format!("f{i}"))) < 1 << 63));
    }
}
