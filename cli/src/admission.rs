//! The admission of connections to a listener: with TLS, or in clear.
//!
//! Core threads and the status page call it for each connection before anything else. Whether a
//! connection is encrypted is seen from its first byte, so the same address takes both where both
//! are allowed: in clear from this machine, encrypted from everywhere.
//!
//! Always true: no byte of a connection in clear that may not be so reaches the server. A connection
//! must be admitted within [`ADMITTED_WITHIN`] of its first byte. Handshakes under way are bounded,
//! those of one address more tightly; more of them wait in the order in which they came. One
//! handshake of each address waits for no other address, so a thousand of them are needed to keep
//! others out.

use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use base::{Encode as _, HashMap};
use parking_lot::Mutex;
use tls::{Acceptor, Binding, FIRST_BYTE, HANDSHAKE_TIMEOUT, ServerStream};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, timeout},
};
use wire::{Answer, ReplyHeader, frame};

/// Handshakes under way at a time: each takes some 30 KiB and a third of a millisecond.
const HANDSHAKES_MAX: usize = 1024;
/// Handshakes of one address under way at a time, besides the one that has a place of its own.
const HANDSHAKES_AN_ADDRESS_MAX: usize = 128;
/// Addresses of which one handshake has a place of its own at a time.
const ADDRESSES_MAX: usize = 1024;
/// Time within which a connection must say its first byte, and again within which it must be
/// admitted.
const ADMITTED_WITHIN: Duration = HANDSHAKE_TIMEOUT;
/// Shortest pause between two lines of the log about refused connections.
const LOG_PERIOD: Duration = Duration::from_secs(1);
/// Time that a refused client has to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Clients that may talk in clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clear {
    /// No client.
    Nobody,
    /// Programs of this machine.
    ThisMachine,
    /// Everybody.
    Everybody,
}

/// The rules of a listener.
#[derive(Clone)]
pub(crate) struct Admission {
    acceptor: Acceptor,
    clear: Clear,
    handshakes: Arc<Handshakes>,
    logged: Arc<Mutex<Option<Instant>>>,
}

/// Handshakes under way.
struct Handshakes {
    all: Semaphore,
    /// Addresses of which a handshake is in its own place.
    alone: Semaphore,
    /// Handshakes of each address that has any.
    of: Mutex<HashMap<IpAddr, Arc<Places>>>,
}

/// Places of an address.
struct Places {
    /// Share of the address in the places of all.
    shared: Semaphore,
    /// The one place that the address shares with no other.
    own: Semaphore,
}

impl Handshakes {
    fn new() -> Handshakes {
        let (all, alone) = (Semaphore::new(HANDSHAKES_MAX), Semaphore::new(ADDRESSES_MAX));
        Handshakes { all, alone, of: Mutex::default() }
    }

    /// The places of an address.
    fn of(&self, address: IpAddr) -> Arc<Places> {
        let mut of = self.of.lock();
        if of.len() == of.capacity() {
            of.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let new = || {
            let shared = Semaphore::new(HANDSHAKES_AN_ADDRESS_MAX);
            Arc::new(Places { shared, own: Semaphore::new(1) })
        };
        Arc::clone(of.entry(host_of(address)).or_insert_with(new))
    }
}

/// The address that stands for a host: hosts of IPv6 have a network of 64 bits to choose from.
fn host_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

/// A connection that may talk.
pub(crate) enum Link {
    /// In clear.
    Clear(TcpStream),
    /// Encrypted.
    Encrypted(Box<ServerStream<TcpStream>>),
}

/// Why a connection was closed before anything was served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    /// The client speaks in clear, and may not.
    #[error("a connection in clear was refused: this address takes TLS only")]
    InClear,
    /// The handshake failed.
    #[error("no TLS connection: {0}")]
    Handshake(#[from] tls::Error),
    /// The connection ended, or was silent.
    #[error("a connection ended before it said anything: {0}")]
    Ended(#[from] io::Error),
}

impl Admission {
    pub(crate) fn new(acceptor: Acceptor, clear: Clear) -> Admission {
        let handshakes = Arc::new(Handshakes::new());
        Admission { acceptor, clear, handshakes, logged: Arc::default() }
    }

    /// Lets a connection in, with the value that only its two ends know where it is encrypted.
    /// Someone who talks in clear and may not is told so in his own protocol.
    pub(crate) async fn admit(
        &self,
        mut stream: TcpStream,
    ) -> Result<(Link, Option<Binding>), Closed> {
        let address = stream.peer_addr()?.ip().to_canonical();
        let mut first = [0];
        // A client of the server's protocol speaks first, and so does a browser.
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let heard = timeout(ADMITTED_WITHIN, stream.peek(&mut first)).await;
        match heard.map_err(|_| late())?? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ if first[0] == FIRST_BYTE => {}
            _ if self.takes_in_clear(address) => return Ok((Link::Clear(stream), None)),
            _ => {
                self.note_refusal(address);
                // The client may have gone.
                let _ = timeout(REFUSAL_TIMEOUT, refuse(&mut stream, first[0])).await;
                return Err(Closed::InClear);
            }
        }
        timeout(ADMITTED_WITHIN, self.encrypt(stream, address)).await.map_err(|_| late())?
    }

    /// Shakes hands, once there is a place for it.
    async fn encrypt(
        &self,
        stream: TcpStream,
        address: IpAddr,
    ) -> Result<(Link, Option<Binding>), Closed> {
        let (handshakes, of_address) = (&self.handshakes, self.handshakes.of(address));
        // The semaphores are never closed. Whichever place is free first is taken.
        let own = async { (of_address.own.acquire().await, handshakes.alone.acquire().await) };
        let shared = async { (of_address.shared.acquire().await, handshakes.all.acquire().await) };
        let _places = tokio::select! {
            biased;
            places = own => places,
            places = shared => places,
        };
        let (stream, binding) = self.acceptor.accept(stream).await?;
        Ok((Link::Encrypted(Box::new(stream)), Some(binding)))
    }

    fn takes_in_clear(&self, address: IpAddr) -> bool {
        match self.clear {
            Clear::Nobody => false,
            Clear::ThisMachine => address.is_loopback(),
            Clear::Everybody => true,
        }
    }

    /// Logs that a client was refused, a line a period at most.
    fn note_refusal(&self, address: IpAddr) {
        let mut logged = self.logged.lock();
        if logged.is_none_or(|logged| logged.elapsed() > LOG_PERIOD) {
            *logged = Some(Instant::now());
            tracing::warn!(%address, "a connection in clear was refused: only TLS is taken here");
        }
    }
}

/// Tells a client of our own protocol, or a browser, that only TLS is spoken here.
async fn refuse(stream: &mut TcpStream, first: u8) -> io::Result<()> {
    let words = if first == frame::opening()[0] {
        // The form of a refusal is the same in all versions of the protocol.
        answer(0, &Answer::Refused(wire::TLS_ONLY.to_owned()))
    } else {
        let text = "This page is encrypted: its address begins with https://\n";
        let length = text.len();
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        (head + text).into_bytes()
    };
    say_last(stream, &words).await
}

/// The bytes of an answer to a call of a connection that is not served.
pub(crate) fn answer(call: u64, answer: &Answer) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_frame(&mut out, |out| {
        ReplyHeader { call, cache_version: 0 }.encode(out);
        answer.encode(out);
    });
    out
}

/// Says these last words on a connection, and waits until the other end has ended it.
pub(crate) async fn say_last(stream: &mut TcpStream, words: &[u8]) -> io::Result<()> {
    stream.write_all(words).await?;
    stream.shutdown().await?;
    // Bytes that the client sends must be read, or the kernel takes our words back.
    let mut sent = [0; 4096];
    while stream.read(&mut sent).await? > 0 {}
    Ok(())
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Clear(stream) => Pin::new(stream).poll_read(cx, buffer),
            Link::Encrypted(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Link::Clear(stream) => Pin::new(stream).poll_write(cx, bytes),
            Link::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Clear(stream) => Pin::new(stream).poll_flush(cx),
            Link::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Clear(stream) => Pin::new(stream).poll_shutdown(cx),
            Link::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_ipv6_has_a_network_of_addresses() {
        let host = |address: &str| host_of(address.parse().unwrap()).to_string();
        assert_eq!(host("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_ne!(host("2001:db8:1:3::1"), host("2001:db8:1:2::1"));
        assert_eq!(host("192.0.2.7"), "192.0.2.7");
    }
}
