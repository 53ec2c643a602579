//! Both ends over a pipe: who is let in, and what the others hear.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use rustls::HandshakeKind;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};

use crate::{Acceptor, Authority, Binding, Connector, Error, Identity, Names, Trust};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[expect(clippy::disallowed_methods, reason = "TLS compares with the machine's clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn authority(key: u8) -> Authority {
    Authority::derive(&[key; 32]).unwrap()
}

fn names(server: u16) -> Names {
    Names { server, addresses: vec![], host: Some("localhost".into()) }
}

fn identity_at(key: u8, server: u16, when: SystemTime) -> Identity {
    authority(key).issue(&names(server), when).unwrap()
}

fn acceptor(key: u8, server: u16) -> Acceptor {
    Acceptor::new(identity_at(key, server, now())).unwrap()
}

fn connector(key: u8) -> Connector {
    Connector::new(Trust::Authority(authority(key).fingerprint())).unwrap()
}

type Ends = (Result<Binding, Error>, Result<Binding, Error>);

/// The words of both ends of a connection; where it stands, bytes have gone both ways.
async fn meet(acceptor: &Acceptor, connector: &Connector, server: Option<u16>) -> Ends {
    let (near, far) = duplex(1 << 16);
    let client = async {
        let (mut stream, binding) = connector.connect(near, "localhost", server).await?;
        stream.write_all(b"question").await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        Ok(binding)
    };
    let serving = async {
        let (mut stream, binding) = acceptor.accept(far).await?;
        let mut question = [0; 8];
        if stream.read_exact(&mut question).await.is_ok() {
            assert_eq!(&question, b"question");
            stream.write_all(b"answer").await.unwrap();
            stream.flush().await.unwrap();
        }
        Ok(binding)
    };
    tokio::join!(client, serving)
}

#[tokio::test]
async fn both_ends_of_one_connection_know_a_value_that_no_other_has() {
    let (server, client) = (acceptor(1, 3), connector(1));
    let (Ok(one), Ok(same)) = meet(&server, &client, Some(3)).await else { panic!() };
    let (Ok(other), Ok(_)) = meet(&server, &client, None).await else { panic!() };
    assert_eq!(one, same);
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_server_of_another_file_system_is_a_stranger() {
    let (client, server) = meet(&acceptor(2, 0), &connector(1), None).await;
    assert!(matches!(client, Err(Error::Stranger)), "{client:?}");
    assert!(server.is_err());
}

#[tokio::test]
async fn a_server_that_signs_for_itself_is_a_stranger() {
    // The chain names the right authority, which has not signed the certificate.
    let (mine, theirs) = (authority(1), authority(2));
    let at = now();
    let right = mine.issue(&names(0), at).unwrap();
    let wrong = theirs.issue(&names(0), at).unwrap();
    let chain = vec![wrong.certified.cert[0].clone(), right.certified.cert[1].clone()];
    let mixed = rustls::sign::CertifiedKey::new(chain, wrong.certified.key.clone());
    let mixed = Identity { certified: std::sync::Arc::new(mixed), ..right };
    let (client, _) = meet(&Acceptor::new(mixed).unwrap(), &connector(1), None).await;
    assert!(matches!(client, Err(Error::Stranger)), "{client:?}");
}

#[tokio::test]
async fn another_server_of_the_file_system_is_not_the_one_that_was_asked_for() {
    let (server, client) = (acceptor(1, 3), connector(1));
    let (said, _) = meet(&server, &client, Some(4)).await;
    let said = said.unwrap_err().to_string();
    assert_eq!(said, "the server's certificate is for server 3, not for server 4");
    // A resumed connection is of the same certificate.
    let (again, _) = meet(&server, &client, Some(4)).await;
    assert!(matches!(again, Err(Error::OtherName { .. })), "{again:?}");
}

#[tokio::test]
async fn a_wrong_clock_is_named() {
    let year = 365 * DAY;
    for (when, said) in
        [(now() - year, "expired"), (now() + year, "the clock of one of both machines is wrong")]
    {
        let server = Acceptor::new(identity_at(1, 0, when)).unwrap();
        let (client, _) = meet(&server, &connector(1), None).await;
        let client = client.unwrap_err().to_string();
        assert!(client.contains(said), "{client}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_to_the_next_connection() {
    let server = Acceptor::new(identity_at(1, 0, now() - 30 * DAY)).unwrap();
    assert!(meet(&server, &connector(1), None).await.0.is_err());
    server.renew(identity_at(1, 0, now()));
    assert!(meet(&server, &connector(1), None).await.0.is_ok());
}

/// An end of a pipe that counts how often it has waited for the other end.
struct Counted {
    pipe: DuplexStream,
    has_spoken: bool,
    round_trips: usize,
}

impl Counted {
    fn new(pipe: DuplexStream) -> Counted {
        Counted { pipe, has_spoken: false, round_trips: 0 }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(cx, buffer))?;
        if buffer.filled().len() > before && std::mem::take(&mut self.has_spoken) {
            self.round_trips += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.has_spoken = true;
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

/// Asks a question on a new connection; returns the kind of handshake and the round trips until the
/// answer.
async fn ask(acceptor: &Acceptor, connector: &Connector) -> (HandshakeKind, usize) {
    let (near, far) = duplex(1 << 16);
    let client = async {
        let near = Counted::new(near);
        let (mut stream, _) = connector.connect(near, "localhost", Some(0)).await.unwrap();
        stream.write_all(b"?").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'!');
        let (counted, connection) = stream.get_ref();
        (connection.handshake_kind().unwrap(), counted.round_trips)
    };
    let serving = async {
        let (mut stream, _) = acceptor.accept(far).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'?');
        stream.write_all(b"!").await.unwrap();
        stream.flush().await.unwrap();
        // The client ends the connection.
        let _ = stream.read_u8().await;
    };
    tokio::join!(client, serving).0
}

#[tokio::test]
async fn a_handshake_is_one_round_trip_and_later_ones_are_resumed() {
    let (server, client) = (acceptor(1, 0), connector(1));
    assert_eq!(ask(&server, &client).await, (HandshakeKind::Full, 2));
    for _ in 0..3 {
        assert_eq!(ask(&server, &client).await, (HandshakeKind::Resumed, 2));
    }
    // A server that was started anew knows no earlier connection.
    assert_eq!(ask(&acceptor(1, 0), &client).await, (HandshakeKind::Full, 2));
}

#[tokio::test]
async fn no_token_is_sent_to_who_speaks_no_tls() {
    let (near, mut far) = duplex(1 << 16);
    let client = connector(1);
    let plain = async {
        far.write_all(b"PANDO plain bytes, as a server of before would send them").await.unwrap();
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).await.unwrap();
        sent
    };
    let (connected, sent) = tokio::join!(client.connect(near, "localhost", None), plain);
    assert!(matches!(connected, Err(Error::NoTls)), "{:?}", connected.err());
    assert_eq!(sent[0], crate::FIRST_BYTE);
    let (near, far) = duplex(1 << 16);
    let server = acceptor(1, 0);
    let (accepted, ()) = tokio::join!(server.accept(far), meet_plainly(near));
    assert!(matches!(accepted, Err(Error::NoTls)), "{:?}", accepted.err());
}

async fn meet_plainly(mut near: DuplexStream) {
    near.write_all(b"PANDO plain bytes of a client of before").await.unwrap();
    let mut answer = Vec::new();
    near.read_to_end(&mut answer).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_not_waited_for() {
    let (near, far) = duplex(1 << 16);
    let accepted = Box::pin(acceptor(1, 0).accept(far)).await;
    assert!(matches!(accepted, Err(Error::Slow)));
    drop(near);
}

#[tokio::test]
async fn certificates_of_others_are_for_hosts() {
    let folder = std::env::temp_dir().join(format!("pando-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().unwrap();
    let of = |host: &str| {
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.signed_by(&own, &issuer).unwrap().pem()
    };
    let private = file("key.pem", &own.serialize_pem());
    let trust = Trust::read(&file("ca.pem", &root.pem())).unwrap();
    let client = Connector::new(trust).unwrap();
    for (host, is_let_in) in [("localhost", true), ("elsewhere.example", false)] {
        let identity = Identity::read(&file("cert.pem", &of(host)), &private).unwrap();
        let server = Acceptor::new(identity).unwrap();
        let (said, _) = meet(&server, &client, Some(9)).await;
        assert_eq!(said.is_ok(), is_let_in, "{said:?}");
        if let Err(error) = said {
            let text = error.to_string();
            assert!(text.contains("elsewhere.example") && text.contains("localhost"), "{text}");
        }
    }
    let other = rcgen::KeyPair::generate().unwrap();
    let other = file("other.pem", &other.serialize_pem());
    let certificate = file("cert.pem", &of("localhost"));
    for (certificate, key, said) in [
        (&certificate, &other, "is not the key of"),
        (&certificate, &certificate, "holds no private key"),
        (&private, &private, "holds no certificate"),
        (&folder.join("none"), &private, "No such file"),
    ] {
        let error = Identity::read(certificate, key).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
