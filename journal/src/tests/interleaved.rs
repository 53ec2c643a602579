//! An old writer, a process that fences, and a collector, in every order of their requests.

use std::{
    future::Future,
    sync::{Arc, Mutex},
};

use object_store::memory::InMemory;

use super::{
    base, journal, random, record,
    stores::{Actor, Faulty, copied, next, run},
    times,
};
use crate::{Error, Journal, Known, Owner, Reader, Replica, Writer, bugs::Bug, fence};

fn gated(inner: &Arc<InMemory>, stale: Option<Arc<InMemory>>) -> Arc<Faulty> {
    Arc::new(Faulty { gated: true, stale, ..Faulty::of(inner) })
}

fn through(store: &Arc<Faulty>, bug: Option<Bug>) -> Journal {
    let mut journal = journal(store);
    journal.planted = bug;
    journal
}

async fn take(journal: &Journal, generation: u64, known: &Known) -> crate::Result<crate::Taken> {
    let owner = Owner { generation, run: 100 + generation };
    Box::pin(fence(journal, owner, known, times(), random(generation), &|_| ())).await
}

/// Runs every order; returns how many there are, and the first that fails.
async fn every<F: Future<Output = (Vec<usize>, Result<(), String>)>>(
    one: impl Fn(Vec<usize>) -> F,
) -> (u64, Result<(), String>) {
    let (mut runs, mut choices) = (0, Vec::new());
    loop {
        let (made, result) = one(choices.clone()).await;
        runs += 1;
        if let Err(error) = result {
            return (runs, Err(format!("{error} choices={choices:?}")));
        }
        match next(choices, &made) {
            Some(after) => choices = after,
            None => return (runs, Ok(())),
        }
    }
}

/// An old writer adds two records while another process fences and adds one.
async fn two_writers(bug: Option<Bug>, choices: Vec<usize>) -> (Vec<usize>, Result<(), String>) {
    let inner = Arc::new(InMemory::new());
    let plain = journal(&Arc::new(Faulty::of(&inner)));
    let mut old = take(&plain, 1, &Known::default()).await.unwrap().writer;
    old.append(&[record(1)], &|_| ()).await.unwrap();
    let (stores, told) = ([gated(&inner, None), gated(&inner, None)], Mutex::new(vec![1]));
    old.putter.journal = through(&stores[0], bug);
    let new = through(&stores[1], bug);
    let adds = async {
        for sequence in [2, 3] {
            match old.append(&[record(sequence)], &|_| ()).await {
                Ok(_) => told.lock().unwrap().push(sequence),
                Err(Error::Fenced { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let fences = async {
        let known = Known {
            segment: 2,
            replica: Replica { generation: 1, position: 1 },
            ..Known::default()
        };
        let mut taken = take(&new, 2, &known).await.unwrap();
        let mut last = 1;
        while let Some(segment) = taken.beyond.next().await.unwrap() {
            last = segment.header.last;
        }
        taken.writer.append(&[record(last + 1)], &|_| ()).await.unwrap();
    };
    let actors = vec![
        Actor { store: stores[0].clone(), work: Box::pin(adds) },
        Actor { store: stores[1].clone(), work: Box::pin(fences) },
    ];
    let made = run(actors, &choices).await;
    let told = told.lock().unwrap().clone();
    (made, all_told(&plain, &told).await)
}

/// One valid chain, in which the first generation has all that it told.
async fn all_told(journal: &Journal, told: &[u64]) -> Result<(), String> {
    let mut reader = Reader::new(journal.clone(), 0, Replica::default());
    let mut found = Vec::new();
    while let Some(segment) = reader.next().await.map_err(|error| error.to_string())? {
        if segment.header.generation == 1 {
            found.extend(segment.records.iter().map(|record| record.sequence));
        }
    }
    let lost = told.iter().find(|sequence| !found.contains(sequence));
    lost.map_or(Ok(()), |lost| Err(format!("record {lost} was told and is lost")))
}

/// How a sleeping standby is led astray.
#[derive(Clone, Copy, PartialEq)]
enum Astray {
    /// Lists of this store are old.
    Lists,
    /// A put of an old owner arrives after the segment was collected.
    LatePut,
}

/// A standby that slept fences where the owner has gone on and collects.
async fn sleeper(
    bug: Option<Bug>,
    astray: Astray,
    choices: Vec<usize>,
) -> (Vec<usize>, Result<(), String>) {
    let inner = Arc::new(InMemory::new());
    let plain_store = Arc::new(Faulty::of(&inner));
    let plain = journal(&plain_store);
    let mut owner = take(&plain, 1, &Known::default()).await.unwrap().writer;
    owner.append(&[record(1)], &|_| ()).await.unwrap();
    let then = copied(&inner).await;
    let mut late = bytes::Bytes::new();
    if astray == Astray::LatePut {
        late = append_late(&mut owner).await;
        go_on(&mut owner, &plain_store, &[3, 4, 5]).await;
    }
    let stale = (astray == Astray::Lists).then_some(then);
    let stores = [gated(&inner, None), gated(&inner, stale), gated(&inner, None)];
    let (collector, standby) = (journal(&stores[0]), through(&stores[1], bug));
    let zombie = journal(&stores[2]);
    let is_taken = Mutex::new(None);
    let owner_number = std::sync::atomic::AtomicU64::new(0);
    owner.putter.journal = collector.clone();
    let collects = async {
        if astray == Astray::Lists {
            go_on(&mut owner, &plain_store, &[2, 3, 4]).await;
        }
        owner_number.store(owner.number, std::sync::atomic::Ordering::Relaxed);
        collector.collect(1, u64::MAX).await.unwrap();
    };
    let fences = async {
        let replica = Replica { generation: 1, position: 1 };
        let known = Known { segment: 2, replica, ..Known::default() };
        match take(&standby, 2, &known).await {
            Ok(taken) => *is_taken.lock().unwrap() = Some(taken.writer.number),
            Err(Error::NeedsBase { .. } | Error::Missing(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let arrives = async {
        if astray == Astray::LatePut {
            let _ = zombie.put(3, late).await;
        }
    };
    let actors = vec![
        Actor { store: stores[0].clone(), work: Box::pin(collects) },
        Actor { store: stores[1].clone(), work: Box::pin(fences) },
        Actor { store: stores[2].clone(), work: Box::pin(arrives) },
    ];
    let made = run(actors, &choices).await;
    let end = owner_number.load(std::sync::atomic::Ordering::Relaxed);
    let result = match *is_taken.lock().unwrap() {
        Some(number) if number <= end => Err(format!("a fence counts at {number}, below the end")),
        _ => Ok(()),
    };
    (made, result)
}

/// Appends records, and makes two bases up to the last segment.
async fn go_on(owner: &mut Writer, store: &Arc<Faulty>, records: &[u64]) {
    for sequence in records {
        match owner.append(&[record(*sequence)], &|_| ()).await {
            Ok(_) => {}
            Err(Error::Fenced { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
    for number in [1, 2] {
        base(store, number, (1, owner.number), owner.last).await;
    }
}

/// Appends record 2, and returns the bytes that were put.
async fn append_late(owner: &mut Writer) -> bytes::Bytes {
    owner.append(&[record(2)], &|_| ()).await.unwrap();
    let segment = owner.journal().read(3).await.unwrap().unwrap();
    crate::writer::parcel(owner.journal(), &segment.header, &segment.records, &*random(50)).sealed
}

#[tokio::test(start_paused = true)]
async fn two_writers_make_one_chain_in_every_order() {
    let (runs, result) = every(|choices| Box::pin(two_writers(None, choices))).await;
    assert_eq!(result, Ok(()));
    assert!(runs > 70, "{runs}");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_decides_is_found() {
    let bug = Some(Bug::StatusDecides);
    let (_, result) = every(|choices| Box::pin(two_writers(bug, choices))).await;
    assert!(result.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_slept_takes_nothing_in_any_order() {
    for astray in [Astray::Lists, Astray::LatePut] {
        let (runs, result) = every(|choices| Box::pin(sleeper(None, astray, choices))).await;
        assert_eq!(result, Ok(()));
        assert!(runs > 100, "{runs}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_does_not_look_back_is_found() {
    for (bug, astray) in
        [(Bug::PredecessorNotLookedAt, Astray::Lists), (Bug::BasesNotLookedAt, Astray::LatePut)]
    {
        let (_, result) = every(|choices| Box::pin(sleeper(Some(bug), astray, choices))).await;
        assert!(result.is_err(), "{bug:?}");
    }
}
