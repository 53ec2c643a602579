//! The log of an open database, read while it grows.
//!
//! The engine hands over each log when it begins it ([`Logs`]), so that a follower has the file
//! open: what RocksDB removes from the directory, as a table has it, can still be read to its end.
//!
//! Always true: records come in the order of their numbers, without a gap; each byte is read once.

use std::{
    collections::VecDeque,
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{LogRecord, format::Records, logs};
use crate::{Error, Result};

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// The logs that an open database has begun and that a follower has not come to.
#[derive(Debug)]
pub(in crate::kv::rocks) struct Logs {
    path: PathBuf,
    begun: Mutex<Begun>,
}

#[derive(Debug, Default)]
struct Begun {
    files: VecDeque<File>,
    newest: u64,
}

impl Logs {
    /// The newest log of the database in `path`, which was just opened.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub(in crate::kv::rocks) fn open(path: &Path) -> Result<Arc<Logs>> {
        let begun = Arc::new(Logs { path: path.to_owned(), begun: Mutex::default() });
        begun.look_again()?;
        if begun.begun.lock().files.is_empty() {
            return Err(Error::Corrupt("the database has no log".to_owned()));
        }
        Ok(begun)
    }

    /// Looks for logs that were begun since the last call. The log before one that is there grows no
    /// more.
    pub(in crate::kv::rocks) fn look_again(&self) -> Result<()> {
        let mut begun = self.begun.lock();
        // The first call takes the newest only: the others have what is in tables.
        let is_first = begun.newest == 0;
        let mut newer = logs(&self.path)?;
        newer.retain(|(number, _)| *number > begun.newest);
        let skipped = if is_first { newer.len().saturating_sub(1) } else { 0 };
        for (number, file) in newer.into_iter().skip(skipped) {
            begun.files.push_back(File::open(file)?);
            begun.newest = number;
        }
        Ok(())
    }

    fn has_next(&self) -> bool {
        !self.begun.lock().files.is_empty()
    }

    fn next(&self) -> Option<File> {
        self.begun.lock().files.pop_front()
    }
}

/// Reads the records of an open database as they are written.
#[derive(Debug)]
pub struct LogFollower {
    logs: Arc<Logs>,
    log: Option<File>,
    /// Bytes of this log that were read.
    at: u64,
    records: Records,
    /// Number of the next change.
    next: u64,
}

impl LogFollower {
    pub(in crate::kv::rocks) fn new(logs: Arc<Logs>, next: u64) -> LogFollower {
        LogFollower { logs, log: None, at: 0, records: Records::default(), next }
    }

    /// Number of the next change that will be read.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Reads on until the change with the number `until` was read, or about so many bytes. `until`
    /// is a position that the engine has told.
    ///
    /// # Errors
    /// `Error::Corrupt` when the logs do not have the next change, or the disk's.
    pub fn read(&mut self, until: u64, bytes_max: usize) -> Result<Vec<LogRecord>> {
        let (mut read, mut bytes) = (Vec::new(), 0);
        while self.next <= until && bytes < bytes_max {
            if let Some((record, _)) = self.records.next()? {
                let Some(record) = LogRecord::of(record)? else { continue };
                if record.first != self.next {
                    let (first, next) = (record.first, self.next);
                    let why = format!("the log goes on with change {first} and not {next}");
                    return Err(Error::Corrupt(why));
                }
                self.next = record.last() + 1;
                bytes += record.bytes.len();
                read.push(record);
            } else if !self.read_more()? && !self.begin_unseen()? {
                let next = self.next;
                return Err(Error::Corrupt(format!("the log ends before change {next}")));
            }
        }
        Ok(read)
    }

    /// Begins a log that RocksDB has begun by itself, as after an error of the disk.
    fn begin_unseen(&mut self) -> Result<bool> {
        self.logs.look_again()?;
        Ok(self.logs.has_next() && self.read_more()?)
    }

    /// Reads more of the log, or begins the next one. `false`: there is nothing.
    fn read_more(&mut self) -> Result<bool> {
        // Race: a log that has a successor grew no more when that was begun; so look first.
        let has_next = self.logs.has_next();
        if let Some(log) = &self.log {
            let mut piece = vec![0; READ_BYTES];
            let count = log.read_at(&mut piece, self.at)?;
            if count > 0 {
                self.at += count as u64;
                self.records.push(&piece[..count]);
                return Ok(true);
            }
            if !self.records.is_at_end() {
                return Ok(false);
            }
        }
        if !has_next {
            return Ok(false);
        }
        self.log = self.logs.next();
        self.at = 0;
        self.records = Records::default();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Batch, Engine as _, RocksConfig, RocksEngine, records_of};

    /// Changes of one writer: batches of different lengths, some longer than a block of the log.
    fn batches(writer: u32) -> impl Iterator<Item = Batch> {
        (0..400_u32).map(move |number| {
            let mut batch = Batch::new();
            let value = vec![7; if number % 50 == 0 { 70_000 } else { 40 }];
            for part in 0..=number % 3 {
                batch.put(&[writer, number, part].map(u32::to_be_bytes).concat(), &value);
            }
            batch
        })
    }

    fn engine(path: &Path) -> RocksEngine {
        // Tables are begun often.
        let config = RocksConfig { memtable_bytes: 512 << 10, ..RocksConfig::default() };
        RocksEngine::open(path, &config).unwrap()
    }

    #[test]
    fn a_follower_reads_what_writers_write_over_many_logs() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = engine(&dir.path().join("source"));
        let mut follower = source.follow().unwrap();
        let source = &source;
        let target = engine(&dir.path().join("target"));
        let mut apply = |bytes_max| {
            let until = source.position();
            while follower.next() <= until {
                for record in follower.read(until, bytes_max).unwrap() {
                    assert_eq!(record.first, target.position() + 1);
                    target.write(Batch::decode(record.bytes.clone()).unwrap()).unwrap();
                    assert_eq!(record.last(), target.position());
                }
            }
        };
        thread::scope(|threads| {
            let write = |writer| batches(writer).for_each(|batch| source.write(batch).unwrap());
            let writers: Vec<_> =
                (0..4).map(|writer| threads.spawn(move || write(writer))).collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                apply(1);
                apply(100_000);
            }
        });
        // Logs that are gone from the directory are read to their end.
        source.write_out().unwrap();
        apply(1 << 20);
        assert_eq!(contents(source), contents(&target));
        assert_eq!(source.position(), target.position());
    }

    fn contents(engine: &RocksEngine) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        };
        engine.scan(&[0], &[255], &mut visit).unwrap();
        found
    }

    #[test]
    fn a_follower_begins_where_the_database_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let before = engine(dir.path());
        batches(1).take(10).for_each(|batch| before.write(batch).unwrap());
        let position = before.position();
        drop(before);
        let logged = records_of(dir.path()).unwrap();
        assert_eq!(logged.last().unwrap().last(), position);

        let mut engine = engine(dir.path());
        let mut follower = engine.follow().unwrap();
        assert_eq!(follower.next(), position + 1);
        assert_eq!(follower.read(position, 1000).unwrap(), []);
        batches(2).take(3).for_each(|batch| engine.write(batch).unwrap());
        let read = follower.read(engine.position(), 1 << 20).unwrap();
        assert_eq!(read.last().unwrap().last(), engine.position());
        assert_eq!(read.iter().map(|record| u64::from(record.count)).sum::<u64>(), 1 + 2 + 3);
    }

    #[test]
    fn all_logs_are_read_up_to_a_torn_end() {
        let dir = tempfile::tempdir().unwrap();
        let writer = engine(dir.path());
        batches(1).take(40).for_each(|batch| writer.write(batch).unwrap());
        drop(writer);
        let whole = records_of(dir.path()).unwrap();
        let log: PathBuf = logs(dir.path()).unwrap().pop().unwrap().1;
        let bytes = std::fs::read(&log).unwrap();
        for cut in [bytes.len() - 1, bytes.len() / 2, 20, 0] {
            std::fs::write(&log, &bytes[..cut]).unwrap();
            let read = records_of(dir.path()).unwrap();
            assert!(read.len() < whole.len(), "{cut}");
            assert_eq!(read, whole[..read.len()]);
        }
    }

    #[test]
    fn a_log_is_followed_after_one_that_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let writer = engine(dir.path());
        batches(1).take(40).for_each(|batch| writer.write(batch).unwrap());
        drop(writer);
        let log = logs(dir.path()).unwrap().pop().unwrap().1;
        let bytes = std::fs::read(&log).unwrap();
        std::fs::write(&log, &bytes[..bytes.len() - 5]).unwrap();
        // Recovery notes in the new log that the old one was torn.
        let mut torn = engine(dir.path());
        let mut follower = torn.follow().unwrap();
        let position = torn.position();
        batches(2).take(3).for_each(|batch| torn.write(batch).unwrap());
        let read = follower.read(torn.position(), 1 << 20).unwrap();
        assert_eq!(read.first().unwrap().first, position + 1);
        assert_eq!(read.last().unwrap().last(), torn.position());
        let last = torn.position();
        drop(torn);
        assert_eq!(records_of(dir.path()).unwrap().last().unwrap().last(), last);
    }

    #[test]
    fn a_log_that_does_not_go_on_is_an_error_and_not_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = engine(dir.path());
        let mut follower = engine.follow().unwrap();
        batches(1).take(3).for_each(|batch| engine.write(batch).unwrap());
        let beyond = engine.position() + 1;
        assert!(matches!(follower.read(beyond, 1 << 20), Err(Error::Corrupt(_))));
    }
}
