//! RocksDB conforms, and keeps what it promises across kills, torn logs and locks.

use std::{
    env,
    io::{BufRead, BufReader},
    ops::ControlFlow,
    process::{Child, Command, Stdio},
};

use super::*;
use crate::conformance::{Subject, check};

fn open(path: &Path) -> Result<RocksEngine> {
    RocksEngine::open(path, &RocksConfig::default())
}

/// A batch whose number can be found again, in two keys.
fn numbered(number: u32) -> Batch {
    let mut batch = Batch::new();
    batch.put(&[b"left", &number.to_be_bytes()[..]].concat(), &[7; 50]);
    batch.put(&[b"right", &number.to_be_bytes()[..]].concat(), &[7; 50]);
    batch
}

/// Returns the number of numbered batches; panics when one is missing or half there.
fn count(engine: &RocksEngine) -> u32 {
    let mut keys = Vec::new();
    let mut visit = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    engine.scan(b"left", b"s", &mut visit).unwrap();
    let found = u32::try_from(keys.len() / 2).unwrap();
    let all = ["left", "right"].iter();
    let all = all.flat_map(|side| (0..found).map(|n| [side.as_bytes(), &n.to_be_bytes()].concat()));
    assert!(keys.into_iter().eq(all), "the batches that are there are a prefix");
    found
}

#[test]
fn it_conforms() {
    let open = |path: &Path| -> Arc<dyn Engine> { Arc::new(open(path).expect("open")) };
    check(&Subject { open: &open, reopens: true, histories: 24 });
}

#[test]
fn a_torn_log_opens_with_a_prefix_of_its_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine");
    let engine = open(&path).unwrap();
    for number in 0..200 {
        engine.write(numbered(number)).unwrap();
    }
    let is_log = |path: &PathBuf| path.extension().is_some_and(|e| e == "log");
    let mut found = Vec::new();
    for cut in (0..=10).rev() {
        // A power cut leaves all files, the log not as long as it was.
        let torn = dir.path().join(format!("torn{cut}"));
        fs::create_dir(&torn).unwrap();
        for file in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
            let copy = torn.join(file.file_name().unwrap());
            if file.is_file() {
                fs::copy(&file, &copy).unwrap();
            }
            if is_log(&file) {
                let log = fs::File::options().write(true).open(&copy).unwrap();
                log.set_len(log.metadata().unwrap().len() * cut / 10).unwrap();
            }
        }
        found.push(count(&open(&torn).unwrap()));
    }
    assert_eq!((found[0], found[10]), (200, 0));
    assert!(found.is_sorted_by(|more, less| more > less), "{found:?}");
}

#[test]
fn the_newest_batches_can_be_cut_off_before_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    for number in 0..100 {
        let mut batch = numbered(number);
        // Records that are in one block of the log, and in several.
        batch.put(b"a long one", &vec![7; if number % 10 == 0 { 100_000 } else { 700 }]);
        engine.write(batch).unwrap();
    }
    drop(engine);
    let tail = LogTail::read(dir.path()).unwrap().unwrap();
    assert_eq!(tail.batches().len(), 100);
    tail.cut(100).unwrap();
    let log = newest_log(dir.path());
    let bytes = fs::read(&log).unwrap();
    for (torn, kept) in [(bytes.len(), 93), (bytes.len() - 1, 99), (bytes.len() / 2, 30), (1, 0)] {
        fs::write(&log, &bytes[..torn]).unwrap();
        let tail = LogTail::read(dir.path()).unwrap().unwrap();
        let kept = kept.min(tail.batches().len());
        tail.cut(kept).unwrap();
        assert_eq!(LogTail::read(dir.path()).unwrap().unwrap().batches().len(), kept);
    }
    fs::write(&log, &bytes).unwrap();
    LogTail::read(dir.path()).unwrap().unwrap().cut(61).unwrap();
    assert_eq!(count(&open(dir.path()).unwrap()), 61);
}

#[test]
fn a_damaged_log_is_read_up_to_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    (0..1000).for_each(|number| engine.write(numbered(number)).unwrap());
    drop(engine);
    let log = newest_log(dir.path());
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&log, bytes).unwrap();
    let tail = LogTail::read(dir.path()).unwrap().unwrap();
    let kept = tail.batches().len();
    assert!((400..600).contains(&kept), "{kept}");
    assert_eq!(count(&open(dir.path()).unwrap()), u32::try_from(kept).unwrap());
}

#[test]
fn what_a_table_refers_to_is_stable_before_it_is_begun() {
    let dir = tempfile::tempdir().unwrap();
    let (written, stable) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let config = RocksConfig { memtable_bytes: 64 << 10, ..RocksConfig::default() };
    let engine = RocksEngine::open(dir.path(), &config).unwrap();
    let (now, then) = (Arc::clone(&written), Arc::clone(&stable));
    let engine = engine.before_tables(Box::new(move || {
        then.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }));
    for number in 0..2000 {
        engine.write(numbered(number)).unwrap();
        written.fetch_add(1, Ordering::Relaxed);
    }
    drop(engine);
    // All but the newest log is in tables.
    LogTail::read(dir.path()).unwrap().unwrap().cut(0).unwrap();
    let in_tables = u64::from(count(&open(dir.path()).unwrap()));
    assert!(in_tables > 1000, "{in_tables}");
    // The batch that made the log too long was in it already.
    assert_eq!(in_tables, stable.load(Ordering::Relaxed) + 1);
}

fn newest_log(path: &Path) -> PathBuf {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|e| e == "log")).max().unwrap()
}

#[test]
fn a_directory_of_another_version_or_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine");
    drop(open(&path).unwrap());
    fs::write(path.join(VERSION_FILE), b"pando rocksdb engine 2\n").unwrap();
    let found = match open(&path) {
        Err(Error::Version { found, .. }) => found,
        other => panic!("{:?}", other.err()),
    };
    assert_eq!(found, "pando rocksdb engine 2");

    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), b"").unwrap();
    assert!(matches!(open(&foreign), Err(Error::Version { .. })));
    assert!(!foreign.join(VERSION_FILE).exists());
}

#[test]
fn what_an_unfinished_ingest_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let left = dir.path().join(INGEST_FOLDER).join("0");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("0.sst"), b"half").unwrap();
    let engine = open(dir.path()).unwrap();
    assert!(!left.exists());
    engine.ingest(&mut [(b"k".to_vec(), b"v".to_vec())].into_iter()).unwrap();
    assert!(!left.exists());
}

#[test]
fn the_number_of_keys_is_known_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let run = (0..1000_u32).map(|i| (i.to_be_bytes().to_vec(), vec![7; 100]));
    open(dir.path()).unwrap().ingest(&mut { run }).unwrap();
    assert_eq!(open(dir.path()).unwrap().stats().keys_estimated, 1000);
}

#[test]
fn a_scan_of_a_snapshot_leaves_the_cache_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let run = (0..20_000_u32).map(|i| (i.to_be_bytes().to_vec(), vec![7; 100]));
    engine.ingest(&mut { run }).unwrap();
    let cached = || engine.stats().block_cache_bytes;
    let mut seen = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        seen += 1;
        ControlFlow::Continue(())
    };
    engine.snapshot().scan(&[], &[u8::MAX; 8], &mut visit).unwrap();
    // The cache has no more than the index.
    assert!(cached() < 200_000, "{} bytes", cached());
    engine.scan(&[], &[u8::MAX; 8], &mut visit).unwrap();
    assert!(cached() > 2_000_000, "{} bytes", cached());
    assert_eq!(seen, 40_000);
}

#[test]
fn damaged_tables_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let run = (0..1000_u32).map(|i| (i.to_be_bytes().to_vec(), vec![7; 100]));
    engine.ingest(&mut { run }).unwrap();
    drop(engine);
    let mut files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let table = files.find(|path| path.extension().is_some_and(|e| e == "sst")).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[100..200].fill(0x55);
    fs::write(&table, bytes).unwrap();
    let engine = open(dir.path()).unwrap();
    assert!(matches!(engine.get(&0_u32.to_be_bytes()), Err(Error::Corrupt(_))));
}

#[test]
fn a_second_opener_is_told_that_it_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(Error::InUse(path)) if path == dir.path()));
    drop(engine);
    let mut child = writer(dir.path());
    read_numbers(&mut child, 1);
    assert!(matches!(open(dir.path()), Err(Error::InUse(_))));
    end(child);
    open(dir.path()).unwrap();
}

#[test]
fn a_killed_process_loses_nothing_it_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = 0;
    for kill_after in [1, 700, 5000] {
        let mut child = writer(dir.path());
        let answered = read_numbers(&mut child, kill_after);
        end(child);
        let found = count(&open(dir.path()).unwrap());
        assert!(found > answered && answered >= before, "found={found} answered={answered}");
        before = found;
    }
}

const WRITER_PATH: &str = "PANDO_TEST_WRITER_PATH";

/// The other process of the two tests above: writes numbered batches, never syncs, and prints the
/// number of each when it was answered, until it is killed. As a test: one that cannot open its
/// engine fails.
#[test]
fn write_until_killed() {
    let Ok(path) = env::var(WRITER_PATH) else {
        let status = writer(Path::new("/dev/null/engine")).wait().unwrap();
        assert!(!status.success(), "{status}");
        return;
    };
    let engine = open(Path::new(&path)).unwrap();
    let from = count(&engine);
    let mut out = io::stdout().lock();
    for number in from..from + 10_000_000 {
        engine.write(numbered(number)).unwrap();
        // The other end is gone when this process should be.
        if writeln!(out, "\nanswered {number}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
}

fn writer(path: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "kv::rocks::tests::write_until_killed", "--nocapture"]);
    command.env(WRITER_PATH, path).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits for so many answers; returns the number of the last one.
fn read_numbers(child: &mut Child, wanted: usize) -> u32 {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(|line| line.unwrap());
    let numbers = lines.filter_map(|line| line.strip_prefix("answered ").map(str::to_owned));
    numbers.take(wanted).last().expect("the writer writes").parse().unwrap()
}

/// SIGKILL.
fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn keys_that_are_not_there_are_not_looked_for_in_data() {
    let reads = |filters: bool| {
        let dir = tempfile::tempdir().unwrap();
        let config = RocksConfig { filters, counts_reads: true, ..RocksConfig::default() };
        let engine = RocksEngine::open(dir.path(), &config).unwrap();
        for number in (0..20_000).step_by(2) {
            engine.write(numbered(number)).unwrap();
        }
        drop(engine);
        // The records of the log are in a table now.
        let engine = RocksEngine::open(dir.path(), &config).unwrap();
        let absent = |number: u32| [b"left", &number.to_be_bytes()[..]].concat();
        for number in (1..20_000).step_by(2) {
            assert_eq!(engine.get(&absent(number)).unwrap(), None);
        }
        engine.stats().block_reads
    };
    let (with, without) = (reads(true), reads(false));
    assert!(with.filter > 0 && without.filter == 0);
    assert!(with.data * 2 < without.data, "{with:?} and {without:?}");
}
