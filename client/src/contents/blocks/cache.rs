//! The cache of what was read of blocks.
//!
//! Blocks never change, so what the cache holds is never outdated. It is kept in units of 64 KiB,
//! the smallest range whose checksum a store can check. A unit that is being read has its place
//! here, too, so that others can wait for it.

use std::collections::BTreeMap;

use base::{BlockId, HashMap};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::Error;

pub(super) const UNIT_BYTES: u32 = 64 << 10;

/// The result of reading a range of a block; `None`: the block is gone, because the file was
/// changed.
pub(super) type Loaded = Result<Option<Bytes>, Error>;

/// A range that is being read.
#[derive(Clone)]
pub(super) struct Load {
    /// Offset of the range within the block, in bytes.
    pub(super) start: u32,
    pub(super) result: watch::Receiver<Option<Loaded>>,
}

pub(super) enum Unit {
    /// The bytes that were read together with the unit, from `start` on in the block: neighbours
    /// are handed out in one piece.
    Ready {
        whole: Bytes,
        start: u32,
        bytes: u64,
        used: u64,
    },
    Loading(Load),
}

/// The cache of blocks that were read lately.
pub(crate) struct ReadCache {
    pub(super) inner: Mutex<Cached>,
    pub(super) bytes_max: u64,
}

#[derive(Default)]
pub(super) struct Cached {
    pub(super) units: HashMap<(BlockId, u32), Unit>,
    /// Units that are ready, by when they were last used.
    by_use: BTreeMap<u64, (BlockId, u32)>,
    uses: u64,
    bytes: u64,
}

/// A part of what was asked for and perhaps more around it, or who will have it.
pub(super) enum Part {
    Ready(u32, Bytes),
    Waiting(Load),
}

impl Part {
    /// Whether it is what this one is.
    pub(super) fn is(&self, place: u32, whole: &Bytes) -> bool {
        match self {
            Part::Ready(start, bytes) => {
                (*start, bytes.as_ptr(), bytes.len()) == (place, whole.as_ptr(), whole.len())
            }
            Part::Waiting(_) => false,
        }
    }

    pub(super) fn is_of(&self, other: &Load) -> bool {
        match self {
            Part::Ready(..) => false,
            Part::Waiting(load) => load.result.same_channel(&other.result),
        }
    }
}

impl ReadCache {
    pub(crate) fn new(bytes_max: u64) -> ReadCache {
        ReadCache { inner: Mutex::default(), bytes_max }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.bytes_max > 0
    }

    /// Keeps a block that was just written.
    pub(crate) fn keep(&self, block: BlockId, data: &Bytes) {
        if self.enabled() {
            let mut inner = self.inner.lock();
            inner.store(block, 0, data);
            inner.evict(self.bytes_max);
        }
    }
}

impl Cached {
    pub(super) fn touch(&mut self, key: (BlockId, u32)) {
        self.uses += 1;
        if let Some(Unit::Ready { used, .. }) = self.units.get_mut(&key) {
            self.by_use.remove(used);
            *used = self.uses;
            self.by_use.insert(self.uses, key);
        }
    }

    /// Keeps what was read from `start`, which is the start of a unit.
    pub(super) fn store(&mut self, block: BlockId, start: u32, data: &Bytes) {
        for (index, at) in (0..data.len()).step_by(UNIT_BYTES as usize).enumerate() {
            let unit = start / UNIT_BYTES + u32::try_from(index).expect("a block has few units");
            let end = (at + UNIT_BYTES as usize).min(data.len());
            let bytes = (end - at) as u64;
            self.drop_unit((block, unit));
            self.uses += 1;
            self.bytes += bytes;
            self.by_use.insert(self.uses, (block, unit));
            let ready = Unit::Ready { whole: data.clone(), start, bytes, used: self.uses };
            self.units.insert((block, unit), ready);
        }
    }

    fn drop_unit(&mut self, key: (BlockId, u32)) {
        if let Some(Unit::Ready { bytes, used, .. }) = self.units.remove(&key) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }

    pub(super) fn evict(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max
            && let Some((_, key)) = self.by_use.first_key_value()
        {
            self.drop_unit(*key);
        }
    }
}
