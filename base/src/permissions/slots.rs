//! Entries by key: open addressing in segments, each of which grows by itself.
//!
//! A segment is an array with gaps that is sorted by the keys' mixed hashes: linear probing where
//! the order of insertion does not matter. A search for a key that is not there, the usual case,
//! ends at the first larger hash. Removing moves entries back, so nothing is ever marked deleted.
//!
//! Users know the file system's hash key and could choose names whose keys begin alike. Places come
//! from a hash that is keyed with a secret of this process, so such keys do not gather.
//!
//! A segment grows by an eighth, so that it is between 75 and 85 % full, and copies about 100 KB at
//! once however large the table is: a core that serves requests does not stop for it. Doubling
//! would leave more than a third of the table empty on average, and stop for a second at 10^7
//! entries.

use std::hint::black_box;

use super::Full;
use crate::DirId;

/// Bytes of a segment at the limit of the table, about.
const SEGMENT_BYTES: usize = 128 << 10;
/// The most segments: with larger limits each is larger.
const SEGMENTS_MAX: usize = 1 << 16;
/// Places of a segment with its first entry.
const PLACES_MIN: usize = 8;
/// Places behind the last one that a hash names, beside one for each 64: runs end there.
const TAIL_MIN: usize = 8;

/// An entry, or an empty place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// Low and high half of the key; both 0 in an empty place. The key 0 is no id of a directory.
    key: [u64; 2],
    /// Class or index, and kind.
    pub own: u32,
    /// Class, and whether the key is fenced.
    pub below: u32,
}

const _: () = assert!(size_of::<Slot>() == Slots::SLOT_BYTES, "an entry has no padding");

const EMPTY: Slot = Slot { key: [0, 0], own: 0, below: 0 };

impl Slot {
    pub(super) fn key(&self) -> DirId {
        DirId(u128::from(self.key[1]) << 64 | u128::from(self.key[0]))
    }

    fn is_empty(&self) -> bool {
        self.key == EMPTY.key
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are cut on purpose")]
fn halves(key: DirId) -> [u64; 2] {
    [key.0 as u64, (key.0 >> 64) as u64]
}

#[derive(Debug, Clone)]
pub(super) struct Slots {
    segments: Box<[Segment]>,
    /// Number of bits of a hash that name its segment.
    bits: u32,
    seed: [u64; 2],
    used: usize,
    bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct Segment {
    slots: Vec<Slot>,
    /// Number of places that hashes name; `slots` has a tail behind them, whose last place is
    /// always empty.
    places: usize,
    used: usize,
}

impl Slots {
    /// Bytes of an entry.
    pub(super) const SLOT_BYTES: usize = 24;

    /// An empty table with as many segments as `limit` bytes ask for.
    pub(super) fn new(seed: [u64; 2], limit: usize) -> Slots {
        let segments = (limit / SEGMENT_BYTES).clamp(1, SEGMENTS_MAX).next_power_of_two();
        let bytes = segments * size_of::<Segment>();
        let segments = vec![Segment::default(); segments].into_boxed_slice();
        Slots { bits: segments.len().trailing_zeros(), segments, seed, used: 0, bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Bytes of all segments, with their empty places.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.segments.iter().flat_map(|segment| &segment.slots).filter(|slot| !slot.is_empty())
    }

    /// Loads the place where a key would be, without waiting for it: nothing depends on the value,
    /// so the processor goes on while it is fetched. A prefetch without `unsafe`.
    #[inline]
    pub(super) fn touch(&self, key: DirId) {
        let (segment, hash) = self.place(halves(key));
        if let Some(slot) = segment.slots.get(Segment::home(hash, segment.places)) {
            black_box(slot.own);
        }
    }

    #[inline]
    pub(super) fn get(&self, key: DirId) -> Option<&Slot> {
        let key = halves(key);
        let (segment, hash) = self.place(key);
        let at = segment.find(self.seed, self.bits, key, hash).ok()?;
        Some(&segment.slots[at])
    }

    pub(super) fn get_mut(&mut self, key: DirId) -> Option<&mut Slot> {
        let key = halves(key);
        let (number, hash) = self.number(key);
        let segment = &mut self.segments[number];
        let at = segment.find(self.seed, self.bits, key, hash).ok()?;
        Some(&mut segment.slots[at])
    }

    /// Adds a key that is not there; its words are 0.
    ///
    /// # Errors
    /// `Full` when its segment would have to grow by more than `room` bytes.
    pub(super) fn insert(&mut self, key: DirId, room: usize) -> Result<&mut Slot, Full> {
        let key = halves(key);
        let (number, hash) = self.number(key);
        let (seed, bits) = (self.seed, self.bits);
        loop {
            let segment = &mut self.segments[number];
            let fits = segment.used * 20 < segment.places * 17;
            let found = segment.find(seed, bits, key, hash);
            debug_assert!(found.is_err(), "the key is not there");
            let (Ok(at) | Err(at)) = found;
            if fits && segment.make_gap(at) {
                segment.used += 1;
                self.used += 1;
                let slot = &mut self.segments[number].slots[at];
                *slot = Slot { key, ..EMPTY };
                return Ok(slot);
            }
            let places = (segment.places + segment.places / 8 + 1).max(PLACES_MIN);
            let (before, after) = (segment.slots.len(), places + Segment::tail(places));
            if (after - before) * Slots::SLOT_BYTES > room {
                return Err(Full);
            }
            segment.resize(seed, bits, places);
            let grown = segment.slots.len() - before;
            self.bytes += grown * Slots::SLOT_BYTES;
        }
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&mut self, key: DirId) {
        let key = halves(key);
        let (number, hash) = self.number(key);
        let segment = &mut self.segments[number];
        let Ok(at) = segment.find(self.seed, self.bits, key, hash) else { return };
        segment.close_gap(self.seed, self.bits, at);
        segment.used -= 1;
        self.used -= 1;
        if segment.places > PLACES_MIN && segment.used * 4 < segment.places {
            let before = segment.slots.len();
            segment.resize(self.seed, self.bits, (segment.used * 3 / 2).max(PLACES_MIN));
            self.bytes += segment.slots.len() * Slots::SLOT_BYTES;
            self.bytes -= before * Slots::SLOT_BYTES;
        }
    }

    /// The segment of a key, and the key's hash within it.
    #[inline]
    fn place(&self, key: [u64; 2]) -> (&Segment, u64) {
        let (number, hash) = self.number(key);
        (&self.segments[number], hash)
    }

    #[inline]
    fn number(&self, key: [u64; 2]) -> (usize, u64) {
        let hash = mixed(self.seed, key);
        // In two steps: with one segment there are no first bits, and all are shifted out.
        let number = (hash >> 1 >> (u64::BITS - 1 - self.bits)) as usize;
        (number, within(hash, self.bits))
    }

    /// Compares the order and the counts of all segments with what they should be.
    ///
    /// # Panics
    /// When they are wrong.
    pub(super) fn check(&self) {
        let mut bytes = size_of_val(&*self.segments);
        for (number, segment) in self.segments.iter().enumerate() {
            bytes += segment.slots.len() * Slots::SLOT_BYTES;
            let mut hashes = Vec::new();
            for (at, slot) in segment.slots.iter().enumerate().filter(|(_, slot)| !slot.is_empty())
            {
                let (of, hash) = self.number(slot.key);
                let home = Segment::home(hash, segment.places);
                assert!(of == number && home <= at, "an entry is not before its place");
                let run = &segment.slots[home..at];
                assert!(run.iter().all(|slot| !slot.is_empty()), "no gap on the way to an entry");
                hashes.push((hash, slot.key));
            }
            assert!(hashes.is_sorted(), "entries are in the order of their hashes");
            assert_eq!(hashes.len(), segment.used);
            assert!(segment.slots.last().is_none_or(Slot::is_empty), "a segment ends in a gap");
        }
        assert_eq!(bytes, self.bytes);
        assert_eq!(self.iter().count(), self.used);
    }
}

/// A hash of both halves of a key that depends on the seed.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are used")]
fn mixed(seed: [u64; 2], key: [u64; 2]) -> u64 {
    let product = u128::from(key[0] ^ seed[0]) * u128::from(key[1] ^ seed[1]);
    product as u64 ^ (product >> 64) as u64
}

/// The bits of a hash that order the entries of a segment.
#[inline]
fn within(hash: u64, bits: u32) -> u64 {
    hash << bits
}

impl Segment {
    fn tail(places: usize) -> usize {
        TAIL_MIN + places / 64
    }

    /// The first place where an entry of this hash may be.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the product is below places << 64")]
    fn home(hash: u64, places: usize) -> usize {
        ((u128::from(hash) * places as u128) >> 64) as usize
    }

    /// Where the key is, or else where it would be inserted.
    #[inline]
    fn find(&self, seed: [u64; 2], bits: u32, key: [u64; 2], hash: u64) -> Result<usize, usize> {
        let mut at = Segment::home(hash, self.places);
        while let Some(slot) = self.slots.get(at) {
            if slot.key == key {
                return Ok(at);
            }
            if slot.is_empty() || (within(mixed(seed, slot.key), bits), slot.key) > (hash, key) {
                break;
            }
            at += 1;
        }
        Err(at)
    }

    /// Moves the entries from `at` on to the next gap by one place; `false` where the tail has no
    /// gap left but the one at its end.
    fn make_gap(&mut self, at: usize) -> bool {
        let Some(last) = self.slots.len().checked_sub(1) else { return false };
        let run = &self.slots[at..last];
        let Some(gap) = run.iter().position(Slot::is_empty) else { return false };
        self.slots.copy_within(at..at + gap, at + 1);
        true
    }

    /// Moves entries back over `at`, up to the first that is at its own place.
    fn close_gap(&mut self, seed: [u64; 2], bits: u32, mut at: usize) {
        loop {
            let next = self.slots[at + 1];
            let home = Segment::home(within(mixed(seed, next.key), bits), self.places);
            if next.is_empty() || home > at {
                self.slots[at] = EMPTY;
                return;
            }
            self.slots[at] = next;
            at += 1;
        }
    }

    /// Moves all entries to an array of `places`, or of more where they do not fit in its tail.
    fn resize(&mut self, seed: [u64; 2], bits: u32, places: usize) {
        let mut slots = vec![EMPTY; places + Segment::tail(places)];
        let mut next = 0;
        for slot in self.slots.iter().filter(|slot| !slot.is_empty()) {
            let home = Segment::home(within(mixed(seed, slot.key), bits), places);
            let at = home.max(next);
            if at + 1 >= slots.len() {
                self.resize(seed, bits, places + places / 4 + 1);
                return;
            }
            slots[at] = *slot;
            next = at + 1;
        }
        self.slots = slots;
        self.places = places;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// An odd factor: products of small numbers are far apart.
    const SPREAD: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    fn keys() -> impl Strategy<Value = Vec<(u8, bool)>> {
        prop::collection::vec((any::<u8>(), any::<bool>()), 0..400)
    }

    proptest! {
        #[test]
        fn slots_are_a_map(seed: [u64; 2], segments in 0..3_usize, changes in keys(), spread: bool) {
            let mut slots = Slots::new(seed, segments * SEGMENT_BYTES * 2);
            let mut map = BTreeMap::new();
            for (number, (key, adds)) in (0..).zip(changes) {
                // Keys that are next to each other, or far apart.
                let key = u128::from(key) + 256;
                let key = DirId(if spread { key.wrapping_mul(SPREAD) } else { key });
                if adds && !map.contains_key(&key) {
                    slots.insert(key, usize::MAX).unwrap().own = number;
                    map.insert(key, number);
                } else if adds {
                    slots.get_mut(key).unwrap().own = number;
                    map.insert(key, number);
                } else {
                    slots.remove(key);
                    map.remove(&key);
                }
                prop_assert_eq!(slots.get(key).map(|slot| slot.own), map.get(&key).copied());
                slots.check();
            }
            let kept: BTreeMap<_, _> = slots.iter().map(|slot| (slot.key(), slot.own)).collect();
            prop_assert_eq!(kept, map);
        }
    }

    #[test]
    fn a_table_without_a_limit_begins_small() {
        assert!(Slots::new([1, 2], usize::MAX).bytes() < 4 << 20);
    }

    #[test]
    fn keys_chosen_to_collide_do_not_gather() {
        let mut slots = Slots::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211], 64 << 20);
        for low in 1..10_000_u128 {
            slots.insert(DirId(low << 64 | 7), usize::MAX).unwrap();
        }
        let largest = slots.segments.iter().map(|segment| segment.used).max().unwrap();
        assert!(largest < 10_000 / slots.segments.len() * 4, "{largest}");
    }

    #[test]
    fn an_entry_costs_less_than_34_bytes_with_the_room_around_it() {
        let mut slots = Slots::new([3, 5], 16 << 20);
        let mut key = 1_u128;
        let mut most: f64 = 0.0;
        for number in 1..400_000_u32 {
            key = key.wrapping_mul(SPREAD).wrapping_add(11);
            slots.insert(DirId(key), usize::MAX).unwrap();
            if number > 200_000 && number % 1000 == 0 {
                let bytes = u32::try_from(slots.bytes()).unwrap();
                most = most.max(f64::from(bytes) / f64::from(number));
            }
        }
        slots.check();
        assert!(most < 34.0, "{most}");
    }
}
