//! The format of a log: `db/log_format.h` of RocksDB. Blocks of 32 KiB hold fragments: checksum
//! (4 bytes), length (2), kind (1), bytes; a record is one whole fragment, or a first, some in the
//! middle and a last one. The rest of a block that is too short for another fragment is zeros.

use crate::{Error, Result};

const BLOCK_BYTES: u64 = 32 << 10;
const HEADER_BYTES: usize = 7;

/// Part of a record that a fragment is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Middle,
    Last,
}

/// The records of a log whose bytes come in pieces of any length.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Bytes that were pushed and not taken.
    buffer: Vec<u8>,
    /// How many of them were taken since they were last moved.
    taken: usize,
    /// Where in the log the first byte of the buffer is.
    begins: u64,
    /// The beginning of a record whose end did not come yet.
    begun: Option<Vec<u8>>,
    /// A fragment stood where it cannot be: nothing counts any more.
    is_torn: bool,
}

impl Records {
    /// Takes the next bytes of the log.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.begins += self.taken as u64;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next record, and where in the log it ends; `None` if it is not whole.
    pub(super) fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>> {
        while !self.is_torn {
            let at = self.begins + self.taken as u64;
            let room = usize::try_from(BLOCK_BYTES - at % BLOCK_BYTES).unwrap_or(usize::MAX);
            let rest = &self.buffer[self.taken..];
            if room < HEADER_BYTES {
                if rest.len() < room {
                    return Ok(None);
                }
                self.taken += room;
                continue;
            }
            let Some((part, bytes)) = fragment(&rest[..rest.len().min(room)])? else {
                return Ok(None);
            };
            let record = match (part, self.begun.take()) {
                (Part::Whole, None) => Some(bytes.to_vec()),
                (Part::Last, Some(mut before)) => {
                    before.extend_from_slice(bytes);
                    Some(before)
                }
                (Part::First, None) => {
                    self.begun = Some(bytes.to_vec());
                    None
                }
                (Part::Middle, Some(mut before)) => {
                    before.extend_from_slice(bytes);
                    self.begun = Some(before);
                    None
                }
                // The beginning or end of this record was never written.
                (Part::Whole | Part::First, Some(_)) | (Part::Middle | Part::Last, None) => {
                    self.is_torn = true;
                    return Ok(None);
                }
            };
            self.taken += HEADER_BYTES + bytes.len();
            if let Some(record) = record {
                return Ok(Some((record, self.begins + self.taken as u64)));
            }
        }
        Ok(None)
    }

    /// Whether all bytes that were pushed belong to records that were taken.
    pub(super) fn is_at_end(&self) -> bool {
        !self.is_torn && self.begun.is_none() && self.taken == self.buffer.len()
    }
}

/// The fragment that a part of a block begins with; `None` when it is torn.
fn fragment(block: &[u8]) -> Result<Option<(Part, &[u8])>> {
    let Some((header, rest)) = block.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [c0, c1, c2, c3, l0, l1, kind] = *header;
    let Some(bytes) = rest.get(..usize::from(u16::from_le_bytes([l0, l1]))) else {
        return Ok(None);
    };
    let sum = crc32c::crc32c_append(crc32c::crc32c(&[kind]), bytes);
    // Stored so that a checksum of checksums is none.
    let stored = sum.rotate_right(15).wrapping_add(0xa282_ead8);
    if stored != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Ok(None);
    }
    let part = match kind {
        1 => Part::Whole,
        2 => Part::First,
        3 => Part::Middle,
        4 => Part::Last,
        // Others are written with options that are not ours.
        kind => return Err(Error::Corrupt(format!("log record is of unknown kind {kind}"))),
    };
    Ok(Some((part, bytes)))
}
