//! Mounting a volume once for all its pods on a node, and taking the mount away.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tonic::Status;

use crate::{
    Plugin, bind, controller::no_volume, error::Answer, record::StagedVolume, table, token, tree,
    volume::VolumeId,
};

/// Options of every mount: pods have users of their own.
const OPTIONS: &str = "allow_other";
/// Option of mounts for readers alone, after all others.
const READ_ONLY: &str = "ro";

/// The answer for an error of this machine.
pub(crate) fn local(doing: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("cannot {doing} {}: {error}", path.display()))
}

/// Mounts a volume as the record says; fine when it is mounted so.
pub(crate) async fn stage(plugin: &Arc<Plugin>, wanted: StagedVolume) -> Answer<()> {
    let failed = |error: io::Error| local("look for what is at", &wanted.staging, &error);
    let before = plugin.records.find(&wanted.volume, &wanted.staging).map_err(failed)?;
    let mounted = table::has_ours(&wanted.staging).map_err(failed)?;
    let differs = |before: &StagedVolume| {
        (&before.flags, before.read_only) != (&wanted.flags, wanted.read_only)
    };
    let record = match &before {
        Some(before) if (mounted || !before.leaving) && differs(before) => {
            return Err(Status::already_exists(format!(
                "{} is mounted with other options",
                wanted.volume
            )));
        }
        Some(before) => {
            let processes = left(plugin, before)?;
            let now = if processes.is_empty() { None } else { note(plugin, &wanted.staging)? };
            if processes.iter().any(|process| Some(process) != now.as_ref()) {
                return Err(unsent(&wanted.volume));
            }
            let (targets, remount) = (before.targets.clone(), before.remount);
            StagedVolume { leaving: false, targets, processes, remount, ..wanted }
        }
        None if mounted => {
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
    let is_there = || table::has_ours(&record.staging).map_err(failed);
    if mounted.is_err() && before.is_none() && !is_there()? {
        plugin.records.remove(&record).map_err(failed)?;
    }
    mounted.map(drop)
}

/// The processes of mounts that were taken away, as far as they have not ended.
fn left(plugin: &Plugin, record: &StagedVolume) -> Answer<BTreeSet<PathBuf>> {
    let mut left = BTreeSet::new();
    for process in &record.processes {
        if !plugin.mounter.has_ended(process).map_err(Status::unavailable)? {
            left.insert(process.clone());
        }
    }
    Ok(left)
}

fn note(plugin: &Plugin, path: &Path) -> Answer<Option<PathBuf>> {
    plugin.mounter.note(path).map_err(Status::unavailable)
}

fn unsent(volume: &str) -> Status {
    Status::unavailable(format!(
        "the process of the mount of {volume} has not ended: it has writes to send, or the mount \
         is in use elsewhere"
    ))
}

/// Whether a mount is there whose process has ended.
async fn is_dead(plugin: &Arc<Plugin>, path: &Path) -> bool {
    let (plugin, path) = (Arc::clone(plugin), path.to_owned());
    let asked = tokio::task::spawn_blocking(move || plugin.mounter.is_dead(&path));
    asked.await.unwrap_or(false)
}

/// Mounts a volume again whose mount has died; whether a mount was made. A mount that another has
/// taken away is not made again.
pub(crate) async fn revive(plugin: &Arc<Plugin>, record: &StagedVolume) -> Answer<bool> {
    let failed = |error: io::Error| local("look for what is at", &record.staging, &error);
    if record.remount || table::has_ours(&record.staging).map_err(failed)? {
        return ensure(plugin, record).await;
    }
    Ok(false)
}

/// Mounts a volume unless its mount is there and works; whether a mount was made.
async fn ensure(plugin: &Arc<Plugin>, record: &StagedVolume) -> Answer<bool> {
    let path = &record.staging;
    let again = |remount: bool| {
        let record = StagedVolume { remount, ..record.clone() };
        plugin.records.write(&record).map_err(|error| local("note the mount at", path, &error))
    };
    let mut noted = record.remount;
    let looked = table::has_ours(path);
    if looked.map_err(|error| local("look for what is at", path, &error))? {
        if !is_dead(plugin, path).await {
            if noted {
                again(false)?;
            }
            return Ok(false);
        }
        tracing::warn!(path = %path.display(), "the process of a mount has ended: mounting again");
        // Without the note the next look would find no mount, and make none.
        again(true)?;
        noted = true;
        bind::take_away(path).map_err(|error| local("unmount", path, &error))?;
    }
    fs::create_dir_all(path).map_err(|error| local("make", path, &error))?;
    let id = VolumeId::parse(&record.volume).map_err(|_| no_volume(&record.volume))?;
    let token = match &record.secret {
        Some(secret) => secret.clone(),
        None => {
            let fs = plugin.fs().await?;
            tree::find(&fs, &plugin.root, &id).await?.ok_or_else(|| no_volume(&id))?;
            let (own, rights) = (plugin.session.token(), (plugin.path(&id), record.read_only));
            token::signed(&fs, own, rights, plugin.random.as_ref()).await?
        }
    };
    let read_only = record.read_only.then(|| READ_ONLY.to_owned());
    let options = [&[OPTIONS.to_owned()], &record.flags[..], read_only.as_slice()].concat();
    let mounted = plugin.mounter.mount(path, &token, &options.join(",")).await;
    mounted.map_err(|error| Status::unavailable(format!("cannot mount {id}: {error}")))?;
    if noted {
        again(false)?;
    }
    Ok(true)
}

/// Takes the mount of a volume away; fine when there is none. The record stays until the process of
/// the mount has ended: until then there may be writes that were not sent.
pub(crate) async fn unstage(plugin: &Arc<Plugin>, volume: &str, path: &Path) -> Answer<()> {
    let failed = |error: io::Error| local("look for what is at", path, &error);
    let Some(record) = plugin.records.find(volume, path).map_err(failed)? else {
        if table::has_ours(path).map_err(failed)? {
            tracing::warn!(volume, path = %path.display(), "a mount has no record: left alone");
        }
        return Ok(());
    };
    // Otherwise a look at the mounts would make it again.
    let mut record = StagedVolume { leaving: true, ..record };
    plugin.records.write(&record).map_err(failed)?;
    while table::has_ours(path).map_err(failed)? {
        // The process can be found while the mount is there, and no longer.
        if let Some(process) = note(plugin, path)? {
            record.processes.insert(process);
            plugin.records.write(&record).map_err(failed)?;
        }
        if is_dead(plugin, path).await {
            bind::take_away(path).map_err(|error| local("unmount", path, &error))?;
        } else {
            plugin.mounter.unmount(path).await.map_err(Status::unavailable)?;
        }
    }
    if !left(plugin, &record)?.is_empty() {
        return Err(unsent(volume));
    }
    plugin.records.remove(&record).map_err(failed)
}
