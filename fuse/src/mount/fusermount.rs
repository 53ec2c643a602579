//! The setuid helper `fusermount3`, for everyone but root.
//!
//! It finds the number of a socket in `_FUSE_COMMFD` and sends the mounted `/dev/fuse` descriptor
//! over it. We give it the socket as its standard input, so no other child can inherit it.

use std::{
    io::{IoSliceMut, Read},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::OFlags,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType,
    },
};

use super::{MountError, MountOptions, Unmount};

const HELPER: &str = "fusermount3";

pub(super) fn mount(options: &MountOptions, path: &Path) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| MountError::NoHelper(errno.into()))?;

    let mut command = Command::new(HELPER);
    command.arg("-o").arg(option_list(options)).arg("--").arg(path);
    command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(MountError::NoHelper)?;
    // The command still holds its end of the socket; without it the end of the helper would not
    // be the end of the stream.
    drop(command);

    let fd = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut said).map_err(MountError::NoHelper)?;
    }
    let status = child.wait().map_err(MountError::NoHelper)?;
    match fd {
        Some(fd) if status.success() => {
            nonblocking(&fd).map_err(|errno| MountError::OpenDevice(errno.into()))?;
            Ok(fd)
        }
        _ => Err(MountError::Helper(said.trim().to_owned())),
    }
}

pub(super) fn unmount(path: &Path, when: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    match when {
        Unmount::WhenIdle => {}
        Unmount::Lazy | Unmount::Force => {
            command.arg("-z");
        }
    }
    let output = command.arg("--").arg(path).output().map_err(MountError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    Err(MountError::Helper(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

fn nonblocking(fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

fn option_list(options: &MountOptions) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={}", escaped(&options.fsname));
    if !options.subtype.is_empty() {
        list.push_str(&format!(",subtype={}", escaped(&options.subtype)));
    }
    let switches = [
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (options.default_permissions, ",default_permissions"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
        (options.synchronous, ",sync"),
        (options.dirsync, ",dirsync"),
        (options.noatime, ",noatime"),
        (options.strictatime, ",strictatime"),
    ];
    list.extend(switches.iter().filter(|(on, _)| *on).map(|(_, name)| *name));
    if let Some(bytes) = options.max_read {
        list.push_str(&format!(",max_read={bytes}"));
    }
    for label in &options.security {
        list.push(',');
        list.push_str(&escaped(label));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_the_name_does_not_end_the_option() {
        let options = MountOptions {
            fsname: "pando#a,b".into(),
            subtype: "pando".into(),
            allow_other: true,
            max_read: Some(4096),
            ..MountOptions::default()
        };
        assert_eq!(
            option_list(&options),
            "fsname=pando#a\\,b,subtype=pando,allow_other,max_read=4096"
        );
    }

    #[test]
    fn the_helper_mounts_passes_the_descriptor_on_and_unmounts() {
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions { fsname: "a,b".into(), ..MountOptions::default() };
        let fd = mount(&options, dir.path()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&fd).unwrap().contains(OFlags::NONBLOCK));
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let line = format!("a,b {} fuse ", dir.path().display());
        assert!(mounts().contains(&line));
        unmount(dir.path(), Unmount::Lazy).unwrap();
        assert!(!mounts().contains(&line));
        let refused = unmount(dir.path(), Unmount::WhenIdle);
        assert!(matches!(refused, Err(MountError::Helper(said)) if !said.is_empty()));
    }
}
