//! The list of everything that a server does beside its requests.

use futures::future::{join, join3};

use crate::{
    Core, compact, coordinator, delegations, feed, fsck, handoff, moves, quota, reclaim, serve,
    server::InoCounters, sync, transact, trash,
};

impl Core {
    /// Runs the server's background work: syncs, leases, reclaim, compaction. One core runs it.
    pub async fn background(&self) {
        let shared = &self.inner.shared;
        tokio::join!(
            quota::count::run(self.clone()),
            join(sync::run::run(shared.clone()), InoCounters::run(shared.clone())),
            serve::watch_leases(self.clone()),
            reclaim::run(self.clone()),
            compact::run(self.clone()),
            shared.block_store.watch(&shared.blocks, shared.random.as_ref()),
            fsck::run::repair(self.clone()),
            fsck::run::ask(self.clone()),
            trash::run(self.clone()),
            shared.space_guard.watch(shared.engine.as_ref()),
            transact::recover::run(self.clone()),
            handoff::finish::run(self.clone()),
            coordinator::run::run(self.clone()),
            join3(
                feed::run::run(self.clone()),
                delegations::run::run(self.clone()),
                moves::sweep(shared),
            ),
        );
    }
}
