//! Bytes of keys and values, as findings show them.

/// Hexadecimal digits, for people to read.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
