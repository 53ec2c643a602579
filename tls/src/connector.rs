//! The client's end of a connection.

use std::{net::IpAddr, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{Binding, EXPORTER, Error, PROVIDER, Trust, VERSIONS};

/// Connects as a client that trusts one authority.
#[derive(Clone)]
pub struct Connector {
    trust: Trust,
    config: Arc<ClientConfig>,
}

impl Connector {
    /// A connector to servers that `trust` lets count as such.
    ///
    /// # Errors
    /// When `trust` holds no authority.
    pub fn new(trust: Trust) -> Result<Connector, Error> {
        let verifier = trust.verifier()?;
        let config = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
            .with_protocol_versions(VERSIONS)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Connector { trust, config: Arc::new(config) })
    }

    /// Shakes hands over `stream`, which leads to `host`: a name or an IP address. With `server`,
    /// the other end must be the server of that number, where its certificate tells numbers.
    ///
    /// # Errors
    /// When the other end is not what this connector trusts, or the stream fails. Nothing of the
    /// caller was sent.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
        server: Option<u16>,
    ) -> Result<(TlsStream<S>, Binding), Error> {
        let connecting =
            TlsConnector::from(Arc::clone(&self.config)).connect(name_of(host)?, stream);
        let stream = connecting.await.map_err(|error| Error::of(&error))?;
        let (_, connection) = stream.get_ref();
        let certificate = connection.peer_certificates().and_then(|chain| chain.first());
        let found = certificate.and_then(|certificate| self.trust.server(certificate));
        if let (Some(wanted), Some(found)) = (server, found)
            && wanted != found
        {
            return Err(Error::OtherName {
                found: format!("server {found}"),
                wanted: format!("server {wanted}"),
            });
        }
        let binding = connection.export_keying_material(Binding::default(), EXPORTER, None)?;
        Ok((stream, binding))
    }
}

/// The name that a certificate of another authority must have.
fn name_of(host: &str) -> Result<ServerName<'static>, Error> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(ServerName::IpAddress(address.into()));
    }
    ServerName::try_from(host.to_owned()).map_err(|_| Error::Host(host.to_owned()))
}
