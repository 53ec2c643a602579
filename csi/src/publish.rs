//! Binding the mount of a volume to the place that a pod sees, and taking it away there.

use std::{fs, io, path::Path};

use tonic::Status;

use crate::{
    Plugin, bind,
    error::Answer,
    record::{BoundPlace, StagedVolume},
    stage::local,
    table,
};

/// Binds a volume to a place; fine when it is bound so.
pub(crate) fn publish(
    plugin: &Plugin,
    (volume, staging): (&str, &Path),
    target: &Path,
    wanted: &BoundPlace,
) -> Answer<()> {
    let failed = |error: io::Error| local("bind the volume to", target, &error);
    let record = plugin.records.find(volume, staging).map_err(failed)?;
    let record = record.filter(|record| !record.leaving && device(staging).is_some());
    let Some(mut record) = record else {
        return Err(Status::failed_precondition(format!(
            "{volume} is not staged at {}",
            staging.display()
        )));
    };
    match record.targets.get(target) {
        Some(before) if before != wanted => {
            return Err(Status::already_exists(format!(
                "{volume} is published at {} with other options",
                target.display()
            )));
        }
        Some(_) => {}
        None => {
            let mut others = record.targets.values();
            if others.any(|other| wanted.alone || other.alone) {
                return Err(Status::failed_precondition(format!(
                    "{volume} is published elsewhere on this node, and is for one place"
                )));
            }
            record.targets.insert(target.to_owned(), wanted.clone());
            plugin.records.write(&record).map_err(failed)?;
        }
    }
    // A mount that has died there answers nothing, but can be mounted over.
    if table::at(target).map_err(failed)?.is_empty() {
        fs::create_dir_all(target).map_err(failed)?;
    }
    place(&record, target).map_err(failed)
}

/// The device of the mount on top at a path, if that is ours.
fn device(path: &Path) -> Option<String> {
    let top = table::at(path).ok()?.pop()?;
    top.ours.then_some(top.device)
}

/// Has the mount of a volume at a place with the options that are recorded. A mount that has died
/// there stays below: so a mount namespace that hears of mounts from here sees the new one.
pub(crate) fn place(record: &StagedVolume, target: &Path) -> io::Result<()> {
    let Some(wanted) = record.targets.get(target) else { return Ok(()) };
    if device(target) != device(&record.staging) {
        bind::bind(&record.staging, target)?;
    }
    bind::restrict(&record.staging, target, &wanted.options)
}

/// Whether a place has the mount of its volume.
pub(crate) fn is_placed(record: &StagedVolume, target: &Path) -> bool {
    device(target) == device(&record.staging)
}

/// Takes a volume away from a place, and the place with it; fine when it is gone.
pub(crate) fn unpublish(plugin: &Plugin, volume: &str, target: &Path) -> Answer<()> {
    let failed = |error: io::Error| local("take the volume away from", target, &error);
    let records = plugin.records.all().map_err(failed)?;
    for mut record in records.into_iter().filter(|record| record.volume == volume) {
        if record.targets.remove(target).is_some() {
            plugin.records.write(&record).map_err(failed)?;
        }
    }
    bind::take_away(target).map_err(failed)?;
    match fs::remove_dir(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed),
    }
}
