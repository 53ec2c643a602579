//! News of early mkdirs between servers, in the background.
//!
//! Each core tells of the early mkdirs that began on it. One core of a server asks the others: at
//! the start for early mkdirs at this server, and later for those that requests wait for.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use tokio::time::timeout;
use wire::{Born, HurryBirths, Reply, Request, TxnId};

use crate::{
    Core,
    bugs::Bug,
    error::Result,
    record::key::{self, Part},
    server::Shared,
    transact::{early_mkdirs::here, locks::Doubt, tell::ask_until_answered},
    txn::Txn,
};

/// Directories born within this time are confirmed together, unless a request waits for one.
const ROUND: Duration = Duration::from_millis(10);
/// While fewer early mkdirs than this wait to be confirmed, each is told at once.
const FEW: usize = 4;

/// Tells the other server that the directory is born, now that the entry is written, and later that
/// it is confirmed.
pub(in crate::transact) fn tell(core: &Core, txn: TxnId) {
    core.inner.shared.early_mkdirs.written(txn);
    let telling = &core.inner.early_mkdirs;
    // With many early mkdirs under way each is confirmed soon, and a server that needs one sooner
    // asks.
    let few = telling.stable.queue.borrow().len() < FEW;
    if few && telling.born.push([txn]) {
        let core = core.clone();
        tokio::task::spawn_local(async move {
            loop {
                let born = core.inner.early_mkdirs.born.take();
                if born.is_empty() {
                    return;
                }
                for (server, txns) in by_server(&core.inner.shared, &born) {
                    let told = core
                        .inner
                        .peers
                        .ask(server, &Request::Born(Born { txns, confirmed: false }));
                    // A server that misses this hears later that the early mkdir is confirmed.
                    tokio::task::spawn_local(async move { drop(told.await) });
                }
                tokio::task::yield_now().await;
            }
        });
    }
    if telling.stable.push([txn]) {
        tokio::task::spawn_local(confirm_all(core.clone()));
    }
}

async fn confirm_all(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        let mut hurried = shared.early_mkdirs.hurried.subscribe();
        let stable = core.inner.early_mkdirs.stable.take();
        if stable.is_empty() {
            return;
        }
        if !shared.bugs.has(Bug::ConfirmedEarly) {
            shared.sync.wait().await;
        }
        let mut free = Vec::new();
        for txn in stable {
            match above(&shared, txn) {
                Some(doubt) => {
                    let core = core.clone();
                    tokio::task::spawn_local(async move {
                        let mut waits = Some(doubt);
                        while let Some(doubt) = waits {
                            doubt.ended(&core.inner.shared).await;
                            waits = above(&core.inner.shared, txn);
                        }
                        confirm(&core, &[txn]).await;
                    });
                }
                None => free.push(txn),
            }
        }
        let confirming = core.clone();
        tokio::task::spawn_local(async move { confirm(&confirming, &free).await });
        // In any case all early mkdirs that have come meanwhile are next.
        let _ = timeout(ROUND, hurried.changed()).await;
    }
}

/// The unconfirmed early mkdir of the directory that the entry is in, if there is one.
fn above(shared: &Shared, txn: TxnId) -> Option<Doubt> {
    let (_, name) = shared.early_mkdirs.child(txn)?;
    let dir = key::parse_dir(&name)?;
    // A directory in several partitions is confirmed already.
    let content = key::content(key::shard_of(&name), dir, 0, Part::Main);
    shared.prepared.early_mkdir_among([&content].into_iter())
}

async fn confirm(core: &Core, txns: &[TxnId]) {
    let shared = core.inner.shared.clone();
    if shared.is_halted() {
        return;
    }
    let told = by_server(&shared, txns).into_iter().map(|(server, txns)| async move {
        let request = Request::Born(Born { txns: txns.clone(), confirmed: true });
        ask_until_answered(core, server, &request).await;
        core.step(move |txn| confirmed(txn, &txns)).await;
    });
    join_all(told).await;
}

fn by_server(shared: &Shared, txns: &[TxnId]) -> BTreeMap<u16, Vec<TxnId>> {
    let mut by_server = BTreeMap::<u16, Vec<TxnId>>::new();
    for txn in txns {
        if let Some((server, _)) = shared.early_mkdirs.child(*txn) {
            by_server.entry(server).or_default().push(*txn);
        }
    }
    by_server
}

/// Forgets early mkdirs that are confirmed: their entries may change, and nothing is left to be
/// told of them.
fn confirmed(txn: &mut Txn<'_>, txns: &[TxnId]) -> Result<()> {
    for early_mkdir in txns {
        txn.delete(key::committed(*early_mkdir));
        txn.facts.ended.push(*early_mkdir);
    }
    Ok(())
}

/// Asks all servers what was born here.
pub(in crate::transact) async fn learn(core: &Core) {
    let shared = &core.inner.shared;
    let heard = shared.early_mkdirs.others().into_iter().map(|server| async move {
        let reply = ask_until_answered(core, server, &Request::AskBirths).await;
        if let Reply::Births(early_mkdirs) = reply
            && !shared.bugs.has(Bug::LostBirthForgotten)
        {
            let txns: Vec<TxnId> = early_mkdirs.iter().map(|early_mkdir| early_mkdir.txn).collect();
            core.step(move |txn| here::born(txn, &early_mkdirs)).await;
            txns.into_iter().for_each(|txn| shared.prepared.is_born(txn));
        }
        shared.early_mkdirs.heard(server);
    });
    join_all(heard).await;
}

/// Tells other servers which of their early mkdirs requests here wait for, for as long as the
/// server runs.
pub(in crate::transact) async fn hurry(core: Core) {
    let shared = core.inner.shared.clone();
    loop {
        shared.early_mkdirs.wants.notified().await;
        let mut by_server = BTreeMap::<u16, Vec<TxnId>>::new();
        for txn in std::mem::take(&mut *shared.early_mkdirs.wanted.lock()) {
            by_server.entry(txn.server).or_default().push(txn);
        }
        for (server, txns) in by_server {
            let asked = core.inner.peers.ask(server, &Request::HurryBirths(HurryBirths { txns }));
            let shared = shared.clone();
            tokio::task::spawn_local(async move {
                // Otherwise the request waits until the early mkdir is confirmed.
                if let Ok(Reply::Born(born)) = asked.await {
                    born.into_iter().for_each(|txn| shared.prepared.is_born(txn));
                }
            });
        }
    }
}
