//! How hybrid placement treats a directory and what is made in it.

use base::{Decode, DecodeError, DirId, Encode, Reader, codec};

/// The part of a content record that is of hybrid placement.
///
/// Persisted: nothing where nothing is to be said, otherwise a tag and the values. So records of
/// other file systems have the bytes that they had before there was a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Placing {
    /// How many levels of directories that are made below it get places of their own. Zero: none,
    /// whatever is there; `None`: none while its home is small.
    pub(crate) levels: Option<u8>,
    /// The home of the directory it was born in, where that does not follow from its own.
    pub(crate) birth_home: Option<DirId>,
}

/// The tag before the values. 1 to 5 are tags of quotas, policies and listings.
const TAG: u8 = 6;

codec! {
    /// The stored values.
    struct Values {
        pub levels: Option<u8>,
        pub birth_home: Option<DirId>,
    }
}

impl Placing {
    /// Of a directory of which nothing is to be said.
    pub(crate) const NONE: Placing = Placing { levels: None, birth_home: None };
}

impl Encode for Placing {
    fn encode(&self, out: &mut Vec<u8>) {
        let Placing { levels, birth_home } = *self;
        if *self != Placing::NONE {
            out.push(TAG);
            Values { levels, birth_home }.encode(out);
        }
    }
}

impl Decode for Placing {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.peek() != Some(TAG) {
            return Ok(Placing::NONE);
        }
        input.take(1)?;
        let Values { levels, birth_home } = Values::decode(input)?;
        let placing = Placing { levels, birth_home };
        if placing == Placing::NONE { Err(DecodeError::Invalid("placing")) } else { Ok(placing) }
    }
}
