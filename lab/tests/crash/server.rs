//! A server process, its data, and how it is killed.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use tempfile::TempDir;

/// The program, which `cargo build --workspace --bins` puts beside the tests.
pub(crate) fn pando() -> Command {
    let test = std::env::current_exe().expect("a test is a program");
    let target = test.ancestors().nth(2).expect("it is in target/debug/deps");
    let program = target.join("pando");
    assert!(program.exists(), "{} is missing: cargo build --workspace --bins", program.display());
    let mut command = Command::new(program);
    command.env_remove("PANDO_LOG").env_remove("PANDO_TOKEN_FILE").stdin(Stdio::null());
    command
}

/// A server on a file system of its own. It is killed when dropped, and its data removed.
pub(crate) struct Server {
    folder: TempDir,
    address: String,
    process: Option<(Child, BufReader<ChildStdout>)>,
}

impl Server {
    /// Formats a file system and serves it.
    pub(crate) fn new() -> Server {
        let folder = tempfile::Builder::new().prefix("pando-crash.").tempdir();
        let folder = folder.expect("there is room for temporary files");
        let data = folder.path().join("data");
        let formatted = pando().args(["format", "--shards", "8", "--data"]).arg(&data).output();
        let formatted = formatted.expect("the program can be started");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let mut server = Server { folder, address: free_address(), process: None };
        server.start(false);
        server
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A path for something else of the test.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.data().join("admin.token")
    }

    pub(crate) fn token(&self) -> String {
        let token = fs::read_to_string(self.token_file()).expect("format has left it");
        token.trim().to_owned()
    }

    /// Starts it; returns when it serves.
    pub(crate) fn start(&mut self, strict: bool) {
        let durability = if strict { "strict" } else { "relaxed" };
        let mut command = pando();
        command.args(["serve", "--http", "off", "--cores", "2", "--durability", durability]);
        command.args(["--listen", &self.address, "--data"]).arg(self.data());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut said = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says that it serves");
        assert!(!line.is_empty(), "the server did not start: {:?}", process.wait());
        // It may say more: its end of the pipe stays open.
        self.process = Some((process, said));
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
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
    }
}

/// More servers than this program starts.
const CALLS_MAX: usize = 8;

/// An address that is free. A port that the system gives out by itself would not do: while the server is
/// away, a client that dials such a port again and again ends up connected to itself, and keeps it taken.
fn free_address() -> String {
    // The tests of this program run side by side: each call looks where no other one does.
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let from = 10_000 + u16::try_from(std::process::id() % 10_000).expect("below 10,000");
    let mut ports = (from..from + 1000).skip(usize::from(call)).step_by(CALLS_MAX);
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    format!("127.0.0.1:{}", free.expect("one of many is free"))
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}
