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
    let record = record.filter(|record| !record.leaving && table::device(staging).is_some());
    let Some(mut record) = record else {
        return Err(Status::failed_precondition(format!(
            "{volume} is not staged at {}",
            staging.display()
        )));
    };
    match record.targets.get(target) {
        Some(before) if before == wanted => {}
        Some(before) if !before.leaving => {
            return Err(Status::already_exists(format!(
                "{volume} is published at {} with other options",
                target.display()
            )));
        }
        before => {
            let leaving = before.is_some();
            let mut others = record.targets.iter().filter(|(other, _)| *other != target);
            if others.any(|(_, other)| wanted.alone || other.alone) {
                return Err(Status::failed_precondition(format!(
                    "{volume} is published elsewhere on this node, and is for one place"
                )));
            }
            if leaving {
                // A mount that a call has begun to take away may have other options.
                bind::take_away(target).map_err(failed)?;
            }
            record.targets.insert(target.to_owned(), wanted.clone());
            plugin.records.write(&record).map_err(failed)?;
        }
    }
    // A mount that has died there answers nothing, but can be mounted over.
    if table::at(target).map_err(failed)?.is_empty() {
        fs::create_dir_all(target).map_err(failed)?;
    }
    place(plugin, &record, target).map_err(failed)
}

/// Has the mount of a volume at a place with the options that are recorded. A mount that has died
/// there stays below: so a mount namespace that hears of mounts from here sees the new one.
pub(crate) fn place(plugin: &Plugin, record: &StagedVolume, target: &Path) -> io::Result<()> {
    let Some(wanted) = record.targets.get(target) else { return Ok(()) };
    let Some(device) = table::device(&record.staging) else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the volume is not mounted"));
    };
    if table::device(target).as_ref() != Some(&device) {
        let private = plugin.records.private(target);
        return bind::bind(&record.staging, target, &wanted.options, &private);
    }
    if is_placed(record, target) {
        return Ok(());
    }
    bind::restrict(&record.staging, target, &wanted.options)
}

/// Whether a place has the mount of its volume, with the options that are recorded.
pub(crate) fn is_placed(record: &StagedVolume, target: &Path) -> bool {
    let Some(wanted) = record.targets.get(target) else { return false };
    let top = table::at(target).ok().and_then(|mut layers| layers.pop());
    top.is_some_and(|top| {
        top.ours
            && Some(top.device) == table::device(&record.staging)
            && wanted.options.iter().all(|option| top.options.contains(option))
    })
}

/// Takes a volume away from a place, and the place with it; fine when it is gone. The record has
/// the place until then. A mount without a record is another's.
pub(crate) fn unpublish(plugin: &Plugin, volume: &str, target: &Path) -> Answer<()> {
    let failed = |error: io::Error| local("take the volume away from", target, &error);
    let mut records = plugin.records.all().map_err(failed)?;
    records.retain(|record| record.volume == volume && record.targets.contains_key(target));
    if records.is_empty() {
        if table::has_ours(target).map_err(failed)? {
            let target = target.display();
            tracing::warn!(volume, %target, "a mount has no record: left alone");
        }
        return Ok(());
    }
    for record in &mut records {
        // Otherwise a look at the mounts would bind it again.
        if let Some(place) = record.targets.get_mut(target) {
            place.leaving = true;
        }
        plugin.records.write(record).map_err(failed)?;
    }
    bind::take_away(target).map_err(failed)?;
    match fs::remove_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    for record in &mut records {
        record.targets.remove(target);
        plugin.records.write(record).map_err(failed)?;
    }
    Ok(())
}
