//! Logs of a database: batches that were written since its last table.
//!
//! A program that opens a database may look at its newest log first ([`LogTail`]) and cut off the
//! newest batches, as a power cut would have done. `cli` does, because a batch may have reached the
//! disk before the blocks that it names. A journal reads all logs before a start ([`records_of`]),
//! and the log of an open database while it grows ([`LogFollower`]). Only a cut changes anything:
//! the length of one log.
//!
//! Always true: what is read is what RocksDB would read ([`format`]). Behind a fragment that is torn
//! nothing counts.

mod follow;
mod format;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use self::follow::LogFollower;
pub(super) use self::follow::Logs;
use self::format::Records;
use crate::{Batch, Error, Result};

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

impl LogTail {
    /// Reads the newest log of the database in `path`; `None` when there is no log.
    ///
    /// # Errors
    /// `Error::Corrupt` when something whole in it is no batch.
    pub fn read(path: &Path) -> Result<Option<LogTail>> {
        let Some((_, file)) = logs(path)?.pop() else { return Ok(None) };
        let bytes = fs::read(&file)?;
        let (mut batches, mut ends) = (Vec::new(), Vec::new());
        let mut records = Records::default();
        records.push(&bytes);
        while let Some((record, end)) = records.next()? {
            batches.push(Batch::decode(record)?);
            ends.push(usize::try_from(end).unwrap_or(usize::MAX));
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

/// One record of a log: a batch, or several that RocksDB has merged, with the numbers of its
/// changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Sequence number of its first change; the others follow.
    pub first: u64,
    /// Number of changes.
    pub count: u32,
    /// The record: a batch in its stored form, with `first` in its header.
    pub bytes: Vec<u8>,
}

impl LogRecord {
    /// Takes a record as it is in a log; `None` for one without changes, as recovery writes one
    /// after a torn log.
    ///
    /// # Errors
    /// `Error::Corrupt` when it is not a batch.
    fn of(bytes: Vec<u8>) -> Result<Option<LogRecord>> {
        let header = bytes.first_chunk::<12>().map(|header| {
            let [s0, s1, s2, s3, s4, s5, s6, s7, count @ ..] = *header;
            let first = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
            (first, u32::from_le_bytes(count))
        });
        match header {
            Some((first, count)) if count > 0 => Ok(Some(LogRecord { first, count, bytes })),
            Some(_) => Ok(None),
            None => Err(Error::Corrupt("log record is shorter than a header".to_owned())),
        }
    }

    /// Sequence number of its last change.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count)) - 1
    }
}

/// The records of all logs of a closed database, oldest first, as RocksDB's recovery would take
/// them: nothing counts behind a log that is torn, or behind a gap.
///
/// # Errors
/// `Error::Corrupt` when something whole in a log is no record.
pub fn records_of(path: &Path) -> Result<Vec<LogRecord>> {
    let mut found: Vec<LogRecord> = Vec::new();
    for (_, file) in logs(path)? {
        let mut records = Records::default();
        records.push(&fs::read(&file)?);
        while let Some((record, _)) = records.next()? {
            let Some(record) = LogRecord::of(record)? else { continue };
            if found.last().is_some_and(|before| before.last() + 1 != record.first) {
                return Ok(found);
            }
            found.push(record);
        }
    }
    Ok(found)
}

/// The logs of a database with their numbers, the oldest first.
fn logs(path: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut logs = Vec::new();
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(logs),
        entries => entries?,
    };
    for entry in entries {
        let file = entry?.path();
        let is_log = file.extension().is_some_and(|extension| extension == "log");
        let number = file.file_stem().and_then(|name| name.to_str()?.parse().ok());
        logs.extend(number.filter(|_| is_log).map(|number: u64| (number, file.clone())));
    }
    logs.sort_unstable();
    Ok(logs)
}
