//! The inode numbers that a server gives out, shard by shard.
//!
//! Invariant: a number that was given out is below the end that is stored for its shard, on stable
//! storage.

use std::{ops::ControlFlow, sync::Arc};

use base::{FsError, HashMap, Ino, ShardId};
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Batch, Engine};
use tokio::sync::Notify;

use crate::{
    OpenError, Problem,
    bugs::{Bug, Planted},
    record::{Record as _, key, system::Reserved},
    server::Shared,
};

/// Number of inode numbers reserved at a time on each shard.
const INOS_RESERVED: u64 = 1 << 20;
/// Number of inode numbers that are left when the next ones are reserved in the background.
const INOS_LEFT: u64 = INOS_RESERVED / 2;

/// Number of inode numbers of a shard that an old copy leaves out: more than a server gives out
/// within years.
const INOS_SKIPPED: u64 = 1 << 32;

/// Gives out inode numbers. Ranges are reserved on stable storage before the first number of them
/// is used, so no power cut gives a number out twice.
pub(crate) struct InoCounters {
    /// Shards whose counters are stored here: those of this server.
    shards: HashMap<ShardId, Mutex<Range>>,
    /// On some shard few numbers are left.
    few_left: Notify,
}

struct Range {
    next: u64,
    end: u64,
}

impl InoCounters {
    /// Opens without a reservation, for a start on a full disk: each shard reserves with its first
    /// number.
    pub(crate) fn none_yet(engine: &dyn Engine) -> Result<InoCounters, OpenError> {
        let ranges = stored(engine)?.into_iter();
        let shards = ranges.map(|(shard, end)| (shard, Mutex::new(Range { next: end, end })));
        Ok(InoCounters { shards: shards.collect(), few_left: Notify::new() })
    }

    /// Makes all numbers unavailable, on each shard, that an old copy may have given out since it
    /// was made.
    pub(crate) fn skip(engine: &dyn Engine) -> Result<(), OpenError> {
        let mut batch = Batch::default();
        for (shard, end) in stored(engine)? {
            let end = end + INOS_SKIPPED;
            if end >> (Ino::COUNTER_BITS - 1) > 0 {
                return Err(OpenError::InosSpent);
            }
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
        }
        engine.write(batch)?;
        Ok(engine.sync()?)
    }

    pub(crate) fn reserve(engine: &dyn Engine, bugs: Planted) -> Result<InoCounters, OpenError> {
        let mut batch = Batch::default();
        let mut shards = HashMap::default();
        for (shard, next) in stored(engine)? {
            let end = next + INOS_RESERVED;
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            shards.insert(shard, Mutex::new(Range { next, end }));
        }
        if !bugs.has(Bug::InosNotReserved) {
            engine.write(batch)?;
            engine.sync()?;
        }
        Ok(InoCounters { shards, few_left: Notify::new() })
    }

    /// The shards of which numbers can be given out.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.shards.keys().copied()
    }

    /// The next number of `shard`. If none is left, others are reserved first, which happens where
    /// [`InoCounters::run`] has no time to: `store` makes the reservation stable, with the blocks
    /// that the log names before it, or a power cut may take it with them.
    ///
    /// # Errors
    /// When `store` fails; `Io` for a shard whose counter is not here: only its owner knows which
    /// numbers are in use.
    pub(crate) fn next<E: From<FsError>>(
        &self,
        shard: ShardId,
        store: impl FnOnce(Batch) -> Result<(), E>,
    ) -> Result<Ino, E> {
        let mut range = self.shards.get(&shard).ok_or(FsError::Io)?.lock();
        if range.next == range.end {
            let end = range.end + INOS_RESERVED;
            let mut batch = Batch::default();
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            store(batch)?;
            range.end = end;
        }
        self.take(&mut range, 1);
        Ok(Ino::new(shard, range.next - 1))
    }

    /// Takes numbers that are reserved, and has others reserved when few are left.
    fn take(&self, range: &mut Range, count: u64) {
        let were_enough = range.end - range.next > INOS_LEFT;
        range.next += count;
        if were_enough && range.end - range.next <= INOS_LEFT {
            self.few_left.notify_one();
        }
    }

    /// Reserves numbers before they are needed, for as long as the server runs: a core that had to
    /// would wait for stable storage.
    pub(crate) async fn run(shared: Arc<Shared>) {
        let counters = &shared.inos;
        loop {
            counters.few_left.notified().await;
            let mut begun = Vec::new();
            for (shard, range) in &counters.shards {
                // Race: a core that reserves at the same time does so under this lock, too.
                let range = range.lock();
                // One that has none left is another's: a repair may be about to store its end.
                if range.end - range.next > INOS_LEFT || range.end == range.next {
                    continue;
                }
                let end = range.end + INOS_RESERVED;
                let mut batch = Batch::default();
                batch.put(&key::counter(*shard), &Reserved { end }.to_record());
                if let Err(error) = shared.put(batch) {
                    return shared.halt(Problem::of(&error));
                }
                begun.push((*shard, range.end));
            }
            shared.sync.wait().await;
            for (shard, before) in begun {
                let mut range = counters.shards[&shard].lock();
                if range.end == before {
                    range.end += INOS_RESERVED;
                }
            }
        }
    }

    /// Like [`InoCounters::next`], for several numbers in a row. Returns the first, and how many
    /// there are: at most `count`, and at least one.
    pub(crate) fn next_range<E: From<FsError>>(
        &self,
        shard: ShardId,
        count: u16,
        store: impl FnOnce(Batch) -> Result<(), E>,
    ) -> Result<(Ino, u16), E> {
        let first = self.next(shard, store)?;
        let mut range = self.shards.get(&shard).ok_or(FsError::Io)?.lock();
        let counter = first.0 & ((1 << Ino::COUNTER_BITS) - 1);
        if range.next != counter + 1 {
            // Another core has drawn one since.
            return Ok((first, 1));
        }
        let more = u64::from(count.saturating_sub(1)).min(range.end - range.next);
        self.take(&mut range, more);
        Ok((first, 1 + u16::try_from(more).expect("it is less than the count")))
    }

    /// The first number of `shard` that is not reserved; 0 if its counter is not here.
    pub(crate) fn end(&self, shard: ShardId) -> u64 {
        self.shards.get(&shard).map_or(0, |range| range.lock().end)
    }

    /// Whether a number may have been given out.
    pub(crate) fn was_given_out(&self, ino: Ino) -> bool {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        counter > 0 && counter < self.end(ino.shard())
    }

    /// Makes numbers up to `ino` on its shard unavailable. Returns the first number that is not
    /// reserved, which the caller stores; `None` when the shard's counter is not here, or hardly a
    /// number is left after `ino`.
    pub(crate) fn raise(&self, ino: Ino) -> Option<u64> {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let mut range = self.shards.get(&ino.shard())?.lock();
        if counter == 0 || counter > 1 << (Ino::COUNTER_BITS - 1) {
            return None;
        }
        if counter >= range.end {
            (range.next, range.end) = (counter + 1, counter + 1);
        }
        Some(range.end)
    }
}

/// The ends of what is reserved, by shard.
fn stored(engine: &dyn Engine) -> Result<Vec<(ShardId, u64)>, OpenError> {
    let (mut found, mut damaged) = (Vec::new(), None);
    let prefix = key::works(b'C');
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        match Reserved::from_record(&Bytes::copy_from_slice(value)) {
            Ok(Reserved { end }) => found.push((key::shard_of(key), end)),
            Err(error) => damaged = Some(error),
        }
        if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    damaged.map_or(Ok(found), |error| Err(error.into()))
}
