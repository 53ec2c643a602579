//! The network of programs.

use std::io;

use futures::future::BoxFuture;
use tokio::net::TcpStream;
use wire::{Dial, Stream};

/// TCP, without delay for small messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // While no server listens on a port of the kernel's own range, a dial can meet itself
            // there.
            if stream.local_addr()? == stream.peer_addr()? {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
