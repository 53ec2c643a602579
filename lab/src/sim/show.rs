//! What goes over a connection, in words, for a run that is printed.

use std::mem;

use base::{Decode, DecodeError, Reader};
use bytes::{Bytes, BytesMut};
use wire::{
    Answer, FrameError, ReplyHeader, Request, RequestHeader,
    frame::{take_frame, take_opening},
};

use super::trace::Trace;

/// Longer messages are cut off.
const CHARS_MAX: usize = 300;

/// The messages of one direction, as they are sent.
pub(super) struct Show {
    to_server: bool,
    opened: bool,
    bytes: BytesMut,
}

impl Show {
    pub(super) fn new(to_server: bool) -> Show {
        Show { to_server, opened: !to_server, bytes: BytesMut::new() }
    }

    /// Shows what is complete.
    pub(super) fn sent(&mut self, trace: &Trace, pipe: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if let Err(error) = self.show(trace, pipe) {
            trace.show(format_args!("pipe {pipe} {error}"));
        }
    }

    fn show(&mut self, trace: &Trace, pipe: u64) -> Result<(), FrameError> {
        if !mem::replace(&mut self.opened, true) && !take_opening(&mut self.bytes)? {
            self.opened = false;
            return Ok(());
        }
        while let Some(frame) = take_frame(&mut self.bytes)? {
            let text = if self.to_server {
                let (header, request): (RequestHeader, Request) = decode(&frame)?;
                format!(
                    "call={} seq={} lowest={} {request:?}",
                    header.call, header.seq, header.unanswered
                )
            } else {
                let (header, answer): (ReplyHeader, Answer) = decode(&frame)?;
                format!("call={} {answer:?}", header.call)
            };
            let text: String = text.chars().take(CHARS_MAX).collect();
            let arrow = if self.to_server { "->" } else { "<-" };
            trace.show(format_args!("{pipe:x} {arrow} {text}"));
        }
        Ok(())
    }
}

fn decode<H: Decode, B: Decode>(frame: &Bytes) -> Result<(H, B), DecodeError> {
    let mut reader = Reader::new(frame);
    Ok((H::decode(&mut reader)?, B::decode(&mut reader)?))
}
