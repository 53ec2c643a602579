//! Processes of this program that another one of it started: `dev` runs a cluster of them.
//!
//! A child says in a line on stdout when it works; its log goes to a file. Always true: dropping a
//! child kills it.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{ChildStdout, Command},
};

/// Beginning of the line with which a server says that it serves.
pub(crate) const SERVING: &str = "serving ";
/// Beginning of the line with which a server says that it stands by.
pub(crate) const STANDING_BY: &str = "standing by for ";

/// Program with the arguments to start it.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// For people.
    name: String,
    log: PathBuf,
    /// Beginnings of the lines that say that the program works.
    ready: &'static [&'static str],
    args: Vec<OsString>,
}

impl Program {
    pub(crate) fn new(
        name: &str,
        log: &Path,
        ready: &'static [&'static str],
    ) -> anyhow::Result<Program> {
        let log = std::path::absolute(log)?;
        Ok(Program { name: name.to_owned(), log, ready, args: Vec::new() })
    }

    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Program {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn args<'a>(mut self, args: impl Iterator<Item = &'a str>) -> Program {
        self.args.extend(args.map(OsString::from));
        self
    }

    /// The value of an option that the program has.
    fn value(&self, option: &str) -> String {
        let at = self.args.iter().position(|arg| arg == option);
        let value = at.and_then(|at| self.args.get(at + 1));
        value.map_or_else(String::new, |value| value.to_string_lossy().into_owned())
    }

    /// Replaces the value of an option that the program has.
    fn with(&mut self, option: &str, value: &str) {
        let at = self.args.iter().position(|arg| arg == option);
        if let Some(old) = at.and_then(|at| self.args.get_mut(at + 1)) {
            *old = value.into();
        }
    }
}

/// A process that was started.
pub(crate) struct Child {
    program: Program,
    process: tokio::process::Child,
    /// Process number, also after the process has ended.
    pid: u32,
    /// Whether it stands by, and has not been seen to serve.
    stands_by: bool,
    /// Whether it has said that it serves.
    serves: Arc<AtomicBool>,
    address: String,
    /// URL of the status page.
    page: Option<String>,
    /// Whether the end of the process was reported.
    told: bool,
}

impl Child {
    /// Starts it, and returns when it works.
    pub(crate) async fn start(mut program: Program) -> anyhow::Result<Child> {
        let log = OpenOptions::new().append(true).create(true).open(&program.log);
        let log = log.with_context(|| format!("cannot open {}", program.log.display()))?;
        let logged = log.metadata()?.len();
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut process = Command::new(this)
            .args(&program.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.name))?;
        let mut said = BufReader::new(process.stdout.take().expect("it is piped"));
        let line = loop {
            let mut line = String::new();
            if said.read_line(&mut line).await? == 0 {
                let status = process.wait().await?;
                bail!("{} ended at once, {}", program.name, reason(status, &program.log, logged));
            }
            if program.ready.iter().any(|ready| line.starts_with(ready)) {
                break line;
            }
        };
        let stands_by = line.starts_with(STANDING_BY);
        let address = if stands_by {
            // The line says where the one is that it stands by for.
            program.value("--listen")
        } else {
            // `serving NAME at HOST:PORT, ...`
            let address = line.rsplit_once(" at ").map_or("", |(_, rest)| rest);
            address.split(',').next().unwrap_or_default().trim().to_owned()
        };
        let page = line.split_once("status page ").map(|(_, page)| page.trim().to_owned());
        // The child must be found at the same address when it is started again.
        program.with("--listen", &address);
        if let Some(page) = &page {
            program.with("--http", page.rsplit('/').next().unwrap_or(page));
        }
        let pid = process.id().unwrap_or_default();
        let serves = Arc::new(AtomicBool::new(!stands_by));
        // Until it ends: what it prints must have somewhere to go.
        tokio::spawn(listen(said, Arc::clone(&serves)));
        Ok(Child { program, process, pid, stands_by, serves, address, page, told: false })
    }

    /// Starts the program as [`Child::start`] does, in place of a process that has ended. When the
    /// start fails, the end is reported again.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.told = false;
        *self = Child::start(self.program.clone()).await?;
        Ok(())
    }

    /// Adds an option to the next start.
    pub(crate) fn starts_again_with(&mut self, option: &str, value: &str) {
        if self.program.value(option).is_empty() {
            self.program.args.extend([option, value].map(OsString::from));
        }
    }

    /// Whether it stood by, and has begun to serve; says so once.
    pub(crate) fn has_taken_over(&mut self) -> bool {
        let serves = self.serves.load(Ordering::Relaxed);
        serves && std::mem::take(&mut self.stands_by)
    }

    /// Whether it stood by when it was last asked.
    pub(crate) fn stands_by(&self) -> bool {
        self.stands_by
    }

    pub(crate) fn name(&self) -> &str {
        &self.program.name
    }

    /// Address at which the child listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Address of the status page, for people: empty, or an item of a list.
    pub(crate) fn page(&self) -> String {
        self.page.as_ref().map_or_else(String::new, |page| format!("status page {page}, "))
    }

    /// Process number and log, for people.
    pub(crate) fn process(&self) -> String {
        format!("pid {}, log {}", self.pid, self.program.log.display())
    }

    /// Exit status of the child, if it has ended; a process that is not started again reports it
    /// once.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let ended = self.process.try_wait()?;
        Ok(ended.filter(|_| !std::mem::replace(&mut self.told, true)))
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let running = self.process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = running {
            // The process may be ending just now.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Asks it to end, and waits for that; kills it when it takes too long.
    pub(crate) async fn stop(mut self, timeout: Duration) -> anyhow::Result<()> {
        self.terminate();
        if let Ok(ended) = tokio::time::timeout(timeout, self.process.wait()).await {
            ended?;
            return Ok(());
        }
        self.process.kill().await?;
        bail!("{} did not end within {} s and was killed", self.program.name, timeout.as_secs())
    }
}

/// Reads what a process prints, until it ends.
async fn listen(mut said: BufReader<ChildStdout>, serves: Arc<AtomicBool>) {
    let mut line = String::new();
    while said.read_line(&mut line).await.is_ok_and(|len| len > 0) {
        if line.starts_with(SERVING) {
            serves.store(true, Ordering::Relaxed);
        }
        line.clear();
    }
}

/// Why it has ended: what it logged last.
fn reason(status: ExitStatus, log: &Path, logged: u64) -> String {
    let text = fs::read(log).unwrap_or_default();
    let new = text.get(usize::try_from(logged).unwrap_or(usize::MAX)..).unwrap_or_default();
    let text = String::from_utf8_lossy(new);
    text.lines().last().map_or_else(|| status.to_string(), |line| format!("{status}: {line}"))
}
