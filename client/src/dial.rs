//! How a client reaches a server: the seam between it and the network.
//!
//! Programs dial TCP; a simulation hands in pipes in memory. Only `session` dials.

use std::io;

use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// Bytes in both directions, in order.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Opens connections.
pub trait Dial: Send + Sync + 'static {
    /// Connects to `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// When nobody answers there now; the client tries again, there and elsewhere.
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// TCP, without delay for small messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // While no server listens on a port of the kernel's own range, a dial can meet itself there.
            if stream.local_addr()? == stream.peer_addr()? {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
