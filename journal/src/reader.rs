//! The chain is read, in order, and each segment is checked against the one before (J2) and against
//! what the caller has.
//!
//! LIST is a hint: it says where a chain may begin, and readers go on by name. An absent segment is
//! the end only while the one before is there.
//!
//! Always true: a segment that is returned follows the one that was returned before.

use std::{future::Future, pin::Pin};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesOrdered};

use crate::{End, Error, Journal, Replica, Result, Segment};

/// Segments that are read at a time.
const AHEAD_MAX: usize = 4;

type Read = Pin<Box<dyn Future<Output = Result<Option<Segment>>> + Send>>;

/// Reads a journal from one segment on.
pub struct Reader {
    journal: Journal,
    /// The last segment that was returned, or the one before the first.
    end: End,
    replica: Replica,
    is_alone: bool,
    is_begun: bool,
    /// Number of the segment that is not read any more.
    until: u64,
    /// The reads under way, of the numbers after `end`.
    ahead: FuturesOrdered<Read>,
    ahead_max: usize,
}

impl Reader {
    /// A reader of the segments after `segment` (0: from the beginning of the chain that reaches
    /// its end), for a copy of the member's data.
    #[must_use]
    pub fn new(journal: Journal, segment: u64, replica: Replica) -> Reader {
        Reader {
            journal,
            end: End::before(segment),
            replica,
            is_alone: false,
            is_begun: false,
            until: u64::MAX,
            ahead: FuturesOrdered::new(),
            ahead_max: 1,
        }
    }

    /// The same reader, which ends before this segment.
    #[must_use]
    pub fn until(self, segment: u64) -> Reader {
        Reader { until: segment, ..self }
    }

    /// The same reader, which checks the chain alone and not against a copy: for who owns the chain,
    /// and has what its own earlier generations have written.
    #[must_use]
    pub fn alone(self) -> Reader {
        Reader { is_alone: true, ..self }
    }

    /// The end of what was read.
    #[must_use]
    pub fn end(&self) -> End {
        self.end.clone()
    }

    /// The extent of the caller's data once it has applied what was read.
    #[must_use]
    pub fn replica(&self) -> Replica {
        self.replica
    }

    /// The next segment; `None` at the end, from where a later call goes on.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Altered`], [`Error::Foreign`], [`Error::Malformed`] or
    /// [`Error::Broken`]: the journal is damaged. [`Error::NeedsBase`]: it has been collected, or
    /// begins beyond what the caller has. [`Error::Forked`]: the caller has more than the journal.
    /// After an error of the store a later call goes on.
    pub async fn next(&mut self) -> Result<Option<Segment>> {
        self.begin().await?;
        let found = match self.read().await {
            Ok(Some(found)) => Some(found),
            Ok(None) => self.look_again().await?,
            Err(error) => {
                self.forget();
                return Err(error);
            }
        };
        let Some(found) = found else { return Ok(None) };
        let (mut end, mut replica) = (self.end.clone(), self.replica);
        let followed = end
            .follow(&found.header)
            .and_then(|()| if self.is_alone { Ok(()) } else { replica.follow(&found.header) });
        if let Err(error) = followed {
            self.forget();
            return Err(error);
        }
        (self.end, self.replica) = (end, replica);
        Ok(Some(found))
    }

    /// Finds the segment before the first.
    async fn begin(&mut self) -> Result<()> {
        if self.is_begun {
            return Ok(());
        }
        let before = self.end.number;
        if before > 0 {
            let needs_base = Error::NeedsBase { number: before, position: self.replica.position };
            let Some(found) = self.journal.read(before).await? else { return Err(needs_base) };
            self.end = End::at(&found.header);
        } else if let Some(first) = self.first().await? {
            self.end = End::before(first - 1);
        }
        self.is_begun = true;
        Ok(())
    }

    /// Number of the first segment of the chain that reaches the highest number listed.
    async fn first(&self) -> Result<Option<u64>> {
        let listed = self.journal.listed().await?;
        let Some(highest) = self.journal.beyond(0).await? else { return Ok(None) };
        let mut first = highest;
        while first > 1 {
            let is_there =
                listed.contains_key(&(first - 1)) || self.journal.has_segment(first - 1).await?;
            if !is_there {
                break;
            }
            first -= 1;
        }
        Ok(Some(first))
    }

    /// Reads the next segment, and begins to read those after it.
    async fn read(&mut self) -> Result<Option<Segment>> {
        let next = self.end.number + 1;
        while self.ahead.len() < self.ahead_max {
            let number = next + self.ahead.len() as u64;
            if number >= self.until {
                break;
            }
            let journal = self.journal.clone();
            self.ahead.push_back(async move { journal.read(number).await }.boxed());
        }
        let found = self.ahead.next().await.transpose().map(Option::flatten);
        self.ahead_max = (self.ahead_max * 2).min(AHEAD_MAX);
        found
    }

    /// Looks whether an absent segment is the end.
    async fn look_again(&mut self) -> Result<Option<Segment>> {
        self.forget();
        let (before, next) = (self.end.number, self.end.number + 1);
        if next >= self.until {
            return Ok(None);
        }
        let position = self.replica.position;
        if before > 0 && !self.journal.has_segment(before).await? {
            return Err(Error::NeedsBase { number: before, position });
        }
        let later = self.journal.has_segment(next + 1).await?;
        // Both may have been put after the first look.
        if later {
            let found = self.journal.read(next).await?;
            return if found.is_some() { Ok(found) } else { Err(Error::Missing(next)) };
        }
        Ok(None)
    }

    fn forget(&mut self) {
        self.ahead = FuturesOrdered::new();
        self.ahead_max = 1;
    }
}
