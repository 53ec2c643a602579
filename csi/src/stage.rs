//! Mounting a volume once for all its pods on a node, and taking the mount away.

use std::{fs, io, path::Path, sync::Arc};

use tonic::Status;

use crate::{
    Plugin, bind, controller::no_volume, error::Answer, record::StagedVolume, table, token, tree,
    volume::VolumeId,
};

/// Options of every mount: pods have users of their own.
const OPTIONS: &str = "allow_other";

/// The answer for an error of this machine.
pub(crate) fn local(doing: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("cannot {doing} {}: {error}", path.display()))
}

/// Mounts a volume as the record says; fine when it is mounted so.
pub(crate) async fn stage(plugin: &Arc<Plugin>, wanted: StagedVolume) -> Answer<()> {
    let failed = |error: io::Error| local("look for what is at", &wanted.staging, &error);
    let before = plugin.records.find(&wanted.volume, &wanted.staging).map_err(failed)?;
    let record = match &before {
        Some(before) if !before.leaving && before.flags != wanted.flags => {
            return Err(Status::already_exists(format!(
                "{} is mounted with other options",
                wanted.volume
            )));
        }
        Some(before) => {
            let targets = before.targets.clone();
            StagedVolume { leaving: false, targets, ..wanted }
        }
        None if table::at(&wanted.staging).map_err(failed)?.iter().any(|layer| layer.ours) => {
            return Err(Status::failed_precondition(format!(
                "something else is mounted at {}: have it unstaged first",
                wanted.staging.display()
            )));
        }
        None => wanted,
    };
    let failed = |error: io::Error| local("note the mount at", &record.staging, &error);
    plugin.records.write(&record).map_err(failed)?;
    let mounted = ensure(plugin, &record).await;
    if mounted.is_err() && before.is_none() && !is_mounted(&record.staging) {
        plugin.records.remove(&record).map_err(failed)?;
    }
    mounted.map(drop)
}

fn is_mounted(path: &Path) -> bool {
    table::at(path).is_ok_and(|layers| layers.iter().any(|layer| layer.ours))
}

/// Whether a mount is there whose process has ended.
async fn is_dead(plugin: &Arc<Plugin>, path: &Path) -> bool {
    let (plugin, path) = (Arc::clone(plugin), path.to_owned());
    let asked = tokio::task::spawn_blocking(move || plugin.mounter.is_dead(&path));
    asked.await.unwrap_or(false)
}

/// Mounts a volume unless its mount is there and works; whether a mount was made.
pub(crate) async fn ensure(plugin: &Arc<Plugin>, record: &StagedVolume) -> Answer<bool> {
    let path = &record.staging;
    if is_mounted(path) {
        if !is_dead(plugin, path).await {
            return Ok(false);
        }
        tracing::warn!(path = %path.display(), "the process of a mount has ended: mounting again");
        bind::take_away(path).map_err(|error| local("unmount", path, &error))?;
    }
    fs::create_dir_all(path).map_err(|error| local("make", path, &error))?;
    let id = VolumeId::parse(&record.volume).map_err(|_| no_volume(&record.volume))?;
    let token = match &record.secret {
        Some(secret) => secret.clone(),
        None => {
            let fs = plugin.fs().await?;
            tree::find(&fs, &plugin.root, &id).await?.ok_or_else(|| no_volume(&id))?;
            let own = plugin.session.token();
            token::signed(&fs, own, plugin.path(&id), plugin.random.as_ref()).await?
        }
    };
    let options = [&[OPTIONS.to_owned()], &record.flags[..]].concat().join(",");
    let mounted = plugin.mounter.mount(path, &token, &options).await;
    mounted.map_err(|error| Status::unavailable(format!("cannot mount {id}: {error}")))?;
    Ok(true)
}

/// Takes the mount of a volume away; fine when there is none.
pub(crate) async fn unstage(plugin: &Arc<Plugin>, volume: &str, path: &Path) -> Answer<()> {
    let failed = |error: io::Error| local("look for what is at", path, &error);
    let record = plugin.records.find(volume, path).map_err(failed)?;
    if let Some(record) = &record {
        // Otherwise a look at the mounts would make it again.
        let leaving = StagedVolume { leaving: true, ..record.clone() };
        plugin.records.write(&leaving).map_err(failed)?;
    }
    while is_mounted(path) {
        if is_dead(plugin, path).await {
            bind::take_away(path).map_err(|error| local("unmount", path, &error))?;
        } else {
            plugin.mounter.unmount(path).await.map_err(Status::unavailable)?;
        }
    }
    match record {
        Some(record) => plugin.records.remove(&record).map_err(failed),
        None => Ok(()),
    }
}
