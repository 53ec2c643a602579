//! `pando token revoke`: end a token before its time.

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, bail};
use client::Client;
use wire::{Fingerprint, KeysChange, Token};

use super::{id, list};
use crate::{
    connect::{self, Servers, TokenArgs},
    data, output,
};

/// Revoke a token: its sessions end, and no more are opened. Needs the administrator's token.
///
/// The token's sessions end at their next request: at once at the first server, and at the others
/// when they next hear of it, within seconds. A token that is revoked already stays so.
#[derive(Debug, clap::Args)]
pub(super) struct Revoke {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// File with the token, or the token's id: `pando token show` and `list` print it.
    #[arg(value_name = "FILE|ID")]
    which: String,
    #[command(flatten)]
    token: TokenArgs,
    /// Revoke the token that this command uses itself.
    #[arg(long)]
    yes: bool,
}

impl Revoke {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let own = self.token.read()?;
        let own_id = own.says().map(|token| token.id);
        let own_authority = own.says().and_then(|token| token.authority);
        let found = find(&self.which)?;
        let token = match &found {
            Found::File { revoke, .. } => *revoke,
            Found::Id(id) => wire::Revoke { id: *id, key: None, expires: None },
        };
        if token.id == 0 {
            bail!(
                "{} has no id, so it cannot be revoked: rotate the keys, and retire the one that \
                 has signed it",
                self.which
            );
        }
        if let Found::File { authority: Some(authority), .. } = &found
            && own_authority.is_some_and(|own| own != *authority)
        {
            bail!("{} is a token of another file system than that of the command", self.which);
        }
        let is_own = own_id == Some(token.id);
        if is_own && !self.yes {
            bail!(
                "this command uses the token itself, which is then good for nothing; --yes confirms"
            );
        }
        let config = connect::config(self.server.0, own, "pando token revoke");
        connect::runtime()?.block_on(async {
            let client = connect::connect(config).await?;
            let revoked = Box::pin(revoke(&client, &found, token)).await;
            match connect::close(&client, revoked).await {
                // The session has ended with its token.
                Err(error) if is_own && is_revoked(&error) => Ok(()),
                closed => closed,
            }
        })?;
        output::print(&format!("token {} is revoked", id(token.id)))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn revoke(client: &Client, found: &Found, mut token: wire::Revoke) -> anyhow::Result<()> {
    if let Found::Id(id) = found {
        // The list of revoked tokens keeps one whose end and key are known for a shorter time.
        if let Ok(sessions) = Box::pin(list::sessions(client)).await {
            let mut known = sessions.rows().filter_map(|(_, session)| session.token);
            if let Some(known) = known.find(|known| known.id == *id) {
                token = wire::Revoke { id: *id, key: Some(known.key), expires: known.expires };
            }
        }
    }
    let revoked = client.keys(KeysChange::Revoke(token)).await;
    connect::for_administrators(revoked).context("cannot revoke the token").map(drop)
}

fn is_revoked(error: &anyhow::Error) -> bool {
    let revoked = wire::TokenError::Revoked.to_string();
    matches!(error.downcast_ref(), Some(client::Error::Refused(reason)) if *reason == revoked)
}

/// The token that is meant.
enum Found {
    File { revoke: wire::Revoke, authority: Option<Fingerprint> },
    Id(u64),
}

/// Reads a token's file, or an id.
fn find(which: &str) -> anyhow::Result<Found> {
    let file = Path::new(which);
    if !file.exists()
        && let Some(id) = parse_id(which)
    {
        return Ok(Found::Id(id));
    }
    let text = data::read_token(file)?;
    let token = Token::unverified(&text).with_context(|| which.to_owned())?;
    // Only the number counts. Nobody has checked the rest, by which the number would be forgotten
    // one day.
    let revoke = wire::Revoke { id: token.id, key: None, expires: None };
    Ok(Found::File { revoke, authority: token.authority })
}

/// A token's id as it is printed.
fn parse_id(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_sixteen_hex_digits() {
        assert_eq!(parse_id("00000000000000ff"), Some(255));
        assert_eq!(parse_id(&id(u64::MAX)), Some(u64::MAX));
        for text in ["", "ff", "+0000000000000ff", "00000000000000fg", "000000000000000ff"] {
            assert_eq!(parse_id(text), None, "{text}");
        }
    }
}
