//! The list of everything that a server does beside its requests.

use tokio::join;

use crate::{
    Core, block_store, compact, coordinator, fsck, handoff, quota, reclaim, room, serve, sync,
    transact, trash,
};

impl Core {
    /// Runs the server's background work: syncs, leases, reclaim, compaction. One core runs it.
    pub async fn background(&self) {
        let shared = &self.inner.shared;
        join!(
            quota::count::run(self.clone()),
            sync::run(shared.clone()),
            serve::watch_leases(self.clone()),
            reclaim::run(self.clone()),
            compact::run(self.clone()),
            block_store::watch(shared),
            fsck::run_repairs(self.clone()),
            fsck::run_asked(self.clone()),
            trash::run(self.clone()),
            room::run(shared.clone()),
            transact::recover::run(self.clone()),
            handoff::finish::run(self.clone()),
            coordinator::run::run(self.clone()),
        );
    }
}
