//! Records that are read to reclaim: notes of blocks, and chunks.

use base::DecodeError;
use bytes::Bytes;

use crate::record::{ChunkRecord, Record};

/// Number of chunks of a removed or cut file that one step takes.
pub(crate) const CHUNKS_A_STEP: usize = 256;

base::codec! {
    /// Value of a note to delete a block, which is named by the key.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Garbage {}
}

impl Record for Garbage {}

/// Decodes a stored chunk, for readers of raw records.
pub(crate) fn chunk_of(value: &[u8]) -> Result<ChunkRecord, DecodeError> {
    ChunkRecord::from_record(&Bytes::copy_from_slice(value))
}
