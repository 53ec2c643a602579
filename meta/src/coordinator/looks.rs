//! Looks at the load of shards, which the process of the coordinator takes as a client: it asks the
//! coordinator's status what to do ([`super::status`]), and tells here what it has found.

use tokio::time::Instant;
use wire::{BalanceLook, BalanceMode};

use super::here;
use crate::{error::Result, server::Shared};

/// Notes what the coordinator is to do. It is on stable storage when this returns.
pub(crate) fn set(shared: &Shared, mode: BalanceMode) -> Result<()> {
    let (_, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    state.balance.says(mode);
    tracing::info!(?mode, "balancing by load");
    state.store_for(shared)
}

/// Notes what a look has found.
pub(crate) fn saw(shared: &Shared, look: BalanceLook) -> Result<()> {
    let (_, coordinator) = here(shared)?;
    coordinator.state.lock().balance.saw(look, Instant::now());
    Ok(())
}

/// The last look; `None`: there was none for long, or this server is not the coordinator.
pub(crate) fn last(shared: &Shared) -> Option<BalanceLook> {
    let coordinator = shared.cluster.as_ref()?.coordinator.as_ref()?;
    coordinator.state.lock().balance.look(Instant::now()).cloned()
}
