//! RocksDB: the embedded engine. One database holds all shards of a server.
//!
//! `cli` opens it, `meta` uses it through [`Engine`]. It never syncs on a write: each write puts
//! its batch into the log, in the kernel, and [`Engine::sync`] makes the log stable for all of
//! them.
//!
//! When so much was written, a table is begun, and with it a new log. That happens here and not in
//! RocksDB, because what comes to be in a table cannot be cut off any more: first everything is
//! made stable that it refers to ([`RocksEngine::before_tables`]), and the log that ends.
//!
//! Always true: the directory has a file `VERSION` before it has a database; a log with a torn end
//! opens, with a prefix of its batches; only the newest log may hold what is not stable.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rocksdb::{
    AsColumnFamilyRef, ColumnFamilyDescriptor, DB, DBRawIterator, DEFAULT_COLUMN_FAMILY_NAME,
    FlushOptions, IngestExternalFileOptions, Options, ReadOptions, SstFileWriter, WriteBatch,
    WriteOptions, checkpoint::Checkpoint, properties,
};
use self_cell::self_cell;

use super::{Engine, EngineStats, KeyRange, Snapshot, Visit};
use crate::{Batch, Error, Result, stable::sync_parent};

mod failure;
mod log;
mod options;
#[cfg(test)]
mod tests;

pub use log::{LogFollower, LogRecord, LogTail, records_of};
pub use options::RocksConfig;

const VERSION: &str = "pando rocksdb engine 1\n";
const VERSION_FILE: &str = "VERSION";
/// Where runs are written before they are taken in; in the same file system, so a link does.
const INGEST_FOLDER: &str = "ingest";
/// A run is cut into files of about this size, as compaction would cut it.
const INGEST_FILE_BYTES: u64 = 64 << 20;

/// Makes stable what batches refer to that were written before the call.
pub type Stabilize = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A RocksDB database in a directory of its own.
pub struct RocksEngine {
    db: Arc<DB>,
    path: PathBuf,
    options: Options,
    read: ReadOptions,
    write: WriteOptions,
    runs: AtomicU64,
    before_tables: Stabilize,
    /// Shared by all writers; a thread that begins a table has it alone.
    writing: RwLock<()>,
    /// Held by the thread that makes ready for a table.
    beginning: Mutex<()>,
    /// Bytes in the newest log, and how many begin a table.
    log_bytes: AtomicU64,
    log_bytes_max: u64,
    /// Logs that are begun, for who follows them.
    logs: Option<Arc<log::Logs>>,
}

impl RocksEngine {
    /// Opens the database in `path`, making it when it is missing. `Error::InUse` when it is open
    /// already, here or in another process.
    pub fn open(path: &Path, config: &RocksConfig) -> Result<Self> {
        claim(path)?;
        refuse_headless(path)?;
        let options = options::database(config);
        // Named, so that there is a handle for reads of many keys.
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, path, [family])
            .map_err(|error| failure::of_opening(error, path))?;
        // The database is open: its lock says that these files belong to no other process.
        match fs::remove_dir_all(path.join(INGEST_FOLDER)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        Ok(Self {
            db: Arc::new(db),
            path: path.to_owned(),
            options,
            read: ReadOptions::default(),
            write: WriteOptions::default(),
            runs: AtomicU64::new(0),
            before_tables: Box::new(|| Ok(())),
            writing: RwLock::default(),
            beginning: Mutex::default(),
            log_bytes: AtomicU64::new(0),
            log_bytes_max: config.log_bytes_max(),
            logs: None,
        })
    }

    /// Has its log followed, from the next change on. Nothing was written since it was opened.
    pub fn follow(&mut self) -> Result<LogFollower> {
        let logs = log::Logs::open(&self.path)?;
        self.logs = Some(Arc::clone(&logs));
        Ok(LogFollower::new(logs, self.position() + 1))
    }

    /// Has this done before a table is begun: what batches refer to must be stable before they are
    /// in a table.
    #[must_use]
    pub fn before_tables(mut self, stabilize: Stabilize) -> Self {
        self.before_tables = stabilize;
        self
    }

    /// Makes a copy as [`Engine::checkpoint`] does, beside writers: no table is begun, and the end of
    /// the log is copied. So the copy opens with a prefix of the batches, which has all that were
    /// written before this call. `to` is in the file system of the database.
    pub fn copy_beside_writers(&self, to: &Path) -> Result<()> {
        self.make_stable()?;
        let checkpoint = Checkpoint::new(&self.db).map_err(failure::of_using)?;
        checkpoint.create_checkpoint_with_log_size(to, u64::MAX).map_err(failure::of_using)?;
        Ok(write_version(to)?)
    }

    fn make_stable(&self) -> Result<()> {
        (self.before_tables)()?;
        self.sync()
    }

    /// Runs `begin`, which may begin a table, while no thread writes and all earlier writes are
    /// stable.
    fn alone<T>(&self, begin: impl FnOnce() -> Result<T>) -> Result<T> {
        // Most of it while others go on.
        self.make_stable()?;
        let _alone = self.writing.write();
        self.make_stable()?;
        let done = begin()?;
        if let Some(logs) = &self.logs {
            logs.look_again()?;
        }
        Ok(done)
    }

    fn begin_table(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(false);
        self.alone(|| {
            self.db.flush_opt(&options).map_err(failure::of_using)?;
            self.log_bytes.store(0, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Notes how many bytes the log has: begins a table, unless another thread is at it.
    fn log_is_long(&self, bytes: u64) -> Result<()> {
        let turn = if bytes < 2 * self.log_bytes_max {
            self.beginning.try_lock()
        } else {
            // The log is too long to leave it to another thread, whose disk may be slow.
            Some(self.beginning.lock())
        };
        if turn.is_none() || self.log_bytes.load(Ordering::Relaxed) < self.log_bytes_max {
            return Ok(());
        }
        self.begin_table()
    }

    fn ingest_into(
        &self,
        folder: &Path,
        run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let files = write_tables(&self.options, folder, run)?;
        if files.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        // The run is stable at once; what was written before it must not be lost behind it.
        self.alone(|| self.db.ingest_external_file_opts(&options, files).map_err(failure::of_using))
    }

    fn property(&self, name: &properties::PropName) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or_default()
    }
}

impl Engine for RocksEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.db.get_pinned_opt(key, &self.read).map_err(failure::of_using)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let family = default_family(&self.db);
        let values = self.db.batched_multi_get_cf_opt(&family, keys, false, &self.read);
        let copied = values.into_iter().map(|value| {
            let value = value.map_err(failure::of_using)?;
            Ok(value.map(|value| Bytes::copy_from_slice(&value)))
        });
        copied.collect()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        walk(ReadOptions::default(), |bounds| self.db.raw_iterator_opt(bounds), from, to, visit)
    }

    fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // Both have the same format, on purpose; so this is one copy and no work per change.
        let bytes = batch.bytes() as u64;
        let batch = WriteBatch::from_data(batch.encoded());
        {
            let _shared = self.writing.read();
            self.db.write_opt(batch, &self.write).map_err(failure::of_using)?;
        }
        let bytes = self.log_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes < self.log_bytes_max { Ok(()) } else { self.log_is_long(bytes) }
    }

    fn sync(&self) -> Result<()> {
        self.db.flush_wal(true).map_err(failure::of_using)
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let folder = self.path.join(INGEST_FOLDER).join(number.to_string());
        fs::create_dir_all(&folder)?;
        let done = self.ingest_into(&folder, run);
        // Files that cannot be removed now are removed when the database is opened next.
        let _ = fs::remove_dir_all(&folder);
        done
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        Box::new(Moment::new(Arc::clone(&self.db), |db| db.snapshot()))
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        let checkpoint = Checkpoint::new(&self.db).map_err(failure::of_using)?;
        self.alone(|| checkpoint.create_checkpoint(to).map_err(failure::of_using))?;
        write_version(to)?;
        Ok(sync_parent(to)?)
    }

    fn position(&self) -> u64 {
        self.db.latest_sequence_number()
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        let ranges: Vec<_> =
            ranges.iter().map(|(from, to)| rocksdb::Range::new(from, to)).collect();
        Ok(self.db.get_approximate_sizes(&ranges))
    }

    fn unwritten_bytes(&self) -> u64 {
        self.property(properties::CUR_SIZE_ALL_MEM_TABLES)
    }

    fn write_out(&self) -> Result<()> {
        let _turn = self.beginning.lock();
        self.begin_table()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            disk_bytes: folder_bytes(&self.path).unwrap_or_default(),
            keys_estimated: self.property(properties::ESTIMATE_NUM_KEYS),
            memtable_bytes: self.property(properties::CUR_SIZE_ALL_MEM_TABLES),
            block_cache_bytes: self.property(properties::BLOCK_CACHE_USAGE),
            table_reader_bytes: self.property(properties::ESTIMATE_TABLE_READERS_MEM),
            compaction_pending_bytes: self.property(properties::ESTIMATE_PENDING_COMPACTION_BYTES),
            block_reads: options::block_reads(&self.options),
        }
    }
}

type DbSnapshot<'a> = rocksdb::SnapshotWithThreadMode<'a, DB>;

self_cell!(
    /// A snapshot that keeps its database open.
    struct Moment {
        owner: Arc<DB>,
        #[covariant]
        dependent: DbSnapshot,
    }
);

impl Snapshot for Moment {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let snapshot = self.borrow_dependent();
        let value = snapshot.get_pinned(key).map_err(failure::of_using)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        // A scan reads each record once. The cache keeps the records that other readers want.
        let mut once = ReadOptions::default();
        once.fill_cache(false);
        walk(once, |bounds| self.borrow_dependent().raw_iterator_opt(bounds), from, to, visit)
    }
}

fn default_family(db: &DB) -> impl AsColumnFamilyRef + '_ {
    db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).expect("`open` names the default family")
}

fn walk<'db>(
    mut bounds: ReadOptions,
    iterator: impl FnOnce(ReadOptions) -> DBRawIterator<'db>,
    from: &[u8],
    to: &[u8],
    visit: &mut Visit<'_>,
) -> Result<()> {
    if from >= to {
        return Ok(());
    }
    bounds.set_iterate_upper_bound(to);
    let mut at = iterator(bounds);
    at.seek(from);
    while let Some((key, value)) = at.item() {
        if visit(key, value).is_break() {
            return Ok(());
        }
        at.next();
    }
    at.status().map_err(failure::of_using)
}

/// Writes a run into table files; returns their paths, in key order.
fn write_tables(
    options: &Options,
    folder: &Path,
    run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
) -> Result<Vec<PathBuf>> {
    let mut run = run.peekable();
    let mut last: Option<Vec<u8>> = None;
    let mut files = Vec::new();
    while run.peek().is_some() {
        let file = folder.join(format!("{}.sst", files.len()));
        let mut table = SstFileWriter::create(options);
        table.open(&file).map_err(failure::of_using)?;
        while table.file_size() < INGEST_FILE_BYTES
            && let Some((key, value)) = run.next()
        {
            if last.as_ref().is_some_and(|last| *last >= key) {
                return Err(Error::Unordered);
            }
            table.put(&key, &value).map_err(failure::of_using)?;
            last = Some(key);
        }
        table.finish().map_err(failure::of_using)?;
        files.push(file);
    }
    Ok(files)
}

/// RocksDB takes a directory without `CURRENT` for an empty one, and clears away what it finds
/// there.
fn refuse_headless(path: &Path) -> Result<()> {
    if path.join("CURRENT").try_exists()? {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|end| end == "sst" || end == "log") {
            let reason = format!("CURRENT is missing beside {}", name.display());
            return Err(Error::Corrupt(reason));
        }
    }
    Ok(())
}

/// Makes a directory ours, or sees that it is.
fn claim(path: &Path) -> Result<()> {
    match fs::read(path.join(VERSION_FILE)) {
        Ok(found) if found == VERSION.as_bytes() => Ok(()),
        Ok(found) => Err(other_version(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !path.try_exists()? {
                fs::create_dir(path)?;
                sync_parent(path)?;
            }
            // A crash while this file was written leaves nothing else; a stranger's files stay.
            if fs::read_dir(path)?.any(|entry| entry.is_ok_and(|e| e.file_name() != NEW_VERSION)) {
                return Err(other_version(b""));
            }
            Ok(write_version(path)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn other_version(found: &[u8]) -> Error {
    let found = String::from_utf8_lossy(&found[..found.len().min(64)]).trim_end().to_owned();
    Error::Version { found, known: VERSION.trim_ascii_end() }
}

const NEW_VERSION: &str = "VERSION.new";

/// Writes the version file, whole or not at all.
fn write_version(path: &Path) -> io::Result<()> {
    let new = path.join(NEW_VERSION);
    let mut file = fs::File::create(&new)?;
    file.write_all(VERSION.as_bytes())?;
    file.sync_all()?;
    let file = path.join(VERSION_FILE);
    fs::rename(new, &file)?;
    sync_parent(&file)
}

/// The bytes of the files in a folder that are still there when it comes to them.
fn folder_bytes(path: &Path) -> io::Result<u64> {
    let sizes = fs::read_dir(path)?.filter_map(|entry| entry.ok()?.metadata().ok());
    Ok(sizes.filter(fs::Metadata::is_file).map(|file| file.len()).sum())
}
