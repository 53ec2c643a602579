//! The listing of a directory, in its content record.

use base::{Decode, DecodeError, Encode, Reader, SearchClass, permissions::Listing};

/// The listing of a directory in permission tables.
///
/// Persisted: nothing for one that promises nothing, so it stands last in its record; otherwise a
/// tag, which says whether the directory is listed, and the bound. A record without one has the
/// bytes that it had before there were listings, and the default is right for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StoredListing(pub(crate) Listing);

/// The tag before the bound of a directory that is not listed. 1 to 3 are tags of quotas and
/// policies.
const TAG: u8 = 4;
/// The tag before the bound of a listed directory.
const TAG_LISTED: u8 = 5;

impl StoredListing {
    /// The listing that other partitions of the directory repeat: the master alone says whether it
    /// is listed.
    pub(crate) fn repeated(&self) -> StoredListing {
        StoredListing(Listing { below: self.0.below.clone(), listed: false })
    }
}

impl Encode for StoredListing {
    fn encode(&self, out: &mut Vec<u8>) {
        let Listing { below, listed } = &self.0;
        if !listed && *below == SearchClass::Nothing {
            return;
        }
        out.push(if *listed { TAG_LISTED } else { TAG });
        below.encode(out);
    }
}

impl Decode for StoredListing {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let listed = match input.peek() {
            Some(TAG) => false,
            Some(TAG_LISTED) => true,
            Some(tag) => return Err(DecodeError::Tag { what: "end of a record", tag }),
            None => return Ok(StoredListing::default()),
        };
        input.take(1)?;
        let below = SearchClass::decode(input)?;
        if !listed && below == SearchClass::Nothing {
            return Err(DecodeError::Invalid("listing"));
        }
        Ok(StoredListing(Listing { below, listed }))
    }
}
