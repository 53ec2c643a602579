//! TLS 1.3 between machines.
//!
//! Each file system has an [`Authority`] of its own, which every server derives from the signing
//! key that all servers have. So each server issues its own certificate ([`Identity`]), and nothing
//! is handed out: a cluster that was off for a year starts. A client knows the authority by the
//! [fingerprint](Authority::fingerprint) in its token ([`Trust::Authority`]), or is given
//! certificates of another one ([`Trust::Roots`]). [`Connector`] is the client's end and
//! [`Acceptor`] the server's.
//!
//! This crate opens no socket and knows no message: both ends wrap a stream that the caller has.
//! Clients prove themselves with tokens, and servers with the signing key, so no client has a
//! certificate.
//!
//! Always true: no byte of a caller is sent before the other end has proven what [`Trust`] demands.
//! There is nothing to negotiate and no early data, so nobody between can weaken a connection.

#![warn(missing_docs)]

mod acceptor;
mod authority;
mod connector;
mod error;
mod identity;
mod names;
#[cfg(test)]
mod tests;
mod trust;

pub use acceptor::{Acceptor, HANDSHAKE_TIMEOUT};
pub use authority::Authority;
pub use connector::Connector;
pub use error::Error;
pub use identity::Identity;
pub use names::Names;
pub use tokio_rustls::{client::TlsStream as ClientStream, server::TlsStream as ServerStream};
pub use trust::Trust;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

/// A value that only the two ends of one connection know (`tls-exporter`, RFC 9266). A proof that
/// covers it is worth nothing on another connection.
pub type Binding = [u8; 32];

/// Label of the exporter, from RFC 9266.
const EXPORTER: &[u8] = b"EXPORTER-Channel-Binding";
/// First byte of a TLS connection: the content type of a handshake record (RFC 8446, section 5.1).
pub const FIRST_BYTE: u8 = 22;

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// The versions of TLS that are spoken.
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
