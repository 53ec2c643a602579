//! Running the program: to its end, or as a server for the length of a test.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

/// A folder for one test; it goes with the test.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pando-cli.").tempdir().expect("there is room in /tmp")
}

/// The program with these arguments, and nothing of our environment that it would look at.
pub(crate) fn pando(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(args).env_remove("PANDO_LOG").env_remove("PANDO_TOKEN_FILE");
    command.env("HOME", "/nonexistent").stdin(Stdio::null());
    // The logs of mounts.
    command.env("LOGS_DIRECTORY", concat!(env!("CARGO_TARGET_TMPDIR"), "/logs"));
    command
}

/// Runs the program to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    pando(args).output().expect("the program can be started")
}

/// Runs the program, which must succeed; what it printed.
pub(crate) fn succeed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Unmounts what no program uses any more. Other tests start programs meanwhile, and between its
/// fork and its exec a child has what we had open: for so long the mount is in use.
pub(crate) fn unmount(path: &Path) {
    for _ in 0..1000 {
        let output = run(&["umount", text(path)]);
        if output.status.success() {
            return;
        }
        assert!(stderr(&output).contains("the mount is in use"), "{}", stderr(&output));
        pause(Duration::from_millis(10));
    }
    panic!("it stays in use: {}", path.display());
}

/// Runs the program, which must fail with this exit code and one line; that line.
pub(crate) fn fail(code: i32, args: &[&str]) -> String {
    let output = run(args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    let errors: Vec<_> = said.lines().filter(|line| line.starts_with("pando: ")).collect();
    assert_eq!(errors.len(), 1, "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    errors[0].to_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A file system of its own for one test.
pub(crate) struct Data {
    pub(crate) folder: TempDir,
}

impl Data {
    pub(crate) fn formatted() -> Data {
        let data = Data { folder: folder() };
        succeed(&["format", "--data", text(&data.path())]);
        data
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn admin_token(&self) -> PathBuf {
        self.path().join("admin.token")
    }

    /// Writes a token with these limits to a file.
    pub(crate) fn token(&self, limits: &[&str]) -> PathBuf {
        let data = self.path();
        let token = succeed(&[&["token", "create", "--data", text(&data)], limits].concat());
        let file = self.folder.path().join(format!("token{}", limits.concat().replace('/', "_")));
        std::fs::write(&file, token).expect("the folder is ours");
        file
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Running {
        let data = self.path();
        let all = ["serve", "--data", text(&data)];
        let listen: &[&str] =
            if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let http: &[&str] = if args.contains(&"--http") { &[] } else { &["--http", "127.0.0.1:0"] };
        Running::start(pando(&[&all[..], listen, http, args].concat()), "serving ")
    }
}

/// A process that serves; it is stopped with the test.
pub(crate) struct Running {
    process: Child,
    /// Output until the program was ready.
    pub(crate) said: String,
}

impl Running {
    /// Starts a command and waits until it prints a line that begins with `ready`.
    #[expect(clippy::zombie_processes, reason = "`Drop` waits for it")]
    pub(crate) fn start(mut command: Command, ready: &str) -> Running {
        let mut process =
            command.stdout(Stdio::piped()).spawn().expect("the program can be started");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut said = String::new();
        loop {
            let before = said.len();
            if lines.read_line(&mut said).unwrap_or(0) == 0 {
                let status = process.wait();
                panic!("it ended before it was ready: {status:?}, said {said:?}");
            }
            if said[before..].starts_with(ready) {
                return Running { process, said };
            }
        }
    }

    /// `HOST:PORT` of the server.
    pub(crate) fn address(&self) -> &str {
        self.after("serving ").split_once(" at ").expect("it says where").1
    }

    /// `HOST:PORT` of the status page.
    pub(crate) fn http(&self) -> &str {
        let (_, rest) = self.said.split_once("status page http://").expect("it has a page");
        rest.split_whitespace().next().expect("it says where")
    }

    fn after(&self, start: &str) -> &str {
        let line = self.said.lines().find(|line| line.starts_with(start)).expect("it is ready");
        line.split(',').next().expect("a split has a first part")
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.process.id()).expect("pids are small");
        Pid::from_raw(pid).expect("it is not 0")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // The process may have ended by itself.
        let _ = kill_process(self.pid(), signal);
        if signal == Signal::STOP {
            // One thread takes the signal and has the others stop: until it has a CPU, they go on.
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            let _ = waitid(WaitId::Pid(self.pid()), stopped);
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        for _ in 0..600 {
            if let Some(status) = self.process.try_wait().expect("it is our child") {
                return status;
            }
            pause(Duration::from_millis(50));
        }
        panic!("it does not end: {}", self.said);
    }

    /// Ends it as an operator would; its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.process.try_wait(), Ok(Some(_))) {
            self.signal(Signal::TERM);
            pause(Duration::from_millis(500));
            // If it has ended there is nothing to kill.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "other processes are waited for")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
