//! Values of options, as users write them; for clap.

use std::time::Duration;

/// Bytes: a number, and K, M, G or T (times 1024 each) with or without `iB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "must be a number of bytes, as in 256MiB")?;
    let power = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" | "B" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return Err(format!("{unit} is not a unit; use K, M, G or T")),
    };
    number.checked_mul(1 << (10 * power)).ok_or_else(|| "too large".to_owned())
}

/// Bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from an even number of hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

/// A round trip; for clap.
pub(crate) fn rtt(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time > Duration::from_secs(1) { Err("it is more than 1s".to_owned()) } else { Ok(time) }
}

/// A length of time that is not nothing; for clap.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("it is no time".to_owned()) } else { Ok(time) }
}
