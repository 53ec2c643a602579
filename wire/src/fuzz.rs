//! Fuzz targets: bytes from outside are refused or understood, never a panic.
//!
//! `fuzz/` runs them under a fuzzer (feature `fuzzing`), the tests below over its corpus. What is
//! understood must be what it says: encoded again, it reads as the same value.

use std::fmt::Debug;

use base::{Decode, Encode, Reader, Time};
use bytes::{Bytes, BytesMut};

use crate::{Answer, ReplyHeader, Request, RequestHeader, Token, frame};

/// A request.
pub fn request(bytes: &[u8]) {
    reads_back::<Request>(bytes);
}

/// The header of a request.
pub fn request_header(bytes: &[u8]) {
    reads_back::<RequestHeader>(bytes);
}

/// An answer.
pub fn answer(bytes: &[u8]) {
    reads_back::<Answer>(bytes);
}

/// All that a client sends on a connection, and all that a server does.
pub fn frames(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    if frame::take_opening(&mut buffer) == Ok(true) {
        while let Ok(Some(bytes)) = frame::take_frame(&mut buffer) {
            let mut reader = Reader::new(&bytes);
            if RequestHeader::decode(&mut reader).is_ok() {
                let _ = Request::decode(&mut reader);
            }
        }
    }
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(bytes)) = frame::take_frame(&mut buffer) {
        let mut reader = Reader::new(&bytes);
        if ReplyHeader::decode(&mut reader).is_ok() {
            let _ = Answer::decode(&mut reader);
        }
    }
}

/// The text of a token: nobody makes one without the key.
pub fn token(bytes: &[u8]) {
    const KEY: &[u8] = b"a key that no input was signed with";
    let text = String::from_utf8_lossy(bytes);
    let now = Time { sec: 1, nsec: 0 };
    assert!(Token::verify(&text, KEY, now).is_err(), "a forged token");
    if let Ok(token) = Token::unverified(&text) {
        let again = Token::verify(&token.sign(KEY), KEY, Time { sec: i64::MIN, nsec: 0 });
        assert_eq!(again, Ok(token));
    }
}

fn reads_back<T: Encode + Decode + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(&Bytes::copy_from_slice(bytes)) {
        assert_eq!(T::from_bytes(&value.to_vec().into()), Ok(value));
    }
}

#[cfg(test)]
#[path = "../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ROUNDS: u32 = 20_000;

    fn golden(subject: &str) -> Vec<Vec<u8>> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden.txt");
        mutate::golden(&file, subject)
    }

    #[test]
    fn no_request_makes_a_panic() {
        mutate::run("request", golden("Request::"), ROUNDS, request);
        mutate::run("request_header", golden("RequestHeader"), ROUNDS, request_header);
    }

    #[test]
    fn no_answer_makes_a_panic() {
        let replies = golden("Reply::").into_iter().map(|reply| [vec![1], reply].concat());
        let answers = golden("Answer::").into_iter().chain(replies).collect();
        mutate::run("answer", answers, ROUNDS, answer);
    }

    #[test]
    fn no_connection_makes_a_panic() {
        let header = golden("RequestHeader").remove(0);
        let mut seed = frame::opening().to_vec();
        for request in golden("Request::") {
            frame::put_frame(&mut seed, |out| {
                out.extend_from_slice(&header);
                out.extend_from_slice(&request);
            });
        }
        mutate::run("frames", vec![seed], 2000, frames);
    }

    #[test]
    fn no_text_is_taken_for_a_token() {
        let signed = Token::administrator().sign(b"another key").into_bytes();
        mutate::run("token", vec![signed], ROUNDS, token);
    }
}
