//! `pando region run --nodes`: other machines join a region while its program runs.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{machines, up};
use crate::signals::Stop;

/// Time for the commands on other machines to end after those have left the region.
const END_WITHIN: Duration = Duration::from_secs(10);
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
    /// its arguments. As `srun --nodes=1 --ntasks=1 -w` where there is no ssh.
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    rsh: String,
}

/// Machines that have joined.
pub(super) struct Nodes(Vec<(String, Child)>);

impl NodesArgs {
    /// The machines that are to join.
    pub(super) fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let mut nodes = self.nodes.clone();
        if let Some(file) = &self.hostfile {
            let text = fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read {}", file.display()))?;
            nodes.extend(hosts(&text));
        }
        nodes.retain(|node| !machines::is_this_machine(node));
        for node in &nodes {
            // An option would be one of the command that reaches machines.
            ensure!(!node.is_empty() && !node.starts_with('-'), "{node:?} is no machine");
        }
        Ok(nodes)
    }

    /// Has the machines join, all at the same time.
    pub(super) async fn start(
        &self,
        nodes: &[String],
        dir: &Path,
        stop: &mut Stop,
    ) -> anyhow::Result<Nodes> {
        let mut started = Nodes(Vec::new());
        let mut joining = Vec::new();
        for node in nodes {
            let mut command = self.command(node, dir)?;
            // This thread serves the region, which the command may look at.
            let spawned = tokio::task::spawn_blocking(move || command.spawn()).await?;
            let mut child = spawned.with_context(|| format!("cannot run {}", self.rsh))?;
            let out = child.stdout.take().expect("it was asked for");
            started.0.push((node.clone(), child));
            joining.push((node, tokio::task::spawn_blocking(move || joins(out))));
        }
        for (node, joined) in joining {
            tokio::select! {
                joined = joined => ensure!(joined?, "{node} has not joined the region"),
                () = stop.asked() => bail!("interrupted while {node} joins the region"),
            }
        }
        Ok(started)
    }

    fn command(&self, node: &str, dir: &Path) -> anyhow::Result<Command> {
        let mut words = self.rsh.split_whitespace();
        let rsh = words.next().context("--rsh is empty")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let text = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.with_context(|| format!("{} is not UTF-8", path.display()))
        };
        let remote = [text(&program)?, "region".into(), "join".into(), text(dir)?];
        // A remote shell takes the words apart again.
        let is_shell =
            Path::new(rsh).file_name().is_some_and(|name| name == "ssh" || name == "rsh");
        let quoted = remote.iter().map(|word| if is_shell { quote(word) } else { word.clone() });
        let mut command = Command::new(rsh);
        command.args(words).arg(node).args(quoted).arg("--foreground");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }
}

/// Waits until a machine says that it has joined; what it says later is not for anybody.
fn joins(out: impl std::io::Read + Send + 'static) -> bool {
    let mut lines = BufReader::new(out).lines();
    let joined = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with(up::READY));
    std::thread::spawn(move || lines.for_each(drop));
    joined
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

impl Nodes {
    /// Waits for the commands there, which end as their machines have left.
    pub(super) async fn end(mut self) {
        let until = Instant::now() + END_WITHIN;
        while !self.0.is_empty() && Instant::now() < until {
            self.0.retain_mut(|(node, child)| match child.try_wait() {
                Ok(Some(status)) if !status.success() => {
                    tracing::warn!(node, %status, "a machine has lost the region");
                    false
                }
                Ok(None) => true,
                Ok(Some(_)) | Err(_) => false,
            });
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (node, child) in &mut self.0 {
            tracing::warn!(node, "ending the command there");
            // A command that is told to end ends what it has started elsewhere.
            let told = kill_process(Pid::from_child(child), Signal::TERM);
            drop(told.map(|()| child.wait()));
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
        let args = |rsh: &str| NodesArgs { nodes: Vec::new(), hostfile: None, rsh: rsh.to_owned() };
        let words = |rsh: &str| {
            let command = args(rsh).command("n1", Path::new("/a b")).unwrap();
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        let ssh = words("ssh -q");
        assert_eq!(ssh[..2], ["-q", "n1"]);
        assert_eq!(ssh[5..], ["'/a b'", "--foreground"]);
        assert_eq!(words("srun -w")[5], "/a b");
    }

    #[test]
    fn an_option_is_no_machine() {
        let args = NodesArgs {
            nodes: vec!["-oProxyCommand=x".to_owned()],
            hostfile: None,
            rsh: "ssh".to_owned(),
        };
        assert!(args.nodes().is_err());
    }
}
