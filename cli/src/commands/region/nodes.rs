//! `pando region run --nodes`: other machines join a region while its program runs.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use futures::future::try_join_all;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{machines, up};
use crate::signals::Stop;

/// Time for a machine to join.
const JOIN_WITHIN: Duration = Duration::from_secs(120);
/// Time for the commands on other machines to end after those have left the region.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Time for them to end when they are told to.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Pause between looks whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The other machines of a region that ends with its program.
#[derive(Debug, clap::Args)]
pub(super) struct NodesArgs {
    /// Have these machines join the region, too. DIR must be the same directory there, and the
    /// program starts its parts there with `pando region exec DIR -- PROGRAM`, as by mpirun or srun.
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    nodes: Vec<String>,
    /// The same for the machines that a file names, one in each line: its first word. This machine
    /// may be among them.
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    hostfile: Option<PathBuf>,
    /// The command that runs a program on another machine: it is given the machine, the program and
    /// its arguments, and must not ask anything. As `srun --overlap --nodes=1 --ntasks=1 -w`.
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    rsh: String,
}

/// Machines that are to join, and the words of the command that reaches them.
pub(super) struct Nodes {
    hosts: Vec<String>,
    rsh: Vec<OsString>,
}

/// Commands on other machines, which have joined or are about to.
pub(super) struct Started(Vec<(String, Child)>);

impl NodesArgs {
    /// The machines that are to join, each once.
    pub(super) fn nodes(&self) -> anyhow::Result<Nodes> {
        let mut named = self.nodes.clone();
        if let Some(file) = &self.hostfile {
            let text = fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read {}", file.display()))?;
            named.extend(hosts(&text));
        }
        let mut hosts: Vec<String> = Vec::new();
        for host in named {
            // An option would be one of the command that reaches machines.
            ensure!(!host.is_empty() && !host.starts_with('-'), "{host:?} is no machine");
            let is_there = hosts.iter().any(|there| machine_of(there) == machine_of(&host));
            if !is_there && !machines::is_this_machine(machine_of(&host)) {
                hosts.push(host);
            }
        }
        let mut rsh: Vec<_> = self.rsh.split_whitespace().map(OsString::from).collect();
        let command = rsh.first_mut().context("--rsh is empty")?;
        // The region's process leaves the present folder.
        if command.as_encoded_bytes().contains(&b'/') {
            *command = std::path::absolute(&*command)?.into();
        }
        Ok(Nodes { hosts, rsh })
    }
}

/// The machine of `USER@HOST`.
fn machine_of(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, machine)| machine)
}

impl Nodes {
    pub(super) fn are_none(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Has the machines join, all at the same time; whether all have.
    pub(super) async fn start(&self, dir: &Path, stop: &mut Stop) -> (Started, anyhow::Result<()>) {
        let mut started = Started(Vec::new());
        let joined = self.join(dir, stop, &mut started).await;
        (started, joined)
    }

    async fn join(&self, dir: &Path, stop: &mut Stop, started: &mut Started) -> anyhow::Result<()> {
        let mut joining = Vec::new();
        for host in &self.hosts {
            let mut command = self.command(host, dir)?;
            let shown = || format!("cannot run {}", self.rsh[0].display());
            // This thread serves the region, which the command may look at.
            let spawned = tokio::task::spawn_blocking(move || command.spawn()).await?;
            let mut child = spawned.with_context(shown)?;
            let out = child.stdout.take().expect("it was asked for");
            started.0.push((host.clone(), child));
            let (tell, told) = oneshot::channel();
            // The command may go on with its output for as long as it likes.
            thread::Builder::new().name("node".to_owned()).spawn(move || joins(out, tell))?;
            joining.push(async move {
                let joined = timeout(JOIN_WITHIN, told).await;
                ensure!(joined.is_ok_and(|told| told.is_ok()), "{host} has not joined the region");
                anyhow::Ok(())
            });
        }
        tokio::select! {
            joined = try_join_all(joining) => joined.map(drop),
            () = stop.asked() => bail!("interrupted while other machines join the region"),
        }
    }

    fn command(&self, host: &str, dir: &Path) -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let text = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.with_context(|| format!("{} is not UTF-8", path.display()))
        };
        let remote = [text(&program)?, "region".into(), "join".into(), text(dir)?];
        let (rsh, words) = self.rsh.split_first().expect("it is not empty");
        // A remote shell takes the words apart again.
        let is_shell =
            Path::new(rsh).file_name().is_some_and(|name| name == "ssh" || name == "rsh");
        let quoted = remote.iter().map(|word| if is_shell { quote(word) } else { word.clone() });
        let mut command = Command::new(rsh);
        command.args(words).arg(host).args(quoted).arg("--foreground");
        // Ctrl-C is the program's, and may be no end for it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        Ok(command)
    }
}

/// Tells when a machine says that it has joined, and reads on: nobody wants what it says later.
fn joins(out: impl std::io::Read, tell: oneshot::Sender<()>) {
    let mut lines = BufReader::new(out).split(b'\n').map_while(Result::ok);
    let is_ready = |line: Vec<u8>| line.starts_with(up::READY.as_bytes());
    if lines.any(is_ready) && tell.send(()).is_ok() {
        lines.for_each(drop);
    }
}

/// The machines that a file names.
fn hosts(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// A word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Started {
    /// Waits for the commands there, which end as their machines have left, and ends the others.
    pub(super) async fn end(mut self) {
        self.wait(END_WITHIN).await;
        for (signal, within) in [(Signal::TERM, STOP_WITHIN), (Signal::KILL, STOP_WITHIN)] {
            for (node, child) in &self.0 {
                tracing::warn!(node, ?signal, "ending the command that has reached a machine");
                if let Err(error) = kill_process_group(Pid::from_child(child), signal) {
                    tracing::debug!(%error, "it has ended");
                }
            }
            self.wait(within).await;
        }
    }

    /// Waits for the ends of commands, for so long at most.
    async fn wait(&mut self, within: Duration) {
        let until = Instant::now() + within;
        loop {
            self.0.retain_mut(|(node, child)| match child.try_wait() {
                Ok(Some(status)) if !status.success() => {
                    tracing::warn!(node, %status, "a machine has lost the region");
                    false
                }
                Ok(None) => true,
                Ok(Some(_)) | Err(_) => false,
            });
            if self.0.is_empty() || Instant::now() >= until {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_hosts_has_one_in_each_line() {
        let text = "# two racks\nn1 slots=4\n\n  n2\t# a comment\n";
        assert_eq!(hosts(text), ["n1", "n2"]);
    }

    #[test]
    fn words_are_quoted_for_a_remote_shell() {
        assert_eq!(quote("/a b/it's"), r"'/a b/it'\''s'");
        let words = |rsh: &str| {
            let command = nodes(&[], rsh).unwrap().command("n1", Path::new("/a b")).unwrap();
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        let ssh = words("ssh -q");
        assert_eq!(ssh[..2], ["-q", "n1"]);
        assert_eq!(ssh[5..], ["'/a b'", "--foreground"]);
        assert_eq!(words("srun -w")[5], "/a b");
    }

    fn nodes(nodes: &[&str], rsh: &str) -> anyhow::Result<Nodes> {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        NodesArgs { nodes, hostfile: None, rsh: rsh.to_owned() }.nodes()
    }

    #[test]
    fn each_machine_joins_once_and_an_option_is_none() {
        // Batch systems name a machine once for each slot.
        let found = nodes(&["n1", "n1", "a@n2", "localhost", "n2"], "./reach -v").unwrap();
        assert_eq!(found.hosts, ["n1", "a@n2"]);
        assert!(Path::new(&found.rsh[0]).is_absolute() && found.rsh[1] == "-v");
        assert!(nodes(&["-oProxyCommand=x"], "ssh").is_err() && nodes(&["n1"], " ").is_err());
    }
}
