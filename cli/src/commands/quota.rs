//! `pando quota`: what users, groups and directories use, and their limits.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context as _;
use base::Account;
use client::Client;
use serde::Serialize;
use wire::{AccountLimits, AccountUse};

use crate::{
    connect::{self, Servers, TokenArgs},
    output,
    people::Kind,
};

/// List what each user, each group and each directory with a quota uses, and its limits.
///
/// With an administrator's token all are listed; with any other one the user and the groups that
/// the command acts for, by their numbers on this machine or in the token. Bytes are allocated ones,
/// holes left out. Files in the trash count for nobody, and a file with several names counts once.
/// Names are those that this machine has for the numbers.
///
/// Limits are set by `pando set HOST:PORT quota.user.USER.bytes=10G` and the like.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// List users; with other such options, these as well.
    #[arg(long)]
    users: bool,
    /// List groups; likewise.
    #[arg(long)]
    groups: bool,
    /// List directories; likewise.
    #[arg(long)]
    directories: bool,
    /// List only what has used up this share of a limit.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    over: Option<u8>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One line of the list.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Line {
    kind: &'static str,
    /// Number of the user or the group, or inode number of the directory.
    id: u64,
    /// Name of the user or the group, or path of the directory.
    name: String,
    bytes: u64,
    /// `null` where there is no limit.
    bytes_max: Option<u64>,
    entries: u64,
    entries_max: Option<u64>,
    /// Whether the limits hold. If not, what there is is being counted.
    active: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando quota");
    let uses = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let uses = Box::pin(everywhere(&client)).await;
        client.close().await?;
        uses
    })?;
    let all = !args.users && !args.groups && !args.directories;
    let is_shown = |line: &Line| {
        let wanted = match line.kind {
            "user" => args.users,
            "group" => args.groups,
            _ => args.directories,
        };
        let near = |percent: u8| line.is_limited() && line.share() >= u128::from(percent);
        (all || wanted) && args.over.is_none_or(near)
    };
    let lines: Vec<Line> = lines(uses).into_iter().filter(is_shown).collect();
    if args.json {
        output::print_json(&lines)?;
    } else {
        let heads = ["KIND", "NAME", "USED", "LIMIT", "INODES", "LIMIT", "%"];
        let rows: Vec<_> = lines.iter().map(Line::cells).collect();
        output::print(&output::table(&heads, &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The use that all servers together tell. Without one of them the sums would be wrong.
async fn everywhere(client: &Client) -> anyhow::Result<Vec<AccountUse>> {
    let mut all = Vec::new();
    for server in client.members() {
        let told = Box::pin(client.accounts(server)).await;
        all.extend(told.with_context(|| format!("server {server} does not say what is used"))?);
    }
    Ok(all)
}

/// The sums over all servers, users first.
fn lines(uses: Vec<AccountUse>) -> Vec<Line> {
    let mut sums: BTreeMap<Account, AccountUse> = BTreeMap::new();
    for told in uses {
        let Some(sum) = sums.get_mut(&Account::of(told.account)) else {
            sums.insert(Account::of(told.account), told);
            continue;
        };
        sum.used.bytes = sum.used.bytes.saturating_add(told.used.bytes);
        sum.used.entries = sum.used.entries.saturating_add(told.used.entries);
        sum.limits = sum.limits.or(told.limits);
        if sum.path.is_empty() {
            sum.path = told.path;
        }
    }
    let mut lines: Vec<Line> = sums.into_iter().map(line).collect();
    lines.retain(|line| line.entries > 0 || line.is_limited());
    lines.sort_by_key(|line| (line.kind == "directory", line.kind == "group"));
    lines
}

fn line((account, told): (Account, AccountUse)) -> Line {
    let (kind, id, name) = match account {
        Account::User(uid) => ("user", u64::from(uid), Kind::User.name(uid)),
        Account::Group(gid) => ("group", u64::from(gid), Kind::Group.name(gid)),
        Account::Directory(ino) => ("directory", ino.0, told.path),
    };
    let limit = |of: fn(AccountLimits) -> Option<u64>| {
        told.limits.and_then(of).filter(|max| *max != u64::MAX)
    };
    let used = |used: i64| u64::try_from(used).unwrap_or(0);
    Line {
        kind,
        id,
        name,
        bytes: used(told.used.bytes),
        bytes_max: limit(|limits| limits.bytes_max),
        entries: used(told.used.entries),
        entries_max: limit(|limits| limits.entries_max),
        active: told.limits.is_none_or(|limits| limits.hold),
    }
}

impl Line {
    fn is_limited(&self) -> bool {
        self.bytes_max.or(self.entries_max).is_some()
    }

    /// The larger part that is used of a limit, in percent.
    fn share(&self) -> u128 {
        let part = |used: u64, max: Option<u64>| {
            max.map_or(0, |max| u128::from(used) * 100 / u128::from(max.max(1)))
        };
        part(self.bytes, self.bytes_max).max(part(self.entries, self.entries_max))
    }

    fn cells(&self) -> Vec<String> {
        let limit = |max: Option<u64>, shown: fn(u64) -> String| match max {
            None => "-".to_owned(),
            Some(_) if !self.active => "counting".to_owned(),
            Some(max) => shown(max),
        };
        let share = if self.is_limited() { self.share().to_string() } else { "-".to_owned() };
        vec![
            self.kind.to_owned(),
            self.name.clone(),
            output::bytes(self.bytes),
            limit(self.bytes_max, output::bytes),
            self.entries.to_string(),
            limit(self.entries_max, |max| max.to_string()),
            share,
        ]
    }
}

#[cfg(test)]
mod tests {
    use base::Ino;
    use wire::Amounts;

    use super::*;

    #[test]
    fn what_servers_say_of_one_account_is_one_line() {
        let limits = AccountLimits { bytes_max: Some(1000), entries_max: None, hold: true };
        let told = |account: Account, entries, bytes, limits| AccountUse {
            account: account.number(),
            used: Amounts { bytes, entries },
            limits,
            path: String::new(),
        };
        let user = Account::User(4_000_000_001);
        let shown = lines(vec![
            told(Account::Directory(Ino(9)), 1, 0, None),
            told(user, 5, 700, None),
            told(user, -2, -200, Some(limits)),
            told(Account::Group(0), 0, 0, None),
        ]);
        let kinds: Vec<_> = shown.iter().map(|line| line.kind).collect();
        assert_eq!(kinds, ["user", "directory"], "who has nothing and no limit is left out");
        let Line { bytes, entries, bytes_max, ref name, .. } = shown[0];
        assert_eq!((bytes, entries, bytes_max), (500, 3, Some(1000)));
        assert_eq!(name, "4000000001");
        assert_eq!(shown[0].share(), 50);
    }
}
