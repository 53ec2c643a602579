//! The memory engine: defines what an engine does, and serves simulations and unit tests.
//!
//! It keeps three things: what is visible, what would survive a power cut, and the batches between
//! the two. A crash of the process is the caller dropping everything but the engine; a power cut is
//! [`MemoryEngine::power_cut`]. It never touches a disk except for a checkpoint.
//!
//! Always true: `visible` is `stable` with all of `unsynced` applied, in order; where there is a
//! log, `stable` is its beginning with all of it applied.

use std::{
    fs,
    io::Write,
    ops::{Bound, ControlFlow},
    path::Path,
};

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::RwLock;

use super::{Engine, EngineStats, KeyRange, Snapshot, Visit};
use crate::{Batch, Error, Op, Result, stable::sync_parent};

const VERSION: &str = "pando memory engine 1\n";

/// A persistent map: a copy costs nothing, and a change to one leaves the other as it was.
type Map = OrdMap<Bytes, Bytes>;

/// An engine in memory.
#[derive(Default)]
pub struct MemoryEngine {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    visible: Map,
    stable: Map,
    unsynced: Vec<Batch>,
    log: Option<Log>,
    /// Number of batches that are stable.
    position: u64,
}

/// A log of batches that are stable and can still be cut off.
struct Log {
    /// The stable records when the log began, and the number of batches that made them.
    from: Map,
    at: u64,
    synced: Vec<Batch>,
}

impl State {
    /// The first `count` of the unsynced batches become stable.
    fn sync(&mut self, count: usize) {
        for batch in self.unsynced.drain(..count) {
            self.position += 1;
            apply(&mut self.stable, &batch);
            if let Some(log) = &mut self.log {
                log.synced.push(batch);
            }
        }
    }
}

impl MemoryEngine {
    /// An empty engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine with the records of the checkpoint that [`Engine::checkpoint`] wrote at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = fs::read(path)?;
        let Some(batch) = file.strip_prefix(VERSION.as_bytes()) else {
            let start = &file[..file.len().min(VERSION.len())];
            let found = String::from_utf8_lossy(start).into_owned();
            return Err(Error::Version { found, known: VERSION });
        };
        let mut map = Map::new();
        apply(&mut map, &Batch::decode(batch.to_vec())?);
        let state = State { visible: map.clone(), stable: map, ..State::default() };
        Ok(Self { state: RwLock::new(state) })
    }

    /// A copy of the engine as a power cut would leave it now, without the batches that are not
    /// synced, or `with` them, which are then synced.
    #[must_use]
    pub fn copy(&self, with_unsynced: bool) -> Self {
        let state = self.state.read();
        let (records, more) = match with_unsynced {
            true => (&state.visible, state.unsynced.len() as u64),
            false => (&state.stable, 0),
        };
        let position = state.position + more;
        let copy = State {
            visible: records.clone(),
            stable: records.clone(),
            position,
            ..State::default()
        };
        Self { state: RwLock::new(copy) }
    }

    /// The number of batches that a power cut may lose.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.state.read().unsynced.len()
    }

    /// Cuts the power: of the unsynced batches only the first `keep` survive, and they are stable.
    pub fn power_cut(&self, keep: usize) {
        let state = &mut *self.state.write();
        state.unsynced.truncate(keep);
        state.sync(state.unsynced.len());
        state.visible = state.stable.clone();
    }

    /// Begins a log with the next batch that is synced; an older one ends.
    pub fn begin_log(&self) {
        let state = &mut *self.state.write();
        state.log =
            Some(Log { from: state.stable.clone(), at: state.position, synced: Vec::new() });
    }

    /// The batches since the log began, oldest first, synced or not; without a log, those that are
    /// not synced.
    #[must_use]
    pub fn log(&self) -> Vec<Batch> {
        let state = self.state.read();
        let synced = state.log.iter().flat_map(|log| &log.synced);
        synced.chain(&state.unsynced).cloned().collect()
    }

    /// The batches after this position, oldest first, synced or not, each with its position; nothing
    /// if the log began later.
    #[must_use]
    pub fn log_after(&self, position: u64) -> Option<Vec<(u64, Batch)>> {
        let at = self.state.read().log.as_ref()?.at;
        let numbered = self.log().into_iter().zip(at + 1..).map(|(batch, number)| (number, batch));
        (at <= position).then(|| numbered.filter(|(number, _)| *number > position).collect())
    }

    /// Cuts off the end of the log: the first `keep` batches stay as stable as they were.
    pub fn cut_log(&self, keep: usize) {
        let state = &mut *self.state.write();
        let synced = state.log.as_ref().map_or(0, |log| log.synced.len());
        state.unsynced.truncate(keep.saturating_sub(synced));
        if let Some(log) = &mut state.log
            && keep < synced
        {
            state.position -= (synced - keep) as u64;
            log.synced.truncate(keep);
            state.stable = log.from.clone();
            log.synced.iter().for_each(|batch| apply(&mut state.stable, batch));
        }
        state.visible = state.stable.clone();
        state.unsynced.iter().for_each(|batch| apply(&mut state.visible, batch));
    }

    fn map(&self) -> Map {
        self.state.read().visible.clone()
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.state.read().visible.get(key).cloned())
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let state = self.state.read();
        Ok(keys.iter().map(|&key| state.visible.get(key).cloned()).collect())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        // The lock is free here: the visitor may call the engine.
        self.map().scan(from, to, visit)
    }

    fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let state = &mut *self.state.write();
        apply(&mut state.visible, &batch);
        state.unsynced.push(batch);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let state = &mut *self.state.write();
        state.position += state.unsynced.len() as u64;
        match &mut state.log {
            Some(log) => log.synced.append(&mut state.unsynced),
            None => state.unsynced.clear(),
        }
        state.stable = state.visible.clone();
        Ok(())
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        let mut batch = Batch::new();
        let mut last: Option<Vec<u8>> = None;
        for (key, value) in run {
            if last.as_ref().is_some_and(|last| *last >= key) {
                return Err(Error::Unordered);
            }
            batch.put(&key, &value);
            last = Some(key);
        }
        self.write(batch)?;
        self.sync()
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        Box::new(self.map())
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in &self.map() {
            batch.put(key, value);
        }
        let mut file = fs::File::create_new(to)?;
        file.write_all(VERSION.as_bytes())?;
        file.write_all(batch.encoded())?;
        file.sync_all()?;
        sync_parent(to)?;
        Ok(())
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        let size = |(from, to): &KeyRange<'_>| {
            let mut bytes = 0;
            let add = |key: &[u8], value: &[u8]| {
                bytes += (key.len() + value.len()) as u64;
                ControlFlow::Continue(())
            };
            self.scan(from, to, &mut { add }).map(|()| bytes)
        };
        ranges.iter().map(size).collect()
    }

    fn position(&self) -> u64 {
        let state = self.state.read();
        state.position + state.unsynced.len() as u64
    }

    fn stats(&self) -> EngineStats {
        let keys_estimated = self.state.read().visible.len() as u64;
        EngineStats { keys_estimated, ..EngineStats::default() }
    }
}

impl Snapshot for Map {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(OrdMap::get(self, key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        for (key, value) in self.range::<_, [u8]>(bounds(from, to)) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn apply(map: &mut Map, batch: &Batch) {
    for op in batch.ops() {
        match op {
            Op::Put { key, value } => {
                map.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            }
            Op::Delete { key } => {
                map.remove(key);
            }
            Op::DeleteRange { from, to } => {
                let range = map.range::<_, [u8]>(bounds(from, to));
                let gone: Vec<Bytes> = range.map(|(key, _)| key.clone()).collect();
                for key in gone {
                    map.remove(&key);
                }
            }
        }
    }
}

fn bounds<'a>(from: &'a [u8], to: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(from), Bound::Excluded(to))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::conformance::{Subject, check};

    /// A new engine, or the one in a checkpoint.
    pub(crate) fn open(path: &Path) -> MemoryEngine {
        match path.exists() {
            true => MemoryEngine::open(path).expect("a checkpoint"),
            false => MemoryEngine::new(),
        }
    }

    #[test]
    fn it_conforms() {
        let open = |path: &Path| -> Arc<dyn Engine> { Arc::new(open(path)) };
        check(&Subject { open: &open, reopens: false, histories: 256 });
    }

    #[test]
    fn a_checkpoint_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        MemoryEngine::new().checkpoint(&path).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.push(0);
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(MemoryEngine::open(&path), Err(Error::Corrupt(_))));
        fs::write(&path, b"pando memory engine 9\n").unwrap();
        assert!(matches!(MemoryEngine::open(&path), Err(Error::Version { .. })));
    }

    #[test]
    fn a_log_is_cut_where_its_owner_says_whatever_was_synced() {
        let write = |engine: &MemoryEngine, name: &[u8]| {
            let mut batch = Batch::new();
            batch.put(name, b"");
            engine.write(batch).unwrap();
        };
        for keep in 0..6 {
            let engine = MemoryEngine::new();
            write(&engine, b"before");
            engine.sync().unwrap();
            engine.begin_log();
            for name in [b"a", b"b", b"c"] {
                write(&engine, name);
            }
            engine.sync().unwrap();
            write(&engine, b"d");
            assert_eq!(engine.log().len(), 4);
            engine.cut_log(keep);
            let there = |name: &[u8]| engine.get(name).unwrap().is_some();
            assert!(there(b"before"));
            let left = [b"a", b"b", b"c", b"d"].map(|name| there(name));
            assert_eq!(left, [0, 1, 2, 3].map(|at| at < keep));
            assert_eq!((engine.log().len(), engine.unsynced()), (keep.min(4), keep.min(4) / 4));
            write(&engine, b"e");
            engine.power_cut(1);
            assert_eq!((engine.log().len(), engine.unsynced()), ((keep + 1).min(4), 0));
            let log = engine.log();
            let numbers: Vec<_> = engine.log_after(1).unwrap().iter().map(|(at, _)| *at).collect();
            assert_eq!(numbers, (2..2 + log.len() as u64).collect::<Vec<_>>());
            assert_eq!(engine.log_after(0), None);
            engine.begin_log();
            assert!(engine.log().is_empty());
            assert_eq!(engine.log_after(engine.position()), Some(vec![]));
        }
    }

    proptest! {
        #[test]
        fn a_power_cut_keeps_what_was_synced_and_a_prefix_of_the_rest(
            syncs in vec(any::<bool>(), 0..20), keep in 0_usize..25,
        ) {
            let engine = MemoryEngine::new();
            let (mut written, mut synced) = (0_u8, 0);
            for sync in syncs {
                written += 1;
                let mut batch = Batch::new();
                batch.put(b"last", &[written]);
                batch.put(&[written], b"");
                engine.write(batch).unwrap();
                if sync {
                    engine.sync().unwrap();
                    synced = written;
                }
            }
            prop_assert_eq!(engine.unsynced(), usize::from(written - synced));
            let before = engine.snapshot();
            engine.power_cut(keep);

            let left = written.min(synced.saturating_add(u8::try_from(keep).unwrap()));
            let last = (left > 0).then(|| Bytes::copy_from_slice(&[left]));
            prop_assert_eq!(engine.get(b"last").unwrap(), last);
            prop_assert_eq!(engine.stats().keys_estimated, if left == 0 { 0 } else { u64::from(left) + 1 });
            prop_assert_eq!(engine.unsynced(), 0);
            engine.power_cut(0);
            prop_assert_eq!(engine.get(&[left]).unwrap().is_some(), left > 0);
            prop_assert_eq!(before.get(&[written]).unwrap().is_some(), written > 0);
        }
    }
}
