//! Connections that are not as they should be: too many, of another version, of bytes that mean nothing.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use base::{Decode as _, Reader};
use bytes::BytesMut;
use wire::{Answer, ReplyHeader, Retry, frame};

use crate::harness::{Data, pause, succeed, text};

/// What the server says to `bytes` before it ends the connection.
fn told(address: &str, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    // So that a server that waits fails the test in place of stopping it.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have ended it before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    let mut said = BytesMut::from(&said[..]);
    std::iter::from_fn(|| frame::take_frame(&mut said).unwrap())
        .map(|bytes| {
            let mut reader = Reader::new(&bytes);
            ReplyHeader::decode(&mut reader).unwrap();
            Answer::decode(&mut reader).unwrap()
        })
        .collect()
}

#[test]
fn bytes_that_mean_nothing_end_their_connection_and_no_other() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let framed = |body: &[u8]| {
        let mut bytes = frame::opening().to_vec();
        frame::put_frame(&mut bytes, |out| out.extend_from_slice(body));
        bytes
    };
    let long = [&frame::opening()[..], &u32::MAX.to_le_bytes()].concat();
    let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    for bytes in [Vec::new(), vec![0xff; 5000], http, long, framed(&[0xff; 300]), framed(b"")] {
        assert_eq!(told(server.address(), &bytes), []);
    }
    let mut other = frame::opening();
    other[frame::MAGIC.len()] = 99;
    let said = told(server.address(), &other);
    assert!(
        matches!(&said[..], [Answer::Refused(text)] if text.contains("protocol version 99")),
        "{said:?}"
    );
    succeed(&["status", server.address(), "--token", text(&token)]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn connections_beyond_the_limit_are_told_to_wait_until_others_end() {
    let data = Data::formatted();
    let server = data.serve(&["--connections-max", "300"]);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut silent: Vec<_> = (0..300).map(|_| connect()).collect();
    // They say nothing, so that on a slow machine the server may have ended some.
    while told(server.address(), &frame::opening()) != [Answer::Retry(Retry::Busy)] {
        silent.push(connect());
        assert!(silent.len() < 3000, "there is no limit");
    }
    drop(silent);
    // The server notices in its own time.
    let token = data.admin_token();
    while told(server.address(), &frame::opening()) == [Answer::Retry(Retry::Busy)] {
        pause(Duration::from_millis(10));
    }
    succeed(&["status", server.address(), "--token", text(&token)]);
    assert_eq!(server.stop(), Some(0));
}
