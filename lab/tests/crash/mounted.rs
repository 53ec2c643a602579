//! Load from programs on a mount, which is a process of its own: plain system calls, none of which
//! fails.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use lab::process::{Server, pando, text};

/// Number of looks for a new mount, with a pause after each: a minute.
const TRIES_MAX: u32 = 6000;

#[expect(clippy::disallowed_methods, reason = "the kernel announces no mount")]
fn wait_a_little() {
    std::thread::sleep(Duration::from_millis(10));
}

/// A mounted file system.
pub(crate) struct Mount {
    path: PathBuf,
    process: Child,
    mounted: bool,
}

impl Mount {
    pub(crate) fn new(server: &Server) -> Mount {
        let path = server.beside("mnt");
        fs::create_dir(&path).expect("the folder is ours");
        let mut command = pando();
        command.args(["mount", server.address(), text(&path), "--foreground"]);
        let process = command.arg("--token").arg(server.token_file()).spawn();
        let mut mount = Mount { path, process: process.expect("it can be started"), mounted: true };
        let table = || fs::read_to_string("/proc/self/mountinfo").expect("there is a mount table");
        for _ in 0..TRIES_MAX {
            if table().contains(text(&mount.path)) {
                return mount;
            }
            let ended = mount.process.try_wait().expect("it is ours");
            assert!(ended.is_none(), "the mount ended itself: {ended:?}");
            wait_a_little();
        }
        unreachable!("a mount is there after a minute");
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn unmount(mut self) {
        let unmounted = pando().arg("umount").arg(&self.path).status().expect("it can be started");
        assert!(unmounted.success());
        self.mounted = false;
        assert!(self.process.wait().expect("it is ours").success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // A test has failed already.
            let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// A program that works on the mount until it is told to end.
pub(crate) struct Load(Child);

impl Load {
    /// Starts the load in a process of its own. A process that starts servers may have no file of
    /// the mount open: starting a process closes all files in it, which would wait for the server
    /// that is to be started.
    pub(crate) fn start(mount: &Path) -> Load {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.arg("load").arg(mount.join("work")).stdin(Stdio::piped()).stdout(Stdio::piped());
        Load(command.spawn().expect("it can be started"))
    }

    /// Ends the load; returns the number of its operations.
    pub(crate) fn end(mut self) -> u64 {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().expect("it is ours");
        let said = String::from_utf8(output.stdout).expect("it prints text");
        assert!(output.status.success(), "a system call failed, or contents were others: {said}");
        let count = said.split_whitespace().next().and_then(|count| count.parse().ok());
        count.expect("it says how many operations")
    }
}
