//! Authenticated connections to other servers. The dialling server proves that it has the file
//! system's key, with a number that it was given for this connection alone, so a proof that was
//! overheard is worthless. Where the connection is encrypted, the proof covers a value that only
//! its two ends know, so nobody can hand it on. The dialled server proves what it is by its
//! certificate; without encryption it proves nothing, and addresses must lead where they say.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::{
    Answer, Binding, Dial, Dialled, Reply, ReplyHeader, Request, RequestHeader, Stream, frame,
};

use crate::{
    cluster::{Cluster, Visit},
    server::Shared,
};

/// An open connection.
pub(crate) struct Open {
    stream: Box<dyn Stream>,
    /// The connection's own value; `None`: the connection is not encrypted.
    binding: Option<Binding>,
    inbox: BytesMut,
    calls: u64,
    /// Generation of the server's process at the other end; 0: it has none, or it is not known yet.
    pub(super) generation: u64,
}

impl Open {
    /// Connects to `server`, and introduces this server as one of its cluster.
    pub(crate) async fn connect(
        shared: &Shared,
        cluster: &Cluster,
        server: u16,
        address: &str,
    ) -> io::Result<Open> {
        let mut open = Open::dial(cluster.options.dial.as_ref(), address, server).await?;
        let hello = cluster.hello(server, &shared.options.address);
        let challenge = match open.ask(&Request::PeerHello(hello.clone())).await? {
            Answer::Done(Reply::Challenge(challenge)) => challenge,
            other => return Err(io::Error::other(format!("not let in: {other:?}"))),
        };
        let is_newest = cluster.own.reaches(server, challenge, shared.bugs);
        let is_newest = is_newest.map_err(|problem| {
            let reason = problem.reason.clone();
            shared.halt(problem);
            io::Error::other(reason)
        })?;
        open.generation = challenge.generation;
        let (config, challenge) = (&shared.config, challenge.number);
        let visit = Visit { uuid: config.uuid, to: server, challenge, binding: open.binding };
        let proven = visit.prove(&config.signing_key, hello);
        match open.ask(&Request::PeerHello(proven)).await? {
            // An outdated process hears of the newer one with the hello.
            Answer::Done(Reply::Nothing) if !is_newest => {
                Err(io::Error::other("an outdated process of the server answers"))
            }
            Answer::Done(Reply::Nothing) => Ok(open),
            other => Err(io::Error::other(format!("not let in: {other:?}"))),
        }
    }

    /// Connects, without a request yet.
    pub(crate) async fn dial(dial: &dyn Dial, address: &str, server: u16) -> io::Result<Open> {
        let Dialled { mut stream, binding } = dial.dial(address, Some(server)).await?;
        stream.write_all(&frame::opening()).await?;
        Ok(Open { stream, binding, inbox: BytesMut::new(), calls: 0, generation: 0 })
    }

    /// The stream, and the bytes that were read from it and not taken yet.
    pub(super) fn into_parts(self) -> (Box<dyn Stream>, BytesMut) {
        (self.stream, self.inbox)
    }

    /// Asks one request, and waits for its answer.
    pub(crate) async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        self.calls += 1;
        let mut out = Vec::new();
        let put = RequestHeader::bare(self.calls).put(request, &mut out);
        assert!(put, "what the coordinator and its servers ask is bounded");
        self.stream.write_all(&out).await?;
        self.stream.flush().await?;
        loop {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            if let Some(bytes) = frame::take_frame(&mut self.inbox).map_err(io::Error::other)? {
                let (header, answer) = ReplyHeader::take(&bytes).map_err(invalid)?;
                // A refusal of the connection itself answers no call.
                return match answer {
                    Answer::Refused(_) => Ok(answer),
                    answer if header.call == self.calls => Ok(answer),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            self.inbox.reserve(4096);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
