//! The network of programs: TCP, with TLS where a connection leaves this machine.
//!
//! Two ends negotiate nothing: whether a connection is encrypted follows from its address and from
//! what the program asks for, before a byte is sent. A token in clear goes to this machine only, unless
//! the program says otherwise.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use futures::future::BoxFuture;
use tls::{Connector, Trust};
use tokio::net::{TcpStream, lookup_host};
use wire::{Dial, Dialled, Token};

/// The rule by which connections are encrypted.
#[derive(Clone)]
pub enum Encryption {
    /// Connections to other machines, to servers that the connector knows; without one, other machines
    /// are not reached.
    Elsewhere(Option<Connector>),
    /// All.
    Always(Connector),
    /// None, wherever they lead.
    Never,
}

impl Default for Encryption {
    fn default() -> Encryption {
        Encryption::Elsewhere(None)
    }
}

/// TCP, without delay for small messages.
#[derive(Clone, Default)]
pub struct Tcp {
    encryption: Encryption,
}

impl Tcp {
    /// Encrypts as it is told.
    #[must_use]
    pub fn new(encryption: Encryption) -> Tcp {
        Tcp { encryption }
    }

    /// Encrypts connections to other machines, whose servers must be those that a token names.
    #[must_use]
    pub fn of_token(token: &str) -> Tcp {
        Tcp::new(Encryption::Elsewhere(connector_of(token)))
    }

    /// Returns the way to encrypt a connection to this address, if it is to be encrypted.
    fn connector(&self, address: &str, peer: SocketAddr) -> io::Result<Option<&Connector>> {
        match &self.encryption {
            Encryption::Always(connector) => Ok(Some(connector)),
            Encryption::Never => Ok(None),
            Encryption::Elsewhere(_) if is_this_machine(address, peer) => Ok(None),
            Encryption::Elsewhere(Some(connector)) => Ok(Some(connector)),
            Encryption::Elsewhere(None) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                Unknown { address: address.to_owned() },
            )),
        }
    }
}

/// Whether an address is one of this machine, whatever a service of names says: that may be wrong,
/// and the token would be shown to another program here.
fn is_this_machine(address: &str, peer: SocketAddr) -> bool {
    let host = host_of(address);
    let is_literal = host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok();
    is_literal && peer.ip().to_canonical().is_loopback()
}

/// The host of `HOST:PORT`, without the brackets of IPv6.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Error for a server elsewhere by a token that does not say how to know it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} is on another machine, and the token does not say by which authority to know its \
     servers: take a token that does, give --tls-ca FILE, or talk without encryption (--insecure)"
)]
struct Unknown {
    address: String,
}

/// Returns a connector to the servers that a token names, if it names an authority.
#[must_use]
pub fn connector_of(token: &str) -> Option<Connector> {
    let authority = Token::unverified(token).ok()?.authority?;
    // The provider is ours, so a connector can always be made.
    Connector::new(Trust::Authority(authority.0)).ok()
}

/// Whether an error of a dial tells that whoever answers is not, or cannot be known as, a server of
/// the file system: asking again does not help.
pub(crate) fn is_distrust(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else { return false };
    let of_tls = inner.downcast_ref::<tls::Error>().is_some_and(|error| match error {
        tls::Error::Expired
        | tls::Error::NotYet
        | tls::Error::Stranger
        | tls::Error::OtherName { .. }
        | tls::Error::NoTls
        | tls::Error::Unfit(_)
        | tls::Error::Host(_)
        | tls::Error::File { .. }
        | tls::Error::Issue(_) => true,
        tls::Error::Failed(_) | tls::Error::Slow | tls::Error::Ended(_) => false,
    });
    of_tls || inner.is::<Unknown>()
}

impl Dial for Tcp {
    fn dial<'a>(
        &'a self,
        address: &'a str,
        server: Option<u16>,
    ) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async move {
            let (stream, peer) = connect(address).await?;
            let Some(connector) = self.connector(address, peer)? else {
                return Ok(Dialled::plain(stream));
            };
            let (stream, binding) = connector.connect(stream, host_of(address), server).await?;
            Ok(Dialled { stream: Box::new(stream), binding: Some(binding) })
        })
    }
}

/// Connects to the first address of a host that answers.
async fn connect(address: &str) -> io::Result<(TcpStream, SocketAddr)> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for peer in lookup_host(address).await? {
        match TcpStream::connect(peer).await {
            // While no server listens on a port of the kernel's own range, a dial can meet itself
            // there.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                failed = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok((stream, peer));
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encrypts(tcp: &Tcp, peer: &str) -> Result<bool, io::ErrorKind> {
        let address = format!("{peer}:1");
        let found = tcp.connector(&address, address.parse().unwrap());
        found.map(|connector| connector.is_some()).map_err(|error| error.kind())
    }

    #[test]
    fn connections_that_leave_this_machine_are_encrypted() {
        let fingerprint = tls::Authority::derive(b"key").unwrap().fingerprint();
        let authority = Some(wire::Fingerprint(fingerprint));
        let token = Token { authority, ..Token::administrator() }.sign(b"key");
        let tcp = Tcp::of_token(&token);
        for loopback in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            assert_eq!(encrypts(&tcp, loopback), Ok(false), "{loopback}");
        }
        for elsewhere in ["10.0.0.1", "[fe80::1]", "[::ffff:10.0.0.1]"] {
            assert_eq!(encrypts(&tcp, elsewhere), Ok(true), "{elsewhere}");
        }
        let named = |host: &str| tcp.connector(host, "127.0.0.1:1".parse().unwrap());
        assert!(named("localhost:1").unwrap().is_none());
        assert!(named("a-name-that-leads-here:1").unwrap().is_some());
        let always = Tcp::new(Encryption::Always(connector_of(&token).unwrap()));
        assert_eq!(encrypts(&always, "127.0.0.1"), Ok(true));
        assert_eq!(encrypts(&Tcp::new(Encryption::Never), "10.0.0.1"), Ok(false));
        assert!(encrypts(&Tcp::default(), "10.0.0.1").is_err());
        let bare = Tcp::of_token(&Token::administrator().sign(b"key"));
        assert_eq!(encrypts(&bare, "127.0.0.1"), Ok(false));
        assert_eq!(encrypts(&bare, "10.0.0.1"), Err(io::ErrorKind::PermissionDenied));
        let error = bare.connector("host:1", "10.0.0.1:1".parse().unwrap()).err().unwrap();
        assert!(is_distrust(&error));
        assert!(is_distrust(&tls::Error::Stranger.into()));
        assert!(!is_distrust(&io::ErrorKind::ConnectionRefused.into()));
    }
}
