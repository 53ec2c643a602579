//! Measures the RocksDB engine alone with records like a file system's: the numbers of
//! `docs/decisions/0004-engine.md`.
//!
//! `engine_numbers load DIR FILES` fills a new engine and reads from it; `engine_numbers read DIR
//! FILES` times the start of one that is there, and reads. To time the start after a kill, kill the
//! first and run the second with the number of files that are surely there.
//!
//! Each file is a look-up of a name that is not there, an entry (44 B key, 96 B value) and a stored
//! answer that is trimmed later; 64 files share one batch, 1,000 one directory, and a second thread
//! syncs every 20 ms. Reads are of random files, once compaction has caught up.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement on its own")]

use std::{
    env, fs,
    ops::ControlFlow,
    path::Path,
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use store::{Batch, Engine, RocksConfig, RocksEngine};

const BATCH_FILES: u64 = 64;
const DIRECTORY_FILES: u64 = 1000;
const READS: u64 = 200_000;
/// Records that are ingested together.
const RUN_RECORDS: usize = 65_536;

/// A key and its value.
type Link = (Vec<u8>, Vec<u8>);

fn main() -> store::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["load", dir, files] => load(Path::new(dir), files.parse().expect("FILES is a number")),
        ["copy", dir, records] => {
            copy(&open(Path::new(dir))?, records.parse().expect("RECORDS is a number"))
        }
        ["read", dir, files] => {
            let files = files.parse().expect("FILES is a number");
            read(&open(Path::new(dir))?, files)
        }
        _ => {
            eprintln!(
                "usage: engine_numbers load|read DIR FILES, or engine_numbers copy DIR RECORDS"
            );
            process::exit(2)
        }
    }
}

fn open(dir: &Path) -> store::Result<RocksEngine> {
    let start = Instant::now();
    let engine = RocksEngine::open(dir, &RocksConfig::default())?;
    let opened = start.elapsed();
    engine.get(&entry_key(0))?;
    println!("open {opened:?} first_get {:?} rss_mib {}", start.elapsed() - opened, rss_mib());
    Ok(engine)
}

fn load(dir: &Path, files: u64) -> store::Result<()> {
    assert!(!dir.exists(), "DIR is made new");
    let engine = open(dir)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                engine.sync().expect("sync");
                thread::sleep(Duration::from_millis(20));
            }
        });
        let made = timed("create", files, || create(&engine, files));
        done.store(true, Ordering::Relaxed);
        made
    })?;
    report(&engine, files);
    let start = Instant::now();
    while engine.stats().compaction_pending_bytes > 0 && start.elapsed() < Duration::from_secs(120)
    {
        thread::sleep(Duration::from_millis(500));
    }
    read(&engine, files)
}

fn read(engine: &RocksEngine, files: u64) -> store::Result<()> {
    let pick = |i: u64| mix(i) % files;
    timed("get_hit", READS, || {
        (0..READS).try_for_each(|i| {
            engine.get(&entry_key(pick(i))).map(|value| assert!(value.is_some(), "it was made"))
        })
    })?;
    timed("get_miss", READS, || {
        (0..READS).try_for_each(|i| {
            let mut key = entry_key(pick(i));
            key[40] ^= 0x80;
            engine.get(&key).map(|value| assert!(value.is_none(), "it was not made"))
        })
    })?;
    timed("multi_get_64", READS, || {
        (0..READS / 64).try_for_each(|i| {
            let keys: Vec<_> = (0..64).map(|j| entry_key(pick(i * 64 + j))).collect();
            let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
            engine.multi_get(&keys).map(drop)
        })
    })?;
    timed("list", READS, || {
        (0..READS / DIRECTORY_FILES).try_for_each(|i| {
            let key = entry_key(pick(i));
            let mut end = key[..19].to_vec();
            end[18] += 1;
            let mut seen = 0;
            engine.scan(&key[..19], &end, &mut |_, _| {
                seen += 1;
                ControlFlow::Continue(())
            })?;
            assert!(seen > 0, "it has the entry picked");
            store::Result::Ok(())
        })
    })?;
    report(engine, files);
    Ok(())
}

fn copy(engine: &RocksEngine, records: u64) -> store::Result<()> {
    for round in 0..6 {
        let ingests = round % 2 == 1;
        let mut sorted: Vec<_> = (0..records).map(|record| link(round, record)).collect();
        sorted.sort_unstable();
        let (done, worst) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for file in 0.. {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut batch = Batch::with_capacity(200);
                    batch.put(&entry_key(round << 40 | file), &value(file));
                    let start = Instant::now();
                    engine.write(batch).expect("write");
                    let waited = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
                    worst.fetch_max(waited, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(200));
                }
            });
            let what = if ingests { "ingest" } else { "batches" };
            let copied = timed(what, records, || match ingests {
                true => ingest(engine, &sorted),
                false => write(engine, &sorted),
            });
            done.store(true, Ordering::Relaxed);
            copied
        })?;
        println!("longest write of another thread: {} us", worst.into_inner());
    }
    Ok(())
}

/// Stores the pages of a handoff as its target does: reads what was there, and writes them.
fn write(engine: &RocksEngine, records: &[Link]) -> store::Result<()> {
    for page in records.chunks(1000) {
        let mut batch = Batch::with_capacity(100_000);
        for (key, value) in page {
            assert!(engine.get(key)?.is_none(), "each name moves once");
            batch.put(key, value);
        }
        engine.write(batch)?;
    }
    engine.sync()
}

fn ingest(engine: &RocksEngine, records: &[Link]) -> store::Result<()> {
    let mut runs = records.chunks(RUN_RECORDS);
    runs.try_for_each(|run| engine.ingest(&mut run.iter().cloned()))
}

/// A name that moves, and an inode's number.
fn link(round: u64, record: u64) -> Link {
    let mut key = vec![0, 9, b'N'];
    key.extend_from_slice(&u128::from(round).to_be_bytes());
    key.extend_from_slice(&(mix(record) >> 1).to_be_bytes());
    key.extend_from_slice(format!("file{record:012}").as_bytes());
    key.extend_from_slice(&[0; 3]);
    (key, mix(record).to_be_bytes().to_vec())
}

fn create(engine: &RocksEngine, files: u64) -> store::Result<()> {
    for first in (0..files).step_by(64) {
        let mut batch = Batch::with_capacity(20_000);
        for file in first..files.min(first + BATCH_FILES) {
            let key = entry_key(file);
            assert!(engine.get(&key)?.is_none(), "each name is made once");
            batch.put(&key, &value(file));
            batch.put(&answer_key(file), &value(file)[..40]);
            if let Some(answered) = file.checked_sub(1000) {
                batch.delete(&answer_key(answered));
            }
        }
        engine.write(batch)?;
    }
    Ok(())
}

/// Shard, tag, directory, position, name: as DESIGN §3. Sixteen directories grow side by side.
fn entry_key(file: u64) -> Vec<u8> {
    let group = file / (16 * DIRECTORY_FILES) * 16 + file % 16;
    let mut key = Vec::with_capacity(44);
    let directory = u128::from(mix(group)) << 64 | u128::from(mix(!group));
    key.extend_from_slice(&[0, mix(group).to_le_bytes()[0] % 64]);
    key.push(b'N');
    key.extend_from_slice(&(directory & !0xFF).to_be_bytes());
    key.extend_from_slice(&mix(file ^ 0x5555).to_be_bytes());
    key.extend_from_slice(format!("file{file:012}").as_bytes());
    key.push(0);
    key
}

fn answer_key(file: u64) -> [u8; 19] {
    let mut key = [0; 19];
    key[..3].copy_from_slice(&[0, 1, b'Q']);
    key[3..11].copy_from_slice(&(file % 4).to_be_bytes());
    key[11..].copy_from_slice(&file.to_be_bytes());
    key
}

/// An inode: number, times and a token differ from file to file, mode and owner do not.
fn value(file: u64) -> [u8; 96] {
    let mut value = [0; 96];
    value[..8].copy_from_slice(&file.to_be_bytes());
    value[16..24].copy_from_slice(&[0xA4, 0x81, 0, 0, 0xE8, 3, 0xE8, 3]);
    for (at, salt) in [(32, 1), (40, 1), (48, 1), (64, 2)] {
        let nanos = 1_800_000_000_000_000_000 + file * 7000 + (mix(file ^ salt) & 0xFFF);
        value[at..at + 8].copy_from_slice(&nanos.to_be_bytes());
    }
    value[80..88].copy_from_slice(&mix(file).to_be_bytes());
    value
}

/// SplitMix64's last step.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn timed<T>(what: &str, count: u64, work: impl FnOnce() -> T) -> T {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let result = work();
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let count = count as f64;
    println!(
        "{what} per_s {:.0} wall_us {:.2} cpu_us {:.2}",
        count / wall,
        wall / count * 1e6,
        cpu / count * 1e6
    );
    result
}

fn report(engine: &RocksEngine, files: u64) {
    let stats = engine.stats();
    let per_file = stats.disk_bytes as f64 / files as f64;
    println!("rss_mib {} disk_bytes_per_file {per_file:.1} {stats:?}", rss_mib());
}

fn rss_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// User and system time of the whole process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("proc is mounted");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks = [fields[11], fields[12]].map(|field| field.parse::<f64>().expect("a number"));
    (ticks[0] + ticks[1]) / 100.0
}
