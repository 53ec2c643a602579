//! Readers of the page: programs of this machine, and from elsewhere those with a token. Whether
//! the server lives and is ready, two words, is told to everybody: what restarts servers and sends
//! clients to them has no token.
//!
//! The token is shown as a bearer's (RFC 6750), for scrapers, or as the password of whatever user
//! (RFC 7617), for browsers, which ask their user for it.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
    serve::IncomingStream,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use wire::{Scope, Token, TokenError};

use super::{Phases, links::Links, serving, unavailable};

/// Pages that everybody may read.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// The rule of the page.
pub(super) struct Readers {
    /// Whether readers on other machines need a token.
    pub(super) need_tokens: bool,
    /// The server that knows which tokens are good.
    pub(super) phases: Phases,
}

/// A reader's address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader(SocketAddr);

impl Connected<IncomingStream<'_, Links>> for Reader {
    fn connect_info(stream: IncomingStream<'_, Links>) -> Reader {
        Reader(*stream.remote_addr())
    }
}

/// Answers whoever may read the page, and tells others what they need.
pub(super) async fn check(
    State(readers): State<Arc<Readers>>,
    ConnectInfo(Reader(address)): ConnectInfo<Reader>,
    request: Request,
    next: Next,
) -> Response {
    let is_free = !readers.need_tokens
        || OPEN.contains(&request.uri().path())
        || address.ip().to_canonical().is_loopback();
    if is_free {
        return next.run(request).await;
    }
    let server = match serving(&readers.phases) {
        Ok(server) => server,
        Err(phase) => return unavailable(phase).into_response(),
    };
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|text| text.to_str().ok());
    let refused = refusal(|text| server.verify(text), shown);
    let Some(reason) = refused else { return next.run(request).await };
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"pando: the token is the password\"")];
    (StatusCode::UNAUTHORIZED, ask, format!("{reason}\n")).into_response()
}

/// Why a reader with this header is refused, if that is so.
fn refusal(
    verify: impl FnOnce(&str) -> Result<Token, TokenError>,
    shown: Option<&str>,
) -> Option<String> {
    const NONE: &str =
        "a token is needed from other machines: `pando token create --pages` makes one";
    let Some(text) = shown.and_then(token_of) else { return Some(NONE.to_owned()) };
    match verify(&text) {
        Ok(token) if token.scope == Scope::Pages || token.administers() => None,
        Ok(_) => Some("this token is not for status pages".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// The token in an `Authorization` header.
fn token_of(header: &str) -> Option<String> {
    let (scheme, value) = header.trim().split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(value.trim()).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bearers_or_a_password() {
        assert_eq!(token_of("Bearer pando2.00").as_deref(), Some("pando2.00"));
        // printf 'me:pando2.00' | base64
        assert_eq!(token_of("basic bWU6cGFuZG8yLjAw").as_deref(), Some("pando2.00"));
        for other in ["", "Bearer", "Digest x", "Basic !", "Basic bWU="] {
            assert_eq!(token_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_page_is_for_those_whose_token_says_so() {
        let verify = |text: &str| Token::verify(text, &b"key"[..], base::Time::default());
        let refused = |token: Token, key: &[u8]| {
            refusal(verify, Some(&format!("Bearer {}", token.sign(key))))
        };
        let admin = Token::administrator;
        assert_eq!(refused(admin(), b"key"), None);
        assert_eq!(refused(Token { scope: Scope::Pages, ..admin() }, b"key"), None);
        assert!(refused(Token { path: "/a".into(), ..admin() }, b"key").is_some());
        assert!(refused(Token { uid: Some(0), ..admin() }, b"key").is_some());
        assert!(refused(admin(), b"other").unwrap().contains("another file system"));
        assert!(refusal(verify, None).unwrap().contains("pando token create"));
    }
}
