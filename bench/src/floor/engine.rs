//! The engine's part of a create and of a stat, without frames, locks and checks.

use std::time::Duration;

use store::{Batch, Engine};

use super::FloorRow;
use crate::{
    clock::{monotonic, process_cpu},
    summary::{float, rounded},
};

/// Creates that are one write.
const GROUP: u64 = 64;
/// Files of a directory.
const DIRECTORY_FILES: u64 = 2000;
const ENTRY_BYTES: usize = 24;
const INODE_BYTES: usize = 96;

/// Measures `files` creates, then as many gets that find something and as many that do not. The CPU
/// time is that of the whole process: what the engine does in the background is part of it.
///
/// # Errors
/// When the engine fails.
pub fn run(engine: &dyn Engine, files: u64) -> store::Result<Vec<FloorRow>> {
    let create = timed("engine_create", files, || creates(engine, files))?;
    let hit = timed("engine_get_hit", files, || {
        gets(engine, files, |file| inode_key(spread(file, files)).to_vec())
    })?;
    let miss = timed("engine_get_miss", files, || {
        gets(engine, files, |file| entry_key(b'm', spread(file, files)).to_vec())
    })?;
    Ok(vec![create, hit, miss])
}

fn timed(
    name: &str,
    ops: u64,
    work: impl FnOnce() -> store::Result<()>,
) -> store::Result<FloorRow> {
    let (start, cpu) = (monotonic(), process_cpu());
    work()?;
    let elapsed: Duration = monotonic().saturating_sub(start);
    let cpu = process_cpu().saturating_sub(cpu);
    Ok(FloorRow {
        floor: name.to_owned(),
        ops,
        ops_per_s: rounded(float(ops) / elapsed.as_secs_f64().max(1e-9)),
        p50_us: None,
        client_cpu_us_per_op: None,
        server_cpu_us_per_op: Some(rounded(cpu.as_secs_f64() * 1e6 / float(ops))),
    })
}

/// The existence check and two puts of each, a write for each group.
fn creates(engine: &dyn Engine, files: u64) -> store::Result<()> {
    let mut batch = Batch::new();
    for file in 0..files {
        let key = entry_key(b'f', file);
        std::hint::black_box(engine.get(&key)?);
        batch.put(&key, &[0x5a; ENTRY_BYTES]);
        batch.put(&inode_key(file), &[0xa5; INODE_BYTES]);
        if (file + 1) % GROUP == 0 {
            engine.write(std::mem::take(&mut batch))?;
        }
    }
    engine.write(batch)
}

fn gets(engine: &dyn Engine, files: u64, key: impl Fn(u64) -> Vec<u8>) -> store::Result<()> {
    for file in 0..files {
        std::hint::black_box(engine.get(&key(file))?);
    }
    Ok(())
}

/// Returns the place of a file in another order: neighbours are not asked for one after the other.
fn spread(file: u64, files: u64) -> u64 {
    file.wrapping_mul(0x9e37_79b9_7f4a_7c15) % files.max(1)
}

/// 16 bytes of a directory's id and 12 of a name, which stands where its hash says, as names do in
/// a store: two that are made one after the other are no neighbours.
fn entry_key(kind: u8, file: u64) -> [u8; 28] {
    let mut key = [0; 28];
    key[8..16].copy_from_slice(&(file / DIRECTORY_FILES).to_be_bytes());
    key[16] = kind;
    key[20..28].copy_from_slice(&file.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn inode_key(file: u64) -> [u8; 16] {
    let mut key = [b'i'; 16];
    key[8..16].copy_from_slice(&file.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_created_is_what_is_found() {
        let engine = store::MemoryEngine::new();
        let rows = run(&engine, 130).unwrap();
        let names: Vec<_> = rows.iter().map(|row| row.floor.as_str()).collect();
        assert_eq!(names, ["engine_create", "engine_get_hit", "engine_get_miss"]);
        for file in 0..130 {
            assert!(engine.get(&inode_key(spread(file, 130))).unwrap().is_some());
            assert!(engine.get(&entry_key(b'f', file)).unwrap().is_some());
            assert!(engine.get(&entry_key(b'm', file)).unwrap().is_none());
        }
    }
}
