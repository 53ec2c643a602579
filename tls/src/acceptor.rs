//! The server's end of a connection.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{Binding, EXPORTER, Error, Identity, PROVIDER, VERSIONS};

/// Time within which a client must finish the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts connections with a certificate that can be replaced while it serves.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
}

/// The certificate that new connections are shown.
struct Shown(RwLock<Identity>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().certified))
    }
}

impl Acceptor {
    /// An acceptor that shows this certificate.
    ///
    /// # Errors
    /// When the cryptographic library does not speak TLS 1.3.
    pub fn new(identity: Identity) -> Result<Acceptor, Error> {
        let shown = Arc::new(Shown(RwLock::new(identity)));
        let config = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER))
            .with_protocol_versions(VERSIONS)?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        Ok(Acceptor { config: Arc::new(config), shown })
    }

    /// Shows another certificate to connections from now on.
    pub fn renew(&self, identity: Identity) {
        *self.shown.0.write() = identity;
    }

    /// Shakes hands over `stream`, for [`HANDSHAKE_TIMEOUT`] at most.
    ///
    /// # Errors
    /// When the client speaks something else, refuses the certificate, is silent or leaves.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, Binding), Error> {
        let accepting = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream);
        let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting);
        let stream = accepted.await.map_err(|_| Error::Slow)?.map_err(|error| Error::of(&error))?;
        let (_, connection) = stream.get_ref();
        let binding = connection.export_keying_material(Binding::default(), EXPORTER, None)?;
        Ok((stream, binding))
    }
}
