//! Fuzz targets: whatever comes out of `/dev/fuse` or io_uring is decoded or refused, never a panic.
//!
//! `fuzz/` runs it under a fuzzer (feature `fuzzing`), the test below over its corpus. The kernel
//! is trusted, but versions of it differ, and a mistake in a length would read bytes that are not
//! of the request.

use bytes::Bytes;

use zerocopy::{FromZeros, IntoBytes};

use crate::{
    abi::UringReqHeader,
    request::{Message, Source, decode},
    ring::message::assemble,
};

/// One message of the kernel. Its length is set right, as the session has checked it.
pub fn request(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let Ok(len) = u32::try_from(bytes.len()) else { return };
    if let Some(head) = bytes.first_chunk_mut() {
        *head = len.to_ne_bytes();
    }
    let bytes = Bytes::from(bytes);
    if let Ok(message) = decode(&bytes, Source::Owned(&bytes)) {
        // All of it is looked at, lists that are read as they are walked as well.
        assert!(!format!("{message:?}").is_empty());
        if let Message::Request(request) = message {
            request.extensions.security.into_iter().for_each(drop);
            request.extensions.groups.into_iter().for_each(drop);
            let name = request.name();
            assert_eq!(request.detach().get().name(), name);
        }
    }
}

/// One request over io_uring: the header with its three parts, then the payload. What fits together
/// is decoded as a message of `/dev/fuse` is.
pub fn ring_request(bytes: &[u8]) {
    let mut header = UringReqHeader::new_zeroed();
    let (head, payload) = bytes.split_at(bytes.len().min(size_of::<UringReqHeader>()));
    header.as_mut_bytes()[..head.len()].copy_from_slice(head);
    let mut message = vec![0; 4096 + payload.len()];
    let copy = |into: &mut [u8]| into.copy_from_slice(&payload[..into.len()]);
    if let Ok(len) = assemble(&header, payload.len(), &mut message, copy) {
        request(&message[..len]);
    }
}

#[cfg(test)]
#[path = "../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of every opcode, with numbers and names behind the header.
    fn seeds() -> Vec<Vec<u8>> {
        let message = |opcode: u32| {
            let mut bytes = vec![0; 4];
            bytes.extend(opcode.to_ne_bytes());
            bytes.extend([1; 32]);
            // No extension, then small numbers as most are, then names.
            bytes[36..40].fill(0);
            bytes.extend([0; 64]);
            bytes.extend(b"name\0another\0");
            bytes
        };
        (0..64).chain([4096]).map(message).collect()
    }

    #[test]
    fn no_message_makes_a_panic() {
        mutate::run("fuse_request", seeds(), 30_000, request);
    }

    /// A message, in the parts in which it comes over io_uring: so many bytes of it are the
    /// operation's structure.
    fn split(message: &[u8], op_bytes: usize) -> Vec<u8> {
        let mut header = UringReqHeader::new_zeroed();
        let (head, body) = message.split_at(40);
        let (op, payload) = body.split_at(op_bytes);
        header.in_out.as_mut_bytes()[..40].copy_from_slice(head);
        header.in_out.as_mut_bytes()[..4]
            .copy_from_slice(&u32::try_from(message.len()).unwrap().to_ne_bytes());
        header.op_in.as_mut_bytes()[..op.len()].copy_from_slice(op);
        header.ring_ent_in_out.payload_sz = u32::try_from(payload.len()).unwrap();
        [header.as_bytes(), payload].concat()
    }

    #[test]
    fn no_request_in_parts_makes_a_panic() {
        let parts = seeds()
            .into_iter()
            .flat_map(|message| [0, 8, 64].map(|op_bytes| split(&message, op_bytes)));
        mutate::run("fuse_ring_request", parts.collect(), 30_000, ring_request);
    }
}
