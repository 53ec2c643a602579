//! Decodes the messages of a connection: as text for a printed run, and as [`Message`]s for faults
//! that are aimed at messages that servers rely on.

use std::mem;

use base::{Decode, DecodeError, Reader};
use bytes::{Bytes, BytesMut};
use wire::{
    Answer, FrameError, Outcome, Reply, ReplyHeader, Request, RequestHeader, Vote,
    frame::{take_frame, take_opening},
};

use super::trace::Trace;

/// Maximum length of a printed message, in characters; the rest is cut off.
const CHARS_MAX: usize = 300;

/// A message from one server to another that relies on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A prepare request.
    Prepare,
    /// The vote that a transaction is prepared.
    Prepared,
    /// The outcome that a transaction is committed, as a decision or as the answer to a question.
    Committed,
}

impl Message {
    /// All of them.
    pub const ALL: [Message; 3] = [Message::Prepare, Message::Prepared, Message::Committed];

    fn of_request(request: &Request) -> Option<Message> {
        match request {
            Request::Prepare(_) => Some(Message::Prepare),
            Request::Decide(decide) if decide.commit => Some(Message::Committed),
            _ => None,
        }
    }

    fn of_answer(answer: &Answer) -> Option<Message> {
        match answer {
            Answer::Done(Reply::Vote(Vote::Prepared)) => Some(Message::Prepared),
            Answer::Done(Reply::Outcome(Outcome::Committed)) => Some(Message::Committed),
            _ => None,
        }
    }
}

/// Decoder of the messages of one direction, fed with the bytes as they are sent.
pub(super) struct Show {
    to_server: bool,
    opened: bool,
    bytes: BytesMut,
}

impl Show {
    pub(super) fn new(to_server: bool) -> Show {
        Show { to_server, opened: !to_server, bytes: BytesMut::new() }
    }

    /// Prints the messages that are complete, if the run is printed. Returns those that servers
    /// rely on.
    pub(super) fn sent(&mut self, trace: &Trace, pipe: u64, bytes: &[u8]) -> Vec<Message> {
        self.bytes.extend_from_slice(bytes);
        let mut found = Vec::new();
        if let Err(error) = self.show(trace, pipe, &mut found) {
            trace.show(format_args!("pipe {pipe} {error}"));
        }
        found
    }

    fn show(
        &mut self,
        trace: &Trace,
        pipe: u64,
        found: &mut Vec<Message>,
    ) -> Result<(), FrameError> {
        if !mem::replace(&mut self.opened, true) && !take_opening(&mut self.bytes)? {
            self.opened = false;
            return Ok(());
        }
        while let Some(frame) = take_frame(&mut self.bytes)? {
            let text = if self.to_server {
                let (header, request): (RequestHeader, Request) = decode(&frame)?;
                found.extend(Message::of_request(&request));
                trace.prints().then(|| {
                    let (call, seq, lowest) = (header.call, header.seq, header.unanswered);
                    format!("-> call={call} seq={seq} lowest={lowest} {request:?}")
                })
            } else {
                let (header, answer): (ReplyHeader, Answer) = decode(&frame)?;
                found.extend(Message::of_answer(&answer));
                trace.prints().then(|| format!("<- call={} {answer:?}", header.call))
            };
            if let Some(text) = text {
                let text: String = text.chars().take(CHARS_MAX).collect();
                trace.show(format_args!("{pipe:x} {text}"));
            }
        }
        Ok(())
    }
}

fn decode<H: Decode, B: Decode>(frame: &Bytes) -> Result<(H, B), DecodeError> {
    let mut reader = Reader::new(frame);
    Ok((H::decode(&mut reader)?, B::decode(&mut reader)?))
}
