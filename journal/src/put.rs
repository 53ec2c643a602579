//! One segment is put, until what is stored under its number is known (J1).
//!
//! ```text
//! put n        success                       -> stored
//!              anything else                 -> read n
//! read n       ours, by its id               -> stored
//!              another one                   -> foreign
//!              absent, or the store is away  -> wait, and put the same bytes again
//! ```
//!
//! Absence is never a result: an earlier put may still arrive. A put that takes long is sent a
//! second time beside the first; both have the same bytes, so either of them may win.

use std::{pin::pin, time::Duration};

use base::{Backoff, Random};
use bytes::Bytes;
use futures::future::{Either, select};
use tokio::time::{Instant, timeout};

use crate::{Error, Journal, Result, Segment, WriterStatus, bugs::Bug, status::Latency};

/// Limits of time.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A put that takes longer than this, and than twice the p99, is sent a second time.
    pub hedge_min: Duration,
    /// The first wait between tries, at most.
    pub retry_first: Duration,
    /// The longest wait between tries.
    pub retry_max: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            hedge_min: Duration::from_millis(150),
            retry_first: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
        }
    }
}

/// News of a store that fails, for the status.
#[derive(Debug)]
pub enum Trouble<'a> {
    /// A try failed, and another one follows. The first call of a row tells since when.
    Failed {
        /// Number of the segment.
        number: u64,
        /// Tries so far.
        tries: u64,
        /// Why the last one failed.
        error: &'a Error,
    },
    /// The segment is stored after tries that failed.
    Over,
}

/// The owner of the segment under a number.
pub(crate) enum Outcome {
    /// Ours.
    Stored,
    /// A segment of another process, or of another run.
    Foreign(Box<Segment>),
}

/// A segment to be put.
pub(crate) struct Parcel {
    pub(crate) number: u64,
    pub(crate) id: u128,
    pub(crate) sealed: Bytes,
}

/// Puts segments, and counts.
pub(crate) struct Putter {
    pub(crate) journal: Journal,
    pub(crate) times: Times,
    pub(crate) counts: WriterStatus,
    pub(crate) latency: Latency,
}

impl Putter {
    pub(crate) fn new(journal: Journal, times: Times) -> Putter {
        let (counts, latency) = (WriterStatus::default(), Latency::default());
        Putter { journal, times, counts, latency }
    }

    /// Goes on until it is known what is stored under the parcel's number.
    pub(crate) async fn store(
        &mut self,
        parcel: &Parcel,
        random: &dyn Random,
        told: &(dyn Fn(Trouble<'_>) + Sync),
    ) -> Result<Outcome> {
        let number = parcel.number;
        let mut backoff = Backoff::new(self.times.retry_first, self.times.retry_max);
        let mut tries = 0;
        let outcome = loop {
            let Err(failed) = self.once(parcel).await else { break Outcome::Stored };
            if self.journal.has(Bug::StatusDecides) && exists(&failed)
                || self.journal.has(Bug::NextPutEarly) && !exists(&failed)
            {
                break Outcome::Stored;
            }
            let unread = match self.journal.read(number).await {
                Ok(Some(found)) if found.header.id == parcel.id => break Outcome::Stored,
                Ok(Some(found)) => break Outcome::Foreign(Box::new(found)),
                Ok(None) => None,
                Err(error) if error.is_passing() => Some(error),
                Err(error) => return Err(error),
            };
            tries += 1;
            self.counts.retries += 1;
            told(Trouble::Failed { number, tries, error: unread.as_ref().unwrap_or(&failed) });
            tokio::time::sleep(backoff.draw(random)).await;
        };
        if tries > 0 {
            told(Trouble::Over);
        }
        if matches!(outcome, Outcome::Stored) {
            self.counts.bytes += parcel.sealed.len() as u64;
        }
        Ok(outcome)
    }

    /// One try: a put, and a second one beside it when the first takes long.
    async fn once(&mut self, parcel: &Parcel) -> Result<()> {
        let begun = Instant::now();
        let hedge_after = self.times.hedge_min.max(2 * self.latency.percentile(99));
        let put = || Box::pin(self.journal.put(parcel.number, parcel.sealed.clone()));
        let mut first = pin!(put());
        let (mut puts, mut hedges) = (1, 0);
        let result = match timeout(hedge_after, &mut first).await {
            Ok(result) => result,
            Err(_) => {
                (puts, hedges) = (2, 1);
                let (result, other) = match select(first, put()).await {
                    Either::Left((result, second)) => (result, Either::Left(second)),
                    Either::Right((result, first)) => (result, Either::Right(first)),
                };
                // The other one may be the one that was stored.
                match result {
                    Ok(()) => Ok(()),
                    Err(_) => other.await,
                }
            }
        };
        self.counts.puts += puts;
        self.counts.hedges += hedges;
        if result.is_ok() {
            self.latency.add(begun.elapsed());
        }
        result
    }
}

fn exists(error: &Error) -> bool {
    matches!(error, Error::Store(object_store::Error::AlreadyExists { .. }))
}
