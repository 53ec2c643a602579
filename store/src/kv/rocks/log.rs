//! The end of the log of a closed database: batches written since its last table.
//!
//! Whoever opens a database may look at it first and cut off the newest batches, as a power cut
//! would have done. `cli` does, because a batch may have reached the disk before the blocks that it
//! names. It never changes anything but the length of one log.
//!
//! Format: `db/log_format.h` of RocksDB. Blocks of 32 KiB hold fragments: checksum (4 bytes),
//! length (2), kind (1), bytes; a record is one whole fragment, or a first, some in the middle and
//! a last one. The rest of a block that is too short for another fragment is zeros.
//!
//! Always true: what is read is what RocksDB would read. Behind a fragment that is torn nothing
//! counts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Batch, Error, Result};

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

/// The newest log.
#[derive(Debug)]
pub struct LogTail {
    file: PathBuf,
    /// Length of the log.
    bytes: usize,
    batches: Vec<Batch>,
    /// Where in the file each batch ends.
    ends: Vec<usize>,
}

/// Part of a record that a fragment is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Middle,
    Last,
}

impl LogTail {
    /// Reads the newest log of the database in `path`; `None` when there is no log.
    ///
    /// # Errors
    /// `Error::Corrupt` when something whole in it is no batch.
    pub fn read(path: &Path) -> Result<Option<LogTail>> {
        let Some(file) = newest(path)? else { return Ok(None) };
        let bytes = fs::read(&file)?;
        let (mut batches, mut ends) = (Vec::new(), Vec::new());
        for (record, end) in records(&bytes)? {
            batches.push(Batch::decode(record)?);
            ends.push(end);
        }
        Ok(Some(LogTail { file, bytes: bytes.len(), batches, ends }))
    }

    /// Returns the batches that were written, oldest first. Batches that several threads wrote at
    /// once are one.
    #[must_use]
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// Keeps the first `kept` batches, and no torn end; on stable storage when it returns. The part
    /// that is cut off is beside the log then, in `NUMBER.log.cut`, for people who want to know
    /// what it was.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn cut(self, kept: usize) -> Result<()> {
        let end = kept.checked_sub(1).map_or(0, |last| self.ends[last]);
        if end < self.bytes {
            let log = fs::read(&self.file)?;
            // The copy is only for people, so a full disk may lose it.
            let _ = fs::write(self.file.with_extension("log.cut"), &log[end.min(log.len())..]);
            let file = fs::File::options().write(true).open(&self.file)?;
            file.set_len(end as u64)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

/// The log with the highest number.
fn newest(path: &Path) -> Result<Option<PathBuf>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let file = entry?.path();
        let is_log = file.extension().is_some_and(|extension| extension == "log");
        let number = file.file_stem().and_then(|name| name.to_str()?.parse().ok());
        if let (true, Some(number)) = (is_log, number)
            && newest.as_ref().is_none_or(|(highest, _)| *highest < number)
        {
            newest = Some((number, file));
        }
    }
    Ok(newest.map(|(_, file)| file))
}

/// The records of a log and where each ends, as far as they are whole.
fn records(log: &[u8]) -> Result<Vec<(Vec<u8>, usize)>> {
    let mut found = Vec::new();
    let mut begun: Option<Vec<u8>> = None;
    let mut at = 0;
    while at < log.len() {
        let room = BLOCK_BYTES - at % BLOCK_BYTES;
        if room < HEADER_BYTES {
            at += room;
            continue;
        }
        let Some((part, bytes)) = fragment(&log[at..log.len().min(at + room)])? else { break };
        at += HEADER_BYTES + bytes.len();
        match (part, begun.take()) {
            (Part::Whole, None) => found.push((bytes.to_vec(), at)),
            (Part::First, None) => begun = Some(bytes.to_vec()),
            (Part::Middle, Some(before)) => begun = Some([&before[..], bytes].concat()),
            (Part::Last, Some(before)) => found.push(([&before[..], bytes].concat(), at)),
            // The beginning or end of this record was never written.
            (Part::Whole | Part::First, Some(_)) | (Part::Middle | Part::Last, None) => break,
        }
    }
    Ok(found)
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
