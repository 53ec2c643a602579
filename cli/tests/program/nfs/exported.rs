//! A mount that nfs-ganesha exports, and clients of it over libnfs.
//!
//! Everything listens on 127.0.0.1 and ends with its test. Ganesha and libnfs come from the folder
//! that `scripts/deps` fills.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    harness::{Data, Running, pando, pause, stderr, text},
    mounted::Mountpoint,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The mount options that docs/clients/NFS.md asks for.
pub(super) const OPTIONS: &str = "allow_other,delegations=off,dirsync";

/// Folder with the programs of others; `None` if they cannot run, which is said.
pub(super) fn tools() -> Option<PathBuf> {
    let tools = Path::new(ROOT).join("target/tools/nfs");
    let mut version = Command::new(tools.join("ganesha.nfsd"));
    version.arg("-v").env("LD_LIBRARY_PATH", tools.join("lib"));
    if !version.output().is_ok_and(|ran| ran.status.success()) {
        eprintln!("skipped: nfs-ganesha does not run; see scripts/deps");
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: nfs-ganesha opens files by their handles, which only root may");
        return None;
    }
    Some(tools)
}

/// Runs a compiler.
fn compile(args: &[&str]) {
    let strict = ["-Wall", "-Wextra", "-Werror", "-O1"];
    let output = Command::new("cc").args(strict).args(args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A process that is killed with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // If it has ended there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client of NFS; see `client.c`.
pub(super) struct Nfs {
    answers: BufReader<ChildStdout>,
    commands: ChildStdin,
    _process: Killed,
}

impl Nfs {
    /// The answer to a command: a line that begins with `ok` or `error`.
    pub(super) fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the client has ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// The answer to a command that must succeed, without `ok`.
    pub(super) fn ok(&mut self, command: &str) -> String {
        let answer = self.ask(command);
        let rest = answer.strip_prefix("ok").unwrap_or_else(|| panic!("{command}: {answer}"));
        rest.trim_start().to_owned()
    }

    /// The names in a directory, in order.
    pub(super) fn list(&mut self, path: &str) -> Vec<String> {
        let mut names: Vec<_> =
            self.ok(&format!("list {path}")).split_whitespace().map(str::to_owned).collect();
        names.sort_unstable();
        names
    }
}

/// A file system, mounted, and exported as `/pando`.
pub(super) struct Exported {
    ganesha: Option<Killed>,
    /// The process of the mount.
    mounted: Option<Running>,
    pub(super) mount: Mountpoint,
    server: Option<Running>,
    pub(super) address: String,
    pub(super) data: Data,
    tools: PathBuf,
    port: u16,
    /// Whether ganesha runs with the library of `contrib/nfs`.
    pub(super) with_fsid: bool,
}

impl Exported {
    /// Serves, mounts and exports; `None` where that cannot be done.
    pub(super) fn start() -> Option<Exported> {
        Exported::with(&[])
    }

    /// Starts with other words in the configuration than `contrib/nfs` has.
    pub(super) fn with(config: &[(&str, &str)]) -> Option<Exported> {
        let tools = tools()?;
        let data = Data::formatted();
        let server = data.serve(&[]);
        let mount = Mountpoint::new(data.folder.path());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut exported = Exported {
            ganesha: None,
            mounted: None,
            mount,
            address: server.address().to_owned(),
            server: Some(server),
            data,
            tools,
            port,
            with_fsid: true,
        };
        exported.prepare(config);
        exported.mount();
        exported.export();
        Some(exported)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.data.folder.path().join(name)
    }

    /// Writes the configuration, and compiles the client and the library.
    fn prepare(&self, config: &[(&str, &str)]) {
        let contrib = Path::new(ROOT).join("contrib/nfs");
        let lines = fs::read_to_string(contrib.join("ganesha.conf")).unwrap();
        let recovery = self.file("recovery");
        fs::create_dir(&recovery).unwrap();
        // No client is left of an earlier run that would have to get its locks back; and the file
        // that names the domain of owners belongs to a package that may be missing.
        let of_tests = format!(
            "NFSv4 {{ Graceless = true; RecoveryRoot = {}; UseGetpwnam = true; DomainName = test;",
            text(&recovery)
        );
        let plugins =
            format!("NFS_CORE_PARAM {{ Plugins_Dir = {};", text(&self.tools.join("fsal")));
        let port = format!("NFS_Port = {};", self.port);
        let path = format!("Path = \"{}\";", text(&self.mount.0));
        let ours = [
            ("NFSv4 {", of_tests.as_str()),
            ("NFS_CORE_PARAM {", &plugins),
            ("NFS_Port = 2049;", &port),
            ("Path = /mnt;", &path),
        ];
        let mut written = lines;
        for (from, to) in ours.iter().chain(config) {
            assert!(written.contains(from), "{from}: {written}");
            written = written.replace(from, to);
        }
        fs::write(self.file("ganesha.conf"), written).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/nfs/client.c");
        let headers = format!("-I{}", text(&self.tools.join("include")));
        let (library, client) = (self.tools.join("lib/libnfs.so.13"), self.file("client"));
        compile(&[&headers, source, "-o", text(&client), text(&library)]);
        let (source, fsid) = (contrib.join("fsid.c"), self.file("pando-fsid.so"));
        compile(&["-shared", "-fPIC", text(&source), "-o", text(&fsid)]);
    }

    pub(super) fn mount(&mut self) {
        let (token, address) = (self.data.admin_token(), self.address.clone());
        let args = ["mount", "--foreground", &address, text(&self.mount.0), "-o", OPTIONS];
        let args = [&args[..], &["--token", text(&token)]].concat();
        self.mounted = Some(Running::start(pando(&args), "mounted at "));
    }

    /// Ends the mount as an operator would.
    pub(super) fn unmount(&mut self) {
        assert_eq!(self.mounted.take().expect("it is mounted").stop(), Some(0));
    }

    /// Kills the process of the mount, and takes away what is left.
    pub(super) fn kill_mount(&mut self) {
        let mut mounted = self.mounted.take().expect("it is mounted");
        mounted.signal(Signal::KILL);
        mounted.wait();
    }

    /// Starts ganesha, and waits until it serves.
    pub(super) fn export(&mut self) {
        let log = self.file("ganesha.log");
        let _ = fs::remove_file(&log);
        let mut command = Command::new(self.tools.join("ganesha.nfsd"));
        command.arg("-F").args(["-N", "EVENT"]).arg("-L").arg(&log);
        command.arg("-f").arg(self.file("ganesha.conf")).arg("-p").arg(self.file("ganesha.pid"));
        command.env("LD_LIBRARY_PATH", self.tools.join("lib"));
        if self.with_fsid {
            command.env("LD_PRELOAD", self.file("pando-fsid.so"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut ganesha = Killed(command.spawn().unwrap());
        for _ in 0..1200 {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("NFS SERVER INITIALIZED") {
                assert!(!said.contains("No export entries found"), "{said}");
                self.ganesha = Some(ganesha);
                return;
            }
            assert!(ganesha.0.try_wait().unwrap().is_none(), "ganesha has ended: {said}");
            pause(Duration::from_millis(20));
        }
        panic!("ganesha does not serve: {}", fs::read_to_string(&log).unwrap_or_default());
    }

    /// Ends ganesha as a crash would.
    pub(super) fn kill_ganesha(&mut self) {
        self.ganesha = None;
    }

    pub(super) fn kill_server(&mut self) {
        let mut server = self.server.take().expect("it serves");
        server.signal(Signal::KILL);
        server.wait();
    }

    /// Starts the server again where it was.
    pub(super) fn serve(&mut self) {
        self.server = Some(self.data.serve(&["--listen", &self.address]));
    }

    /// A client that acts as root.
    pub(super) fn client(&self) -> Nfs {
        self.client_of(0)
    }

    pub(super) fn client_of(&self, uid: u32) -> Nfs {
        let mut command = Command::new(self.file("client"));
        command.args([&self.port.to_string(), "/pando", &uid.to_string()]);
        command.env("LD_LIBRARY_PATH", self.tools.join("lib"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Killed(command.spawn().unwrap());
        let commands = process.0.stdin.take().unwrap();
        let answers = BufReader::new(process.0.stdout.take().unwrap());
        let mut client = Nfs { answers, commands, _process: process };
        assert_eq!(client.answer(), "ok mounted");
        client
    }

    /// A path on the mount.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.mount.0.join(path)
    }

    /// Ends all, in order.
    pub(super) fn stop(mut self) {
        self.kill_ganesha();
        self.unmount();
        assert_eq!(self.server.take().expect("it serves").stop(), Some(0));
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // Ganesha has directories of the mount open: it goes first, then the mount.
        self.ganesha = None;
        self.mounted = None;
    }
}
