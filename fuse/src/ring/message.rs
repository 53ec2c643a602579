//! A request from an entry, put together as read(2) of `/dev/fuse` would give it.
//!
//! The kernel writes a request in three places: its header, the operation's structure, and a
//! payload with names and contents. The structure's length is told nowhere: it is what the other
//! two leave of the message's length.

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    abi::{InHeader, UringReqHeader},
    request::Malformed,
};

/// Puts the message together in `into`, and returns its length. `payload` copies the beginning of
/// the payload, which holds `payload_max` bytes.
pub(crate) fn assemble(
    header: &UringReqHeader,
    payload_max: usize,
    into: &mut [u8],
    payload: impl FnOnce(&mut [u8]),
) -> Result<usize, Malformed> {
    let (head, _) = InHeader::read_from_prefix(header.in_out.as_bytes()).map_err(|_| Malformed)?;
    let len = |number: u32| usize::try_from(number).map_err(|_| Malformed);
    let (total, payload_len) = (len(head.len)?, len(header.ring_ent_in_out.payload_sz)?);
    if payload_len > payload_max || total > into.len() {
        return Err(Malformed);
    }
    let payload_at = total.checked_sub(payload_len).ok_or(Malformed)?;
    let op_len = payload_at.checked_sub(size_of::<InHeader>()).ok_or(Malformed)?;
    let op = header.op_in.as_bytes().get(..op_len).ok_or(Malformed)?;

    let (front, back) = into[..total].split_at_mut(payload_at);
    let (head_bytes, op_bytes) = front.split_at_mut(size_of::<InHeader>());
    head_bytes.copy_from_slice(head.as_bytes());
    op_bytes.copy_from_slice(op);
    payload(back);
    Ok(total)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// A header with these lengths, and `op` as the operation's structure.
    fn header(len: u32, op: &[u8], payload: u32) -> UringReqHeader {
        let mut header = UringReqHeader::new_zeroed();
        let head = InHeader { len, opcode: 9, unique: 4, ..Default::default() };
        header.in_out.as_mut_bytes()[..40].copy_from_slice(head.as_bytes());
        header.op_in.as_mut_bytes()[..op.len()].copy_from_slice(op);
        header.ring_ent_in_out.payload_sz = payload;
        header
    }

    #[test]
    fn the_three_parts_become_one_message() {
        let mut into = [0xff; 100];
        let header = header(53, b"mkdir_in", 5);
        let copy = |into: &mut [u8]| into.copy_from_slice(b"name\0");
        assert_eq!(assemble(&header, 5, &mut into, copy), Ok(53));
        assert_eq!(into[..40], header.in_out.as_bytes()[..40]);
        assert_eq!(&into[40..53], b"mkdir_inname\0");
        assert_eq!(into[53], 0xff);
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let mut into = [0; 1000];
        for (len, payload, why) in [
            (44, 5, "the payload begins in the header"),
            (4, 5, "the payload is longer than the message"),
            (40 + 129 + 5, 5, "the structure is longer than its place"),
            (53, 65, "the payload is longer than its place"),
            (1001, 5, "the message is longer than the buffer"),
            (u32::MAX, u32::MAX, "no length is possible"),
        ] {
            let header = header(len, b"", payload);
            let refused = assemble(&header, 64, &mut into, |_| ());
            assert_eq!(refused, Err(Malformed), "{why}");
        }
    }
}
