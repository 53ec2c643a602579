//! `pando keys`: the keys that sign tokens.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use client::Client;
use serde::Serialize;
use wire::{KeysChange, KeysShown};

use super::token::moment;
use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

/// List the keys that sign tokens, make a new one, or retire an old one.
///
/// Each token names the key that has signed it. To end many tokens at once, rotate, make new tokens
/// for those who are to go on, and then retire the old key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Rotate(Rotate),
    Retire(Retire),
}

/// List the keys. Needs the administrator's token, as all of these do.
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    place: Place,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make a new key, which signs all tokens from then on. Older tokens stay good.
#[derive(Debug, clap::Args)]
struct Rotate {
    #[command(flatten)]
    place: Place,
}

/// Retire a key for good: all tokens that the key has signed end, with their sessions.
///
/// The newest key cannot be retired. The tokens that `format` and `serve --join` leave in data
/// directories, `admin.token`, are of key 0: where key 0 is retired, make others with `pando token
/// create`.
#[derive(Debug, clap::Args)]
struct Retire {
    #[command(flatten)]
    place: Place,
    /// Number of the key.
    #[arg(value_name = "KEY")]
    key: u32,
    /// Retire the key of the token that this command uses itself.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List(list) => list.run(),
        Command::Rotate(rotate) => rotate.run(),
        Command::Retire(retire) => retire.run(),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A key as it is listed.
#[derive(Serialize)]
struct Listed {
    key: u32,
    /// `signs`, `good` or `retired`.
    state: &'static str,
    /// Seconds since the Unix epoch; `None` of a retired key.
    made: Option<i64>,
}

impl List {
    fn run(self) -> anyhow::Result<()> {
        let keys = on(self.place, "pando keys list", async |client| show(client).await)?;
        let listed = listed(&keys);
        if self.json {
            return output::print_json(&listed);
        }
        let row = |key: &Listed| {
            let made = key.made.map_or_else(|| "-".to_owned(), moment);
            vec![key.key.to_string(), key.state.to_owned(), made]
        };
        let rows: Vec<_> = listed.iter().map(row).collect();
        output::print(&output::table(&["KEY", "STATE", "MADE"], &rows))
    }
}

impl Rotate {
    fn run(self) -> anyhow::Result<()> {
        let keys = on(self.place, "pando keys rotate", async |client| {
            let newest = show(client).await?.newest;
            let rotated = client.keys(KeysChange::Rotate(newest)).await;
            connect::for_administrators(rotated).context("cannot rotate the keys")
        })?;
        output::print(&format!("key {} signs tokens from now on", keys.newest))
    }
}

impl Retire {
    fn run(self) -> anyhow::Result<()> {
        let own = self.place.token.read()?.says().map(|token| token.key);
        let (key, is_own) = (self.key, own == Some(self.key));
        let yes = self.yes;
        let retired = on(self.place, "pando keys retire", async |client| {
            let newest = show(client).await?.newest;
            if is_own && !yes && key < newest {
                bail!(
                    "the token of this command is of key {key}, and ends with the key: use a token \
                     of key {newest} (`pando token create`), or confirm with --yes"
                );
            }
            let retired = client.keys(KeysChange::Retire(key)).await;
            connect::for_administrators(retired)
                .with_context(|| format!("cannot retire key {key}"))
                .map(drop)
        });
        match retired {
            // The session has ended with its token.
            Err(error) if is_own && is_retired(&error) => {}
            retired => retired?,
        }
        output::print(&format!("key {key} is retired, and all its tokens with it"))
    }
}

fn is_retired(error: &anyhow::Error) -> bool {
    let retired = wire::TokenError::RetiredKey.to_string();
    matches!(error.downcast_ref(), Some(client::Error::Refused(reason)) if *reason == retired)
}

/// Runs `work` in a session of its own.
fn on<T>(
    place: Place,
    purpose: &str,
    work: impl AsyncFnOnce(&Client) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    connect::on(place.server, &place.token, purpose, work)
}

async fn show(client: &Client) -> anyhow::Result<KeysShown> {
    connect::for_administrators(client.keys(KeysChange::Show).await)
}

/// All keys, in order of their numbers.
fn listed(keys: &KeysShown) -> Vec<Listed> {
    let made = |key: u32| keys.keys.iter().find(|known| known.key == key).map(|key| key.made.sec);
    let state = |key, made: Option<i64>| match made {
        None => "retired",
        Some(_) if key == keys.newest => "signs",
        Some(_) => "good",
    };
    let listed = |key| Listed { key, state: state(key, made(key)), made: made(key) };
    (0..=keys.newest).map(listed).collect()
}

#[cfg(test)]
mod tests {
    use base::Time;
    use wire::KeyShown;

    use super::*;

    #[test]
    fn a_number_that_has_no_key_any_more_is_that_of_a_retired_one() {
        let key = |key| KeyShown { key, made: Time { sec: 7, nsec: 0 } };
        let keys = KeysShown { newest: 3, keys: vec![key(1), key(3)], revoked: vec![] };
        let states: Vec<_> = listed(&keys).iter().map(|key| key.state).collect();
        assert_eq!(states, ["retired", "good", "retired", "signs"]);
    }
}
