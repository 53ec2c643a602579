//! Tokens of mounts: good for the directory of one volume, and nothing else.
//!
//! The node plugin has such a token signed when it mounts, and keeps it nowhere: a mount that is
//! made again gets another. It is not in the volume's context, which everybody sees who may look at
//! a PersistentVolume. Where the plugin's own token may not have tokens signed, the token comes
//! with the call, as a secret of Kubernetes.

use base::Random;
use tonic::Status;
use wire::Token;

use crate::{
    error::{Answer, status},
    fs::Fs,
};

/// Name of the token in a secret.
pub(crate) const SECRET: &str = "token";

/// Has a token signed for a directory. The token ends with the plugin's own.
pub(crate) async fn signed(
    fs: &Fs,
    own: &str,
    (path, read_only): (String, bool),
    random: &dyn Random,
) -> Answer<String> {
    let own = Token::unverified(own);
    let own =
        own.map_err(|error| Status::unauthenticated(format!("the plugin's token: {error}")))?;
    if !own.administers() {
        return Err(Status::failed_precondition(
            "the plugin's token is not an administrator's, so it can have no token signed for a \
             volume: give one, or a secret for staging with a `token` for the volume",
        ));
    }
    let Token { authority, expires, .. } = own;
    let id = random.next().max(1);
    let token = Token { id, path, read_only, authority, expires, ..Token::administrator() };
    fs.sign(token).await.map_err(|error| status("have a token signed", &error))
}

/// Checks that a token that came with the call is for the directory. Servers check the rest.
pub(crate) fn check(token: &str, path: &str) -> Answer<()> {
    let found = Token::unverified(token)
        .map_err(|error| Status::invalid_argument(format!("the secret `{SECRET}`: {error}")))?;
    if found.path == path {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "the secret `{SECRET}` is a token for {}, and not for the volume's directory {path}",
        found.path
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_for_more_or_another_directory_is_refused() {
        let token =
            |path: &str| Token { path: path.to_owned(), ..Token::administrator() }.sign(b"any key");
        assert!(check(&token("/volumes/a"), "/volumes/a").is_ok());
        for path in ["/", "/volumes", "/volumes/b", "/volumes/a/b"] {
            assert!(check(&token(path), "/volumes/a").is_err(), "{path}");
        }
        assert!(check("no token", "/volumes/a").is_err());
    }
}
