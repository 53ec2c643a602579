//! Records that are read to reclaim: notes of blocks, and chunks.

use base::{Decode, DecodeError, Encode, Reader};
use bytes::Bytes;

use crate::record::{ChunkRecord, Record};

/// Number of chunks of a removed or cut file that one step takes.
pub(crate) const CHUNKS_A_STEP: usize = 256;

base::codec! {
    /// Value of a note to delete a block, which is named by the key.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub(crate) struct Garbage {
        /// The newest base of a backup that may name the block.
        pub held_for: HeldFor,
    }
}

impl Record for Garbage {}

/// Number of a base, until whose removal a block is kept.
///
/// Persisted: nothing for none, so it stands last in its record; otherwise a tag and the number. A
/// record without one has the bytes that it had before there were backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeldFor(pub(crate) Option<u64>);

/// The tag before the number.
const TAG: u8 = 1;

impl Encode for HeldFor {
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(base) = self.0 {
            out.push(TAG);
            base.encode(out);
        }
    }
}

impl Decode for HeldFor {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.peek() != Some(TAG) {
            return Ok(HeldFor(None));
        }
        input.take(1)?;
        Ok(HeldFor(Some(u64::decode(input)?)))
    }
}

/// Decodes a stored chunk, for readers of raw records.
pub(crate) fn chunk_of(value: &[u8]) -> Result<ChunkRecord, DecodeError> {
    ChunkRecord::from_record(&Bytes::copy_from_slice(value))
}
