//! How one process reaches another: the seam between it and the network.
//!
//! Programs dial TCP (`client::Tcp`); a simulation hands in pipes in memory. Clients dial servers,
//! and servers dial each other.

use std::io;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes in both directions, in order.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Opens connections.
pub trait Dial: Send + Sync + 'static {
    /// Connects to `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// When nobody answers there now; whoever dials tries again, there and elsewhere.
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}
