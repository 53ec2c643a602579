//! `pando fsck`: check a file system that is being served.

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::Context as _;
use client::Client;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use wire::FsckProgress;

use crate::{
    connect::{self, Servers, TokenArgs},
    failure, output,
    signals::Stop,
};

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Check a whole file system while it is served. Needs the administrator's token.
///
/// It looks at a snapshot: records that contradict each other, entries nobody can reach, blocks that are missing
/// or that nothing refers to. Ctrl-C ends the check. The exit code is 1 when something is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Remove blocks that nothing refers to, as a crash leaves them.
    #[arg(long)]
    gc: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando fsck");
    let (progress, cancelled) = connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let client = connect::connect(config).await?;
        let checked = check(&client, args.gc, &mut stop).await?;
        client.close().await?;
        anyhow::Ok(checked)
    })?;
    let report = Report::new(progress, cancelled);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.to_text())?;
    }
    let good = report.findings_total == 0 && !cancelled;
    Ok(if good { ExitCode::SUCCESS } else { failure::failed() })
}

/// Runs the check to its end; whether it was cancelled.
async fn check(client: &Client, gc: bool, stop: &mut Stop) -> anyhow::Result<(FsckProgress, bool)> {
    let job = match client.fsck_start(gc).await {
        Err(client::Error::Fs(base::FsError::Busy)) => anyhow::bail!("a check is running already"),
        started => connect::for_administrators(started).context("cannot start the check")?,
    };
    let bar = bar();
    loop {
        let cancel = tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => false,
            () = stop.asked() => true,
        };
        let progress = client.fsck_poll(job, cancel).await.context("the check was lost")?;
        // The number of records is an estimate, and may be passed.
        bar.set_length(progress.records_estimated.max(progress.records));
        bar.set_position(progress.records);
        if cancel || progress.done {
            bar.finish_and_clear();
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
    findings: Vec<String>,
    findings_total: u64,
}

impl Report {
    fn new(progress: FsckProgress, cancelled: bool) -> Report {
        Report {
            cancelled,
            records: progress.records,
            counts: progress.counts.into_iter().map(|(name, n)| (name, n.into())).collect(),
            findings: progress.findings,
            findings_total: progress.findings_total,
        }
    }

    fn to_text(&self) -> String {
        let mut rows = vec![("records", self.records.to_string())];
        rows.extend(self.counts.iter().map(|(name, value)| (name.as_str(), value.to_string())));
        let mut text = output::rows(&rows);
        for finding in &self.findings {
            text += &format!("wrong: {finding}\n");
        }
        let shown = u64::try_from(self.findings.len()).unwrap_or(u64::MAX);
        if self.findings_total > shown {
            text += &format!("and {} more\n", self.findings_total - shown);
        }
        text + match (self.cancelled, self.findings_total) {
            (true, _) => "cancelled before the end\n",
            (false, 0) => "nothing is wrong\n",
            (false, _) => "",
        }
    }
}
