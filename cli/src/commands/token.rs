//! `pando token`: sign what others may do, read what a token says, and take tokens back.

mod ids;
mod list;
mod revoke;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use base::{Clock as _, Time};
use clap::Subcommand;
use client::SystemClock;
use serde::Serialize;
use wire::{Scope, Token};

use crate::{
    connect::{self, Servers, TokenArgs},
    data, failure, output,
};

/// Create, show, list and revoke tokens. A server serves nothing without a valid token.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Show(Show),
    List(list::List),
    Revoke(revoke::Revoke),
}

/// Print a new token. Without limits it is an administrator's token.
///
/// The newest key signs the token: at a server with an administrator's token, or with the keys that
/// a server keeps in its data directory, which works without a server.
#[derive(Debug, clap::Args)]
struct Create {
    /// The server.
    #[arg(
        value_name = "HOST:PORT", value_parser = connect::servers,
        required_unless_present = "data", conflicts_with = "data"
    )]
    server: Option<Servers>,
    #[command(flatten)]
    token: TokenArgs,
    /// The data directory of the file system, or of one of its servers.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Allow only this subtree, which clients see as the root.
    #[arg(long, default_value = "/", value_name = "PATH", value_parser = subtree)]
    path: String,
    /// Let clients act only as this user.
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Let clients act only as these groups; may be given several times [default: the user's
    /// number].
    #[arg(long, value_name = "GID", requires = "uid")]
    gid: Vec<u32>,
    /// Refuse every change.
    #[arg(long)]
    ro: bool,
    /// Allow reading status pages and metrics from other machines, and nothing else.
    #[arg(
        long, conflicts_with_all = ["path", "uid", "gid", "ro", "squash", "map_uid", "map_gid"]
    )]
    pages: bool,
    #[command(flatten)]
    ids: ids::IdArgs,
    /// Expire after this time, such as 30d or 12h [default: never].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires: Option<Duration>,
}

/// Print what a token allows. The signature is not checked: only servers can.
#[derive(Debug, clap::Args)]
struct Show {
    /// File with the token.
    #[arg(value_name = "FILE")]
    token: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Create(create) => create.run(),
        Command::Show(show) => show.run(),
        Command::List(list) => list.run(),
        Command::Revoke(revoke) => revoke.run(),
    }
}

impl Create {
    fn run(self) -> anyhow::Result<ExitCode> {
        let token = self.unsigned()?;
        let text = match (self.server, &self.data) {
            (None, Some(data)) => {
                let (key, secret) = data::newest_key(data)?;
                let authority = Some(data::authority_of(&data::signing_key(data)?)?);
                Token { key, authority, ..token }.sign(&secret)
            }
            (None, None) => return Err(failure::usage("give HOST:PORT, or --data DIR")),
            (Some(Servers(servers)), _) => {
                let own = self.token.read()?;
                let authority = own.says().and_then(|own| own.authority);
                let token = Token { authority, ..token };
                let config = connect::config(servers, own, "pando token create");
                connect::runtime()?.block_on(async {
                    let client = connect::connect(config).await?;
                    let signed = connect::for_administrators(client.sign_token(token).await);
                    connect::close(&client, signed).await
                })?
            }
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The token that was asked for; a key is still to be given.
    fn unsigned(&self) -> anyhow::Result<Token> {
        let gids = match (self.uid, self.gid.as_slice()) {
            (Some(uid), []) => vec![uid],
            (_, gids) => gids.to_vec(),
        };
        Ok(Token {
            id: data::token_id(),
            scope: if self.pages { Scope::Pages } else { Scope::Files },
            path: self.path.clone(),
            uid: self.uid,
            gids,
            read_only: self.ro,
            expires: self.expires.map(|after| end(SystemClock.now(), after)),
            ids: self.ids.mapping()?,
            ..Token::administrator()
        })
    }
}

fn end(now: Time, after: Duration) -> Time {
    let nsec = now.nsec + after.subsec_nanos();
    let carry = i64::from(nsec >= 1_000_000_000);
    let sec = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
    Time { sec: now.sec.saturating_add(sec).saturating_add(carry), nsec: nsec % 1_000_000_000 }
}

/// An absolute path without `.`, `..` and empty components.
fn subtree(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err("must be absolute: paths begin at the root of the file system".to_owned());
    }
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return Err("must not contain . or ..".to_owned());
    }
    Ok(format!("/{}", parts.join("/")))
}

#[derive(Serialize)]
struct Shown {
    /// Number of the token, as `revoke` takes it; `None`: the token cannot be revoked.
    id: Option<String>,
    /// Number of the key that has signed the token.
    key: u32,
    /// The use of the token: `files` or `pages`.
    scope: &'static str,
    /// SHA-256 of the public key of the authority that certifies the servers, in hex.
    authority: Option<String>,
    path: String,
    uid: Option<u32>,
    gids: Vec<u32>,
    read_only: bool,
    /// How ids are squashed and mapped; `None`: neither.
    ids: Option<ids::ShownIds>,
    /// Seconds since the Unix epoch.
    expires: Option<i64>,
    expired: bool,
}

impl Show {
    fn run(self) -> anyhow::Result<ExitCode> {
        let shown = decode(&self.token)?;
        if self.json {
            output::print_json(&shown)?;
        } else {
            output::print(&shown.to_text())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A token's number as it is printed.
fn id(id: u64) -> String {
    format!("{id:016x}")
}

/// A time as it is printed.
pub(super) fn moment(sec: i64) -> String {
    let since = Duration::from_secs(u64::try_from(sec).unwrap_or(0));
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

fn decode(file: &Path) -> anyhow::Result<Shown> {
    let text = data::read_token(file)?;
    let token = Token::unverified(&text).with_context(|| format!("{}", file.display()))?;
    Ok(Shown {
        id: (token.id != 0).then(|| id(token.id)),
        key: token.key,
        scope: match token.scope {
            Scope::Files => "files",
            Scope::Pages => "pages",
        },
        authority: token.authority.map(|authority| authority.to_string()),
        expired: token.expired(SystemClock.now()),
        path: token.path,
        uid: token.uid,
        gids: token.gids,
        read_only: token.read_only,
        ids: token.ids.as_ref().map(ids::ShownIds::of),
        expires: token.expires.map(|time| time.sec),
    })
}

impl Shown {
    fn to_text(&self) -> String {
        let uid = self.uid.map_or_else(|| "any user".to_owned(), |uid| uid.to_string());
        let gids: Vec<_> = self.gids.iter().map(ToString::to_string).collect();
        let gids = if self.uid.is_some() { gids.join(" ") } else { "any group".to_owned() };
        let end = self.expires.map_or_else(
            || "never".to_owned(),
            |sec| {
                let past = if self.expired { " (it has ended)" } else { "" };
                format!("{}{past}", moment(sec))
            },
        );
        let none = || "none".to_owned();
        let authority = self.authority.clone();
        let mut rows = vec![
            ("id", self.id.clone().unwrap_or_else(none)),
            ("key", self.key.to_string()),
            ("for", if self.scope == "pages" { "status pages" } else { "files" }.to_owned()),
            ("path", self.path.clone()),
            ("user", uid),
            ("groups", gids),
            ("changes", if self.read_only { "refused" } else { "allowed" }.to_owned()),
            ("ends", end),
            ("authority", authority.unwrap_or_else(|| "none: good without TLS only".to_owned())),
        ];
        rows.extend(self.ids.iter().flat_map(ids::ShownIds::rows));
        output::rows(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_is_absolute_and_plain() {
        assert_eq!(subtree("/"), Ok("/".to_owned()));
        assert_eq!(subtree("//a//b/"), Ok("/a/b".to_owned()));
        for text in ["", "a", "/a/../b", "/.", "./a"] {
            assert!(subtree(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_end_carries_into_the_seconds() {
        let now = Time { sec: 5, nsec: 999_999_999 };
        assert_eq!(end(now, Duration::from_nanos(1)), Time { sec: 6, nsec: 0 });
        assert_eq!(end(now, Duration::from_secs(2)), Time { sec: 7, nsec: 999_999_999 });
    }
}
