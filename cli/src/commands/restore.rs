//! `pando restore`: put back what was removed, while it is in the trash.

use std::{cmp::Reverse, process::ExitCode};

use anyhow::bail;
use base::{FileKind, FsError};
use client::Client;
use serde::Serialize;
use wire::RenameMode;

use super::trash::{self, Thrown};
use crate::{
    connect::{self, Servers, TokenArgs},
    failure, output,
};

/// Restore removed files and directories from the trash. Needs the administrator's token.
///
/// The trash keeps what is removed while `pando set PLACE trash_days=N` holds. A directory comes
/// back with everything below it, and missing directories above are created. If a path was removed
/// several times, the latest version comes back, or the latest that --at selects. Older versions,
/// and files whose place is taken, stay in the trash and are listed. The exit code is 1 if anything
/// that was asked for stays there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// Files or directories to restore, by their paths from the root of the file system.
    #[arg(value_name = "PATH", required_unless_present = "list")]
    paths: Vec<String>,
    /// Restore only what was removed at this time: a time in UTC as --list prints it, or the
    /// beginning of one, as 2026-11-21 or "2026-11-21 17:30".
    #[arg(long, value_name = "TIME", value_parser = beginning)]
    at: Option<String>,
    /// List the trash, and restore nothing: time of removal (UTC), owner, size and path.
    #[arg(long)]
    list: bool,
    /// Print only what stays in the trash, and the totals.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The digits of a time or its beginning: separators differ between `--list`, RFC 3339 and the
/// trash's own directories.
fn beginning(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_digit() || "-: T.Z".contains(c);
    let digits = digits(text);
    if !text.chars().all(is_part) || digits.len() < 4 {
        return Err("not a time such as 2026-11-21, 2026-11-21T17 or 2026-11-21T17:30:05".into());
    }
    Ok(digits)
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando restore");
    connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let done = restore(&client, args).await;
        let left = connect::close(&client, done).await?;
        Ok(if left == 0 { ExitCode::SUCCESS } else { failure::failed() })
    })
}

/// Lists what is there, or puts it back; how much of what was asked for is still there then.
async fn restore(client: &Client, args: &Args) -> anyhow::Result<usize> {
    let mut found = trash::find(client, &args.paths).await?;
    if let Some(beginning) = &args.at {
        found.retain(|thrown| digits(&thrown.removed()).starts_with(beginning.as_str()));
    }
    if args.list {
        list(found, args.json)?;
        return Ok(0);
    }
    if found.is_empty() {
        bail!("nothing in the trash matches");
    }
    put_back(client, found, args).await
}

#[derive(Serialize)]
struct Row {
    removed: String,
    uid: u32,
    gid: u32,
    /// Absent of what is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    kind: String,
    path: String,
    /// Path in the trash.
    trash: String,
}

impl From<Thrown> for Row {
    fn from(thrown: Thrown) -> Row {
        let removed = thrown.removed();
        let Thrown { at, path, attr, .. } = thrown;
        Row {
            removed,
            uid: attr.uid,
            gid: attr.gid,
            bytes: (attr.kind == FileKind::File).then_some(attr.size),
            kind: format!("{:?}", attr.kind).to_lowercase(),
            path,
            trash: at,
        }
    }
}

fn list(found: Vec<Thrown>, json: bool) -> anyhow::Result<()> {
    let mut rows: Vec<Row> = found.into_iter().map(Row::from).collect();
    rows.sort_by(|one, other| (&one.removed, &one.path).cmp(&(&other.removed, &other.path)));
    if json {
        return output::print_json(&rows);
    }
    let cells = |row: &Row| {
        let size = row.bytes.map_or_else(|| row.kind.clone(), output::bytes);
        vec![row.removed.clone(), format!("{}:{}", row.uid, row.gid), size, row.path.clone()]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::print(&output::table(&["REMOVED", "OWNER", "SIZE", "PATH"], &rows))
}

/// Result of the command.
#[derive(Default, Serialize)]
struct Outcome {
    restored: Vec<String>,
    left: Vec<Left>,
}

#[derive(Serialize)]
struct Left {
    path: String,
    removed: String,
    reason: String,
}

/// Puts them back; how many are still there.
async fn put_back(client: &Client, mut found: Vec<Thrown>, args: &Args) -> anyhow::Result<usize> {
    // Directories first, and of them those that were removed last: what others were in.
    found.sort_by_key(|thrown| {
        let is_dir = thrown.attr.kind == FileKind::Directory;
        (!is_dir, Reverse(thrown.removed), thrown.path.len(), thrown.at.clone())
    });
    let mut outcome = Outcome::default();
    for thrown in found {
        // The directory may just have come back: this is its present path.
        let Some((path, _)) = trash::origin(client, &thrown.at).await? else { continue };
        let moved = if path.contains('\u{fffd}') {
            Err("the name is not UTF-8: move the file by hand".to_owned())
        } else {
            move_back(client, &thrown.at, &path).await
        };
        match moved {
            Ok(()) => {
                if !args.quiet && !args.json {
                    output::print(&format!("restored {path}"))?;
                }
                outcome.restored.push(path);
            }
            Err(reason) => {
                let removed = thrown.removed();
                if !args.json {
                    let of = format!("{path}, removed at {removed}");
                    output::print(&format!("left in the trash: {of}: {reason}"))?;
                }
                outcome.left.push(Left { path, removed, reason });
            }
        }
    }
    let left = outcome.left.len();
    if args.json {
        output::print_json(&outcome)?;
    } else {
        let restored = outcome.restored.len();
        output::print(&format!("{restored} restored, {left} left in the trash"))?;
    }
    Ok(left)
}

async fn move_back(client: &Client, at: &str, path: &str) -> Result<(), String> {
    if let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
        let made = client.create_dir_all(above, 0o755).await;
        made.map_err(|error| format!("cannot make {above}: {error}"))?;
    }
    match client.rename_with(at, path, RenameMode::NoReplace).await {
        Ok(()) => Ok(()),
        Err(client::Error::Fs(FsError::Exists)) => Err("the path is taken".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
