//! Binding a mount to other places, and taking it away there.

use std::{io, path::Path};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount},
};

use crate::table;

/// Options of one place of a mount.
const OPTIONS: [(&str, MountFlags); 4] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
];

/// Whether an option is one of a single place of a mount.
pub(crate) fn is_of_place(option: &str) -> bool {
    OPTIONS.iter().any(|(known, _)| *known == option)
}

/// Binds the mount at `from` to the directory `to`, over what is mounted there.
pub(crate) fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount_bind(from, to)?)
}

/// Gives a place these options besides those that the mount at `from` has.
pub(crate) fn restrict(from: &Path, to: &Path, options: &[String]) -> io::Result<()> {
    let above = table::at(from)?.pop().map(|layer| layer.options).unwrap_or_default();
    let has = |option: &str| above.iter().chain(options).any(|given| given == option);
    let set = OPTIONS.iter().filter(|(option, _)| has(option)).map(|(_, flag)| *flag);
    Ok(mount_remount(to, MountFlags::BIND | set.collect(), "")?)
}

/// Takes away all mounts of ours at a path. Others, and what is below them, stay.
pub(crate) fn take_away(path: &Path) -> io::Result<()> {
    while table::at(path)?.last().is_some_and(|layer| layer.ours) {
        match unmount(path, UnmountFlags::NOFOLLOW) {
            // Programs that are ending may still be there.
            Err(Errno::BUSY) => unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?,
            unmounted => unmounted?,
        }
    }
    Ok(())
}
