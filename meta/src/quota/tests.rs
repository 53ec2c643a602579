//! Quotas on a server of several, which gets the roots from the coordinator.

use base::{DirId, ShardId};
use store::MemoryEngine;

use super::*;

fn quotas(engine: &MemoryEngine) -> Quotas {
    Quotas::load(engine, true).unwrap()
}

fn root(number: u64) -> QuotaId {
    QuotaId(Ino::new(ShardId(1), number))
}

fn record(parent: QuotaId) -> QuotaRecord {
    QuotaRecord {
        state: QuotaState::Active,
        dir: DirId(7),
        home: DirId(7),
        parent: parent.0,
        bytes_max: Some(crate::record::UNLIMITED),
        entries_max: None,
    }
}

fn charge(quotas: &Quotas, engine: &MemoryEngine, id: QuotaId, usage: Usage) {
    quotas.charge(Accounts::root(id), usage, Limits::Hold, &[]).unwrap();
    let (mut charged, mut batch) = (HashMap::default(), Batch::default());
    charged.insert(id, usage);
    quotas.store(0, &mut charged, &mut batch);
    engine.write(batch).unwrap();
}

#[test]
fn what_is_charged_to_a_root_that_nobody_has_told_of_is_kept() {
    let engine = MemoryEngine::new();
    let here = quotas(&engine);
    // Another server has charged what is released here.
    charge(&here, &engine, root(1), Usage::of(2, 100).minus());
    charge(&here, &engine, root(1), Usage::of(1, 0));
    let told = Told { record: None, usage: Usage { bytes: -100, entries: -1 } };
    assert_eq!(here.told(root(1)), told);
    assert_eq!(quotas(&engine).told(root(1)), told);
}

#[test]
fn what_the_coordinator_tells_counts_above() {
    let (engine, theirs) = (MemoryEngine::new(), MemoryEngine::new());
    let (coordinator, here) = (quotas(&theirs), quotas(&engine));
    coordinator.begin_versions(40);
    charge(&here, &engine, root(1), Usage::of(3, 300));
    coordinator.put(root(1), Some(record(root(2))));
    coordinator.put(root(2), Some(record(QuotaId::NONE)));
    coordinator.changed();
    let news = coordinator.news(here.version()).unwrap();
    here.learn(&news).unwrap();
    assert_eq!(coordinator.news(here.version()), None);
    let told = here.told(root(2));
    assert_eq!((told.record, told.usage), (Some(record(QuotaId::NONE)), Usage::of(3, 300)));
    // A root that is gone keeps its charges, and counts nowhere else.
    coordinator.put(root(1), Some(QuotaRecord { state: QuotaState::Gone, ..record(root(2)) }));
    coordinator.changed();
    here.learn(&coordinator.news(here.version()).unwrap()).unwrap();
    assert_eq!(here.told(root(2)).usage, Usage::default());
    assert_eq!(here.told(root(1)), Told { record: None, usage: Usage::of(3, 300) });
}

#[test]
fn after_a_restart_nobody_relies_on_what_was_counted_before() {
    let engine = MemoryEngine::new();
    let counting = QuotaRecord { state: QuotaState::Counting, ..record(root(2)) };
    let here = quotas(&engine);
    here.put(root(1), Some(counting));
    let again = |quotas: &Quotas| [root(1), root(2)].map(|id| quotas.is_counted_again(id));
    assert_eq!(again(&here), [false, false], "directories are passed before what they hold");
    for (state, expected) in [
        (QuotaState::Counting, [true, false]),
        (QuotaState::Removing, [false, true]),
        (QuotaState::Active, [false, false]),
    ] {
        let mut batch = Batch::default();
        batch.put(
            &key::usage(root(1), UsagePart::Root),
            &QuotaRecord { state, ..counting }.to_record(),
        );
        engine.write(batch).unwrap();
        let restarted = quotas(&engine);
        assert_eq!(again(&restarted), expected);
        restarted.put(root(1), Some(record(root(2))));
        assert_eq!(again(&restarted), [false, false], "it is counted");
    }
    here.counts_again(root(1));
    assert_eq!(again(&here), [true, false]);
}
