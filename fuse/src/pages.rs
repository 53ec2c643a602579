//! Ranges of bytes as pages of 4 KiB, for file systems that keep contents in memory.

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
const PAGE: u64 = 4096;

/// Splits a range into (page, offset in it, length in it).
///
/// # Panics
/// When the range ends beyond 2⁶⁴.
pub fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        let within = usize::try_from(at % PAGE).expect("below a page");
        let piece = left.min(PAGE_BYTES - within);
        let found = (at / PAGE, within, piece);
        at += u64::try_from(piece).expect("at most a page");
        left -= piece;
        (piece > 0).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_its_pieces() {
        let of = |offset, len| pieces(offset, len).collect::<Vec<_>>();
        assert_eq!(of(4000, 0), []);
        assert_eq!(of(4000, 96), [(0, 4000, 96)]);
        assert_eq!(of(4000, 5000), [(0, 4000, 96), (1, 0, 4096), (2, 0, 808)]);
    }
}
