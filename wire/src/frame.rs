//! Frames: a length and that many bytes.
//!
//! A connection opens with [`MAGIC`] and the protocol version from the client; then frames go both
//! ways. A request frame is [`crate::RequestHeader`] and [`crate::Request`]; a reply frame is
//! [`crate::ReplyHeader`] and [`crate::Answer`]. Both sides read all that has arrived, take every
//! whole frame out of it, and write all their frames at once.

use base::{DecodeError, limits::FRAME_BYTES_MAX};
use bytes::{Buf as _, Bytes, BytesMut};

/// The first bytes a client sends: "PANDO" and a zero, then the version as two bytes, low one
/// first.
pub const MAGIC: &[u8; 6] = b"PANDO\0";
/// The protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 22;
/// The opening: magic and version.
pub const OPENING_BYTES: usize = MAGIC.len() + 2;

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer is not a Pando client.
    #[error("not a pando connection")]
    Magic,
    /// The peer speaks another protocol.
    #[error("protocol version {0} is not {PROTOCOL_VERSION}")]
    Version(u16),
    /// A frame is longer than any message can be.
    #[error("frame too long bytes={0}")]
    TooLong(usize),
    /// A frame's bytes are no message.
    #[error("malformed message")]
    Malformed(#[from] DecodeError),
}

/// Returns the first bytes that a client sends.
#[must_use]
pub fn opening() -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}

/// Takes the opening from the front of `buffer`; `false` when more bytes are needed.
///
/// # Errors
/// When it is not the opening of this protocol.
pub fn take_opening(buffer: &mut BytesMut) -> Result<bool, FrameError> {
    if buffer.len() < OPENING_BYTES {
        return Ok(false);
    }
    let opening = buffer.split_to(OPENING_BYTES);
    if !opening.starts_with(MAGIC) {
        return Err(FrameError::Magic);
    }
    let version = u16::from_le_bytes([opening[MAGIC.len()], opening[MAGIC.len() + 1]]);
    if version == PROTOCOL_VERSION { Ok(true) } else { Err(FrameError::Version(version)) }
}

/// Takes one whole frame from the front of `buffer`, without its length; `None` when it is not all
/// there.
///
/// # Errors
/// When its length is out of bounds.
pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    take_frame_within(buffer, FRAME_BYTES_MAX)
}

/// Takes a frame as [`take_frame`] does, from a peer whose frames may be `bytes_max` long, which is
/// less.
///
/// # Errors
/// As [`take_frame`].
pub fn take_frame_within(
    buffer: &mut BytesMut,
    bytes_max: usize,
) -> Result<Option<Bytes>, FrameError> {
    let Some(len) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = usize::try_from(u32::from_le_bytes(*len)).expect("usize has at least 32 bits");
    if len > bytes_max.min(FRAME_BYTES_MAX) {
        return Err(FrameError::TooLong(len));
    }
    if buffer.len() < 4 + len {
        buffer.reserve(4 + len - buffer.len());
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(len).freeze()))
}

/// Appends one frame, whose bytes `fill` writes straight into `out`.
///
/// # Panics
/// When the frame is longer than [`FRAME_BYTES_MAX`]; for messages that are bounded before they are
/// sent.
pub fn put_frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    assert!(try_put_frame(out, fill), "message too long to send");
}

/// Appends a frame as [`put_frame`] does. Returns `false`, and appends nothing, when the frame is
/// too long.
#[must_use]
pub fn try_put_frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let len = out.len() - start - 4;
    if len > FRAME_BYTES_MAX {
        out.truncate(start);
        return false;
    }
    let len = u32::try_from(len).expect("FRAME_BYTES_MAX fits in 32 bits");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use base::Encode as _;

    use super::*;
    use crate::{Answer, ReplyHeader};

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut out = Vec::new();
        put_frame(&mut out, |out| out.extend_from_slice(b"one"));
        put_frame(&mut out, |_| {});
        put_frame(&mut out, |out| out.extend_from_slice(b"three"));

        let mut buffer = BytesMut::new();
        let mut frames = Vec::new();
        for byte in out {
            buffer.extend_from_slice(&[byte]);
            while let Some(frame) = take_frame(&mut buffer).unwrap() {
                frames.push(frame);
            }
        }
        assert_eq!(frames, [&b"one"[..], b"", b"three"]);
    }

    #[test]
    fn a_frame_that_is_too_long_leaves_no_trace() {
        let mut out = b"before".to_vec();
        assert!(!try_put_frame(&mut out, |out| out.resize(out.len() + FRAME_BYTES_MAX + 1, 0)));
        assert_eq!(out, b"before");
        assert!(try_put_frame(&mut out, |out| out.resize(out.len() + FRAME_BYTES_MAX, 0)));
    }

    #[test]
    fn an_answer_is_taken_whole_or_not_at_all() {
        let header = ReplyHeader { call: 7, cache_version: 3 };
        let mut out = Vec::new();
        header.encode(&mut out);
        Answer::Halted.encode(&mut out);
        let whole = Bytes::copy_from_slice(&out);
        assert_eq!(ReplyHeader::take(&whole), Ok((header, Answer::Halted)));
        out.push(0);
        let more = FrameError::Malformed(DecodeError::Trailing);
        assert_eq!(ReplyHeader::take(&Bytes::from(out)), Err(more));
        assert!(ReplyHeader::take(&whole.slice(..whole.len() - 1)).is_err());
    }

    #[test]
    fn a_frame_out_of_bounds_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert_eq!(take_frame(&mut buffer), Err(FrameError::TooLong(u32::MAX as usize)));
    }

    #[test]
    fn another_protocol_is_refused() {
        let mut buffer = BytesMut::from(&b"GET / HTTP/1.1"[..]);
        assert_eq!(take_opening(&mut buffer), Err(FrameError::Magic));
        let mut buffer = BytesMut::from(&b"PANDO\0\x63\0"[..]);
        assert_eq!(take_opening(&mut buffer), Err(FrameError::Version(0x63)));
        let mut buffer = BytesMut::from(&opening()[..]);
        assert_eq!(take_opening(&mut buffer), Ok(true));
    }
}
