//! Recovery of transactions over several servers after a crash.
//!
//! Participants that may not have heard of a commit are told again. A transaction that is prepared
//! here stays so, and keeps others out, until its outcome is known ([`outcome`]): this server asks
//! again and again.

use std::{cell::RefCell, ops::ControlFlow, rc::Rc, time::Duration};

use base::{HashMap, HashSet};
use bytes::Bytes;
use store::Engine;
use tokio::time::Instant;
use wire::{Decide, Outcome, TxnId};

use super::{
    CommittedRecord, EndedRecord, PATIENCE, PreparedRecord,
    early_mkdirs::{self, table::EarlyMkdirs},
    locks::{Has, Prepared},
    outcome::{self, outcome_of},
    participant, run,
    tell::tell,
};
use crate::{
    Core, OpenError,
    bugs::{Bug, Planted},
    observe::Laps,
    record::{Key, Record, key},
    server::Counters,
    step::Step,
};

/// Period of the search for transactions whose outcome is late.
const PERIOD: Duration = Duration::from_millis(250);

/// Holds the keys of everything that was prepared before this start.
pub(crate) fn load(
    engine: &dyn Engine,
    prepared: &Prepared,
    early_mkdirs: &EarlyMkdirs,
    bugs: Planted,
) -> Result<(), OpenError> {
    for (txn, record) in stored::<PreparedRecord>(engine, b'P')? {
        let taken = match &record.born {
            Some(at) => prepared.take_old_early_mkdir(txn, Key::from_slice(at)),
            None if bugs.has(Bug::PreparedForgotten) => continue,
            None => prepared.take(txn, participant::held(&record)),
        };
        assert!(taken, "what was prepared together is prepared together again");
    }
    for (txn, _) in stored::<EndedRecord>(engine, b'E')? {
        prepared.close(txn);
    }
    for (txn, record) in stored::<CommittedRecord>(engine, b'X')? {
        if let (Some(child), Some(server)) = (record.born, record.participants.first()) {
            early_mkdirs::hold(prepared, txn, &child);
            early_mkdirs.resume(txn, *server, child);
        }
    }
    Ok(())
}

fn stored<R: Record>(engine: &dyn Engine, kind: u8) -> Result<Vec<(TxnId, R)>, OpenError> {
    let prefix = key::own(kind);
    let mut found = Vec::new();
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        found.extend(key::parse_transaction(key).map(|txn| (txn, Bytes::copy_from_slice(value))));
        ControlFlow::Continue(())
    })?;
    found.into_iter().map(|(txn, value)| Ok((txn, R::from_record(&value)?))).collect()
}

/// Recovers transactions for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = core.inner.shared.clone();
    if shared.cluster.is_none() {
        return;
    }
    match stored::<CommittedRecord>(shared.engine.as_ref(), b'X') {
        Ok(committed) => {
            for (txn, record) in committed {
                if record.born.is_some() {
                    early_mkdirs::tell(&core, txn);
                    continue;
                }
                let core = core.clone();
                tokio::task::spawn_local(async move {
                    let laps = Laps::begin(core.inner.shared.observed.now());
                    tell(&core, txn, record.participants, true, &laps).await;
                });
            }
        }
        Err(error) => tracing::error!(%error, "commits of before this start cannot be read"),
    }
    let learning = core.clone();
    tokio::task::spawn_local(async move { early_mkdirs::learn(&learning).await });
    tokio::task::spawn_local(early_mkdirs::hurry(core.clone()));
    tokio::task::spawn_local(outcome::forget(core.clone()));
    let mut first_seen: HashMap<TxnId, Instant> = HashMap::default();
    let asked = Rc::new(RefCell::new(HashSet::<TxnId>::default()));
    loop {
        let now = Instant::now();
        let all = shared.prepared.all();
        first_seen.retain(|txn, _| all.binary_search(txn).is_ok());
        let late = all.into_iter().filter(|txn| {
            let mine = shared
                .cluster
                .as_ref()
                .is_some_and(|cluster| cluster.me == txn.server && cluster.run == txn.run);
            !mine
                && !shared.bugs.has(Bug::LatePrepareKept)
                && now.duration_since(*first_seen.entry(*txn).or_insert(now)) >= PATIENCE
                && !asked.borrow().contains(txn)
        });
        for txn in late {
            // Each question has its own task: one may wait for an early mkdir that another of them
            // is about.
            let (core, asked) = (core.clone(), Rc::clone(&asked));
            asked.borrow_mut().insert(txn);
            tokio::task::spawn_local(async move {
                ask(&core, txn).await;
                asked.borrow_mut().remove(&txn);
            });
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Asks how a transaction ended, and ends it here if that is known.
async fn ask(core: &Core, txn: TxnId) {
    let shared = &core.inner.shared;
    let others = others_of(core, txn);
    let commit = match outcome_of(core, txn, &others).await {
        Some(Outcome::Committed) => true,
        Some(Outcome::Aborted) if shared.prepared.early_mkdir(txn) == Some(Has::Content) => {
            // If the repair cannot be done now, it is tried again later.
            let step = Step::new(move |own| early_mkdirs::orphaned(own, txn)).part_of(txn);
            let fails = "a directory that has lost its entry stays where it is";
            run::once(core, step, fails).await;
            return;
        }
        Some(Outcome::Aborted) => false,
        Some(Outcome::Pending) => return,
        None => {
            // A hold promises nothing yet: a prepare that relies on a hold which was let go is
            // refused.
            shared.prepared.let_go(txn);
            return;
        }
    };
    Counters::add(&shared.counters.transactions_recovered);
    core.step_of(txn, move |own| participant::decide(own, &Decide { txn, commit })).await;
}

/// The other participants of a transaction that is prepared here.
fn others_of(core: &Core, txn: TxnId) -> Vec<u16> {
    let stored = core.inner.shared.engine.get(&key::prepared(txn)).ok().flatten();
    let record = stored.and_then(|stored| PreparedRecord::from_record(&stored).ok());
    record.map(|record| record.others.0).unwrap_or_default()
}
