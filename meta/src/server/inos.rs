//! The inode numbers that a server gives out, shard by shard.
//!
//! Invariant: a number that was given out is below the end that is stored for its shard, on stable
//! storage.

use base::{Ino, ShardId};
use parking_lot::Mutex;
use store::{Batch, Engine};

use crate::{
    OpenError,
    bugs::{Bug, Planted},
    record::{Record as _, key, system::Reserved},
};

/// Number of inode numbers reserved at a time on each shard.
const INOS_RESERVED: u64 = 1 << 16;

/// Number of inode numbers of a shard that an old copy leaves out: more than a server gives out
/// within years.
const INOS_SKIPPED: u64 = 1 << 32;

/// Gives out inode numbers. Ranges are reserved on stable storage before the first number of them
/// is used, so no power cut gives a number out twice.
pub(crate) struct InoCounters {
    shards: Vec<Mutex<Range>>,
}

struct Range {
    next: u64,
    end: u64,
}

impl InoCounters {
    /// Opens without a reservation, for a start on a full disk: each shard reserves with its first
    /// number.
    pub(crate) fn none_yet(engine: &dyn Engine, shards: u16) -> Result<InoCounters, OpenError> {
        let ranges = (0..shards).map(|shard| {
            let reserved = engine.get(&key::counter(ShardId(shard)))?;
            let end = Reserved::from_record(&reserved.ok_or(OpenError::NotFormatted)?)?.end;
            Ok(Mutex::new(Range { next: end, end }))
        });
        Ok(InoCounters { shards: ranges.collect::<Result<_, OpenError>>()? })
    }

    /// Makes all numbers unavailable, on each shard, that an old copy may have given out since it
    /// was made.
    pub(crate) fn skip(engine: &dyn Engine, shards: u16) -> Result<(), OpenError> {
        let mut batch = Batch::default();
        for shard in (0..shards).map(ShardId) {
            let reserved = engine.get(&key::counter(shard))?.ok_or(OpenError::NotFormatted)?;
            let end = Reserved::from_record(&reserved)?.end + INOS_SKIPPED;
            if end >> (Ino::COUNTER_BITS - 1) > 0 {
                return Err(OpenError::InosSpent);
            }
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
        }
        engine.write(batch)?;
        Ok(engine.sync()?)
    }

    pub(crate) fn reserve(
        engine: &dyn Engine,
        shards: u16,
        bugs: Planted,
    ) -> Result<InoCounters, OpenError> {
        let mut batch = Batch::default();
        let mut ranges = Vec::with_capacity(usize::from(shards));
        for shard in (0..shards).map(ShardId) {
            let reserved = engine.get(&key::counter(shard))?.ok_or(OpenError::NotFormatted)?;
            let next = Reserved::from_record(&reserved)?.end;
            let end = next + INOS_RESERVED;
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            ranges.push(Mutex::new(Range { next, end }));
        }
        if !bugs.has(Bug::InosNotReserved) {
            engine.write(batch)?;
            engine.sync()?;
        }
        Ok(InoCounters { shards: ranges })
    }

    /// The next number of `shard`. One in many thousands is reserved first, with others: `store`
    /// makes the reservation stable, with the blocks that the log names before it, or a power cut
    /// may take it with them.
    pub(crate) fn next<E>(
        &self,
        shard: ShardId,
        store: impl FnOnce(Batch) -> Result<(), E>,
    ) -> Result<Ino, E> {
        let mut range = self.shards[usize::from(shard.0)].lock();
        if range.next == range.end {
            let end = range.end + INOS_RESERVED;
            let mut batch = Batch::default();
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            store(batch)?;
            range.end = end;
        }
        range.next += 1;
        Ok(Ino::new(shard, range.next - 1))
    }

    /// Like [`InoCounters::next`], for several numbers in a row. Returns the first, and how many
    /// there are: at most `count`, and at least one.
    pub(crate) fn next_range<E>(
        &self,
        shard: ShardId,
        count: u16,
        store: impl FnOnce(Batch) -> Result<(), E>,
    ) -> Result<(Ino, u16), E> {
        let first = self.next(shard, store)?;
        let mut range = self.shards[usize::from(shard.0)].lock();
        let counter = first.0 & ((1 << Ino::COUNTER_BITS) - 1);
        if range.next != counter + 1 {
            // Another core has drawn one since.
            return Ok((first, 1));
        }
        let more = u64::from(count.saturating_sub(1)).min(range.end - range.next);
        range.next += more;
        Ok((first, 1 + u16::try_from(more).expect("it is less than the count")))
    }

    /// The first number of `shard` that is not reserved.
    pub(crate) fn end(&self, shard: ShardId) -> u64 {
        self.shards[usize::from(shard.0)].lock().end
    }

    /// Whether a number may have been given out.
    pub(crate) fn was_given_out(&self, ino: Ino) -> bool {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let range = self.shards.get(usize::from(ino.shard().0)).map(|range| range.lock());
        counter > 0 && range.is_some_and(|range| counter < range.end)
    }

    /// Makes numbers up to `ino` on its shard unavailable. Returns the first number that is not
    /// reserved, which the caller stores; `None` when there is no such shard, or hardly a number
    /// after `ino`.
    pub(crate) fn raise(&self, ino: Ino) -> Option<u64> {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let mut range = self.shards.get(usize::from(ino.shard().0))?.lock();
        if counter == 0 || counter > 1 << (Ino::COUNTER_BITS - 1) {
            return None;
        }
        if counter >= range.end {
            (range.next, range.end) = (counter + 1, counter + 1);
        }
        Some(range.end)
    }
}
