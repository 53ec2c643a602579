//! `pando mount`, `umount` and `up`, with the kernel. Without /dev/fuse these fail.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use tokio::time::Instant;

use crate::harness::{
    Data, Running, fail, folder, pando, pause, run, stderr, succeed, text, unmount,
};

/// A directory to mount on. Whatever a failed test leaves mounted is taken away.
pub(crate) struct Mountpoint(pub(crate) PathBuf);

impl Mountpoint {
    pub(crate) fn new(folder: &Path) -> Mountpoint {
        let path = folder.join("a mount");
        fs::create_dir_all(&path).expect("the folder is ours");
        Mountpoint(path)
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("there is a mount table");
        table.contains(&text(&self.0).replace(' ', "\\040"))
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.is_mounted() {
            // A test has failed already.
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
}

pub(crate) fn up(data: &Path, mount: &Mountpoint) -> Running {
    let args = ["up", "--listen", "127.0.0.1:0", "--http", "off", "--data"];
    let mut command = pando(&args);
    command.arg(data).arg("--mount").arg(&mount.0);
    Running::start(command, "mounted at ")
}

/// A cluster on this machine, mounted; and where its servers are.
pub(crate) fn dev(dir: &Path, servers: &str, mount: &Mountpoint) -> (Running, String) {
    let args = ["dev", "--dir", text(dir), "--servers", servers, "--listen", "127.0.0.1:0"];
    let running =
        Running::start(pando(&[&args[..], &["--mount", text(&mount.0)]].concat()), "serving ");
    let ready = running.said.lines().last().expect("it is ready");
    let addresses = ready.split_whitespace().nth(4).expect("it says where").to_owned();
    (running, addresses)
}

#[test]
fn up_formats_serves_mounts_and_leaves_nothing_mounted() {
    let folder = folder();
    let (data, mount) = (folder.path().join("data"), Mountpoint::new(folder.path()));
    fs::remove_dir(&mount.0).unwrap();
    let mut running = up(&data, &mount);
    fs::write(mount.0.join("file"), "kept").unwrap();
    running.signal(Signal::INT);
    assert_eq!(running.wait().code(), Some(0));
    assert!(!mount.is_mounted());
    let again = up(&data, &mount);
    assert!(!again.said.contains("formatted"), "{}", again.said);
    assert_eq!(fs::read(mount.0.join("file")).unwrap(), b"kept");
    let info = succeed(&["info", "--json", text(&mount.0.join("file"))]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["kind"], "file");
    assert_eq!(again.stop(), Some(0));
    assert!(!mount.is_mounted());
}

#[test]
fn up_ends_when_it_is_unmounted() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let mut running = up(&folder.path().join("data"), &mount);
    succeed(&["umount", text(&mount.0)]);
    // `umount` has waited for the process, so the data directory is free.
    let again = up(&folder.path().join("data"), &mount);
    assert_eq!(running.wait().code(), Some(0));
    assert_eq!(again.stop(), Some(0));
}

#[test]
fn up_clears_what_a_crash_left_mounted() {
    let folder = folder();
    let (data, mount) = (folder.path().join("data"), Mountpoint::new(folder.path()));
    let mut running = up(&data, &mount);
    fs::write(mount.0.join("file"), "kept").unwrap();
    running.signal(Signal::KILL);
    running.wait();
    assert!(mount.is_mounted());
    let again = up(&data, &mount);
    assert_eq!(fs::read(mount.0.join("file")).unwrap(), b"kept");
    assert_eq!(again.stop(), Some(0));
    assert!(!mount.is_mounted());
}

#[test]
fn up_ends_although_its_mount_is_in_use() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let running = up(&folder.path().join("data"), &mount);
    let file = fs::File::create(mount.0.join("file")).unwrap();
    assert_eq!(running.stop(), Some(0));
    assert!(!mount.is_mounted());
    drop(file);
}

#[test]
fn a_mount_is_left_behind_and_unmounting_waits_for_it() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mount = Mountpoint::new(data.folder.path());
    let (token, log) = (data.admin_token(), data.folder.path().join("log"));
    let args = ["mount", server.address(), text(&mount.0), "--token", text(&token)];
    let said = succeed(&[&args[..], &["--log", text(&log)]].concat());
    assert!(said.starts_with("mounted at "), "{said}");
    let said = fail(1, &args);
    assert!(said.contains("something is mounted here already"), "{said}");
    let contents = vec![7; 3 << 20];
    fs::write(mount.0.join("big"), &contents).unwrap();
    let open = fs::File::open(mount.0.join("big")).unwrap();
    let said = fail(1, &["umount", text(&mount.0)]);
    assert!(said.contains("the mount is in use"), "{said}");
    drop(open);
    succeed(&["umount", text(&mount.0)]);
    assert!(!mount.is_mounted());
    succeed(&[&args[..], &["-o", "ro,attr_timeout=0"]].concat());
    assert_eq!(fs::read(mount.0.join("big")).unwrap(), contents);
    let refused = fs::write(mount.0.join("other"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    succeed(&["umount", text(&mount.0)]);
    assert_eq!(server.stop(), Some(0));
    assert!(log.exists());
}

#[test]
fn a_part_of_the_tree_can_be_mounted() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mount = Mountpoint::new(data.folder.path());
    let token = data.admin_token();
    let args = ["mount", server.address(), text(&mount.0), "--token", text(&token)];
    succeed(&args);
    fs::create_dir(mount.0.join("a")).unwrap();
    fs::write(mount.0.join("a/file"), "inside").unwrap();
    succeed(&["umount", text(&mount.0)]);
    succeed(&[&args[..], &["-o", "subdir=/a"]].concat());
    assert_eq!(fs::read(mount.0.join("file")).unwrap(), b"inside");
    succeed(&["umount", text(&mount.0)]);
    let said = fail(1, &[&args[..], &["-o", "subdir=/none"]].concat());
    assert!(said.contains("no such file or directory"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_mount_in_the_foreground_ends_with_a_signal() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mount = Mountpoint::new(data.folder.path());
    let token = data.admin_token();
    let args = ["mount", "--foreground", server.address(), text(&mount.0), "--token", text(&token)];
    let mut mounted = Running::start(pando(&args), "mounted at ");
    fs::write(mount.0.join("file"), "kept").unwrap();
    mounted.signal(Signal::INT);
    assert_eq!(mounted.wait().code(), Some(0));
    assert!(!mount.is_mounted());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_mount_that_fails_says_why() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let none = data.folder.path().join("none");
    let token = data.admin_token();
    let output = run(&["mount", server.address(), text(&none), "--token", text(&token)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot use the mount point"), "{}", stderr(&output));
    assert_eq!(server.stop(), Some(0));
}

/// A mount whose server was killed, with a file in it.
fn without_server(folder: &Path) -> Mountpoint {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mount = Mountpoint::new(folder);
    let token = data.admin_token();
    succeed(&["mount", server.address(), text(&mount.0), "--token", text(&token)]);
    fs::write(mount.0.join("file"), "sent").unwrap();
    fs::File::open(mount.0.join("file")).unwrap().sync_all().unwrap();
    server.signal(Signal::KILL);
    drop(server);
    mount
}

#[test]
fn umount_does_not_wait_for_a_server_that_is_away() {
    let folder = folder();
    let mount = without_server(folder.path());
    let began = Instant::now();
    unmount(&mount.0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(!mount.is_mounted());
}

#[test]
fn a_mount_is_taken_from_those_that_wait_for_its_server() {
    let folder = folder();
    let mount = without_server(folder.path());
    let mut waits = Command::new("cat");
    waits.arg(mount.0.join("other")).stderr(Stdio::piped());
    let waits = waits.stdin(Stdio::null()).spawn().unwrap();
    let pid = waits.id();
    // The process waits in the kernel for the mount to answer.
    let is_waiting = || {
        let stack = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        stack.contains("fuse") || stack.contains("request_wait")
    };
    while !is_waiting() {
        pause(Duration::from_millis(10));
    }
    // A new mount there does not take it for one that a crash has left.
    let began = Instant::now();
    let said = fail(1, &["umount", text(&mount.0)]);
    assert!(said.contains("is in use") && said.contains("--force"), "{said}");
    assert!(mount.is_mounted());
    succeed(&["umount", "--force", text(&mount.0)]);
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert!(!mount.is_mounted());
    let output = waits.wait_with_output().unwrap();
    assert!(!output.status.success());
    // The mount's process has ended, too: nothing is found to unmount, and nothing waits.
    let said = fail(1, &["umount", "--force", text(&mount.0)]);
    assert!(said.contains("no file system of pando is mounted"), "{said}");
}
