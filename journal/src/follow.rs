//! A server that stands by applies what the owner of a journal adds, and sees when its lease ends.
//!
//! Always true: the data have what the journal has up to the segment that their note names, at least,
//! and nothing that the journal has not.

use std::time::Duration;

use crate::{Data, Error, Header, Journal, Note, Reader, Replica, Result, Verdict, Vigil};

/// Looks at the journal in the time of a lease.
const LOOKS_A_LEASE: u32 = 8;
const LOOK_PERIOD_MIN: Duration = Duration::from_millis(100);
const LOOK_PERIOD_MAX: Duration = Duration::from_secs(2);
/// Time after which what was applied is made stable, and noted.
const NOTE_PERIOD: Duration = Duration::from_secs(30);

/// Follows a journal.
pub struct Follower<'a> {
    journal: Journal,
    reader: Reader,
    vigil: Vigil,
    noted: Duration,
    now: &'a (dyn Fn() -> Duration + Sync),
}

/// The outcome of a look at the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// A segment was applied: there may be another one.
    Applied,
    /// There is nothing new: look again after this time.
    Waits(Duration),
    /// There is nothing new, and the owner has no lease that could end.
    Unleased(Duration),
    /// The lease of the last segment, which has this number, has ended: the data may take the
    /// journal over, if it still ends there.
    Ended(u64),
}

impl<'a> Follower<'a> {
    /// Follows the journal from the segment on that the note names. `now` tells the time since any
    /// moment, by a clock that goes on while the machine sleeps.
    ///
    /// # Errors
    /// [`Error::NeedsBase`] when the segment is not there, and others as of [`Journal::read`].
    pub async fn begin(
        journal: &Journal,
        note: &Note,
        data: &impl Data,
        now: &'a (dyn Fn() -> Duration + Sync),
    ) -> Result<Follower<'a>> {
        let needs_base = Error::NeedsBase { number: note.segment, position: 0 };
        let last = journal.read(note.segment).await?.ok_or(needs_base)?;
        let replica = Replica { generation: note.generation, position: data.position() };
        Ok(Follower {
            reader: Reader::new(journal.clone(), note.segment, replica),
            journal: journal.clone(),
            vigil: Vigil::new(last.header, now()),
            noted: now(),
            now,
        })
    }

    /// The last segment that was seen.
    #[must_use]
    pub fn last(&self) -> &Header {
        self.vigil.last()
    }

    /// Applies the next segment, or says what is to be done without one.
    ///
    /// # Errors
    /// The same as of [`Reader::next`], and [`Error::Data`] when the data fail.
    pub async fn look(&mut self, note: &mut Note, data: &impl Data) -> Result<Followed> {
        let begun = (self.now)();
        if self.next(note, data).await? {
            if begun.saturating_sub(self.noted) > NOTE_PERIOD {
                self.noted = begun;
                self.note(note, data)?;
            }
            return Ok(Followed::Applied);
        }
        let pause = Duration::from_millis(self.last().lease.millis.into()) / LOOKS_A_LEASE;
        let pause = pause.clamp(LOOK_PERIOD_MIN, LOOK_PERIOD_MAX);
        // The look that began then has found nothing more.
        match self.vigil.verdict(begun) {
            Verdict::Held(left) => Ok(Followed::Waits(pause.min(left))),
            Verdict::Unleased => Ok(Followed::Unleased(pause)),
            Verdict::Ended => {
                // A fence is kept when the segments after it were collected.
                let number = self.last().number;
                if self.journal.beyond(number).await?.is_some() {
                    if self.next(note, data).await? {
                        return Ok(Followed::Applied);
                    }
                    let position = data.position();
                    return Err(Error::NeedsBase { number: number + 1, position });
                }
                self.note(note, data)?;
                Ok(Followed::Ended(number))
            }
        }
    }

    /// Applies the next segment, and watches from then on over that one.
    async fn next(&mut self, note: &mut Note, data: &impl Data) -> Result<bool> {
        let Some(segment) = self.reader.next().await? else { return Ok(false) };
        self.vigil.saw(segment.header.clone(), (self.now)());
        if note.generation != segment.header.generation {
            note.generation = segment.header.generation;
            data.keep(note).map_err(Error::Data)?;
        }
        data.apply(segment).map_err(Error::Data)?;
        Ok(true)
    }

    /// Makes stable what was applied, and then the note of it.
    fn note(&self, note: &mut Note, data: &impl Data) -> Result<()> {
        data.sync().map_err(Error::Data)?;
        let last = self.last();
        (note.segment, note.generation) = (last.number, last.generation);
        note.asked.retain(|asked| asked.generation > last.generation);
        data.keep(note).map_err(Error::Data)
    }
}
