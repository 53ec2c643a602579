//! How one process reaches another: the seam between it and the network.
//!
//! Programs dial TCP, with TLS or without (`client::Tcp`); a simulation hands in pipes in memory.
//! Clients dial servers, and servers dial each other.

use std::io;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes in both directions, in order.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A value that only the two ends of one connection know. A proof that covers it cannot be used on
/// another connection.
pub type Binding = [u8; 32];

/// An open connection to a server.
pub struct Dialled {
    /// The connection.
    pub stream: Box<dyn Stream>,
    /// The connection's own value; `None`: the connection is not encrypted.
    pub binding: Option<Binding>,
}

impl Dialled {
    /// A connection that is not encrypted.
    #[must_use]
    pub fn plain(stream: impl Stream + 'static) -> Dialled {
        Dialled { stream: Box::new(stream), binding: None }
    }
}

/// The reason with which a server refuses a connection that is not encrypted and must be. A client
/// whose session is open tries again: the server may be told otherwise.
pub const TLS_ONLY: &str = "this address takes encrypted connections only: give --tls, or leave out \
                            --insecure; versions without TLS cannot connect";

/// Opens connections.
pub trait Dial: Send + Sync + 'static {
    /// Connects to `address` (`HOST:PORT`). With `server`, the other end must be the server of that
    /// number; a network that cannot tell leaves that to the caller.
    ///
    /// # Errors
    /// When nobody answers there now, or somebody else does; whoever dials tries again, there and
    /// elsewhere.
    fn dial<'a>(
        &'a self,
        address: &'a str,
        server: Option<u16>,
    ) -> BoxFuture<'a, io::Result<Dialled>>;
}
