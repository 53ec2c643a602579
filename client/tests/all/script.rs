//! Servers that follow a script, and the way to them: what a client says to them, word for word.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{
    Attr, Clock, ClusterMap, Decode as _, DirId, Encode as _, EntryName, FileKind, HashKey,
    HashMap, Ino, Locality, Random, Reader, SessionId, Time,
};
use bytes::BytesMut;
use client::{Config, Dial, Dialled};
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
};
use wire::{
    Answer, DirRef, Entry, FsInfo, Hello, Reply, ReplyHeader, Request, RequestHeader, Welcome,
    frame::{put_frame, take_frame, take_opening},
};

pub(crate) const LEASE_MS: u64 = 30_000;

pub(crate) struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Time {
        Time { sec: 1000, nsec: 0 }
    }
}

/// A clock that a test sets.
#[derive(Default)]
pub(crate) struct Seconds(AtomicU64);

impl Seconds {
    pub(crate) fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for Seconds {
    fn now(&self) -> Time {
        Time { sec: self.0.load(Ordering::Relaxed).cast_signed(), nsec: 0 }
    }
}

#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Random for Count {
    fn next(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// The network: to whom each address leads.
#[derive(Default)]
pub(crate) struct Pipes(HashMap<String, mpsc::UnboundedSender<DuplexStream>>);

impl Dial for Pipes {
    fn dial<'a>(&'a self, address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let server = self.0.get(address).ok_or_else(refused)?;
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            server.send(theirs).map_err(|_| refused())?;
            Ok(Dialled::plain(ours))
        })
    }
}

/// Where a scripted server gets its connections.
pub(crate) struct Server(mpsc::UnboundedReceiver<DuplexStream>);

/// One connection, as the server has it.
pub(crate) struct Peer {
    pub(crate) stream: DuplexStream,
    pub(crate) buffer: BytesMut,
}

pub(crate) fn attr(ino: u64, kind: FileKind) -> Attr {
    let time = Time { sec: 1, nsec: 0 };
    Attr {
        mode: 0o755,
        nlink: 1,
        atime: Time { sec: 999, nsec: 0 },
        mtime: time,
        ctime: time,
        btime: time,
        ..Attr::blank(Ino(ino), kind)
    }
}

pub(crate) fn dir(id: u64) -> DirRef {
    DirRef { id: DirId(u128::from(id)), ino: Ino(id), home: DirId(u128::from(id)), ticket: 0 }
}

pub(crate) fn entry_of_dir(id: u64) -> Answer {
    let entry = Entry {
        attr: attr(id, FileKind::Directory),
        dir: Some(dir(id)),
        target: None,
        whole: true,
    };
    Answer::Done(Reply::Entry(entry))
}

pub(crate) fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

pub(crate) fn welcome(session: u64, incarnation: u64) -> Welcome {
    let fs = FsInfo {
        name: "script".into(),
        uuid: 1,
        hash_key: HashKey::new(1, 2),
        locality: Locality::Directory,
        inline_bytes_max: 4096,
    };
    Welcome {
        session: SessionId(session),
        secret: 99,
        incarnation,
        lease_ms: LEASE_MS,
        commit_ms: 20,
        fs,
        map: ClusterMap::single("script:1", 4),
        root: dir(1),
        root_attr: attr(1, FileKind::Directory),
        read_only: false,
        trusted: true,
        forgot: false,
        opened: session != 5,
        proof: 7,
        direct: None,
    }
}

impl Server {
    pub(crate) async fn accept(&mut self) -> Peer {
        let stream = self.0.recv().await.unwrap();
        let mut peer = Peer { stream, buffer: BytesMut::new() };
        while !take_opening(&mut peer.buffer).unwrap() {
            peer.stream.read_buf(&mut peer.buffer).await.unwrap();
        }
        peer
    }

    /// Accepts a connection and welcomes it; what its Hello said.
    pub(crate) async fn welcome(&mut self, welcome: Welcome) -> (Peer, Hello) {
        let mut peer = self.accept().await;
        let (header, request) = peer.next().await;
        let Request::Hello(hello) = request else { panic!("{request:?}") };
        peer.answer(&header, Answer::Done(Reply::Welcome(welcome))).await;
        (peer, hello)
    }
}

impl Peer {
    pub(crate) async fn next(&mut self) -> (RequestHeader, Request) {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer).unwrap() {
                let mut reader = Reader::new(&frame);
                let header = RequestHeader::decode(&mut reader).unwrap();
                return (header, Request::decode(&mut reader).unwrap());
            }
            let read = self.stream.read_buf(&mut self.buffer).await.unwrap();
            assert!(read > 0, "the client has hung up");
        }
    }

    /// The next request, if one comes before anything else could happen.
    pub(crate) async fn next_soon(&mut self) -> Option<(RequestHeader, Request)> {
        tokio::time::timeout(Duration::from_millis(1), self.next()).await.ok()
    }

    pub(crate) async fn answer(&mut self, to: &RequestHeader, answer: Answer) {
        self.answer_at(to, 1, answer).await;
    }

    pub(crate) async fn answer_at(
        &mut self,
        to: &RequestHeader,
        cache_version: u64,
        answer: Answer,
    ) {
        let mut out = Vec::new();
        put_frame(&mut out, |out| {
            ReplyHeader { call: to.call, cache_version }.encode(out);
            answer.encode(out);
        });
        self.stream.write_all(&out).await.unwrap();
    }

    /// Waits until the client has hung up.
    pub(crate) async fn ended(mut self) {
        while self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) > 0 {}
    }
}

pub(crate) fn config() -> (Config, Server) {
    let (config, mut servers) = config_of(&["script:1"]);
    (config, servers.pop().unwrap())
}

/// A client's settings, and the servers at these addresses. It begins at the first one.
pub(crate) fn config_of(addresses: &[&str]) -> (Config, Vec<Server>) {
    let mut pipes = Pipes::default();
    let mut servers = Vec::new();
    for address in addresses {
        let (sender, accepted) = mpsc::unbounded_channel();
        pipes.0.insert((*address).to_owned(), sender);
        servers.push(Server(accepted));
    }
    let config = Config {
        dial: Arc::new(pipes),
        clock: Arc::new(Fixed),
        random: Arc::new(Count::default()),
        ..Config::new(vec![addresses[0].to_owned()], "token")
    };
    (config, servers)
}
