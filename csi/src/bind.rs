//! Binding a mount to other places, and taking it away there.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use rustix::{
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_remount,
        unmount,
    },
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

/// Binds the mount at `from` to the directory `to`, over what is mounted there, with these options
/// besides its own.
///
/// Other mount namespaces hear of a mount, but not of options that it gets later. So the mount gets
/// them at a private place, and is bound from there. It leaves the group of its peers first: what is
/// mounted over one of these, as where a dead mount is made again, would appear over all of them,
/// without the options.
pub(crate) fn bind(from: &Path, to: &Path, options: &[String], private: &Path) -> io::Result<()> {
    if options.is_empty() {
        return Ok(mount_bind(from, to)?);
    }
    // A call that was killed may have left a mount there.
    take_away(private)?;
    DirBuilder::new().recursive(true).mode(0o700).create(private)?;
    mount_bind(from, private)?;
    let bound = mount_change(private, MountPropagationFlags::PRIVATE)
        .map_err(io::Error::from)
        .and_then(|()| restrict(from, private, options))
        .and_then(|()| Ok(mount_bind(private, to)?));
    take_away(private)?;
    fs::remove_dir(private)?;
    bound
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
