//! Capabilities: the uses that a volume allows.

use tonic::Status;

use crate::{
    error::{Answer, missing},
    mounter::Mounter,
    proto::csi::{
        VolumeCapability,
        volume_capability::{AccessType, MountVolume, access_mode::Mode},
    },
};

/// Types of a file system that a claim may name.
const TYPES: [&str; 3] = ["", "pando", "fuse.pando"];

/// A capability that was checked.
#[derive(Debug, Clone)]
pub(crate) struct Usable {
    pub(crate) mode: Mode,
    /// Options of the mount, as given.
    pub(crate) flags: Vec<String>,
}

/// Checks one capability.
pub(crate) fn check(
    mounter: &dyn Mounter,
    capability: Option<&VolumeCapability>,
) -> Answer<Usable> {
    let capability = capability.ok_or_else(|| missing("the capability of the volume"))?;
    let MountVolume { fs_type, mount_flags, volume_mount_group } = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount.clone(),
        Some(AccessType::Block(_)) => {
            return Err(Status::invalid_argument("a volume is a directory, and no block device"));
        }
        None => return Err(missing("the access type of the volume")),
    };
    if !TYPES.contains(&fs_type.as_str()) {
        return Err(Status::invalid_argument(format!(
            "the file system type {fs_type:?} is not pando: leave it out"
        )));
    }
    if !volume_mount_group.is_empty() {
        return Err(Status::invalid_argument("the plugin mounts for no group"));
    }
    let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |access| access.mode());
    if mode == Mode::Unknown {
        return Err(Status::invalid_argument("the access mode is missing or unknown"));
    }
    mounter.check(&mount_flags.join(",")).map_err(Status::invalid_argument)?;
    Ok(Usable { mode, flags: mount_flags })
}

/// Checks all capabilities, of which there must be one.
pub(crate) fn check_all(mounter: &dyn Mounter, all: &[VolumeCapability]) -> Answer<()> {
    if all.is_empty() {
        return Err(missing("the capabilities of the volume"));
    }
    all.iter().try_for_each(|capability| check(mounter, Some(capability)).map(drop))
}
