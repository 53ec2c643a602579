//! mount(2), for root.

use std::{ffi::CString, os::fd::AsRawFd, os::fd::OwnedFd, path::Path};

use rustix::{fs::FileType, io::Errno, mount::MountFlags};

use super::{MountError, MountOptions, kernel};
use crate::sys;

pub(super) fn mount(options: &MountOptions, path: &Path) -> Result<OwnedFd, MountError> {
    let fd = sys::open_device().map_err(|errno| MountError::OpenDevice(errno.into()))?;
    let stat = rustix::fs::stat(path).map_err(|errno| kernel(path, errno))?;
    let root_mode = FileType::from_raw_mode(stat.st_mode).as_raw_mode();
    let data = CString::new(data(options, fd.as_raw_fd(), root_mode))
        .map_err(|_| kernel(path, Errno::INVAL))?;
    let kind = match options.subtype.as_str() {
        "" => String::from("fuse"),
        subtype => format!("fuse.{subtype}"),
    };
    rustix::mount::mount(options.fsname.as_str(), path, kind, flags(options), data.as_c_str())
        .map_err(|errno| kernel(path, errno))?;
    Ok(fd)
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::STRICTATIME, options.strictatime);
    flags
}

fn data(options: &MountOptions, fd: i32, root_mode: u32) -> String {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let mut data = format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}");
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(bytes) = options.max_read {
        data.push_str(&format!(",max_read={bytes}"));
    }
    for label in &options.security {
        data.push(',');
        data.push_str(label);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_security_module_are_handed_on() {
        let label = "context=\"a:b:c:s0:c1,c2\"".to_owned();
        let options = MountOptions { security: vec![label.clone()], ..MountOptions::default() };
        assert!(data(&options, 3, 0o40000).ends_with(&format!(",{label}")));
    }
}
