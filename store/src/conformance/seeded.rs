//! Test of the suite itself: it must catch each of these engines, which are wrong on purpose.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use bytes::Bytes;

use super::{Subject, broken};
use crate::{
    Batch, Engine, EngineStats, MemoryEngine, Op, Result, Snapshot,
    kv::{KeyRange, Visit, memory},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    ScanIncludesItsEnd,
    ScanNeverStops,
    ManyKeysAreSorted,
    BatchIsTorn,
    RangesAreNotDeleted,
    SnapshotIsLive,
    RunIsSortedForTheCaller,
    CheckpointIsEmpty,
    RangesAreSizedInReverse,
    ForgetsWhenDropped,
}

/// A memory engine with a bug.
struct Wrong {
    inner: Arc<MemoryEngine>,
    bug: Bug,
}

impl Engine for Wrong {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let mut keys = keys.to_vec();
        if self.bug == Bug::ManyKeysAreSorted {
            keys.sort_unstable();
        }
        self.inner.multi_get(&keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        if self.bug == Bug::ScanIncludesItsEnd {
            return self.inner.scan(from, &[to, &[0]].concat(), visit);
        }
        self.inner.scan(from, to, &mut |key, value| match visit(key, value) {
            ControlFlow::Break(()) if self.bug != Bug::ScanNeverStops => ControlFlow::Break(()),
            ControlFlow::Break(()) | ControlFlow::Continue(()) => ControlFlow::Continue(()),
        })
    }

    fn write(&self, batch: Batch) -> Result<()> {
        if self.bug == Bug::BatchIsTorn {
            return batch.ops().try_for_each(|op| {
                std::thread::yield_now();
                self.inner.write(one(op))
            });
        }
        let ranges = self.bug != Bug::RangesAreNotDeleted;
        let mut kept = Batch::new();
        let ops = batch.ops().filter(|op| ranges || !matches!(op, Op::DeleteRange { .. }));
        ops.for_each(|op| kept.append(&one(op)));
        self.inner.write(kept)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
        if self.bug != Bug::RunIsSortedForTheCaller {
            return self.inner.ingest(run);
        }
        let mut run: Vec<_> = run.collect();
        run.sort();
        run.dedup();
        self.inner.ingest(&mut run.into_iter())
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        if self.bug == Bug::SnapshotIsLive {
            return Box::new(Live(Arc::clone(&self.inner)));
        }
        self.inner.snapshot()
    }

    fn checkpoint(&self, to: &Path) -> Result<()> {
        if self.bug == Bug::CheckpointIsEmpty {
            return MemoryEngine::new().checkpoint(to);
        }
        self.inner.checkpoint(to)
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> Result<Vec<u64>> {
        let mut sizes = self.inner.sizes(ranges)?;
        if self.bug == Bug::RangesAreSizedInReverse {
            sizes.reverse();
        }
        Ok(sizes)
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

struct Live(Arc<MemoryEngine>);

impl Snapshot for Live {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        self.0.scan(from, to, visit)
    }
}

fn one(op: Op<'_>) -> Batch {
    let mut batch = Batch::new();
    match op {
        Op::Put { key, value } => batch.put(key, value),
        Op::Delete { key } => batch.delete(key),
        Op::DeleteRange { from, to } => batch.delete_range(from, to),
    }
    batch
}

#[test]
fn every_seeded_bug_is_caught_by_a_rule_that_names_it() {
    for (bug, rule) in [
        (Bug::ScanIncludesItsEnd, "a_scan_goes_from_its_first_key_up_to_its_last_and_not_to_it"),
        (Bug::ScanNeverStops, "a_scan_stops_when_told_to"),
        (Bug::ManyKeysAreSorted, "many_keys_are_answered_in_the_order_asked"),
        (Bug::BatchIsTorn, "a_batch_is_seen_whole_or_not_at_all"),
        (Bug::RangesAreNotDeleted, "changes_of_a_batch_apply_in_their_order"),
        (Bug::SnapshotIsLive, "a_snapshot_stays_as_it_was"),
        (Bug::RunIsSortedForTheCaller, "a_run_that_is_not_ascending_is_refused_as_a_whole"),
        (Bug::CheckpointIsEmpty, "a_checkpoint_opens_and_is_a_copy"),
        (Bug::RangesAreSizedInReverse, "ranges_are_sized_in_their_order"),
        (Bug::ForgetsWhenDropped, "what_is_written_is_there_after_reopening"),
    ] {
        let open = |path: &Path| -> Arc<dyn Engine> {
            let inner = Arc::new(memory::tests::open(path));
            Arc::new(Wrong { inner, bug })
        };
        let reopens = bug == Bug::ForgetsWhenDropped;
        // A torn batch shows only to a reader that looks at the right moment: on a busy machine it
        // looks again.
        let looks = if bug == Bug::BatchIsTorn { 50 } else { 1 };
        let caught = (0..looks)
            .any(|_| broken(&Subject { open: &open, reopens, histories: 16 }).contains(&rule));
        assert!(caught, "{bug:?} breaks no rule {rule}");
    }
}
