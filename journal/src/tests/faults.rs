//! One writer over a store that fails, and each error of a reader.

use std::sync::Arc;

use object_store::{ObjectStoreExt as _, memory::InMemory};
use proptest::prelude::*;

use super::{
    base, journal, place, random, record,
    stores::{Fault, Faulty},
    times,
};
use crate::{
    Covered, Error, Fault as Broken, Journal, Known, Owner, Reader, Replica, Result, Taken, Times,
    Writer, bugs::Bug, check, fence,
};

async fn take(journal: &Journal, generation: u64, known: &Known) -> Result<Taken> {
    let owner = Owner { generation, run: 100 + generation };
    fence(journal, owner, known, times(), random(generation), &|_| ()).await
}

async fn taken(journal: &Journal, generation: u64) -> Writer {
    take(journal, generation, &Known::default()).await.unwrap().writer
}

async fn all(mut reader: Reader) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    while let Some(segment) = reader.next().await? {
        found.extend(segment.records.iter().map(|record| record.sequence));
    }
    Ok(found)
}

async fn whole(journal: &Journal) -> Result<Vec<u64>> {
    all(Reader::new(journal.clone(), 0, Replica::default())).await
}

/// A journal of one fence and records 1 to 3, a segment each.
async fn some(store: &Arc<Faulty>) -> (Journal, Writer) {
    let journal = journal(store);
    let mut writer = taken(&journal, 1).await;
    for sequence in 1..=3 {
        writer.append(&[record(sequence)], &|_| ()).await.unwrap();
    }
    (journal, writer)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn any_fault() -> impl Strategy<Value = Fault> {
    use Fault::{After, Before, Conflict, Late, None, Repeated};
    prop::sample::select(vec![None, None, Before, After, Repeated, Conflict, Late])
}

/// Acknowledged records, and what is read back.
fn acknowledged(script: &[Fault], bug: Option<Bug>) -> (Vec<u64>, Result<Vec<u64>>) {
    runtime().block_on(async {
        let inner = Arc::new(InMemory::new());
        let plain = journal(&Faulty::scripted(&inner, &[]));
        let taken = taken(&plain, 1).await;
        let mut writer = taken;
        let mut faulty = journal(&Faulty::scripted(&inner, script));
        faulty.planted = bug;
        writer.putter.journal = faulty;
        let mut acknowledged = Vec::new();
        for sequence in 1..=6 {
            match writer.append(&[record(sequence)], &|_| ()).await {
                Ok(_) => acknowledged.push(sequence),
                Err(_) => break,
            }
        }
        (acknowledged, whole(&plain).await)
    })
}

proptest! {
    #[test]
    fn acknowledged_records_are_read_back_once_and_in_order(
        script in prop::collection::vec(any_fault(), 0..24)
    ) {
        let (acknowledged, read) = acknowledged(&script, None);
        prop_assert_eq!(acknowledged.len(), 6);
        prop_assert_eq!(read.unwrap(), acknowledged);
    }
}

/// J1 and J2: with a planted bug some script loses what was acknowledged.
#[test]
fn bugs_of_a_writer_are_found() {
    for (bug, fault) in [(Bug::StatusDecides, Fault::Conflict), (Bug::NextPutEarly, Fault::Before)]
    {
        let (told, read) = acknowledged(&[Fault::None, fault], Some(bug));
        assert!(read.ok() != Some(told), "{bug:?} was not found");
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_without_an_answer_is_sent_again_and_counted() {
    let inner = Arc::new(InMemory::new());
    let store = Faulty::scripted(&inner, &[]);
    let journal = journal(&store);
    let mut writer = taken(&journal, 1).await;
    writer.putter.times = Times::default();
    store.script.lock().unwrap().push_back(Fault::Silent);
    writer.append(&[record(1)], &|_| ()).await.unwrap();
    let status = writer.status();
    assert_eq!((status.puts, status.hedges, status.retries), (3, 1, 0));
    assert_eq!(whole(&journal).await.unwrap(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_dropped_is_finished_by_the_next_one() {
    let inner = Arc::new(InMemory::new());
    let store = Faulty::scripted(&inner, &[]);
    let (journal, mut writer) = some(&store).await;
    store.script.lock().unwrap().push_back(Fault::Silent);
    let four = [record(4)];
    let dropped = writer.append(&four, &|_| ());
    assert!(tokio::time::timeout(std::time::Duration::from_secs(1), dropped).await.is_err());
    let appended = writer.append(&[record(4), record(5)], &|_| ()).await.unwrap();
    assert_eq!((appended.number, appended.last), (6, 5));
    assert_eq!(whole(&journal).await.unwrap(), [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_was_fenced_stays_so_and_its_successor_has_all() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, mut old) = some(&store).await;
    let new = take(&journal, 2, &Known::default()).await.unwrap();
    for _ in 0..2 {
        let halted = old.append(&[record(4)], &|_| ()).await;
        assert!(matches!(halted, Err(Error::Fenced { number: 5, generation: 2, run: 102 })));
    }
    assert_eq!(all(new.beyond).await.unwrap(), [1, 2, 3]);
    let again = take(&journal, 2, &Known::default()).await;
    assert!(matches!(again, Err(Error::Fenced { generation: 2, .. })));
}

#[tokio::test(start_paused = true)]
async fn each_fault_of_a_chain_has_its_error() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, _) = some(&store).await;
    let path = |number: u64| {
        place(&store).path(&backup::Names::new(super::UUID, super::HISTORY).segment(number))
    };
    let bytes = store.inner.get(&path(3)).await.unwrap().bytes().await.unwrap();
    store.inner.delete(&path(3)).await.unwrap();
    let from = |number| Reader::new(journal.clone(), number, Replica::default());
    assert!(matches!(all(from(1)).await, Err(Error::Missing(3))));
    let mut changed = bytes.to_vec();
    changed[60] ^= 1;
    store.inner.put(&path(3), changed.into()).await.unwrap();
    assert!(matches!(whole(&journal).await, Err(Error::Altered(3))));
    store.inner.put(&path(3), bytes.clone().into()).await.unwrap();
    let other = Journal::new(
        place(&store),
        (super::UUID, super::HISTORY),
        1,
        super::key(),
        std::time::Duration::from_secs(1),
    );
    assert!(matches!(other.read(3).await, Err(Error::Foreign { number: 3, what: "the member" })));
    let segment = journal.read(3).await.unwrap().unwrap();
    let mut header = segment.header.clone();
    header.before ^= 1;
    let parcel = crate::writer::parcel(&journal, &header, &segment.records, &*random(9));
    store.inner.put(&path(3), parcel.sealed.into()).await.unwrap();
    let broken = whole(&journal).await;
    let Err(Error::Broken { number: 3, fault: Broken::Predecessor }) = broken else {
        panic!("{broken:?}")
    };
}

#[tokio::test(start_paused = true)]
async fn a_copy_with_more_than_the_fence_is_forked() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, _) = some(&store).await;
    taken(&journal, 2).await;
    let old = Replica { generation: 1, position: 9 };
    let read = all(Reader::new(journal.clone(), 1, old)).await;
    assert!(matches!(read, Err(Error::Forked { number: 5, generation: 2, last: 3 })), "{read:?}");
    let known = Known { stable: 4, ..Known::default() };
    assert!(matches!(take(&journal, 3, &known).await, Err(Error::Behind { last: 3, stable: 4 })));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_below_the_older_of_two_bases_is_collected() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, mut writer) = some(&store).await;
    assert_eq!(journal.collect(1, u64::MAX).await.unwrap().removed, 0);
    base(&store, 1, (1, 3), 2).await;
    assert_eq!(journal.collect(1, u64::MAX).await.unwrap().removed, 0);
    base(&store, 2, (1, 4), 3).await;
    assert_eq!(
        journal.collect(2, u64::MAX).await.unwrap().removed,
        0,
        "they are of another generation"
    );
    let swept = journal.collect(1, u64::MAX).await.unwrap();
    assert_eq!((swept.removed, swept.first), (1, 3));
    // The fence stays.
    assert!(journal.listed().await.unwrap().into_keys().eq([1, 3, 4]));
    writer.base_made(Covered { base: 2, position: 3 });
    writer.append(&[record(4)], &|_| ()).await.unwrap();
    let replica = Replica { generation: 1, position: 2 };
    assert_eq!(all(Reader::new(journal.clone(), 3, replica)).await.unwrap(), [3, 4]);
    let verified = journal.verify(&|_| ()).await.unwrap();
    assert_eq!((verified.numbers, verified.sequences, verified.base), ((3, 5), (2, 4), 2));
}

#[tokio::test(start_paused = true)]
async fn an_old_writer_finds_the_fence_however_late_it_is() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, mut old) = some(&store).await;
    let mut writer = taken(&journal, 2).await;
    for sequence in 4..10 {
        writer.append(&[record(sequence)], &|_| ()).await.unwrap();
    }
    base(&store, 1, (2, 10), 8).await;
    base(&store, 2, (2, 11), 9).await;
    assert_eq!(journal.collect(2, 8).await.unwrap().first, 8, "the caller needs it");
    journal.collect(2, u64::MAX).await.unwrap();
    let late = old.append(&[record(4)], &|_| ()).await;
    assert!(matches!(late, Err(Error::Fenced { number: 5, generation: 2, .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn what_others_put_beside_a_journal_counts_for_nothing() {
    let store = Faulty::scripted(&Arc::new(InMemory::new()), &[]);
    let (journal, _) = some(&store).await;
    let names = backup::Names::new(super::UUID, super::HISTORY);
    for name in [names.segment(u64::MAX), names.segment(100), names.base(u64::MAX)] {
        let path = place(&store).path(&name);
        store.inner.put(&path, bytes::Bytes::from_static(b"junk").into()).await.unwrap();
    }
    assert_eq!(journal.beyond(0).await.unwrap(), Some(4));
    assert_eq!(journal.beyond(4).await.unwrap(), None);
    taken(&journal, 2).await;
    assert_eq!(journal.collect(2, u64::MAX).await.unwrap().removed, 0);
}

#[tokio::test]
async fn a_store_that_lets_two_writers_win_is_refused() {
    let inner = Arc::new(InMemory::new());
    let good = Faulty::scripted(&inner, &[]);
    check(&place(&good), &*random(1)).await.unwrap();
    let bad = Arc::new(Faulty { unconditional: true, ..Faulty::of(&inner) });
    let refused = check(&place(&bad), &*random(1)).await.unwrap_err().to_string();
    assert!(refused.contains("lets two writers win: it must not hold a journal"), "{refused}");
    assert!(journal(&good).listed().await.unwrap().is_empty());
}

/// J4: over a store that was trusted and should not be, an old writer's records are lost.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_trusted_in_vain_is_found() {
    let inner = Arc::new(InMemory::new());
    let bad = Arc::new(Faulty { unconditional: true, ..Faulty::of(&inner) });
    let (journal, mut old) = some(&bad).await;
    let mut new = take(&journal, 2, &Known::default()).await.unwrap().writer;
    assert!(old.append(&[record(4)], &|_| ()).await.is_ok(), "it wins, too");
    assert!(new.append(&[record(4)], &|_| ()).await.is_ok());
    let broken = whole(&journal).await;
    assert!(matches!(broken, Err(Error::Broken { number: 6, .. })), "{broken:?}");
}
