//! Where a server listens, and how connections are encrypted.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs as _},
};

use anyhow::Context as _;

use crate::{admission::Clear, certificates::Files};

/// Number of connections that may wait to be accepted, where the system allows it.
const BACKLOG: i32 = 4096;

/// An address to listen on.
#[derive(Clone)]
pub(crate) struct Listen {
    pub(crate) address: String,
    /// When the address is taken, a free port will do.
    pub(crate) or_free_port: bool,
    /// Everybody may talk to it without encryption.
    pub(crate) insecure: bool,
    /// The address is that of the last start, as the data directory keeps it.
    pub(crate) is_kept: bool,
}

/// How connections are encrypted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// No client talks in clear, this machine's programs neither.
    pub(crate) only: bool,
    /// The operator's own certificate; `None`: the file system's authority issues one.
    pub(crate) files: Option<Files>,
}

impl Listen {
    /// The clients that may talk to the address without encryption.
    pub(super) fn clear(&self, tls: &Tls) -> Clear {
        if self.insecure {
            Clear::Everybody
        } else if tls.only {
            Clear::Nobody
        } else {
            Clear::ThisMachine
        }
    }
}

/// Returns the address with the port that is so many after that of `address`; port 0 stays 0.
pub(crate) fn port_after(address: &str, more: u16) -> anyhow::Result<String> {
    let parts = address.rsplit_once(':');
    let (host, port) = parts.with_context(|| format!("{address} is not HOST:PORT"))?;
    let port: u16 = port.parse().with_context(|| format!("{address} is not HOST:PORT"))?;
    let port = if port == 0 { Some(0) } else { port.checked_add(more) };
    let port = port.with_context(|| format!("too few ports follow {address}"))?;
    Ok(format!("{host}:{port}"))
}

pub(super) fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    let kept = if listen.is_kept {
        ", the address of the last start (--listen and --http name others)"
    } else {
        ""
    };
    let context = || format!("cannot listen on {}{kept}", listen.address);
    let addresses: Vec<SocketAddr> =
        listen.address.to_socket_addrs().with_context(context)?.collect();
    let bound = TcpListener::bind(addresses.as_slice());
    let listener = match (bound, addresses.first()) {
        (Err(error), Some(first))
            if listen.or_free_port && error.kind() == io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind((first.ip(), 0))
        }
        (bound, _) => bound,
    };
    let listener = listener.with_context(context)?;
    // The standard library has room for 128 connections at once; a client that finds none tries
    // again a second later.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
