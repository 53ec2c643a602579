//! Deferred truncation: the *tails* of files, chunks that a truncate has left behind the end of a
//! file, because they were too many to be removed at once.
//!
//! `ops::write` leaves a tail, `reclaim` runs its steps ([`cut`]). The file has its new length at
//! once. A record (`T`) says from which chunk on there may be contents, and each step advances it,
//! in the batch that removes the chunks before it. So a crash at any step leaves a shorter tail.
//!
//! Contents of a tail never show again: reads end with the file, and an operation that would make
//! the file reach its tail waits until the tail is gone ([`DeferredTruncations::is_in_the_way`]).
//! That is looked up in memory, so that writes to other files cost nothing more.
//!
//! Always true: a file with a `T` record is noted in memory, with the same chunk or an earlier one.
//! The reverse does not hold: a truncate that failed leaves a note, which the next step removes.

pub(crate) mod cut;

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
};

use base::{HashMap, Ino, limits::CHUNK_BYTES};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Engine;

use crate::{
    problem::OpenError,
    record::{Record as _, Tail, key},
};

/// Files that have tails.
#[derive(Default)]
pub(crate) struct DeferredTruncations {
    /// Number of tails: usually none, and every operation that makes a file longer asks.
    count: AtomicUsize,
    /// First chunk of each file's tail that may still be there.
    first: Mutex<HashMap<Ino, u32>>,
}

impl DeferredTruncations {
    /// Loads the tails that were left before this start.
    pub(crate) fn load(engine: &dyn Engine) -> Result<DeferredTruncations, OpenError> {
        let tails = DeferredTruncations::default();
        let prefix = key::works(b'T');
        engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
            if let Some(ino) = key::parse_ino(key) {
                // A damaged record does not say where its tail begins.
                let tail = Tail::from_record(&Bytes::copy_from_slice(value));
                tails.note(ino, tail.map_or(0, |tail| tail.first));
            }
            ControlFlow::Continue(())
        })?;
        Ok(tails)
    }

    /// Files that have a tail.
    pub(crate) fn inos(&self) -> Vec<Ino> {
        let mut inos: Vec<Ino> = self.first.lock().keys().copied().collect();
        inos.sort_unstable();
        inos
    }

    /// Whether a file that ends at `end` would reach its tail.
    pub(crate) fn is_in_the_way(&self, ino: Ino, end: u64) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let first = self.first.lock().get(&ino).copied();
        first.is_some_and(|first| end > u64::from(first) * u64::from(CHUNK_BYTES))
    }

    /// Whether a file has a tail.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.first.lock().contains_key(&ino)
    }

    fn note(&self, ino: Ino, first: u32) {
        let mut tails = self.first.lock();
        tails.insert(ino, first);
        self.count.store(tails.len(), Ordering::Release);
    }

    fn forget(&self, ino: Ino) {
        let mut tails = self.first.lock();
        tails.remove(&ino);
        self.count.store(tails.len(), Ordering::Release);
    }
}
