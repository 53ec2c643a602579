//! The rules of the chain (J2), as pure code: whether a segment follows the one before, and whether
//! it follows what a copy has.

use serde::{Deserialize, Serialize};

use crate::{Error, Fault, Header, Result};

/// The end of a chain, as far as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of the last segment, 0 for none.
    pub number: u64,
    /// Id of the last segment; `None` when it was not read, 0 when there is none.
    pub id: Option<u128>,
    /// Generation and run of the last segment, zeros for none.
    pub owner: Owner,
    /// Last sequence number; `None` when no segment was read.
    pub last: Option<u64>,
}

/// A process that owns the journal. Persisted, in a [`Note`](crate::Note).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Generation, from 1.
    pub generation: u64,
    /// Run of the process.
    pub run: u64,
}

impl End {
    /// The end before the segment after `number`, of which nothing is known but its number.
    #[must_use]
    pub fn before(number: u64) -> End {
        if number == 0 {
            return End { number, id: Some(0), owner: Owner::default(), last: Some(0) };
        }
        End { number, id: None, owner: Owner::default(), last: None }
    }

    /// The end after this segment.
    #[must_use]
    pub fn at(header: &Header) -> End {
        End {
            number: header.number,
            id: Some(header.id),
            owner: Owner { generation: header.generation, run: header.run },
            last: Some(header.last),
        }
    }

    /// Checks that a segment follows, and moves the end to it.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn follow(&mut self, header: &Header) -> Result<()> {
        match self.fault(header) {
            Some(fault) => Err(Error::Broken { number: header.number, fault }),
            None => {
                *self = End::at(header);
                Ok(())
            }
        }
    }

    fn fault(&self, header: &Header) -> Option<Fault> {
        let (found, before) = (header.generation, self.owner.generation);
        if header.number != self.number + 1 {
            return Some(Fault::Number(self.number + 1));
        }
        if self.id.is_some_and(|id| id != header.before) {
            return Some(Fault::Predecessor);
        }
        if found < before {
            return Some(Fault::Generation { found, before });
        }
        if found == before && header.run != self.owner.run {
            return Some(Fault::Run(found));
        }
        // Without the segment before, whether a generation begins here is not known.
        if found > before && self.id.is_some() && !header.is_empty() {
            return Some(Fault::Fence(found));
        }
        let before = self.last?;
        let follows = header.first == before + 1
            || (header.first > before && header.first - 1 <= header.covered.position);
        (!follows).then_some(Fault::Sequence { found: header.first, before })
    }
}

/// The extent of a copy of the member's data: a base, or the old machine's own engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// Generation that wrote the newest of it, 0 where that is not known.
    pub generation: u64,
    /// Last sequence number.
    pub position: u64,
}

impl Replica {
    /// Checks that a segment can be applied to the copy, and says that it was.
    ///
    /// # Errors
    /// [`Error::Forked`] when the copy has what a later generation does not, and
    /// [`Error::NeedsBase`] when something between is missing.
    pub fn follow(&mut self, header: &Header) -> Result<()> {
        let &Header { number, generation, last, .. } = header;
        let begins = generation > self.generation;
        if begins && self.generation > 0 && self.position > header.first - 1 {
            return Err(Error::Forked { number, generation, last: header.first - 1 });
        }
        if header.first > self.position + 1 {
            return Err(Error::NeedsBase { number, position: self.position });
        }
        self.generation = self.generation.max(generation);
        self.position = self.position.max(last);
        Ok(())
    }
}
