//! Server processes, their data, and how they are killed. The crash and power cut tests run on
//! them.
//!
//! Any failure here ends the test with a panic; so does a panic in the log of a process.

mod cluster;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use tempfile::{NamedTempFile, TempDir};

pub use cluster::Cluster;

/// The program, which `cargo build --workspace --bins` puts beside the tests.
pub fn pando() -> Command {
    let test = std::env::current_exe().expect("a test is a program");
    let target = test.ancestors().nth(2).expect("it is in target/debug/deps");
    let program = target.join("pando");
    assert!(program.exists(), "{} is missing: cargo build --workspace --bins", program.display());
    let mut command = Command::new(program);
    command.env_remove("PANDO_LOG").env_remove("PANDO_TOKEN_FILE").stdin(Stdio::null());
    command
}

/// A server on a file system of its own. It is killed when dropped.
#[derive(Debug)]
pub struct Server {
    data: PathBuf,
    /// Folder of the data, when it goes with the server.
    _folder: Option<TempDir>,
    address: String,
    process: Option<(Child, BufReader<ChildStdout>)>,
    /// Standard error of all processes of the server.
    log: NamedTempFile,
}

impl Server {
    /// Formats a file system in a temporary folder, which goes with the server, and serves it.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn temporary() -> Server {
        let folder = tempfile::Builder::new().prefix("pando-crash.").tempdir();
        let folder = folder.expect("there is room for temporary files");
        let mut server = Server::format(&folder.path().join("data"));
        server._folder = Some(folder);
        server.start(&[]);
        server
    }

    /// Formats a file system in `data`, and does not serve it yet.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn format(data: &Path) -> Server {
        let formatted = pando().args(["format", "--shards", "8", "--data"]).arg(data).output();
        let formatted = formatted.expect("the program can be started");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let data = data.to_owned();
        let log = NamedTempFile::with_prefix("pando-log.").expect("there is room for a log");
        Server { data, _folder: None, address: free_address(), process: None, log }
    }

    /// Folder of the server's data.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A path for another file of the test.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn token_file(&self) -> PathBuf {
        self.data().join("admin.token")
    }

    pub fn token(&self) -> String {
        let token = fs::read_to_string(self.token_file()).expect("format has left it");
        token.trim().to_owned()
    }

    /// Starts the server; returns when it serves.
    pub fn start(&mut self, options: &[&str]) {
        let started = self.try_start(options);
        started.unwrap_or_else(|status| unreachable!("the server did not start: {status}"));
    }

    /// Starts the server; returns when it serves, or its exit status.
    ///
    /// # Errors
    /// When the server ends before it serves.
    ///
    /// # Panics
    /// When there is no program to start.
    pub fn try_start(&mut self, options: &[&str]) -> Result<(), ExitStatus> {
        let mut command = pando();
        command.args(["serve", "--http", "off", "--cores", "2"]).args(options);
        command.args(["--listen", &self.address, "--data"]).arg(self.data());
        let log = fs::File::options().append(true).open(self.log.path()).expect("the log is ours");
        command.stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().expect("it can be started");
        let mut said = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says that it serves");
        if line.is_empty() {
            return Err(process.wait().expect("it is ours"));
        }
        // The server may print more: its end of the pipe stays open.
        self.process = Some((process, said));
        Ok(())
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some((mut process, _)) = self.process.take() {
            let ended = process.try_wait().expect("it is ours");
            assert!(
                ended.is_none() || std::thread::panicking(),
                "the server ended itself: {ended:?}"
            );
            process.kill().expect("it is ours");
            process.wait().expect("it is ours");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        look_through("a server", self.log.path());
    }
}

/// Looks for panics in the log of a process. If the test has failed, prints the end of the log.
fn look_through(what: &str, log: &Path) {
    let said = fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    if std::thread::panicking() {
        let lines: Vec<_> = said.lines().collect();
        eprintln!(
            "the log of {what} ends so:\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        );
        return;
    }
    assert!(!said.contains("panicked"), "{what} has panicked:\n{said}");
}

/// A number above that of the servers that this program starts.
const CALLS_MAX: usize = 8;

/// A free address. A port that the system gives out by itself would not do: while the server is
/// away, a client that dials such a port again and again ends up connected to itself, and keeps it
/// taken.
fn free_address() -> String {
    // The tests of this program run side by side: each call searches ports of its own.
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let from = 10_000 + u16::try_from(std::process::id() % 10_000).expect("below 10,000");
    let mut ports = (from..from + 1000).skip(usize::from(call)).step_by(CALLS_MAX);
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    format!("127.0.0.1:{}", free.expect("one of many is free"))
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}
