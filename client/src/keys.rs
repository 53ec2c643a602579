//! Signing keys and revoked tokens, for administrators.

use wire::{KeysChange, KeysShown, Reply, Request, SignToken, Token};

use crate::{Client, Result, error::unexpected};

impl Client {
    /// Looks at the signing keys and the revoked tokens, or changes them. A change is stable when
    /// this returns, and in force: at once at the coordinator, with their next leases at other
    /// servers.
    ///
    /// # Errors
    /// `NotPermitted` when the token does not administer; [`Error::Refused`](crate::Error::Refused)
    /// when the change is not possible, with the reason.
    pub async fn keys(&self, change: KeysChange) -> Result<KeysShown> {
        match self.ask_root(Request::Keys(change)).await?.reply {
            Reply::Keys(shown) => Ok(shown),
            _ => Err(unexpected()),
        }
    }

    /// Has a token signed with the newest key, and returns its text.
    ///
    /// # Errors
    /// Fails as [`Client::keys`] does.
    pub async fn sign_token(&self, token: Token) -> Result<String> {
        match self.ask_root(Request::SignToken(SignToken { token })).await?.reply {
            Reply::Signed(text) => Ok(text),
            _ => Err(unexpected()),
        }
    }
}
