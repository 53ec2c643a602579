//! A fuzz target: whatever comes out of `/dev/fuse` is decoded or refused, never a panic.
//!
//! `fuzz/` runs it under a fuzzer (feature `fuzzing`), the test below over its corpus. The kernel
//! is trusted, but versions of it differ, and a mistake in a length would read bytes that are not
//! of the request.

use bytes::Bytes;

use crate::request::{Message, Source, decode};

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
}
