//! `pando fsck`: check a file system that is being served, and repair it.

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use base::HashSet;
use client::Client;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::{sleep, timeout};
use wire::FsckProgress;

use crate::{
    connect::{self, Servers, TokenArgs},
    failure, output,
    signals::Stop,
};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that servers have to end a check that is cancelled.
const PATIENCE: Duration = Duration::from_secs(2);

/// Check a whole file system while it is served, and repair it. Needs the administrator's token.
///
/// The check reads a snapshot, and finds records that contradict each other, entries that cannot be
/// reached, and blocks that are missing or that nothing refers to. With --repair it repairs
/// findings in small changes while the file system is served, and checks again until nothing is
/// left that it can repair. An inode that has lost its place goes to /lost+found, under its number.
/// Ctrl-C ends the check; repairs stay.
///
/// All servers of a cluster are checked together, with the references between them. There is no
/// common snapshot, so a mismatch is looked at again, and counts only if it remains. There --repair
/// says why a finding is not repaired, and --gc is refused unless contents are in the servers' own
/// data directories (see `pando format --blocks`).
///
/// A finding names the path, if it has one. `pando info HOST:PORT --inode N` finds the path of an
/// inode number.
///
/// Exit codes: 0 nothing is wrong; 1 everything that was wrong is repaired; 2 something is wrong; 8
/// the check failed, as when a server does not answer for 15 seconds, or was cancelled.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, or any of several.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Repair findings.
    #[arg(long)]
    repair: bool,
    /// With --repair: give up contents that cannot be read any more. Reads then return zeros in
    /// place of EIO.
    #[arg(long, requires = "repair")]
    discard_lost: bool,
    /// Remove blocks that nothing refers to, as a crash leaves them.
    #[arg(long)]
    gc: bool,
    /// Print all findings that can be repaired, up to 100,000 of each server, instead of its first
    /// 1,000.
    #[arg(long, conflicts_with_all = ["repair", "gc"])]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Exit code: the problems that were found are repaired.
const REPAIRED: u8 = 1;
/// Exit code: something is wrong.
const WRONG: u8 = 2;
/// Exit code: the check could not be done.
const NOT_DONE: u8 = 8;

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    checked(&args).or_else(|error| {
        failure::report(&error);
        Ok(ExitCode::from(NOT_DONE))
    })
}

fn checked(args: &Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando fsck");
    let (progress, cancelled) = connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let client = connect::connect(config).await?;
        let checked = check(&client, args, &mut stop).await;
        // A server that is away does not hold up the result.
        if let Ok(closed) = timeout(PATIENCE, client.close()).await
            && checked.is_ok()
        {
            closed?;
        }
        checked
    })?;
    let report = Report::new(progress, cancelled);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.to_text())?;
    }
    Ok(ExitCode::from(match (cancelled, report.findings_total, report.repaired_total) {
        (true, ..) => NOT_DONE,
        (false, 0, 0) => 0,
        (false, 0, _) => REPAIRED,
        (false, ..) => WRONG,
    }))
}

/// Running check.
enum Job {
    /// At the only server: its number.
    OfOne(u64),
    Everywhere(client::Fsck),
}

impl Job {
    async fn poll(&mut self, client: &Client, cancel: bool) -> client::Result<FsckProgress> {
        match self {
            Job::OfOne(job) => client.fsck_poll(*job, cancel).await,
            Job::Everywhere(check) => check.poll(client, cancel).await,
        }
    }

    /// Adds the findings that are not among those of its progress.
    async fn add_findings(
        &self,
        client: &Client,
        progress: &mut FsckProgress,
    ) -> client::Result<()> {
        let Job::Everywhere(check) = self else { return Ok(()) };
        let told: HashSet<String> = progress.findings.iter().cloned().collect();
        let all = check.findings(client).await?;
        progress.findings.extend(all.into_iter().filter(|line| !told.contains(line)));
        Ok(())
    }
}

/// Error for a user who ends a check that waits for a server.
fn unanswered(client: &Client) -> anyhow::Error {
    let away: Vec<_> = client.servers_away().iter().map(ToString::to_string).collect();
    match &away[..] {
        [] => anyhow!("cancelled. A server does not answer; it stops checking by itself later"),
        away => {
            let away = away.join(" and ");
            anyhow!("cancelled. Server {away} does not answer; it stops checking by itself later")
        }
    }
}

/// Runs the check to its end; whether it was cancelled.
async fn check(
    client: &Client,
    args: &Args,
    stop: &mut Stop,
) -> anyhow::Result<(FsckProgress, bool)> {
    let start = async {
        if args.repair && client.servers() > 1 {
            client.repair_start_everywhere(args.gc, args.discard_lost).await.map(Job::Everywhere)
        } else if args.repair {
            client.repair_start(args.gc, args.discard_lost).await.map(Job::OfOne)
        } else if args.gc && client.servers() == 1 {
            client.fsck_start(true).await.map(Job::OfOne)
        } else {
            client.fsck_start_everywhere(args.gc).await.map(Job::Everywhere)
        }
    };
    let started = tokio::select! {
        started = start => started,
        () = stop.asked() => return Err(unanswered(client)),
    };
    let mut job = match started {
        Err(client::Error::Fs(base::FsError::Busy)) => bail!("a check is running already"),
        started => connect::for_administrators(started).context("cannot start the check")?,
    };
    let bar = bar();
    loop {
        let polled = async {
            sleep(POLL_INTERVAL).await;
            // A server that is away answers when it is back.
            job.poll(client, false).await
        };
        let (progress, cancel) = tokio::select! {
            progress = polled => (progress, false),
            () = stop.asked() => {
                let cancelled = timeout(PATIENCE, job.poll(client, true)).await;
                (cancelled.map_err(|_| unanswered(client))?, true)
            }
        };
        let mut progress = match progress {
            Err(error @ client::Error::Silent(..)) => return Err(error.into()),
            progress => progress.context("the check was lost: a server restarted")?,
        };
        // The number of records is an estimate, and may be passed.
        bar.set_length(progress.records_estimated.max(progress.records));
        bar.set_position(progress.records);
        if cancel || progress.done {
            bar.finish_and_clear();
            if args.all && !cancel {
                job.add_findings(client, &mut progress).await?;
            }
            return Ok((progress, cancel));
        }
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("checked {pos} of about {len} records {wide_bar} {eta}");
    ProgressBar::new(0).with_style(style.expect("the template is well-formed"))
}

#[derive(Serialize)]
struct Report {
    cancelled: bool,
    records: u64,
    counts: serde_json::Map<String, serde_json::Value>,
    repaired: Vec<String>,
    repaired_total: u64,
    findings: Vec<String>,
    findings_total: u64,
}

/// Text that the server puts before a finding that it has repaired.
const REPAIRED_BEFORE: &str = "repaired: ";

impl Report {
    fn new(progress: FsckProgress, cancelled: bool) -> Report {
        let repaired_total = progress.counts.iter().find(|(name, _)| name == "repaired");
        let repaired_total = repaired_total.map_or(0, |(_, count)| *count);
        let (repaired, findings): (Vec<_>, Vec<_>) =
            progress.findings.into_iter().partition(|line| line.starts_with(REPAIRED_BEFORE));
        let bare =
            |line: String| line.strip_prefix(REPAIRED_BEFORE).map_or(line.clone(), Into::into);
        Report {
            repaired: repaired.into_iter().map(bare).collect(),
            repaired_total,
            cancelled,
            records: progress.records,
            counts: progress.counts.into_iter().map(|(name, n)| (name, n.into())).collect(),
            findings,
            findings_total: progress.findings_total,
        }
    }

    fn to_text(&self) -> String {
        let mut rows = vec![("records", self.records.to_string())];
        rows.extend(self.counts.iter().map(|(name, value)| (name.as_str(), value.to_string())));
        let mut text = output::rows(&rows);
        let lists = [
            ("repaired", &self.repaired, self.repaired_total),
            ("wrong", &self.findings, self.findings_total),
        ];
        for (word, lines, total) in lists {
            for line in lines {
                text += &format!("{word}: {line}\n");
            }
            let shown = u64::try_from(lines.len()).unwrap_or(u64::MAX);
            if total > shown {
                text += &format!("{word}: and {} more that are not listed\n", total - shown);
            }
        }
        text + match (self.cancelled, self.findings_total, self.repaired_total) {
            (true, ..) => "cancelled before the end\n",
            (false, 0, 0) => "nothing is wrong\n",
            (false, 0, _) => "all of it is repaired\n",
            (false, ..) => "",
        }
    }
}
