//! Mounting again what has died. Looks at the start of the plugin and every few seconds.
//!
//! A mount dies when its process is killed. Pods that have it see ENOTCONN from then on; a pod
//! whose mounts propagate from the node sees the new mount at the same path.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{Plugin, error::Answer, publish, record::StagedVolume, stage, table};

/// Pause between two looks. A look asks no server.
const LOOK_PERIOD: Duration = Duration::from_secs(3);

/// Looks at the mounts of this node again and again.
pub(crate) async fn keep_looking(plugin: Arc<Plugin>) {
    let mut looks = interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: BTreeMap<PathBuf, String> = BTreeMap::new();
    loop {
        looks.tick().await;
        let records = match plugin.records.all() {
            Ok(records) => records,
            Err(error) => {
                tracing::error!(%error, "cannot read the records of mounts");
                continue;
            }
        };
        for record in records {
            // A call that is about the volume sees to it.
            let Some(_turn) = plugin.turns.look(&record.volume) else { continue };
            // The record may have changed before the turn.
            let now = plugin.records.find(&record.volume, &record.staging);
            let Some(record) = now.ok().flatten().filter(|record| !record.leaving) else {
                continue;
            };
            match Box::pin(mend(&plugin, &record)).await {
                Ok(()) => drop(told.remove(&record.staging)),
                Err(status) => {
                    let text = status.message().to_owned();
                    if told.get(&record.staging) != Some(&text) {
                        let volume = &record.volume;
                        tracing::error!(volume, error = text, "a mount cannot be made again");
                        told.insert(record.staging, text);
                    }
                }
            }
        }
    }
}

/// Mounts a volume where its mount has died, and binds it to its places again. A mount that
/// another has taken away is not made again.
async fn mend(plugin: &Arc<Plugin>, record: &StagedVolume) -> Answer<()> {
    let made = stage::revive(plugin, record).await?;
    if table::device(&record.staging).is_none() {
        return Ok(());
    }
    for (target, place) in &record.targets {
        let was_taken = table::device(target).is_none();
        if place.leaving || was_taken || publish::is_placed(record, target) {
            continue;
        }
        if !made {
            tracing::warn!(target = %target.display(), "a volume is bound to its place again");
        }
        let placed = publish::place(plugin, record, target);
        placed.map_err(|error| stage::local("bind the volume again to", target, &error))?;
    }
    Ok(())
}
